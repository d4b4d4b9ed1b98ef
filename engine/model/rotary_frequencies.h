// RotaryFrequencies: the angle per position by which rotary embeddings rotate each pair of a head's
// numbers. Without LibTorch.
#pragma once

#include <vector>

namespace sluice::engine {

struct RotaryFrequencies {
  std::vector<float> of_pair;  // radians a position; half as many as rotated numbers
  float scale = 1;             // multiplies the rotated numbers (YaRN's attention factor)
};

}  // namespace sluice::engine
