#include "offload/adamw/square_sum.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "aio/check.h"

namespace sluice::offload {

SquareSum::SquareSum(std::uint64_t max_elements) {
  // One more than the nodes of a finished range: a new node exists before it merges.
  sums_.reserve(max_elements / kSumBlockElements + kMaxSideNodes + 1);
}

void SquareSum::reset(std::uint64_t first) {
  begin_ = end_ = first;
  sums_.clear();
}

void SquareSum::append_node(int level, double sum) {
  SLUICE_CHECK(level >= 0 && level <= kSumBlockLevel && end_ % (std::uint64_t{1} << level) == 0,
               "a node begins at a multiple of its size");
  SLUICE_CHECK(sums_.size() < sums_.capacity(), "a range within its promised length");
  // While the node is a right child and its sibling exists, the two become their parent. The
  // sibling exists if the range holds all of it, and is then the last of the sums.
  std::uint64_t first = end_;
  end_ += std::uint64_t{1} << level;
  for (; level < kSumBlockLevel; ++level) {
    const std::uint64_t size = std::uint64_t{1} << level;
    if ((first & size) == 0 || first - begin_ < size) break;
    first -= size;
    sum = sums_.back() + sum;
    sums_.pop_back();
  }
  sums_.push_back(sum);
}

std::span<double> SquareSum::append_blocks(std::uint64_t count) {
  SLUICE_CHECK(end_ % kSumBlockElements == 0, "a block begins at a multiple of its size");
  SLUICE_CHECK(count <= sums_.capacity() - sums_.size(), "a range within its promised length");
  const std::size_t before = sums_.size();
  sums_.resize(before + count);
  end_ += count * kSumBlockElements;
  return std::span(sums_).subspan(before);
}

void SquareSum::append_sums(std::uint64_t count, std::span<const double> node_sums) {
  const std::uint64_t end = end_ + count;
  for (const double sum : node_sums) {
    SLUICE_CHECK(end_ < end, "as many sums as the range has nodes");
    append_node(sum_node_level(end_, end), sum);
  }
  SLUICE_CHECK(end_ == end, "as many sums as the range has nodes");
}

bool SquareSum::finite() const {
  return std::all_of(sums_.begin(), sums_.end(), [](double sum) { return std::isfinite(sum); });
}

double SquareSum::total() const {
  SLUICE_CHECK(begin_ == 0, "a total is of a whole unit");
  const auto blocks = sums_.begin() + static_cast<std::ptrdiff_t>(end_ / kSumBlockElements);
  double total = 0;
  for (auto sum = sums_.begin(); sum != blocks; ++sum) total += *sum;
  // The remaining nodes of the last block descend in size; to the right of them are zeros.
  double last_block = 0;
  for (auto sum = sums_.end(); sum != blocks;) last_block = *--sum + last_block;
  total += last_block;
  return std::isnan(total) ? std::numeric_limits<double>::quiet_NaN() : total;
}

}  // namespace sluice::offload
