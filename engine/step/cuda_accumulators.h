// CudaAccumulators: fp32 sums of units' gradients on the GPU. A unit either has its own place or
// shares slots with others. The sums for parameters that it borrows have their own memory. Each
// unit's views are made once for every place that it can occupy.
//
// A slot's events say when its sums have arrived and when they may be overwritten. The code that
// copies sums in or out records these events and waits for them.
//
// Memory:  on the current GPU, as SinkFootprint counts it.
// Threads: the training thread; additions are enqueued on the current stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAEvent.h>

#include <cstdint>
#include <vector>

#include "engine/budget/gpu_plan.h"
#include "engine/model/model_layout.h"
#include "engine/model/unit_views.h"
#include "engine/step/gradient_sink.h"

namespace sluice::engine {

// A tensor over memory of the current GPU that another tensor owns.
at::Tensor floats_at(float* first, std::uint64_t elements);

class CudaAccumulators {
 public:
  // `model` must outlive it.
  CudaAccumulators(const ModelLayout& model, const CudaSinkOptions& options,
                   const SinkFootprint& footprint);
  CudaAccumulators(const CudaAccumulators&) = delete;
  CudaAccumulators& operator=(const CudaAccumulators&) = delete;

  bool has_own_place(int unit) const { return at(unit).own_sums.defined(); }
  bool in_slot(int unit) const { return at(unit).slot != kNoSlot; }
  // Assigns the least recently used free slot to a unit without its own place. False: no slot is
  // free.
  bool occupy(int unit);
  void leave(int unit);
  // Events of the slot that the unit occupies.
  at::cuda::CUDAEvent& loaded(int unit) { return slot_of(unit).loaded; }
  at::cuda::CUDAEvent& free(int unit) { return slot_of(unit).free; }

  // These require that the unit has a place. Levels are those of offload::SumOrder.
  float* sum(int unit, int level);
  const UnitViews& views(int unit, int level) const {  // gradient_views()
    return bound(unit).gradients[static_cast<std::size_t>(level)];
  }
  // By root; empty if the unit lends nothing.
  const std::vector<BorrowedSums>& borrowed_by(int unit) const { return bound(unit).borrowed_by; }
  void zero(int unit, int level);
  void fold(int unit, int level);

 private:
  static constexpr int kNoSlot = -1;

  // A unit's views in one of its possible places.
  struct Bound {
    std::vector<UnitViews> gradients;       // by level
    std::vector<BorrowedSums> borrowed_by;  // by root
  };
  struct Unit {
    at::Tensor own_sums;       // undefined if the unit shares slots
    at::Tensor borrowed_sums;  // undefined if the unit borrows nothing
    std::vector<Bound> bound;  // to each slot, or to own_sums
    std::vector<offload::ElementRange> zeroed;
    int slot = kNoSlot;
  };
  struct Slot {
    at::Tensor memory;
    bool is_free = true;
    std::uint64_t last_use = 0;
    at::cuda::CUDAEvent loaded;
    at::cuda::CUDAEvent free;
  };

  void bind(int unit, const at::Tensor& place, std::uint64_t stride);
  at::Tensor borrowed_sum(int unit, int level);
  std::uint64_t elements_of_place(int unit) const;
  const Bound& bound(int unit) const {
    const Unit& it = at(unit);
    return it.bound[it.slot == kNoSlot ? 0 : static_cast<std::size_t>(it.slot)];
  }
  Unit& at(int unit) { return units_[static_cast<std::size_t>(unit)]; }
  const Unit& at(int unit) const { return units_[static_cast<std::size_t>(unit)]; }
  Slot& slot_of(int unit) { return slots_[static_cast<std::size_t>(at(unit).slot)]; }

  const ModelLayout& model_;
  const int levels_;
  const int roots_;
  const int ranks_;
  const std::uint64_t slot_stride_;  // elements between the sums of neighbouring levels
  std::vector<Unit> units_;
  std::vector<Slot> slots_;
  std::uint64_t uses_ = 0;
};

}  // namespace sluice::engine
