#include "engine/run/state_image.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "aio/check.h"
#include "engine/run/stored_state.h"
#include "engine/runtime/flat_ranges.h"

namespace sluice::engine {

std::vector<StateImage::Piece> StateImage::pieces_of(const ModelLayout& model,
                                                     const offload::RankPart& ranks) {
  std::vector<Piece> pieces;
  for (int unit = 0; unit < model.units(); ++unit) {
    const UnitLayout& layout = model.layout(unit);
    const offload::UnitShard shard = offload::shard_of(layout.elements, ranks);
    const auto add = [&](const ParameterSpec& parameter, std::uint64_t first,
                         std::uint64_t /*offset*/, std::uint64_t elements) -> Status {
      pieces.push_back({.parameter = &parameter,
                        .first_element = first,
                        .elements = elements,
                        .before = elements_of(pieces)});
      return {};
    };
    if (!layout.parameters.empty())
      static_cast<void>(for_each_parameter(layout, shard.first_element, shard.elements, add));
  }
  return pieces;
}

std::uint64_t StateImage::bytes_for(const ModelLayout& model, const offload::RankPart& ranks,
                                    DType moments) {
  return bytes_for(elements_of(pieces_of(model, ranks)), moments);
}

Result<std::unique_ptr<StateImage>> StateImage::create(SavedRun& run) {
  std::vector<Piece> pieces = pieces_of(run.model(), run.plan().ranks);
  const DType moments = stored_moments(run.plan().types);
  // A rank of many may have no element of a small model.
  const std::uint64_t bytes = std::max<std::uint64_t>(bytes_for(elements_of(pieces), moments), 1);
  SLUICE_ASSIGN_OR_RETURN(auto memory, aio::PageMemory::map(bytes, true, &run.executor()));
  return std::unique_ptr<StateImage>(new StateImage(std::move(pieces), moments, std::move(memory)));
}

StateImage::StateImage(std::vector<Piece> pieces, DType moments, aio::PageMemory memory)
    : pieces_(std::move(pieces)),
      elements_(elements_of(pieces_)),
      moments_(moments),
      memory_(std::move(memory)) {
  for (const Piece& piece : pieces_) piece_of_[piece.parameter] = &piece;
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
    const auto found = piece_of_.find(&parameter);
    SLUICE_CHECK(found != piece_of_.end(), "a state image of another run");
    const Piece& piece = *found->second;
    const std::uint64_t first = piece.before + (state.first_element - piece.first_element);
    for (std::size_t i = 0; i < state.fields.size(); ++i)
      from_floats(dtype_of(i), state.fields[i], bytes(i, first, state.elements()));
    return {};
  };
  const RunState state = run.settled_state();
  SLUICE_RETURN_IF_ERROR(state.optimizer->drain());
  return state.take(take, offload::Calls::kAnyOrder);
}

// Visits slices of one tile, so that the files of all fields are written in step.
Status StateImage::replay(const TakeState& take) const {
  std::vector<float> scratch(offload::kStateFields.size() * offload::kTileElements);
  for (const Piece& piece : pieces_) {
    for (std::uint64_t done = 0; done < piece.elements; done += offload::kTileElements) {
      const std::uint64_t count = std::min(offload::kTileElements, piece.elements - done);
      const auto state = offload::state_slice_in(scratch, piece.first_element + done, count,
                                                 offload::kTileElements);
      for (std::size_t i = 0; i < state.fields.size(); ++i)
        to_floats(dtype_of(i), bytes(i, piece.before + done, count), state.fields[i]);
      SLUICE_RETURN_IF_ERROR(take(*piece.parameter, state));
    }
  }
  return {};
}

}  // namespace sluice::engine
