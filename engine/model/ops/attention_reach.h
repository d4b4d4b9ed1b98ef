// Which keys a query attends to: its own position and earlier ones, of its document alone, and of
// these the nearest where there is a window.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/model/documents.h"

namespace sluice::engine {

struct AttentionReach {
  // Keys that a query sees, its own among them; 0: all. transformers' sliding_window, and one more
  // than FlashAttention's window_size_left.
  std::int64_t window = 0;
  const Documents* documents = nullptr;  // null: each sequence is one

  // Whether a sequence of so many tokens has a key that its causal mask alone would leave.
  bool is_short(std::int64_t tokens) const {
    return documents != nullptr || (window != 0 && window < tokens);
  }
};

// True where a query (the second dimension) does not see a key (the third): [B, T, T] with
// documents, else [1, T, T].
at::Tensor hidden_keys(const AttentionReach& reach, std::int64_t tokens, at::Device device);

}  // namespace sluice::engine
