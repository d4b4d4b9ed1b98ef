#include "engine/checkpoint/state_pieces.h"

#include <algorithm>
#include <string>

#include "engine/weights/quoting.h"

namespace sluice::engine {
namespace {

bool comes_before(const StatePiece& a, const StatePiece& b) {
  return a.parameter != b.parameter ? a.parameter < b.parameter : a.first_element < b.first_element;
}

}  // namespace

TensorSpec piece_tensor(const TensorInfo& parameter, const StatePiece& piece) {
  if (piece.elements == parameter.elements)
    return {.name = parameter.name, .dtype = parameter.dtype, .shape = parameter.shape};
  return {.name = parameter.name + "[" + std::to_string(piece.first_element) + ":" +
                  std::to_string(piece.end()) + "]",
          .dtype = parameter.dtype,
          .shape = {piece.elements}};
}

Status check_pieces(std::span<const TensorInfo> parameters, std::span<const StatePieces> of_files) {
  const auto refuse = [](std::string what) {
    return Error(ErrorCode::kInvalidArgument, std::move(what));
  };
  StatePieces all;
  for (const StatePieces& pieces : of_files) {
    if (!std::is_sorted(pieces.begin(), pieces.end(), comes_before))
      return refuse("the pieces of a file are not in the order of the parameters");
    all.insert(all.end(), pieces.begin(), pieces.end());
  }
  std::sort(all.begin(), all.end(), comes_before);
  auto next = all.begin();
  for (std::uint64_t number = 0; number < parameters.size(); ++number) {
    const TensorInfo& parameter = parameters[number];
    std::uint64_t done = 0;
    for (; next != all.end() && next->parameter == number; ++next) {
      if (next->first_element != done || next->elements == 0 ||
          next->elements > parameter.elements - done)
        return refuse("a piece of parameter " + in_quotes(parameter.name) + " has " +
                      std::to_string(next->elements) + " elements from " +
                      std::to_string(next->first_element) + " on, where element " +
                      std::to_string(done) + " of " + std::to_string(parameter.elements) +
                      " comes next");
      done += next->elements;
    }
    if (done != parameter.elements)
      return refuse("the pieces of parameter " + in_quotes(parameter.name) + " have " +
                    std::to_string(done) + " of its " + std::to_string(parameter.elements) +
                    " elements");
  }
  if (next != all.end())
    return refuse("there is a piece of parameter " + std::to_string(next->parameter) + ", and " +
                  std::to_string(parameters.size()) + " parameters");
  return {};
}

}  // namespace sluice::engine
