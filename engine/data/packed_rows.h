// PackedRows: packs documents into rows of T predictions, in few rows by best fit, and orders the
// rows for training. Arithmetic only, no IO.
//
// A piece of n tokens gives n - 1 predictions; a row is a sequence of pieces, with free space at
// its end. Best fit, the longest piece first (Johnson, "Near-optimal bin packing algorithms",
// 1973): each piece goes to the row where it leaves the least free space. Pieces of equal length
// keep their order, so the rows depend only on the pieces and T. Rows are ordered by their first
// piece.
//
// An epoch is every row once, in an order that depends only on (seed, epoch), or unshuffled. The
// whole state is one number, the rows drawn so far.
//
// Memory:  16 bytes a piece and 8 a row. Threads: immutable.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace sluice::data {

// Tokens [first_token, first_token + tokens) of one file of a corpus: a document or a part of one.
struct Piece {
  std::uint64_t first_token = 0;
  std::uint32_t tokens = 0;  // 2 to T + 1
  std::uint32_t file = 0;
};

class PackedRows {
 public:
  struct Options {
    std::uint64_t sequence_tokens = 0;  // T
    std::optional<std::uint64_t> seed;  // of the shuffle; empty: no shuffle
  };
  // Needs at least one piece.
  PackedRows(std::vector<Piece> pieces, const Options& options);

  std::uint64_t count() const { return row_begins_.size() - 1; }
  std::span<const Piece> at(std::uint64_t rows_drawn) const;
  // Predictions in all rows as a fraction of their capacity: 1 is full.
  double filled() const { return filled_; }

  // A hash of everything that at() depends on: see ShuffledSampler::order_id().
  std::uint64_t order_id() const;

 private:
  Options options_;
  std::vector<Piece> pieces_;              // row by row
  std::vector<std::uint64_t> row_begins_;  // indices in pieces_; the last is pieces_.size()
  double filled_ = 0;
};

}  // namespace sluice::data
