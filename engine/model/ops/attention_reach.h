// The keys that a query attends to: its own position and earlier ones, within its document, and
// only the nearest if there is a window.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/model/documents.h"

namespace sluice::engine {

struct AttentionReach {
  // Keys visible to a query, including its own; 0: all. This is transformers' sliding_window, and
  // one more than FlashAttention's window_size_left.
  std::int64_t window = 0;
  const Documents* documents = nullptr;  // null: each sequence is one document

  // Whether the window or documents hide a key that the causal mask would leave, in a sequence of
  // `tokens`.
  bool is_short(std::int64_t tokens) const {
    return documents != nullptr || (window != 0 && window < tokens);
  }
};

// True where a key (the third dimension) is hidden from a query (the second): [B, T, T] with
// documents, else [1, T, T].
at::Tensor hidden_keys(const AttentionReach& reach, std::int64_t tokens, at::Device device);

}  // namespace sluice::engine
