#include "engine/run/state_image.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "aio/check.h"
#include "engine/run/stored_state.h"

namespace sluice::engine {

Result<std::unique_ptr<StateImage>> StateImage::create(SavedRun& run) {
  const std::uint64_t elements = run.model().trained_elements();
  const DType moments = stored_moments(run.plan().types);
  SLUICE_ASSIGN_OR_RETURN(
      auto memory, aio::PageMemory::map(bytes_for(elements, moments), true, &run.executor()));
  return std::unique_ptr<StateImage>(
      new StateImage(run.model(), elements, moments, std::move(memory)));
}

StateImage::StateImage(const ModelLayout& model, std::uint64_t elements, DType moments,
                       aio::PageMemory memory)
    : elements_(elements), moments_(moments), memory_(std::move(memory)) {
  std::uint64_t first = 0;
  for (int unit = 0; unit < model.units(); ++unit) {
    for (const ParameterSpec& parameter : model.layout(unit).parameters) {
      places_.push_back({.parameter = &parameter, .first = first});
      first_of_[&parameter] = first;
      first += parameter.elements;
    }
  }
}

std::span<std::byte> StateImage::bytes(std::size_t field, std::uint64_t first,
                                       std::uint64_t count) const {
  const std::uint64_t width = element_bytes(dtype_of(field));
  const std::uint64_t masters = field == 0 ? 0 : elements_ * sizeof(float);
  const std::uint64_t before = masters + (field == 2 ? elements_ * width : 0);
  return memory_.bytes().subspan(before + first * width, count * width);
}

Status StateImage::copy(SavedRun& run) {
  const auto take = [this](const ParameterState& state) -> Status {
    const auto place = first_of_.find(state.parameter);
    SLUICE_CHECK(place != first_of_.end(), "a state image of another run");
    const std::array fields = {state.master, state.exp_avg, state.exp_avg_sq};
    for (std::size_t i = 0; i < fields.size(); ++i) {
      from_floats(dtype_of(i), fields[i], bytes(i, place->second + state.first, fields[i].size()));
    }
    return {};
  };
  return run.take_state(take, offload::Calls::kAnyOrder);
}

// In ranges of a tile, so that the three families of files are written side by side.
Status StateImage::replay(const TakeState& take) const {
  std::array<std::vector<float>, 3> scratch;
  for (std::vector<float>& values : scratch) values.resize(offload::kTileElements);
  for (const Place& place : places_) {
    const std::uint64_t elements = place.parameter->elements;
    for (std::uint64_t first = 0; first < elements; first += offload::kTileElements) {
      const std::uint64_t count = std::min(offload::kTileElements, elements - first);
      const auto values = [&](std::size_t field) {
        const std::span<float> floats = std::span(scratch[field]).first(count);
        to_floats(dtype_of(field), bytes(field, place.first + first, count), floats);
        return floats;
      };
      SLUICE_RETURN_IF_ERROR(take({.parameter = place.parameter,
                                   .first = first,
                                   .master = values(0),
                                   .exp_avg = values(1),
                                   .exp_avg_sq = values(2)}));
    }
  }
  return {};
}

}  // namespace sluice::engine
