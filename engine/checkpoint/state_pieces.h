// StatePiece: consecutive elements of one parameter, as one of a checkpoint's writers has them. A
// checkpoint's place is a parameter and an element in it, never a rank: pieces of any number of
// writers make up the same state.
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
  std::uint64_t parameter = 0;  // its number in flat order
  std::uint64_t first_element = 0;
  std::uint64_t elements = 0;

  std::uint64_t end() const { return first_element + elements; }
  friend bool operator==(const StatePiece&, const StatePiece&) = default;
};
// Of one writer, or of one file, in ascending order.
using StatePieces = std::vector<StatePiece>;

// How a file holds it: a whole parameter as it is, a part of "wte.weight" as "wte.weight[100:164]"
// with the shape [64].
TensorSpec piece_tensor(const TensorInfo& parameter, const StatePiece& piece);

// That every element of every parameter is in exactly one of the pieces, and none of them is empty
// or out of order. kInvalidArgument: a sentence that names the parameter.
Status check_pieces(std::span<const TensorInfo> parameters, std::span<const StatePieces> of_files);

}  // namespace sluice::engine
