// SquareSum: the sum of squares over a contiguous range of a unit's flat gradient, in a form that
// adjacent ranges combine exactly, however the unit was cut.
//
// Definition: the unit's global flat index is cut into blocks of 65,536 elements, the last one
// padded with +0. A block's sum is the balanced binary tree over its elements, in double: the
// value of a node is left + right, a leaf is one element's value (its square). The unit's sum adds
// the blocks in ascending order.
//
// A range holds the largest tree nodes that are entirely inside it: whole blocks, and at most 16
// smaller nodes on either side. Two siblings merge when both are present. So a rank's shard may
// begin and end at any element, and a sub-group may be anywhere in a shard. Ranks exchange the node
// sums (8 bytes per block and side node), and each computes the same total.
//
// Memory:  taken in the constructor; append() never allocates.
// Finite:  no square of an fp32 number overflows a double, nor does a sum of 2^64 of them. So the
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

  // Appends the node of 2^level elements that begins at end(), where a node of that size may begin.
  void append_node(int level, double sum);
  // Appends space for the sums of `count` whole blocks from end(), which must be the start of a
  // block. Several threads may write them, before the next call.
  std::span<double> append_blocks(std::uint64_t count);
  // Appends the next `count` elements as node sums, in ascending order: the sums() of a range from
  // end() to end() + count, or what a GPU or another rank sent.
  void append_sums(std::uint64_t count, std::span<const double> node_sums);

  // One sum for each node, in ascending order: sum_node_count(begin(), end() - begin()) sums.
  std::span<const double> sums() const { return sums_; }

  // Whether all nodes are finite, and therefore every element of the range.
  bool finite() const;
  // The sum of the unit, whose first element is begin() = 0 and whose last one is end() - 1. If it
  // is not finite: +infinity, or the canonical NaN if any element is NaN.
  double total() const;

 private:
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
  std::vector<double> sums_;
};

}  // namespace sluice::offload
