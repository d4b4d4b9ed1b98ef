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
#include "engine/device/cuda_copy_span.h"
#include "engine/device/gpu.h"
#include "engine/model/zeroed_ranges.h"
#include "engine/step/cuda_step.h"
#include "offload/adamw/grad_stats_cuda.h"
#include "offload/adamw/sum_nodes.h"

namespace sluice::engine {
namespace {

at::Tensor on_gpu(std::uint64_t elements, at::ScalarType dtype) {
  return at::zeros({static_cast<std::int64_t>(elements)},
                   at::TensorOptions().dtype(dtype).device(at::kCUDA, c10::cuda::current_device()));
}

class CudaGradientSink final : public GradientSink {
 public:
  CudaGradientSink(const ModelLayout& model, CudaSinkOptions options,
                   const SinkFootprint& footprint, TraceLog* trace,
                   std::unique_ptr<aio::PinnedPool> pool)
      : model_(model),
        options_(std::move(options)),
        stage_elements_(footprint.stage_bytes() / offload::element_bytes(options_.type)),
        trace_(trace),
        pool_(std::move(pool)),
        host_(pool_->acquire()),
        copies_(c10::cuda::getStreamFromPool(false)),
        shared_(on_gpu(shared_accumulator_elements(model), at::kFloat)),
        kept_(on_gpu(footprint.kept_bytes(), at::kByte)),
        units_(static_cast<std::size_t>(model.units())) {
    for (Stage& stage : stages_) stage.memory = on_gpu(footprint.stage_bytes(), at::kByte);
    std::byte* on_host = host_.bytes().data();
    auto* on_device = static_cast<std::byte*>(kept_.data_ptr());
    for (int index = 0; index < model.units(); ++index) {
      const UnitLayout& layout = model.layout(index);
      Unit& unit = at(index);
      const std::uint64_t own = own_accumulator_elements(model, index);
      unit.flat = own > 0 ? on_gpu(own, at::kFloat) : shared_;
      unit.accumulators = UnitViews(layout, unit.flat);
      unit.zeroed = zeroed_ranges(layout);
      const UnitGradientBytes bytes = unit_gradient_bytes(model, options_.type, index);
      const bool gpu_state = options_.residency.has_gpu_state(index);
      const std::uint64_t host_bytes = SinkFootprint::host_gradient_bytes(
          bytes, gpu_state, options_.residency.has_host_state(index));
      const std::uint64_t kept_bytes = SinkFootprint::kept_bytes(bytes, gpu_state);
      unit.gradient = host_bytes > 0 ? on_host : nullptr;
      unit.kept = kept_bytes > 0 ? on_device : nullptr;
      unit.sums = reinterpret_cast<double*>(on_host + host_bytes);
      on_host += host_bytes + bytes.square_sums;
      on_device += kept_bytes;
      unit.sum = std::make_unique<offload::SquareSum>(layout.elements);
    }
  }
  ~CudaGradientSink() override { static_cast<void>(cudaStreamSynchronize(copies_.stream())); }

  const UnitViews& open(int index) override {
    Unit& unit = at(index);
    if (!std::exchange(unit.is_open, true)) {
      auto* const memory = static_cast<float*>(unit.flat.data_ptr());
      for (const offload::ElementRange& range : unit.zeroed) {
        must(cudaMemsetAsync(memory + range.first, 0, range.elements * sizeof(float), compute()));
      }
    }
    return unit.accumulators;
  }

  Status finish(int index) override {
    Unit& unit = at(index);
    SLUICE_CHECK(unit.is_open, "finish() of a unit that is open");
    unit.is_open = false;
    const std::uint64_t elements = model_.layout(index).elements;
    if (elements == 0) return {};
    const auto* const from = static_cast<const float*>(unit.flat.data_ptr());
    if (unit.kept != nullptr) {  // totals() has seen the copies of the previous step end
      SLUICE_RETURN_IF_ERROR(cast_to(unit.kept, from, unit.sums, elements));
      return unit.gradient == nullptr
                 ? Status()
                 : copy_to_host(index, unit.kept, 0, options_.residency.on_host(index));
    }
    // A stage holds all of it, or whole blocks of the sums.
    for (std::uint64_t first = 0; first < elements; first += stage_elements_) {
      const offload::ElementRange piece = {.first = first,
                                           .elements = std::min(stage_elements_, elements - first)};
      SLUICE_RETURN_IF_ERROR(send(index, from + first, piece));
    }
    return {};
  }

  Result<GradientTotals> totals() override {
    filled_.record(c10::cuda::getCurrentCUDAStream());
    filled_.block(copies_);
    must(cudaStreamSynchronize(copies_.stream()));
    GradientTotals totals;
    for (int index = 0; index < model_.units(); ++index) {
      Unit& unit = at(index);
      const std::uint64_t elements = model_.layout(index).elements;
      if (elements == 0) continue;
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
  const void* device_gradient(int unit) const override {
    return units_[static_cast<std::size_t>(unit)].kept;
  }
  Status read_device(int unit, std::span<std::byte> to) const override {
    SLUICE_CHECK(device_gradient(unit) != nullptr, "a gradient that stays on the GPU");
    must(cudaMemcpy(to.data(), device_gradient(unit), to.size(), cudaMemcpyDeviceToHost));
    return {};
  }
  std::uint64_t host_bytes() const override { return pool_->buffer_bytes(); }
  std::uint64_t copied_bytes() const override { return copied_bytes_; }

 private:
  struct Unit {
    at::Tensor flat;  // fp32; of a unit that lends, its own
    UnitViews accumulators;
    std::vector<offload::ElementRange> zeroed;
    std::byte* gradient = nullptr;  // on the host; null: the GPU updates all of it
    std::byte* kept = nullptr;      // on the GPU; null: none of it
    double* sums = nullptr;         // written by the GPU
    std::unique_ptr<offload::SquareSum> sum;
    bool is_open = false;
  };
  struct Stage {
    at::Tensor memory;
    at::cuda::CUDAEvent copied;
  };

  // A piece of a unit's gradient, through the next stage.
  Status send(int index, const float* from, const offload::ElementRange& piece) {
    Stage& stage = stages_[next_stage_++ % kGradientStages];
    stage.copied.block(c10::cuda::getCurrentCUDAStream());
    auto* const staged = static_cast<std::byte*>(stage.memory.data_ptr());
    double* const sums = at(index).sums + offload::sum_node_count(0, piece.first);
    SLUICE_RETURN_IF_ERROR(cast_to(staged, from, sums, piece.elements));
    const offload::ElementRange whole[] = {piece};
    const std::uint64_t before = piece.first * offload::element_bytes(options_.type);
    SLUICE_RETURN_IF_ERROR(copy_to_host(index, staged, before, whole));
    stage.copied.record(copies_);
    return {};
  }

  // The cast gradient, and the sums of its squares, from a whole block of these on.
  Status cast_to(std::byte* to, const float* from, double* sums, std::uint64_t elements) {
    const bool cast = options_.type != offload::GradType::kFp32;
    SLUICE_RETURN_IF_ERROR(
        offload::cast_and_sum_cuda({.grad = from,
                                    .to = options_.type,
                                    .out = cast ? reinterpret_cast<std::uint16_t*>(to) : nullptr,
                                    .first = 0,
                                    .elements = elements,
                                    .node_sums = sums},
                                   compute()));
    if (!cast)
      must(
          cudaMemcpyAsync(to, from, elements * sizeof(float), cudaMemcpyDeviceToDevice, compute()));
    return {};
  }

  // After what is enqueued now. `from` begins with the unit's byte `before`.
  Status copy_to_host(int index, const std::byte* from, std::uint64_t before,
                      std::span<const offload::ElementRange> ranges) {
    const std::uint64_t width = offload::element_bytes(options_.type);
    std::uint64_t bytes = 0;
    for (const offload::ElementRange& range : ranges) bytes += range.elements * width;
    filled_.record(c10::cuda::getCurrentCUDAStream());
    filled_.block(copies_);
    const CudaCopySpan span({.trace = trace_,
                             .track = TraceTrack::kD2h,
                             .name = model_.layout(index).name.c_str(),
                             .bytes = bytes},
                            copies_.stream());
    for (const offload::ElementRange& range : ranges) {
      const std::uint64_t at_byte = range.first * width;
      must(cudaMemcpyAsync(at(index).gradient + at_byte, from + (at_byte - before),
                           range.elements * width, cudaMemcpyDeviceToHost, copies_.stream()));
    }
    copied_bytes_ += bytes;
    return {};
  }

  static cudaStream_t compute() { return c10::cuda::getCurrentCUDAStream().stream(); }
  static void must(cudaError_t result) { C10_CUDA_CHECK(result); }
  Unit& at(int unit) { return units_[static_cast<std::size_t>(unit)]; }

  const ModelLayout& model_;
  const CudaSinkOptions options_;
  const std::uint64_t stage_elements_;
  TraceLog* const trace_;
  const std::unique_ptr<aio::PinnedPool> pool_;
  aio::PinnedPool::Lease host_;
  c10::cuda::CUDAStream copies_;
  at::Tensor shared_;  // the accumulators of units that lend nothing
  at::Tensor kept_;    // gradients that stay on the GPU, consecutively
  at::cuda::CUDAEvent filled_;
  std::array<Stage, kGradientStages> stages_;
  std::size_t next_stage_ = 0;
  std::vector<Unit> units_;
  std::uint64_t copied_bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<GradientSink>> make_cuda_gradient_sink(const ModelLayout& model,
                                                              const CudaSinkOptions& options,
                                                              TraceLog* trace) {
  const SinkFootprint footprint = SinkFootprint::of(model, options);
  SLUICE_ASSIGN_OR_RETURN(auto pool,
                          aio::PinnedPool::create({.buffer_bytes = footprint.host_bytes(),
                                                   .capacity = 1,
                                                   .lock = aio::MemoryLock::kNone,
                                                   .hook = cuda_pin_hook()}));
  return std::unique_ptr<GradientSink>(
      std::make_unique<CudaGradientSink>(model, options, footprint, trace, std::move(pool)));
}

}  // namespace sluice::engine
