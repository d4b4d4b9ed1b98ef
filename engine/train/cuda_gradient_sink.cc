#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <array>
#include <utility>

#include "aio/check.h"
#include "aio/units.h"
#include "engine/train/cuda_copy_span.h"
#include "engine/train/cuda_device.h"
#include "offload/grad_stats_cuda.h"
#include "offload/sum_nodes.h"

namespace sluice::engine {
namespace {

constexpr std::uint64_t kAlignmentBytes = 4096;
constexpr std::size_t kStages = 2;  // one is filled while the other is copied away

std::uint64_t bytes_per_element(offload::GradType type) {
  return type == offload::GradType::kFp32 ? 4 : 2;
}

std::uint64_t largest_but_embedding(const GptModel& model) {
  std::uint64_t elements = 0;
  for (int unit = 1; unit < model.units(); ++unit)
    elements = std::max(elements, model.layout(unit).slot_elements);
  return elements;
}

std::uint64_t stage_elements(const GptModel& model) {
  return std::max(largest_but_embedding(model), model.layout(0).elements);
}

// A unit's place on the host: its gradient, and behind it the sums of its squares.
std::uint64_t gradient_bytes(const UnitLayout& layout, offload::GradType type) {
  return align_up(layout.elements * bytes_per_element(type), kAlignmentBytes);
}
std::uint64_t sums_bytes(const UnitLayout& layout) {
  return align_up(offload::sum_node_count(0, layout.elements) * sizeof(double), kAlignmentBytes);
}

at::Tensor on_gpu(std::uint64_t elements, at::ScalarType dtype) {
  return at::zeros({static_cast<std::int64_t>(elements)},
                   at::TensorOptions().dtype(dtype).device(at::kCUDA, c10::cuda::current_device()));
}

class CudaGradientSink final : public GradientSink {
 public:
  CudaGradientSink(const GptModel& model, offload::GradType type, TraceLog* trace,
                   std::unique_ptr<aio::PinnedPool> pool)
      : model_(model),
        type_(type),
        trace_(trace),
        pool_(std::move(pool)),
        host_(pool_->acquire()),
        copies_(c10::cuda::getStreamFromPool(false)),
        embedding_(on_gpu(model.layout(0).slot_elements, at::kFloat)),
        others_(on_gpu(largest_but_embedding(model), at::kFloat)),
        units_(static_cast<std::size_t>(model.units())) {
    const at::ScalarType staged = type == offload::GradType::kFp32 ? at::kFloat : at::kShort;
    for (Stage& stage : stages_) stage.memory = on_gpu(stage_elements(model), staged);
    std::byte* place = host_.bytes().data();
    for (int index = 0; index < model.units(); ++index) {
      const UnitLayout& layout = model.layout(index);
      Unit& unit = at(index);
      unit.accumulators = UnitViews(layout, index == 0 ? embedding_ : others_);
      unit.gradient = place;
      unit.sums = reinterpret_cast<double*>(place + gradient_bytes(layout, type));
      place += gradient_bytes(layout, type) + sums_bytes(layout);
      unit.sum = std::make_unique<offload::SquareSum>(layout.elements);
    }
  }
  ~CudaGradientSink() override { static_cast<void>(cudaStreamSynchronize(copies_.stream())); }

  const UnitViews& open(int index) override {
    Unit& unit = at(index);
    if (!std::exchange(unit.is_open, true)) {
      const at::Tensor& memory = index == 0 ? embedding_ : others_;
      must(cudaMemsetAsync(memory.data_ptr(), 0, model_.layout(index).slot_elements * sizeof(float),
                           compute()));
    }
    return unit.accumulators;
  }

  Status finish(int index) override {
    Unit& unit = at(index);
    SLUICE_CHECK(unit.is_open, "finish() of a unit that is open");
    unit.is_open = false;
    const std::uint64_t elements = model_.layout(index).elements;
    const auto* const from =
        static_cast<const float*>((index == 0 ? embedding_ : others_).data_ptr());
    Stage& stage = stages_[next_stage_++ % kStages];
    stage.copied.block(c10::cuda::getCurrentCUDAStream());
    const bool cast = type_ != offload::GradType::kFp32;
    SLUICE_RETURN_IF_ERROR(offload::cast_and_sum_cuda(
        {.grad = from,
         .to = type_,
         .out = cast ? static_cast<std::uint16_t*>(stage.memory.data_ptr()) : nullptr,
         .first = 0,
         .elements = elements,
         .node_sums = unit.sums},
        compute()));
    const std::uint64_t bytes = elements * bytes_per_element(type_);
    if (!cast)
      must(cudaMemcpyAsync(stage.memory.data_ptr(), from, bytes, cudaMemcpyDeviceToDevice,
                           compute()));
    stage.filled.record(c10::cuda::getCurrentCUDAStream());
    stage.filled.block(copies_);
    const CudaCopySpan span({.trace = trace_,
                             .track = TraceTrack::kD2h,
                             .name = model_.layout(index).name.c_str(),
                             .bytes = bytes},
                            copies_.stream());
    must(cudaMemcpyAsync(unit.gradient, stage.memory.data_ptr(), bytes, cudaMemcpyDeviceToHost,
                         copies_.stream()));
    stage.copied.record(copies_);
    copied_bytes_ += bytes;
    return {};
  }

  Result<GradientTotals> totals() override {
    must(cudaStreamSynchronize(copies_.stream()));
    GradientTotals totals;
    for (int index = 0; index < model_.units(); ++index) {
      Unit& unit = at(index);
      const std::uint64_t elements = model_.layout(index).elements;
      unit.sum->reset(0);
      unit.sum->append_sums(elements, {unit.sums, offload::sum_node_count(0, elements)});
      totals.square_sum += unit.sum->total();
      if (unit.sum->finite()) continue;
      totals.finite = false;
      totals.first_not_finite = index;
    }
    return totals;
  }

  const void* host_gradient(int unit) const override {
    return units_[static_cast<std::size_t>(unit)].gradient;
  }
  std::uint64_t host_bytes() const override { return pool_->buffer_bytes(); }
  std::uint64_t copied_bytes() const override { return copied_bytes_; }

 private:
  struct Unit {
    UnitViews accumulators;
    std::byte* gradient = nullptr;
    double* sums = nullptr;  // written by the GPU
    std::unique_ptr<offload::SquareSum> sum;
    bool is_open = false;
  };
  struct Stage {
    at::Tensor memory;
    at::cuda::CUDAEvent filled;
    at::cuda::CUDAEvent copied;
  };

  static cudaStream_t compute() { return c10::cuda::getCurrentCUDAStream().stream(); }
  static void must(cudaError_t result) { C10_CUDA_CHECK(result); }
  Unit& at(int unit) { return units_[static_cast<std::size_t>(unit)]; }

  const GptModel& model_;
  const offload::GradType type_;
  TraceLog* const trace_;
  const std::unique_ptr<aio::PinnedPool> pool_;
  aio::PinnedPool::Lease host_;
  c10::cuda::CUDAStream copies_;
  at::Tensor embedding_;
  at::Tensor others_;
  std::array<Stage, kStages> stages_;
  std::size_t next_stage_ = 0;
  std::vector<Unit> units_;
  std::uint64_t copied_bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<GradientSink>> make_cuda_gradient_sink(const GptModel& model,
                                                              offload::GradType type,
                                                              TraceLog* trace) {
  SLUICE_ASSIGN_OR_RETURN(
      auto pool, aio::PinnedPool::create({.buffer_bytes = planned_sink_host_bytes(model, type),
                                          .capacity = 1,
                                          .lock = aio::MemoryLock::kNone,
                                          .hook = cuda_pin_hook()}));
  return std::unique_ptr<GradientSink>(
      std::make_unique<CudaGradientSink>(model, type, trace, std::move(pool)));
}

std::uint64_t planned_sink_gpu_bytes(const GptModel& model, offload::GradType type) {
  return (model.layout(0).slot_elements + largest_but_embedding(model)) * sizeof(float) +
         kStages * stage_elements(model) * bytes_per_element(type);
}

std::uint64_t planned_sink_host_bytes(const GptModel& model, offload::GradType type) {
  std::uint64_t total = 0;
  for (int unit = 0; unit < model.units(); ++unit)
    total += gradient_bytes(model.layout(unit), type) + sums_bytes(model.layout(unit));
  return total;
}

}  // namespace sluice::engine
