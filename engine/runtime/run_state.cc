#include "engine/runtime/run_state.h"

#include <mutex>

#include "aio/check.h"
#include "engine/runtime/flat_ranges.h"
#include "engine/step/unit_binding.h"

namespace sluice::engine {

Status take_parameters(const UnitLayout& layout, const offload::StateRange& range,
                       const TakeState& take) {
  return for_each_parameter(layout, range.first_element, range.master.size(),
                            [&](const ParameterSpec& parameter, std::uint64_t first,
                                std::uint64_t offset, std::uint64_t count) -> Status {
                              return take({.parameter = &parameter,
                                           .first = first,
                                           .master = range.master.subspan(offset, count),
                                           .exp_avg = range.m.subspan(offset, count),
                                           .exp_avg_sq = range.v.subspan(offset, count)});
                            });
}

std::uint64_t RunState::elements() const {
  std::uint64_t elements = 0;
  for (int unit = 0; unit < model->units(); ++unit)
    elements += offload::shard_of(model->layout(unit).elements, ranks).elements;
  return elements;
}

Status RunState::fill_range(const Fill& fill, const offload::StateRange& range) const {
  return for_each_parameter(
      model->layout(range.unit), range.first_element, range.master.size(),
      [&](const ParameterSpec& parameter, std::uint64_t first, std::uint64_t offset,
          std::uint64_t count) -> Status {
        return fill({.parameter = parameter,
                     .first = first,
                     .values = {.master = range.master.subspan(offset, count),
                                .exp_avg = range.m.subspan(offset, count),
                                .exp_avg_sq = range.v.subspan(offset, count)}});
      });
}

Status RunState::amend(std::span<const int> units, const Fill& change) const {
  UnitBinding binding({params, this->units}, UnitBinding::Access::kUpdate, *model);
  return optimizer->amend(
      binding, units, [&](const offload::StateRange& range) { return fill_range(change, range); });
}

Status RunState::set(const Fill& fill, offload::Calls calls, const Progress& progress,
                     std::int64_t after_step) const {
  const std::uint64_t total = elements();
  std::uint64_t done = 0;
  std::mutex progress_mutex;  // guards done, and the calls
  UnitBinding binding({params, units}, UnitBinding::Access::kReplace, *model);
  const auto fill_and_count = [&](const offload::StateRange& range) -> Status {
    SLUICE_RETURN_IF_ERROR(fill_range(fill, range));
    const std::lock_guard lock(progress_mutex);
    done += range.master.size();
    return progress ? progress(done, total) : Status();
  };
  return optimizer->restore(binding, fill_and_count, calls, after_step);
}

Status RunState::take(const TakeState& take, offload::Calls calls) const {
  UnitBinding binding({params, units}, UnitBinding::Access::kRead, *model);
  const auto take_range = [&](const offload::StateRange& range) {
    return take_parameters(model->layout(range.unit), range, take);
  };
  return optimizer->snapshot(binding, take_range, calls);
}

}  // namespace sluice::engine
