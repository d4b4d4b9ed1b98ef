// SquareSum: the sum over a contiguous range of a unit's flat gradient, in a form that adjacent
// ranges combine exactly, however the unit was cut.
//
// Definition: the unit's global flat index is cut into blocks of 65,536 elements, the last one
// padded with +0. A block's sum is the balanced binary tree over its elements, in double: the
// value of a node is left + right, a leaf is one element's value (its square). The unit's sum adds
// the blocks in ascending order.
//
// A range holds the largest tree nodes that lie wholly in it: whole blocks, and at most 16 smaller
// nodes on either side. Two siblings merge when both are present. So a rank's shard may begin and
// end at any element, and a sub-group may lie anywhere in a shard; ranks exchange the node sums (8
// bytes per block and side node), and each gets the same total.
//
// Memory:  taken in the constructor; append() never allocates.
// Finite:  no square of an fp32 number overflows a double, nor does a sum of 2^64 of them; so the
//          sum is finite exactly when every element is.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/adamw/sum_nodes.h"

namespace sluice::offload {

class SquareSum {
 public:
  // For ranges of up to `max_elements`.
  explicit SquareSum(std::uint64_t max_elements);

  // Empties the range; it then begins at element `first` of the unit.
  void reset(std::uint64_t first);

  std::uint64_t begin() const { return begin_; }
  std::uint64_t end() const { return end_; }

  // The node of 2^level elements that begins at end(), where one of that size may begin.
  void append_node(int level, double sum);
  // Space for the sums of `count` whole blocks from end() on, which is a block's beginning. They
  // may be written by several threads, before the next call.
  std::span<double> append_blocks(std::uint64_t count);
  // The next `count` elements from their node sums, in ascending order: what sums() of a range from
  // end() to end() + count gives, or what a GPU or another rank sent.
  void append_sums(std::uint64_t count, std::span<const double> node_sums);

  // One for each node, ascending: sum_node_count(begin(), end() - begin()) of them.
  std::span<const double> sums() const { return sums_; }

  // All nodes are finite: so is every element of the range.
  bool finite() const;
  // The sum of the unit, whose first element is begin() = 0 and whose last one is end() - 1. Not
  // finite: +infinity, or the canonical NaN where any element is NaN.
  double total() const;

 private:
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
  std::vector<double> sums_;
};

}  // namespace sluice::offload
