#include "engine/run/state_image.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "aio/check.h"

namespace sluice::engine {

Result<std::unique_ptr<StateImage>> StateImage::create(TrainingRun& run) {
  const std::uint64_t elements = run.model().trained_elements();
  SLUICE_ASSIGN_OR_RETURN(auto memory,
                          aio::PageMemory::map(bytes_for(elements), true, &run.executor()));
  return std::unique_ptr<StateImage>(new StateImage(run.model(), elements, std::move(memory)));
}

StateImage::StateImage(const ModelLayout& model, std::uint64_t elements, aio::PageMemory memory)
    : elements_(elements), memory_(std::move(memory)) {
  std::uint64_t first = 0;
  for (int unit = 0; unit < model.units(); ++unit) {
    for (const ParameterSpec& parameter : model.layout(unit).parameters) {
      places_.push_back({.parameter = &parameter, .first = first});
      first_of_[&parameter] = first;
      first += parameter.elements;
    }
  }
}

std::span<float> StateImage::values(std::size_t field, std::uint64_t first,
                                    std::uint64_t count) const {
  return {reinterpret_cast<float*>(memory_.data()) + field * elements_ + first, count};
}

Status StateImage::copy(TrainingRun& run) {
  const auto take = [this](const TrainingRun::ParameterState& state) -> Status {
    const auto place = first_of_.find(state.parameter);
    SLUICE_CHECK(place != first_of_.end(), "a state image of another run");
    const std::array fields = {state.master, state.exp_avg, state.exp_avg_sq};
    for (std::size_t i = 0; i < fields.size(); ++i) {
      const std::span<float> to = values(i, place->second + state.first, fields[i].size());
      std::copy(fields[i].begin(), fields[i].end(), to.begin());
    }
    return {};
  };
  return run.take_state(take, offload::Calls::kAnyOrder);
}

// In ranges of a tile, so that the three families of files are written side by side.
Status StateImage::replay(const TrainingRun::TakeState& take) const {
  for (const Place& place : places_) {
    const std::uint64_t elements = place.parameter->elements;
    for (std::uint64_t first = 0; first < elements; first += offload::kTileElements) {
      const std::uint64_t count = std::min(offload::kTileElements, elements - first);
      SLUICE_RETURN_IF_ERROR(take({.parameter = place.parameter,
                                   .first = first,
                                   .master = values(0, place.first + first, count),
                                   .exp_avg = values(1, place.first + first, count),
                                   .exp_avg_sq = values(2, place.first + first, count)}));
    }
  }
  return {};
}

}  // namespace sluice::engine
