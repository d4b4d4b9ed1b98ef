// The number of heads that plain attention computes at once, from the sequence's length alone.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sluice::engine {

// Even, so that a chunk's masks begin at an even position.
constexpr std::int64_t plain_attention_chunk(std::int64_t tokens) {
  constexpr std::int64_t kProbabilities = std::int64_t{1} << 22;
  return std::max<std::int64_t>(kProbabilities / (tokens * tokens) / 2 * 2, 2);
}

}  // namespace sluice::engine
