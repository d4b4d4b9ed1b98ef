// Documents: where the texts of a micro-batch begin, when rows hold several of them one behind the
// other (packing). A token attends to earlier ones of its own document alone, and positions begin
// again at 0 with each. A row begins a document.
//
// Memory:  small tensors on the compute device, made before the step. Threads: they do not change.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace sluice::engine {

struct Documents {
  at::Tensor positions;      // int64 [B, T]: of each token in its document
  at::Tensor starts;         // int32 [documents + 1]: among all B * T tokens; the last is B * T
  std::int64_t longest = 0;  // tokens of a document
  // What rotary frequencies that depend on a text's length (dynamic NTK) count: tokens of each
  // document; or, where rows are padded on the left, the tokens of a row, as transformers does.
  std::vector<std::int64_t> lengths = {};
  std::int64_t padded_tokens = 0;
};

}  // namespace sluice::engine
