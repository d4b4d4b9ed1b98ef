// PackedRows: documents put into rows of T predictions, as few rows as best fit finds, and the
// order in which training sees the rows. Arithmetic only, no IO.
//
// A piece of n tokens gives n - 1 predictions; a row is pieces one behind the other, with room left
// at its end. Best fit, the longest piece first (Johnson, "Near-optimal bin packing algorithms",
// 1973): each goes where the least room is left. Pieces of equal length keep their order, so the
// rows depend on the pieces and T alone. Rows have the order of the first piece in each.
//
// An epoch is every row once, in an order that depends only on (seed, epoch); without a shuffle, in
// the rows' own. The whole state is one number, the rows drawn so far.
//
// Memory:  16 bytes a piece and 8 a row. Threads: it does not change.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace sluice::data {

// Tokens [first_token, first_token + tokens) of one file of a corpus: a document, or a part of one.
struct Piece {
  std::uint64_t first_token = 0;
  std::uint32_t tokens = 0;  // 2 to T + 1
  std::uint32_t file = 0;
};

class PackedRows {
 public:
  struct Options {
    std::uint64_t sequence_tokens = 0;  // T
    std::optional<std::uint64_t> seed;  // of the shuffle; nothing: none
  };
  // One piece or more.
  PackedRows(std::vector<Piece> pieces, const Options& options);

  std::uint64_t count() const { return row_begins_.size() - 1; }
  std::span<const Piece> at(std::uint64_t rows_drawn) const;
  // Predictions in all rows, over the room that there is: 1 is full.
  double filled() const { return filled_; }

  // What at() depends on, as one number: see ShuffledSampler::order_id().
  std::uint64_t order_id() const;

 private:
  Options options_;
  std::vector<Piece> pieces_;              // row by row
  std::vector<std::uint64_t> row_begins_;  // among them; the last is their number
  double filled_ = 0;
};

}  // namespace sluice::data
