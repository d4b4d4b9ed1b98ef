// UnitInputPlan: where unit inputs that go to the host between forward and backward are stored. It
// consists of a ring for a few units' inputs on the GPU, and a buffer in host memory for each block
// whose input moves.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/model/model_layout.h"
#include "offload/element_types.h"

namespace sluice::engine {

// UnitInputRing: which slot of a ring holds a block's input, and which inputs have to leave it.
//
// Forward goes through blocks 1 .. blocks, backward through the same in reverse. So the last blocks
// of forward are the first of backward, and their inputs stay in the ring. The inputs of earlier
// blocks go to the host and return. Each returns to the slot left by the block `slots` after it, as
// soon as that block's backward is done. A block's input is thus on its way slots - 1 blocks ahead
// of its use.
class UnitInputRing {
 public:
  static constexpr int kNothing = 0;  // the blocks count from 1: unit 0 is the embedding

  UnitInputRing(int blocks, int slots)
      : blocks_(blocks), slots_(std::clamp(slots, 1, std::max(blocks, 1))) {}

  int slots() const { return slots_; }
  // The inputs of blocks 1 .. moved() go to the host and return.
  int moved() const { return std::max(blocks_ - slots_, 0); }
  bool moves(int block) const { return block <= moved(); }
  int slot_of(int block) const { return (block - 1) % slots_; }
  // The block whose input moves into this block's slot after its backward; kNothing: none.
  int follower(int block) const { return block > slots_ ? block - slots_ : kNothing; }

 private:
  int blocks_;
  int slots_;
};

struct UnitInputOptions {
  std::int64_t micro_batches = 1;  // at most, per wave
  std::int64_t micro_batch = 1;    // sequences
  std::int64_t tokens = 0;         // per sequence
  offload::ElementType type = offload::ElementType::kBf16;
  int slots = 3;  // of the ring: one computed with, one just used, the others copied into
};

class UnitInputPlan {
 public:
  UnitInputPlan(const ModelLayout& model, const UnitInputOptions& options);

  const UnitInputRing& ring() const { return ring_; }
  std::uint64_t unit_input_bytes() const { return unit_input_bytes_; }  // of one micro-batch
  std::uint64_t place_bytes() const { return place_bytes_; }            // its buffer
  std::uint64_t unit_bytes() const { return unit_bytes_; }              // all of a unit's buffers

  std::uint64_t gpu_bytes() const {
    return static_cast<std::uint64_t>(ring_.slots()) * unit_bytes_;
  }
  std::uint64_t host_bytes() const {
    return static_cast<std::uint64_t>(ring_.moved()) * unit_bytes_;
  }

 private:
  UnitInputRing ring_;
  std::uint64_t unit_input_bytes_;
  std::uint64_t place_bytes_;
  std::uint64_t unit_bytes_;
};

}  // namespace sluice::engine
