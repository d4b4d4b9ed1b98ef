#include "engine/model/row_pieces.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "engine/families/families.h"
#include "engine/model/decoder/block_costs.h"
#include "engine/model/decoder/decoder_kinds.h"
#include "tests/engine/model/specs.h"

namespace sluice::engine {
namespace {

using Pieces = std::vector<std::pair<std::int64_t, std::int64_t>>;

Pieces pieces_of(const RowPieces& rows) {
  Pieces pieces;
  rows.for_each([&](std::int64_t first, std::int64_t count) { pieces.push_back({first, count}); });
  return pieces;
}

TEST(RowPieces, AreCutAboveTwoPieces) {
  EXPECT_EQ(pieces_of(RowPieces(8, 4)), (Pieces{{0, 8}}));
  EXPECT_FALSE(RowPieces(8, 4).cut());
  EXPECT_EQ(pieces_of(RowPieces(9, 4)), (Pieces{{0, 4}, {4, 4}, {8, 1}}));
  EXPECT_TRUE(RowPieces(9, 4).cut());
  EXPECT_EQ(RowPieces(9, 4).largest(), 4);
  EXPECT_FALSE(RowPieces(32768).cut());
  EXPECT_TRUE(RowPieces(32769).cut());
}

TEST(RowPieces, PartsOfHeadsAreEqual) {
  for (const auto& [heads, parts] : Pieces{{1, 1}, {2, 2}, {8, 8}, {12, 6}, {25, 5}, {32, 8}})
    EXPECT_EQ(head_parts(heads), parts) << heads;
}

// Once they are cut, a token costs nothing of the feed-forward's width.
TEST(RowPieces, TakeNoMemoryOfTheFeedForwardForEachToken) {
  const ModelShape narrow = *preset_shape("llama3.1-8b");
  ModelShape wide = narrow;
  wide.ffn_hidden += 4096;
  const auto per_token = [](const ModelShape& shape) {
    const auto kind = block_kind("block", spec_of(shape).block, {});
    const PassShape less = {.tokens = 262144};
    const PassShape more = {.tokens = 524288};
    EXPECT_EQ(kind->saved_bytes(more), 2 * kind->saved_bytes(less));
    return (kind->peak_bytes(more, {}) - kind->peak_bytes(less, {})) / 262144;
  };
  EXPECT_EQ(per_token(narrow), per_token(wide));
  // The input, two gradients of the stream, attention's output and its gradient, 8 KiB each;
  // queries, keys and values; and a part of attention.
  EXPECT_GT(per_token(narrow), (5 * 8 + 12) * 1024);
  EXPECT_LT(per_token(narrow), (5 * 8 + 12 + 12) * 1024);
}

TEST(RowPieces, TakeNoMoreOperationsButLessOfThemInRecompute) {
  const auto expect = [](const Flops& whole, const Flops& cut, double scores) {
    EXPECT_NEAR(cut.forward - whole.forward, 2 * scores, 1e-6 * cut.forward);
    EXPECT_NEAR(cut.backward + cut.recompute - whole.backward - whole.recompute, 7 * scores,
                1e-6 * cut.backward);
    EXPECT_LT(cut.recompute - 2 * scores, whole.recompute);
  };
  // Attention alone grows with the sequence: by the half of the tokens, in two numbers' operations.
  const auto scores = [](double width) { return 2 * width * 16384; };
  const auto llama = block_kind("block", spec_of(*preset_shape("llama3.1-8b")).block, {});
  expect(llama->flops(32768), llama->flops(65536), scores(4096));
  const BlockSpec gpt2 = spec_of(*preset_shape("gpt2-xl")).block;
  expect(block_flops(gpt2, {}, 32768), block_flops(gpt2, {}, 65536), scores(1600));
}

}  // namespace
}  // namespace sluice::engine
