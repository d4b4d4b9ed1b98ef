#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "engine/data/sample_source.h"

namespace sluice::data {
namespace {

std::vector<Piece> pieces_of(const std::vector<std::uint32_t>& tokens) {
  std::vector<Piece> pieces;
  std::uint64_t first = 0;
  for (const std::uint32_t count : tokens) {
    pieces.push_back({.first_token = first, .tokens = count, .file = 0});
    first += count;
  }
  return pieces;
}

std::vector<Piece> random_pieces(std::size_t count, std::uint32_t longest) {
  std::mt19937 draw(5);
  std::vector<std::uint32_t> tokens;
  for (std::size_t i = 0; i < count; ++i)
    tokens.push_back(2 + static_cast<std::uint32_t>(draw()) % (longest - 1));
  return pieces_of(tokens);
}

std::vector<std::uint64_t> firsts(std::span<const Piece> row) {
  std::vector<std::uint64_t> all;
  for (const Piece& piece : row) all.push_back(piece.first_token);
  return all;
}

TEST(PackedRows, PutsEachPieceWhereTheLeastRoomIsLeft) {
  // Rows have room for 10 predictions: pieces of 5, 2, 2 and 1; of 7 and 3; of 6 and 4.
  const PackedRows rows(pieces_of({3, 8, 4, 7, 5, 6, 3}), {.sequence_tokens = 10, .seed = {}});
  ASSERT_EQ(rows.count(), 3U);
  EXPECT_EQ(firsts(rows.at(0)), (std::vector<std::uint64_t>{0, 27, 33}));
  EXPECT_EQ(firsts(rows.at(1)), (std::vector<std::uint64_t>{3, 11}));
  EXPECT_EQ(firsts(rows.at(2)), (std::vector<std::uint64_t>{15, 22}));
  EXPECT_DOUBLE_EQ(rows.filled(), 29.0 / 30);
}

TEST(PackedRows, EveryPieceIsInOneRowOfAnEpochAndFits) {
  const std::vector<Piece> pieces = random_pieces(3000, 129);
  const PackedRows rows(pieces, {.sequence_tokens = 128, .seed = 3});
  for (const std::uint64_t epoch : {0, 1}) {
    std::multiset<std::uint64_t> seen;
    for (std::uint64_t row = 0; row < rows.count(); ++row) {
      std::uint64_t predictions = 0;
      for (const Piece& piece : rows.at(epoch * rows.count() + row)) {
        seen.insert(piece.first_token);
        predictions += piece.tokens - 1;
      }
      EXPECT_LE(predictions, 128U);
      EXPECT_GT(predictions, 0U);
    }
    EXPECT_EQ(seen.size(), pieces.size());
    for (const Piece& piece : pieces) EXPECT_EQ(seen.count(piece.first_token), 1U);
  }
  EXPECT_GT(rows.filled(), 0.98);
}

TEST(PackedRows, TheSeedGivesEachEpochAnOrderOfItsOwn) {
  const std::vector<Piece> pieces = random_pieces(500, 60);
  const PackedRows rows(pieces, {.sequence_tokens = 64, .seed = 3});
  const PackedRows same(pieces, {.sequence_tokens = 64, .seed = 3});
  const PackedRows other(pieces, {.sequence_tokens = 64, .seed = 4});
  const PackedRows plain(pieces, {.sequence_tokens = 64, .seed = {}});
  const auto order = [](const PackedRows& of, std::uint64_t epoch) {
    std::vector<std::uint64_t> all;
    for (std::uint64_t row = 0; row < of.count(); ++row)
      all.push_back(of.at(epoch * of.count() + row).front().first_token);
    return all;
  };
  EXPECT_EQ(order(rows, 0), order(same, 0));
  EXPECT_NE(order(rows, 0), order(rows, 1));
  EXPECT_NE(order(rows, 0), order(other, 0));
  EXPECT_EQ(order(plain, 0), order(plain, 1));
  EXPECT_EQ(rows.order_id(), same.order_id());
  EXPECT_NE(rows.order_id(), other.order_id());
  EXPECT_NE(rows.order_id(),
            PackedRows(random_pieces(499, 60), {.sequence_tokens = 64, .seed = 3}).order_id());
}

// Pieces as long as a row need a row each, since nothing else fits into it.
TEST(PackedRows, PiecesThatFillARowHaveItForThemselves) {
  const PackedRows rows(pieces_of({11, 11, 2, 11}), {.sequence_tokens = 10, .seed = {}});
  EXPECT_EQ(rows.count(), 4U);
}

}  // namespace
}  // namespace sluice::data
