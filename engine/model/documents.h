// Documents: where the documents of a micro-batch begin, if rows hold several of them in a sequence
// (packing). A token attends only to earlier tokens of its own document, and positions restart at 0
// in each document. Each row begins a new document.
//
// Memory:  small tensors on the compute device, made before the step. Threads: immutable.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace sluice::engine {

struct Documents {
  at::Tensor positions;      // int64 [B, T]: in the token's document
  at::Tensor starts;         // int32 [documents + 1]: among all B * T tokens; the last is B * T
  std::int64_t longest = 0;  // of the longest document.
  // Lengths for rotary frequencies that depend on them (dynamic NTK, longrope): the tokens of each
  // document. If rows are padded on the left, these are the tokens of a row, as in transformers.
  std::vector<std::int64_t> lengths = {};
  std::int64_t padded_tokens = 0;
};

}  // namespace sluice::engine
