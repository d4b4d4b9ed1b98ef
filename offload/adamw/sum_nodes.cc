#include "offload/adamw/sum_nodes.h"

#include <algorithm>
#include <bit>

namespace sluice::offload {

int sum_node_level(std::uint64_t first, std::uint64_t end) {
  const int fits = static_cast<int>(std::bit_width(end - first)) - 1;
  return std::min({std::countr_zero(first), fits, kSumBlockLevel});
}

std::uint64_t sum_node_count(std::uint64_t first, std::uint64_t count) {
  const std::uint64_t end = first + count;
  std::uint64_t nodes = 0;
  while (first < end) {
    const int level = sum_node_level(first, end);
    const std::uint64_t run = level == kSumBlockLevel ? (end - first) / kSumBlockElements : 1;
    nodes += run;
    first += run << level;
  }
  return nodes;
}

}  // namespace sluice::offload
