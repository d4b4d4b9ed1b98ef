#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "aio/check.h"
#include "aio/units.h"
#include "engine/train/cuda_copy_span.h"
#include "engine/train/cuda_device.h"

namespace sluice::engine {
namespace {

using offload::ParamOffloader;

constexpr int kNobody = -1;

// Which slots a unit may lie in.
enum Class : int { kEmbedding, kBlocks, kHead, kClasses };

Class class_of(const GptModel& model, int unit) {
  if (unit == 0) return kEmbedding;
  return unit == model.head_index() ? kHead : kBlocks;
}

int slots_of(const GptModel& model, Class of, int block_slots) {
  return of == kBlocks ? std::min(block_slots, model.head_index() - 1) : 1;
}

class CudaUnitParameters final : public UnitParameters {
 public:
  CudaUnitParameters(const GptModel& model, const CudaSlotOptions& options, ParamOffloader& params,
                     TraceLog* trace)
      : model_(model),
        block_slots_(options.block_slots),
        params_(params),
        trace_(trace),
        copies_(c10::cuda::getStreamFromPool(true)) {
    const at::Device device(at::kCUDA, c10::cuda::current_device());
    for (int unit = 0; unit < model.units(); ++unit)
      units_.push_back(
          {std::make_unique<SlotStorage>(model.layout(unit), options.dtype, device), kNobody});
    for (const Class of : {kEmbedding, kBlocks, kHead}) {
      std::int64_t bytes = 0;
      for (int unit = 0; unit < model.units(); ++unit) {
        if (class_of(model, unit) == of)
          bytes = std::max(bytes, static_cast<std::int64_t>(unit_at(unit).storage->bytes()));
      }
      for (int i = 0; i < slots_of(model, of, options.block_slots); ++i) {
        slots_.push_back(std::make_unique<Slot>());
        slots_.back()->of = of;
        slots_.back()->memory =
            at::zeros({bytes}, at::TensorOptions().dtype(at::kByte).device(device));
      }
    }
  }

  // Its host functions hold leases of the offloader.
  ~CudaUnitParameters() override { static_cast<void>(cudaStreamSynchronize(copies_.stream())); }

  Status prefetch(int unit) override {
    const int there = find(unit);
    if (there != kNobody) {
      slot_at(there).last_use = ++uses_;  // it is wanted sooner than those used since
      return {};
    }
    if (!params_.in_memory(unit)) {
      params_.prefetch(unit);
      return {};
    }
    const int index = free_slot(class_of(model_, unit));
    return index == kNobody ? Status() : load(unit, index);
  }

  Result<const UnitViews*> acquire(int unit) override {
    int index = find(unit);
    if (index == kNobody) {
      index = free_slot(class_of(model_, unit));
      SLUICE_CHECK(index != kNobody,
                   "a slot that is free: no more units are acquired than there are");
      SLUICE_RETURN_IF_ERROR(load(unit, index));
    }
    Slot& slot = slot_at(index);
    slot.loaded.block(c10::cuda::getCurrentCUDAStream());
    slot.acquired = true;
    slot.last_use = ++uses_;
    unit_at(unit).slot = index;
    unit_at(unit).storage->acquire(slot.memory.data_ptr());
    return &unit_at(unit).storage->views();
  }

  void release(int unit) override {
    Slot& slot = slot_at(std::exchange(unit_at(unit).slot, kNobody));
    unit_at(unit).storage->release();
    slot.used.record(c10::cuda::getCurrentCUDAStream());
    slot.acquired = false;
  }

  bool keeps(int unit) const override {
    if (class_of(model_, unit) != kBlocks) return true;
    return unit >= model_.head_index() - slots_of(model_, kBlocks, block_slots_);
  }
  void changed() override {
    for (auto& slot : slots_) slot->unit = kNobody;
  }
  std::uint64_t copied_bytes() const override { return copied_bytes_; }

 private:
  struct Slot {
    Class of = kBlocks;
    at::Tensor memory;
    int unit = kNobody;  // whose newest parameters it holds
    bool acquired = false;
    std::uint64_t last_use = 0;
    at::cuda::CUDAEvent loaded;
    at::cuda::CUDAEvent used;
  };
  struct Unit {
    std::unique_ptr<SlotStorage> storage;
    int slot = kNobody;  // while acquired
  };

  Slot& slot_at(int index) { return *slots_[static_cast<std::size_t>(index)]; }
  Unit& unit_at(int unit) { return units_[static_cast<std::size_t>(unit)]; }

  int find(int unit) const {
    for (std::size_t i = 0; i < slots_.size(); ++i)
      if (slots_[i]->unit == unit) return static_cast<int>(i);
    return kNobody;
  }

  // The one that was used longest ago.
  int free_slot(Class of) const {
    int best = kNobody;
    std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const Slot& slot = *slots_[i];
      if (slot.of != of || slot.acquired || slot.last_use >= oldest) continue;
      best = static_cast<int>(i);
      oldest = slot.last_use;
    }
    return best;
  }

  Status load(int unit, int index) {
    SLUICE_ASSIGN_OR_RETURN(auto lease, params_.acquire(unit, ParamOffloader::Access::kRead));
    Slot& slot = slot_at(index);
    slot.used.block(copies_);  // nothing, where it was never used
    const std::size_t bytes = lease.bytes().size();
    {
      const CudaCopySpan span({.trace = trace_,
                               .track = TraceTrack::kH2d,
                               .name = model_.layout(unit).name.c_str(),
                               .bytes = bytes},
                              copies_.stream());
      const cudaError_t copied = cudaMemcpyAsync(slot.memory.data_ptr(), lease.bytes().data(),
                                                 bytes, cudaMemcpyHostToDevice, copies_.stream());
      if (copied != cudaSuccess) {
        return Error(ErrorCode::kInternal, "copying the parameters of " + model_.layout(unit).name +
                                               " to the GPU failed: " + cudaGetErrorString(copied));
      }
      slot.loaded.record(copies_);
    }
    slot.unit = unit;
    slot.last_use = ++uses_;
    copied_bytes_ += bytes;
    // The host's copy may change only when the GPU has it.
    auto held = std::make_unique<ParamOffloader::Lease>(std::move(lease));
    const cudaError_t enqueued = cudaLaunchHostFunc(
        copies_.stream(), [](void* it) noexcept { delete static_cast<ParamOffloader::Lease*>(it); },
        held.get());
    if (enqueued == cudaSuccess) {
      static_cast<void>(held.release());
    } else {
      static_cast<void>(cudaStreamSynchronize(copies_.stream()));
    }
    return {};
  }

  const GptModel& model_;
  const int block_slots_;
  ParamOffloader& params_;
  TraceLog* const trace_;
  c10::cuda::CUDAStream copies_;
  std::vector<Unit> units_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::uint64_t uses_ = 0;
  std::uint64_t copied_bytes_ = 0;
};

class CudaPhaseClock final : public PhaseClock {
 public:
  CudaPhaseClock() {
    for (auto& mark : marks_) mark = at::cuda::CUDAEvent(cudaEventDefault);
  }
  void mark(int index) override {
    marks_[static_cast<std::size_t>(index)].record(c10::cuda::getCurrentCUDAStream());
  }
  std::int64_t elapsed_ns(int from, int to) override {
    marks_[static_cast<std::size_t>(to)].synchronize();
    return static_cast<std::int64_t>(1e6F * marks_[static_cast<std::size_t>(from)].elapsed_time(
                                                marks_[static_cast<std::size_t>(to)]));
  }

  void stamp(std::int64_t* where) override {
    C10_CUDA_CHECK(cudaLaunchHostFunc(
        c10::cuda::getCurrentCUDAStream().stream(),
        [](void* it) noexcept { *static_cast<std::int64_t*>(it) = SteadyClock().now_ns(); },
        where));
  }

 private:
  std::array<at::cuda::CUDAEvent, kMarks> marks_;
};

}  // namespace

Result<std::unique_ptr<UnitParameters>> make_cuda_unit_parameters(const GptModel& model,
                                                                  const CudaSlotOptions& options,
                                                                  ParamOffloader& params,
                                                                  TraceLog* trace) {
  return std::unique_ptr<UnitParameters>(
      std::make_unique<CudaUnitParameters>(model, options, params, trace));
}

std::uint64_t planned_slot_bytes(const GptModel& model, const CudaSlotOptions& options) {
  const std::uint64_t element_bytes = options.dtype == at::kFloat ? 4 : 2;
  std::uint64_t total = 0;
  for (const Class of : {kEmbedding, kBlocks, kHead}) {
    std::uint64_t largest = 0;
    for (int unit = 0; unit < model.units(); ++unit)
      if (class_of(model, unit) == of)
        largest = std::max(largest, model.layout(unit).slot_elements);
    total += largest * element_bytes *
             static_cast<std::uint64_t>(slots_of(model, of, options.block_slots));
  }
  return total;
}

std::unique_ptr<PhaseClock> make_cuda_phase_clock() { return std::make_unique<CudaPhaseClock>(); }

std::uint64_t cuda_peak_bytes() {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(c10::cuda::current_device());
  return static_cast<std::uint64_t>(stats.reserved_bytes[0].peak);
}

std::optional<GpuMemory> cuda_memory() {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return std::nullopt;
  }
  return GpuMemory{.free_bytes = free_bytes, .total_bytes = total_bytes};
}

aio::PinHook cuda_pin_hook() {
  return {.pin = [](std::span<std::byte> memory) -> Status {
            const cudaError_t pinned =
                cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterDefault);
            if (pinned == cudaSuccess) return {};
            static_cast<void>(cudaGetLastError());
            return Error(ErrorCode::kOutOfMemory,
                         "pinning " + format_bytes(memory.size()) +
                             " of host memory for the GPU failed: " + cudaGetErrorString(pinned));
          },
          .unpin =
              [](std::span<std::byte> memory) {
                static_cast<void>(cudaHostUnregister(memory.data()));
              }};
}

}  // namespace sluice::engine
