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

constexpr int kNoUnit = -1;

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
        fetches_(c10::cuda::getStreamFromPool(false)),
        kept_(on_gpu(footprint.kept_bytes(), at::kByte)),
        units_(static_cast<std::size_t>(model.units())) {
    for (Stage& stage : stages_) stage.memory = on_gpu(footprint.stage_bytes(), at::kByte);
    std::byte* on_host = host_.bytes().data();
    auto* on_device = static_cast<std::byte*>(kept_.data_ptr());
    slots_.resize(static_cast<std::size_t>(footprint.shared_slots()));
    for (Slot& slot : slots_) slot.memory = on_gpu(footprint.shared_elements(), at::kFloat);
    for (int index = 0; index < model.units(); ++index) {
      const UnitLayout& layout = model.layout(index);
      Unit& unit = at(index);
      unit.zeroed = zeroed_ranges(layout);
      const UnitGradientBytes bytes = unit_gradient_bytes(model, options_.type, index);
      const bool gpu_state = options_.residency.has_gpu_state(index);
      const bool host_state = options_.residency.has_host_state(index);
      const std::uint64_t host_bytes = footprint.host_gradient_bytes(bytes, gpu_state, host_state);
      if (!footprint.takes_turns(host_state))
        unit.own_sum = on_gpu(layout.slot_elements, at::kFloat);
      const std::uint64_t kept_bytes = SinkFootprint::kept_bytes(bytes, gpu_state);
      unit.gradient = host_bytes > 0 ? on_host : nullptr;
      unit.kept = kept_bytes > 0 ? on_device : nullptr;
      unit.sums = reinterpret_cast<double*>(on_host + host_bytes);
      on_host += host_bytes + bytes.square_sums;
      on_device += kept_bytes;
      unit.sum = std::make_unique<offload::SquareSum>(layout.elements);
    }
    bind_views();
  }
  ~CudaGradientSink() override {
    static_cast<void>(cudaStreamSynchronize(copies_.stream()));
    static_cast<void>(cudaStreamSynchronize(fetches_.stream()));
  }

  const UnitViews& open(int index) override {
    Unit& unit = at(index);
    SLUICE_CHECK(!unit.is_open, "open() of a unit that is closed");
    unit.is_open = true;
    const bool goes_on = std::exchange(unit.is_kept, false);
    if (goes_on) fetch(index);
    if (!unit.own_sum.defined()) take_slot(index, goes_on);
    const Bound& bound = bound_of(unit);
    if (goes_on) return bound.gradients;
    for (const offload::ElementRange& range : unit.zeroed) {
      must(cudaMemsetAsync(sum_of(unit) + range.first, 0, range.elements * sizeof(float),
                           compute()));
    }
    if (unit.borrowed_sums.defined()) unit.borrowed_sums.zero_();
    return bound.gradients;
  }

  Status keep(int index) override {
    Unit& unit = at(index);
    SLUICE_CHECK(unit.is_open && options_.keeps_sums, "keep() of an open unit, in a step of waves");
    unit.is_open = false;
    unit.is_kept = true;
    if (unit.own_sum.defined()) return {};
    Slot& slot = slot_of(unit);
    const std::uint64_t bytes = model_.layout(index).elements * sizeof(float);
    filled_.record(c10::cuda::getCurrentCUDAStream());
    filled_.block(copies_);
    const CudaCopySpan span({.trace = trace_,
                             .track = TraceTrack::kD2h,
                             .name = model_.layout(index).name.c_str(),
                             .bytes = bytes},
                            copies_.stream());
    must(cudaMemcpyAsync(unit.gradient, slot.memory.data_ptr(), bytes, cudaMemcpyDeviceToHost,
                         copies_.stream()));
    copied_bytes_ += bytes;
    unit.returned.record(copies_);
    slot.free.record(copies_);
    leave_slot(unit);
    return {};
  }

  Status prefetch(int index) override {
    if (at(index).is_kept) fetch(index);
    return {};
  }

  Status finish(int index) override {
    Unit& unit = at(index);
    SLUICE_CHECK(unit.is_open, "finish() of a unit that is open");
    unit.is_open = false;
    const std::uint64_t elements = model_.layout(index).elements;
    const Status sent = elements > 0 ? send_gradient(index, elements) : Status();
    if (unit.own_sum.defined()) return sent;
    slot_of(unit).free.record(c10::cuda::getCurrentCUDAStream());
    leave_slot(unit);
    return sent;
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
  std::uint64_t fetched_bytes() const override { return fetched_bytes_; }

 private:
  struct Bound {
    UnitViews gradients;  // gradient_views()
    BorrowedSums borrowed_by;
  };
  struct Unit {
    at::Tensor own_sum;        // fp32; undefined where it takes turns in the slots
    std::vector<Bound> bound;  // to the slots, or to own_sum
    int slot = kNoUnit;
    at::cuda::CUDAEvent returned;  // the kept sum, to the host
    at::Tensor borrowed_sums;      // fp32; undefined where it borrows nothing
    std::vector<offload::ElementRange> zeroed;
    std::byte* gradient = nullptr;  // on the host; null: the GPU updates all of it
    std::byte* kept = nullptr;      // on the GPU; null: none of it
    double* sums = nullptr;         // written by the GPU
    std::unique_ptr<offload::SquareSum> sum;
    bool is_open = false;
    bool is_kept = false;
  };
  // Accumulators, in which units take turns.
  struct Slot {
    at::Tensor memory;
    int unit = kNoUnit;  // whose sum is there, or on its way there
    std::uint64_t last_use = 0;
    at::cuda::CUDAEvent loaded;
    at::cuda::CUDAEvent free;
  };
  struct Stage {
    at::Tensor memory;
    at::cuda::CUDAEvent copied;
  };

  // Of an open unit, whose sum is complete.
  Status send_gradient(int index, std::uint64_t elements) {
    Unit& unit = at(index);
    bound_of(unit).borrowed_by.take_over();
    const float* const from = sum_of(unit);
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

  // ---- sums, from wave to wave

  static bool is_free(const Slot& slot) { return slot.unit == kNoUnit; }
  Slot& slot_of(const Unit& unit) { return slots_[static_cast<std::size_t>(unit.slot)]; }
  const Bound& bound_of(const Unit& unit) const {
    return unit.bound[unit.slot == kNoUnit ? 0 : static_cast<std::size_t>(unit.slot)];
  }
  float* sum_of(const Unit& unit) {
    const at::Tensor& memory = unit.own_sum.defined() ? unit.own_sum : slot_of(unit).memory;
    return static_cast<float*>(memory.data_ptr());
  }

  // The free slot that was used least recently; kNoUnit: there is none.
  int free_slot() const {
    int best = kNoUnit;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (!is_free(slots_[i])) continue;
      if (best == kNoUnit || slots_[i].last_use < slots_[static_cast<std::size_t>(best)].last_use)
        best = static_cast<int>(i);
    }
    return best;
  }

  void occupy(int index, int slot) {
    at(index).slot = slot;
    slots_[static_cast<std::size_t>(slot)].unit = index;
    slots_[static_cast<std::size_t>(slot)].last_use = ++uses_;
  }
  void leave_slot(Unit& unit) {
    slot_of(unit).unit = kNoUnit;
    unit.slot = kNoUnit;
  }

  // For what is enqueued next. A sum that comes from the host is on its way.
  void take_slot(int index, bool is_fetched) {
    Unit& unit = at(index);
    if (!is_fetched) {
      const int slot = free_slot();
      SLUICE_CHECK(slot != kNoUnit, "one unit at a time accumulates");
      occupy(index, slot);
    }
    Slot& slot = slot_of(unit);
    (is_fetched ? slot.loaded : slot.free).block(c10::cuda::getCurrentCUDAStream());
  }

  // Begins to bring a kept sum back, unless it is on the GPU, on its way, or no slot is free.
  void fetch(int index) {
    Unit& unit = at(index);
    if (unit.own_sum.defined() || unit.slot != kNoUnit) return;
    const int free = free_slot();
    if (free == kNoUnit) return;
    occupy(index, free);
    Slot& slot = slot_of(unit);
    const std::uint64_t bytes = model_.layout(index).elements * sizeof(float);
    slot.free.block(fetches_);
    unit.returned.block(fetches_);
    const CudaCopySpan span({.trace = trace_,
                             .track = TraceTrack::kH2d,
                             .name = model_.layout(index).name.c_str(),
                             .bytes = bytes},
                            fetches_.stream());
    must(cudaMemcpyAsync(slot.memory.data_ptr(), unit.gradient, bytes, cudaMemcpyHostToDevice,
                         fetches_.stream()));
    fetched_bytes_ += bytes;
    slot.loaded.record(fetches_);
  }

  // Every unit's views in each slot that it may be in.
  void bind_views() {
    std::vector<UnitViews> borrowed(units_.size());
    for (int index = 0; index < model_.units(); ++index) {
      const UnitLayout& sums = model_.borrowed_sums(index);
      if (sums.slot_elements == 0) continue;
      at(index).borrowed_sums = on_gpu(sums.slot_elements, at::kFloat);
      borrowed[static_cast<std::size_t>(index)] = UnitViews(sums, at(index).borrowed_sums);
    }
    for (int index = 0; index < model_.units(); ++index) {
      Unit& unit = at(index);
      const std::size_t places = unit.own_sum.defined() ? 1 : slots_.size();
      for (std::size_t i = 0; i < places; ++i) {
        const UnitViews own(model_.layout(index),
                            unit.own_sum.defined() ? unit.own_sum : slots_[i].memory);
        Bound& bound = unit.bound.emplace_back();
        bound.gradients =
            gradient_views(model_, index, own, borrowed[static_cast<std::size_t>(index)]);
        for (int borrower = 0; borrower < model_.units(); ++borrower)
          bound.borrowed_by.add(model_, index, own, borrower,
                                borrowed[static_cast<std::size_t>(borrower)]);
      }
    }
  }

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
  c10::cuda::CUDAStream copies_;   // to the host
  c10::cuda::CUDAStream fetches_;  // from it
  at::Tensor kept_;                // gradients that stay on the GPU, consecutively
  at::cuda::CUDAEvent filled_;
  std::vector<Slot> slots_;
  std::uint64_t uses_ = 0;
  std::array<Stage, kGradientStages> stages_;
  std::size_t next_stage_ = 0;
  std::vector<Unit> units_;
  std::uint64_t copied_bytes_ = 0;
  std::uint64_t fetched_bytes_ = 0;
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
