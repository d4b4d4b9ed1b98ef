#include "engine/runtime/run_state.h"

#include <mutex>

#include "aio/check.h"
#include "engine/runtime/flat_ranges.h"
#include "engine/step/unit_binding.h"

namespace sluice::engine {

namespace {

// Visits the part of each parameter in a slice of a unit.
template <typename Visit>
Status for_each_part(const UnitLayout& layout, const offload::StateSlice& slice,
                     const Visit& visit) {
  return for_each_parameter(
      layout, slice.first_element, slice.elements(),
      [&](const ParameterSpec& parameter, std::uint64_t first, std::uint64_t offset,
          std::uint64_t count) { return visit(parameter, slice.part(offset, count, first)); });
}

}  // namespace

Status take_parameters(const UnitLayout& layout, const offload::StateSlice& slice,
                       const TakeState& take) {
  return for_each_part(layout, slice, take);
}

std::uint64_t RunState::elements() const {
  std::uint64_t elements = 0;
  for (int unit = 0; unit < model->units(); ++unit)
    elements += offload::shard_of(model->layout(unit).elements, ranks).elements;
  return elements;
}

Status RunState::amend(std::span<const int> units, const Fill& change) const {
  UnitBinding binding({params, this->units}, UnitBinding::Access::kUpdate, *model);
  return optimizer->amend(binding, units, [&](int unit, const offload::StateSlice& slice) {
    return for_each_part(model->layout(unit), slice, change);
  });
}

Status RunState::set(const Fill& fill, offload::Calls calls, const Progress& progress,
                     std::int64_t after_step) const {
  const std::uint64_t total = elements();
  std::uint64_t done = 0;
  std::mutex progress_mutex;  // guards done, and serializes progress()
  UnitBinding binding({params, units}, UnitBinding::Access::kReplace, *model);
  const auto fill_and_count = [&](int unit, const offload::StateSlice& slice) -> Status {
    SLUICE_RETURN_IF_ERROR(for_each_part(model->layout(unit), slice, fill));
    const std::lock_guard lock(progress_mutex);
    done += slice.elements();
    return progress ? progress(done, total) : Status();
  };
  return optimizer->restore(binding, fill_and_count, calls, after_step);
}

Status RunState::take(const TakeState& take, offload::Calls calls) const {
  UnitBinding binding({params, units}, UnitBinding::Access::kRead, *model);
  const auto take_slice = [&](int unit, const offload::StateSlice& slice) {
    return take_parameters(model->layout(unit), slice, take);
  };
  return optimizer->snapshot(binding, take_slice, calls);
}

}  // namespace sluice::engine
