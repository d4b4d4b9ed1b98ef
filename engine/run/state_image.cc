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
      parameters_.push_back({.parameter = &parameter, .first = first});
      first_of_[&parameter] = first;
      first += parameter.elements;
    }
  }
}

std::span<std::byte> StateImage::bytes(std::size_t field, std::uint64_t first,
                                       std::uint64_t count) const {
  std::uint64_t before = 0;
  for (std::size_t i = 0; i < field; ++i) before += elements_ * element_bytes(dtype_of(i));
  const std::uint64_t width = element_bytes(dtype_of(field));
  return memory_.bytes().subspan(before + first * width, count * width);
}

Status StateImage::copy(SavedRun& run) {
  const auto take = [this](const ParameterSpec& parameter,
                           const offload::ConstStateSlice& state) -> Status {
    const auto place = first_of_.find(&parameter);
    SLUICE_CHECK(place != first_of_.end(), "a state image of another run");
    const std::uint64_t first = place->second + state.first_element;
    for (std::size_t i = 0; i < state.fields.size(); ++i)
      from_floats(dtype_of(i), state.fields[i], bytes(i, first, state.elements()));
    return {};
  };
  return run.take_state(take, offload::Calls::kAnyOrder);
}

// Visits slices of one tile, so that the files of all fields are written in step.
Status StateImage::replay(const TakeState& take) const {
  std::vector<float> scratch(offload::kStateFields.size() * offload::kTileElements);
  for (const FlatParameter& it : parameters_) {
    const std::uint64_t elements = it.parameter->elements;
    for (std::uint64_t first = 0; first < elements; first += offload::kTileElements) {
      const std::uint64_t count = std::min(offload::kTileElements, elements - first);
      const auto state = offload::state_slice_in(scratch, first, count, offload::kTileElements);
      for (std::size_t i = 0; i < state.fields.size(); ++i)
        to_floats(dtype_of(i), bytes(i, it.first + first, count), state.fields[i]);
      SLUICE_RETURN_IF_ERROR(take(*it.parameter, state));
    }
  }
  return {};
}

}  // namespace sluice::engine
