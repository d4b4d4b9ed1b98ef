// UnitInputRing: which slot of a ring holds what a block was given, and what has to leave it.
//
// Forward goes through blocks 1 .. blocks, backward through the same in reverse. So the last blocks
// of forward are the first of backward, and stay where they are; those before them go to the host
// and come back, each into the slot left by the block `slots` after it, as soon as that block's
// backward is done. A block's input is thus on its way slots - 1 blocks ahead of its use.
#pragma once

#include <algorithm>

namespace sluice::engine {

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

}  // namespace sluice::engine
