// The rotary frequencies of a Llama: one for each pair of a head's numbers, from the base and the
// scaling, as transformers' modeling_rope_utils computes them (in fp32 where it does). Without
// LibTorch.
//
// - Source: Su et al., "RoFormer", 2021.
// - linear: Chen et al., "Extending Context Window of Large Language Models via Position
//   Interpolation", 2023.
// - yarn: Peng et al., "YaRN", 2023, sections 3.2 to 3.4.
// - dynamic: the same paper's section 3.1, at the length of the sequence.
// - llama3: Llama 3.1's reference code.
#pragma once

#include <cstdint>

#include "engine/model/llama/llama_shape.h"
#include "engine/model/rotary_frequencies.h"

namespace sluice::engine {

// `tokens`: the length of the longest sequence so far. It matters only to kDynamic, past the
// original context.
RotaryFrequencies rope_frequencies(const Rope& rope, std::int64_t head_dim, std::int64_t tokens);

// Whether the frequencies depend on `tokens`.
inline bool grows_with_sequence(const Rope& rope) { return rope.scaling == RopeScaling::kDynamic; }

}  // namespace sluice::engine
