#include "engine/step/cuda_accumulators.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include "engine/model/zeroed_ranges.h"

namespace sluice::engine {
namespace {

at::TensorOptions gpu_floats() {
  return at::TensorOptions().dtype(at::kFloat).device(at::kCUDA, c10::cuda::current_device());
}

at::Tensor zeroed_floats(std::uint64_t elements) {
  return at::zeros({static_cast<std::int64_t>(elements)}, gpu_floats());
}

}  // namespace

at::Tensor floats_at(float* first, std::uint64_t elements) {
  return at::from_blob(first, {static_cast<std::int64_t>(elements)}, gpu_floats());
}

CudaAccumulators::CudaAccumulators(const ModelLayout& model, const CudaSinkOptions& options,
                                   const SinkFootprint& footprint)
    : model_(model),
      levels_(options.sums.levels),
      roots_(options.order.roots()),
      ranks_(options.ranks.world),
      slot_stride_(footprint.shared_elements() / static_cast<std::uint64_t>(levels_)),
      units_(static_cast<std::size_t>(model.units())),
      slots_(static_cast<std::size_t>(footprint.shared_slots())) {
  for (Slot& slot : slots_) slot.memory = zeroed_floats(footprint.shared_elements());
  for (int index = 0; index < model.units(); ++index) {
    Unit& unit = at(index);
    unit.zeroed = zeroed_ranges(model.layout(index));
    if (!footprint.takes_turns(options.residency.has_host_state(index)))
      unit.own_sums = zeroed_floats(static_cast<std::uint64_t>(levels_) * elements_of_place(index));
    const std::uint64_t borrowed = model.borrowed_sums(index).slot_elements;
    if (borrowed > 0)
      unit.borrowed_sums = zeroed_floats(static_cast<std::uint64_t>(levels_) * borrowed);
  }
  for (int index = 0; index < model.units(); ++index) {
    const at::Tensor& own = at(index).own_sums;
    if (own.defined())
      bind(index, own, elements_of_place(index));
    else
      for (const Slot& slot : slots_) bind(index, slot.memory, slot_stride_);
  }
}

bool CudaAccumulators::occupy(int unit) {
  int best = kNoSlot;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].is_free) continue;
    if (best == kNoSlot || slots_[i].last_use < slots_[static_cast<std::size_t>(best)].last_use)
      best = static_cast<int>(i);
  }
  if (best == kNoSlot) return false;
  at(unit).slot = best;
  slot_of(unit).is_free = false;
  slot_of(unit).last_use = ++uses_;
  return true;
}

void CudaAccumulators::leave(int unit) {
  slot_of(unit).is_free = true;
  at(unit).slot = kNoSlot;
}

float* CudaAccumulators::sum(int unit, int level) {
  const bool is_own = has_own_place(unit);
  const at::Tensor& memory = is_own ? at(unit).own_sums : slot_of(unit).memory;
  const std::uint64_t stride = is_own ? elements_of_place(unit) : slot_stride_;
  return static_cast<float*>(memory.data_ptr()) + static_cast<std::uint64_t>(level) * stride;
}

void CudaAccumulators::zero(int unit, int level) {
  if (model_.layout(unit).slot_elements > 0) {
    float* const first = sum(unit, level);
    for (const offload::ElementRange& range : at(unit).zeroed)
      C10_CUDA_CHECK(cudaMemsetAsync(first + range.first, 0, range.elements * sizeof(float),
                                     c10::cuda::getCurrentCUDAStream().stream()));
  }
  if (at(unit).borrowed_sums.defined()) borrowed_sum(unit, level).zero_();
}

void CudaAccumulators::fold(int unit, int level) {
  const std::uint64_t elements = model_.layout(unit).slot_elements;
  if (elements > 0)
    floats_at(sum(unit, level - 1), elements).add_(floats_at(sum(unit, level), elements));
  if (at(unit).borrowed_sums.defined())
    borrowed_sum(unit, level - 1).add_(borrowed_sum(unit, level));
}

void CudaAccumulators::bind(int unit, const at::Tensor& place, std::uint64_t stride) {
  const UnitLayout& layout = model_.layout(unit);
  const UnitLayout& of_borrowed = model_.borrowed_sums(unit);
  Bound& bound = at(unit).bound.emplace_back();
  auto* const first = static_cast<float*>(place.data_ptr());
  for (int level = 0; level < levels_; ++level) {
    const UnitViews own =
        layout.parameters.empty()
            ? UnitViews()
            : UnitViews(layout, floats_at(first + static_cast<std::uint64_t>(level) * stride,
                                          layout.slot_elements));
    const UnitViews sums = of_borrowed.slot_elements > 0
                               ? UnitViews(of_borrowed, borrowed_sum(unit, level))
                               : UnitViews();
    bound.gradients.push_back(gradient_views(model_, unit, own, sums));
    if (level >= roots_ || BorrowedSums::borrowers(model_, unit).empty()) continue;
    bound.borrowed_by.push_back(BorrowedSums::of(model_, unit, own, [&](int borrower) {
      return UnitViews(model_.borrowed_sums(borrower), borrowed_sum(borrower, level));
    }));
  }
}

at::Tensor CudaAccumulators::borrowed_sum(int unit, int level) {
  const std::uint64_t elements = model_.borrowed_sums(unit).slot_elements;
  auto* const first = static_cast<float*>(at(unit).borrowed_sums.data_ptr());
  return floats_at(first + static_cast<std::uint64_t>(level) * elements, elements);
}

std::uint64_t CudaAccumulators::elements_of_place(int unit) const {
  return place_elements(model_.layout(unit), ranks_);
}

}  // namespace sluice::engine
