// Rotary frequencies: one for each pair of a head's numbers, from the base and the scaling, as
// transformers' modeling_rope_utils computes them (in fp32 where it does). Without LibTorch.
//
// - Source: Su et al., "RoFormer", 2021.
// - linear: Chen et al., "Extending Context Window of Large Language Models via Position
//   Interpolation", 2023.
// - yarn: Peng et al., "YaRN", 2023, sections 3.2 to 3.4.
// - dynamic: the same paper's section 3.1, at the length of the sequence.
// - llama3: Llama 3.1's reference code.
// - longrope: Ding et al., "LongRoPE", 2024. A sequence within the original context has the short
//   factors, a longer one the long factors, for all its positions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/model/rotary_frequencies.h"

namespace sluice::engine {

// How positions beyond the original training context are mapped, by transformers' names. In the
// order of kRopeScalings, whose index checkpoints store.
enum class RopeScaling : std::uint8_t { kNone, kLinear, kDynamic, kYarn, kLlama3, kLongRope };
inline constexpr std::string_view kRopeScalings = "none|linear|dynamic|yarn|llama3|longrope";
// The lists of longrope in ModelShape::lists.
inline constexpr std::string_view kRopeShortFactor = "rope_short_factor";
inline constexpr std::string_view kRopeLongFactor = "rope_long_factor";

struct Rope {
  double theta = 0;  // 0: no rotation
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;
  std::int64_t original_context = 0;  // the original training context
  double low_frequency_factor = 1;    // llama3
  double high_frequency_factor = 4;
  double attention_factor = 0;  // yarn, longrope; 0: from factor, and of yarn the two below
  double mscale = 0;
  double mscale_all_dim = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;
  double share = 1;                        // of each head, whose first numbers are rotated
  std::vector<double> short_factors = {};  // longrope: one for each pair
  std::vector<double> long_factors = {};

  bool exists() const { return theta > 0; }
  std::int64_t rotated(std::int64_t head_dim) const {
    return static_cast<std::int64_t>(static_cast<double>(head_dim) * share);
  }
};

// `tokens`: the length of the longest sequence so far. It matters only to kDynamic and kLongRope,
// past the original context. `head_dim`: the numbers that are rotated.
RotaryFrequencies rope_frequencies(const Rope& rope, std::int64_t head_dim, std::int64_t tokens);

// Whether the frequencies depend on `tokens`.
inline bool grows_with_sequence(const Rope& rope) {
  return rope.scaling == RopeScaling::kDynamic || rope.scaling == RopeScaling::kLongRope;
}

}  // namespace sluice::engine
