// Documents: where the texts of a micro-batch begin, when rows hold several of them one behind the
// other (packing). A token attends to earlier ones of its own document alone, and positions begin
// again at 0 with each. A row begins a document.
//
// Memory:  small tensors on the compute device, made before the step. Threads: they do not change.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace sluice::engine {

struct Documents {
  at::Tensor positions;      // int64 [B, T]: of each token in its document
  at::Tensor starts;         // int32 [documents + 1]: among all B * T tokens; the last is B * T
  std::int64_t longest = 0;  // tokens of a document
};

}  // namespace sluice::engine
