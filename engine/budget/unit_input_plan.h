// UnitInputPlan: where inputs of units that go to the host between forward and backward lie, and
// what that takes: a ring of a few units' inputs on the GPU, and a place in host memory for each
// block whose input moves.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/model/model_layout.h"
#include "offload/element_types.h"

namespace sluice::engine {

// UnitInputRing: which slot of a ring holds what a block was given, and what has to leave it.
//
// Forward goes through blocks 1 .. blocks, backward through the same in reverse. So the last blocks
// of forward are the first of backward, and stay where they are; those before them go to the host
// and come back, each into the slot left by the block `slots` after it, as soon as that block's
// backward is done. A block's input is thus on its way slots - 1 blocks ahead of its use.
class UnitInputRing {
 public:
  static constexpr int kNothing = 0;  // the blocks count from 1: unit 0 is the embedding

  UnitInputRing(int blocks, int slots)
      : blocks_(blocks), slots_(std::clamp(slots, 1, std::max(blocks, 1))) {}

  int slots() const { return slots_; }
  // Blocks 1 .. moved() go to the host and come back.
  int moved() const { return std::max(blocks_ - slots_, 0); }
  bool moves(int block) const { return block <= moved(); }
  int slot_of(int block) const { return (block - 1) % slots_; }
  // Whose input comes into its slot once the block's backward is done; kNothing: no block's.
  int follower(int block) const { return block > slots_ ? block - slots_ : kNothing; }

 private:
  int blocks_;
  int slots_;
};

struct UnitInputOptions {
  std::int64_t micro_batches = 1;  // at most, of a wave
  std::int64_t micro_batch = 1;    // sequences
  std::int64_t tokens = 0;         // of a sequence
  offload::ElementType type = offload::ElementType::kBf16;
  int slots = 3;  // of the ring: one is computed with, one just used, the others are copied into
};

class UnitInputPlan {
 public:
  UnitInputPlan(const ModelLayout& model, const UnitInputOptions& options);

  const UnitInputRing& ring() const { return ring_; }
  std::uint64_t unit_input_bytes() const { return unit_input_bytes_; }  // of one micro-batch
  std::uint64_t place_bytes() const { return place_bytes_; }            // that it lies in
  std::uint64_t unit_bytes() const { return unit_bytes_; }              // a unit's places

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
