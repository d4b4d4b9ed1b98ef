// How a block computes a micro-batch with many rows (tokens): its feed-forward some rows at a time,
// and its attention some heads at a time. So the wide middle is never in memory as a whole. Both
// depend on shapes alone, and never on memory: products of other sizes round differently. Without
// LibTorch.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sluice::engine {

// A multiple of the tiles of products. Even, so that a piece's dropout begins at an even position.
inline constexpr std::int64_t kPieceRows = std::int64_t{1} << 14;

class RowPieces {
 public:
  explicit constexpr RowPieces(std::int64_t rows, std::int64_t piece_rows = kPieceRows)
      : rows_(rows), piece_(rows > kWholePieces * piece_rows ? piece_rows : rows) {}

  // Whether there are several.
  constexpr bool cut() const { return piece_ < rows_; }
  constexpr std::int64_t largest() const { return piece_; }

  // Calls visit(first row, rows) in ascending order.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (std::int64_t first = 0; first < rows_; first += piece_)
      visit(first, std::min(piece_, rows_ - first));
  }

 private:
  static constexpr std::int64_t kWholePieces = 2;  // so many rows are not cut

  std::int64_t rows_;
  std::int64_t piece_;
};

// In how many equal parts attention without dropout then computes its heads; each part has whole
// heads of keys.
constexpr std::int64_t head_parts(std::int64_t kv_heads) {
  std::int64_t parts = std::min<std::int64_t>(kv_heads, 8);
  while (kv_heads % parts != 0) --parts;
  return parts;
}

}  // namespace sluice::engine
