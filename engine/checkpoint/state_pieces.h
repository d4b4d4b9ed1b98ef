// StatePiece: consecutive elements of one parameter that one writer of a checkpoint has. State is
// located by parameter and element, never by rank: the pieces of any number of writers make up the
// same state.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "aio/result.h"
#include "engine/weights/safetensors_header.h"

namespace sluice::engine {

struct StatePiece {
  std::uint64_t parameter = 0;  // index in flat order
  std::uint64_t first_element = 0;
  std::uint64_t elements = 0;

  std::uint64_t end() const { return first_element + elements; }
  friend bool operator==(const StatePiece&, const StatePiece&) = default;
};
// The pieces of one writer or one file, in ascending order.
using StatePieces = std::vector<StatePiece>;

// The tensor that stores a piece. A whole parameter keeps its name and shape; a part of
// "wte.weight" is "wte.weight[100:164]" with shape [64].
TensorSpec piece_tensor(const TensorInfo& parameter, const StatePiece& piece);

// Checks that the pieces cover every element of every parameter exactly once, and that none is
// empty or out of order. kInvalidArgument: a sentence that names the parameter.
Status check_pieces(std::span<const TensorInfo> parameters, std::span<const StatePieces> of_files);

}  // namespace sluice::engine
