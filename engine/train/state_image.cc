#include "engine/train/state_image.h"

#include <algorithm>
#include <utility>

#include "aio/check.h"

namespace sluice::engine {

Result<std::unique_ptr<StateImage>> StateImage::create(std::uint64_t elements) {
  SLUICE_ASSIGN_OR_RETURN(auto memory, aio::PageMemory::map(bytes_for(elements), true));
  return std::unique_ptr<StateImage>(new StateImage(std::move(memory), elements));
}

std::span<float> StateImage::values(std::uint64_t first, std::uint64_t count) const {
  return {reinterpret_cast<float*>(memory_.data()) + first, count};
}

// A range's master weights and moments lie one behind the other.
Status StateImage::copy(TrainingRun& run) {
  ranges_.clear();
  std::uint64_t used = 0;
  return run.take_state([&](const TrainingRun::ParameterState& state) -> Status {
    const std::uint64_t count = state.master.size();
    SLUICE_CHECK(used + count <= capacity_, "a state image is too small for its run");
    for (std::uint64_t i = 0; const auto& from : {state.master, state.exp_avg, state.exp_avg_sq}) {
      const std::span<float> to = values(3 * used + i++ * count, count);
      std::copy(from.begin(), from.end(), to.begin());
    }
    ranges_.push_back({.parameter = state.parameter, .first = state.first, .elements = count});
    used += count;
    return {};
  });
}

Status StateImage::replay(const TrainingRun::TakeState& take) const {
  std::uint64_t used = 0;
  for (const Range& range : ranges_) {
    const std::uint64_t count = range.elements;
    SLUICE_RETURN_IF_ERROR(take({.parameter = range.parameter,
                                 .first = range.first,
                                 .master = values(3 * used, count),
                                 .exp_avg = values(3 * used + count, count),
                                 .exp_avg_sq = values(3 * used + 2 * count, count)}));
    used += count;
  }
  return {};
}

}  // namespace sluice::engine
