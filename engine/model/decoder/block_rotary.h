// The rotary frequencies of a block's passes: fixed, or by the length of the sequence or of each
// document (dynamic NTK, longrope).
//
// Threads: immutable.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/model/decoder/rope_frequencies.h"
#include "engine/model/documents.h"

namespace sluice::engine {

class BlockRotary {
 public:
  // A block without rotation has a rope that does not exist; nothing else is asked of it.
  BlockRotary(const Rope& rope, std::int64_t head_dim);

  bool exists() const { return rope_.exists(); }
  // See ModelUnit.
  bool keys_depend_on_length(std::int64_t tokens) const;
  std::int64_t keys_change_beyond() const;
  // For sequences of this many tokens.
  RotaryFrequencies at(std::int64_t tokens) const;
  // Rotary::of_rows, if frequencies depend on the length of a token's document; else undefined.
  at::Tensor of_tokens(const Documents* documents, at::Device device) const;

 private:
  bool is_beyond_context(std::int64_t tokens) const {
    return grows_with_sequence(rope_) && tokens > rope_.original_context;
  }

  Rope rope_;
  std::int64_t rotated_;  // numbers of a head
  RotaryFrequencies within_context_;
};

}  // namespace sluice::engine
