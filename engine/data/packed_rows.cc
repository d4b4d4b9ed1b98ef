#include "engine/data/packed_rows.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "aio/check.h"
#include "aio/split_mix.h"
#include "engine/data/permutation.h"

namespace sluice::data {
namespace {

// The row of each piece.
std::vector<std::uint64_t> best_fit(const std::vector<Piece>& pieces, std::uint64_t room) {
  std::vector<std::uint64_t> order(pieces.size());
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::uint64_t a, std::uint64_t b) {
    return pieces[a].tokens > pieces[b].tokens;
  });
  std::set<std::pair<std::uint64_t, std::uint64_t>> rows;  // free space, and the row's index
  std::vector<std::uint64_t> row_of(pieces.size());
  std::uint64_t count = 0;
  for (const std::uint64_t piece : order) {
    const std::uint64_t needed = pieces[piece].tokens - 1;
    const auto best = rows.lower_bound({needed, 0});
    std::uint64_t left = room;
    std::uint64_t row = count;
    if (best == rows.end()) {
      ++count;
    } else {
      std::tie(left, row) = *best;
      rows.erase(best);
    }
    row_of[piece] = row;
    if (left > needed) rows.emplace(left - needed, row);
  }
  // Number rows by their first piece; until here, rows with the longest pieces come first.
  std::vector<std::uint64_t> renumbered(count, count);
  std::uint64_t next = 0;
  for (std::uint64_t& row : row_of) {
    if (renumbered[row] == count) renumbered[row] = next++;
    row = renumbered[row];
  }
  return row_of;
}

}  // namespace

PackedRows::PackedRows(std::vector<Piece> pieces, const Options& options) : options_(options) {
  const std::uint64_t room = options.sequence_tokens;
  SLUICE_CHECK(!pieces.empty(), "rows of one piece or more");
  for (const Piece& piece : pieces)
    SLUICE_CHECK(piece.tokens >= 2 && piece.tokens <= room + 1, "a piece that fits a row");
  const std::vector<std::uint64_t> row_of = best_fit(pieces, room);
  const std::uint64_t rows = *std::max_element(row_of.begin(), row_of.end()) + 1;
  row_begins_.assign(rows + 1, 0);
  for (const std::uint64_t row : row_of) ++row_begins_[row + 1];
  std::partial_sum(row_begins_.begin(), row_begins_.end(), row_begins_.begin());
  // Within a row, pieces keep their order.
  std::vector<std::uint64_t> next(row_begins_.begin(), row_begins_.end() - 1);
  pieces_.resize(pieces.size());
  std::uint64_t predictions = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    pieces_[next[row_of[i]]++] = pieces[i];
    predictions += pieces[i].tokens - 1;
  }
  filled_ = static_cast<double>(predictions) / static_cast<double>(rows * room);
}

std::span<const Piece> PackedRows::at(std::uint64_t rows_drawn) const {
  std::uint64_t row = rows_drawn % count();
  if (options_.seed) {
    // Uses the streams of ShuffledSampler; an epoch's second stream is not needed here.
    const std::uint64_t epoch = rows_drawn / count();
    row = Permutation(count(), *options_.seed, 2 * epoch).at(row);
  }
  return std::span(pieces_).subspan(row_begins_[row], row_begins_[row + 1] - row_begins_[row]);
}

std::uint64_t PackedRows::order_id() const {
  std::uint64_t id = aio::SplitMix(options_.seed.value_or(0), options_.sequence_tokens).next();
  for (const Piece& piece : pieces_)
    for (const std::uint64_t part :
         {piece.first_token, std::uint64_t{piece.tokens}, std::uint64_t{piece.file}})
      id = aio::SplitMix(id ^ part).next();
  for (const std::uint64_t begin : row_begins_) id = aio::SplitMix(id ^ begin).next();
  return id;
}

}  // namespace sluice::data
