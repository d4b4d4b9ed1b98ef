// The nodes of a range in the tree that square_sum.h defines. (A separate file, because CUDA code,
// which is C++17, includes it.)
#pragma once

#include <cstdint>

namespace sluice::offload {

inline constexpr int kSumBlockLevel = 16;
inline constexpr std::uint64_t kSumBlockElements = std::uint64_t{1} << kSumBlockLevel;
inline constexpr std::uint64_t kMaxSideNodes = 2 * kSumBlockLevel;

// The level of the largest node that begins at `first` and ends at or before `end`: it has 2^level
// elements.
int sum_node_level(std::uint64_t first, std::uint64_t end);

// The number of nodes in a range of `count` elements from `first` on.
std::uint64_t sum_node_count(std::uint64_t first, std::uint64_t count);

}  // namespace sluice::offload
