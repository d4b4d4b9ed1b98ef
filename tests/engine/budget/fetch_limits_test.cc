#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/budget/param_plan.h"

namespace sluice::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t kMuch = std::int64_t{1} << 62;
constexpr std::int64_t kEmbedding = 500, kBlock = 100, kHead = 10;
constexpr int kBlocks = 12;
constexpr UnitSizes kSizes = {kEmbedding + kHead, kBlock, kBlocks};

struct Case {
  const char* what;
  FetchRequest request;
  int prefetch_units;
  int block_slots;
  int raised;
};

TEST(FetchLimits, FollowTheKeys) {
  const Case cases[] = {
      {"all is plenty", {0, kMuch, kMuch, kMuch}, 11, 12, 0},
      {"nothing is kept for reuse", {0, kBlock, kMuch, 0}, 1, 3, 0},
      {"two blocks and a half ahead", {0, 250, kMuch, 0}, 2, 4, 0},
      {"no bucket", {0, 0, kMuch, 0}, 1, 3, 1},
      {"a bucket below a block", {0, kBlock - 1, kMuch, 0}, 1, 3, 1},
      // The last block is used again after head and embedding, the block before it two blocks
      // later.
      {"reuse just not of the last block", {0, kBlock, kMuch, 509}, 1, 3, 0},
      {"reuse of four blocks", {0, kBlock, kMuch, 510 + 6 * kBlock}, 1, 4, 0},
      {"reuse just not of a fifth", {0, kBlock, kMuch, 510 + 8 * kBlock - 1}, 1, 4, 0},
      {"reuse of a fifth", {0, kBlock, kMuch, 510 + 8 * kBlock}, 1, 5, 0},
      {"reuse of all", {0, kBlock, kMuch, kMuch}, 1, 12, 0},
      {"live elements bound reuse", {0, kBlock, 510 + 7 * kBlock + 99, kMuch}, 1, 7, 0},
      {"live elements bound prefetching", {0, 10 * kBlock, 510 + 4 * kBlock, kMuch}, 3, 4, 0},
      {"live elements for two blocks", {0, 10 * kBlock, 510 + 2 * kBlock, kMuch}, 1, 2, 0},
      {"live elements below two blocks", {0, kBlock, 510 + 2 * kBlock - 1, kMuch}, 1, 2, 1},
      {"no live elements", {0, kBlock, 0, kMuch}, 1, 2, 1},
      {"nothing at all", {0, 0, 0, 0}, 1, 2, 2},
      {"units ahead win over the bucket", {3, 0, kMuch, 0}, 3, 5, 0},
      {"units ahead win over live elements", {3, kMuch, 510 + 2 * kBlock, kMuch}, 3, 5, 0},
      {"more units ahead than blocks", {4096, 0, kMuch, 0}, 11, 12, 0},
  };
  for (const Case& it : cases) {
    const FetchLimits limits = fetch_limits(kSizes, it.request);
    EXPECT_EQ(limits.prefetch_units, it.prefetch_units) << it.what;
    EXPECT_EQ(limits.block_slots, it.block_slots) << it.what;
    EXPECT_EQ(static_cast<int>(limits.raised.size()), it.raised) << it.what;
  }
}

// For any request a successor can be copied while a block computes, and blocks that are fetched
// ahead fit in addition.
TEST(FetchLimits, LeaveRoomForABlockAndItsSuccessor) {
  for (const int blocks : {1, 2, 3, 48}) {
    for (const std::int64_t bucket : {std::int64_t{0}, std::int64_t{350}, kMuch}) {
      for (const std::int64_t live : {std::int64_t{0}, std::int64_t{1200}, kMuch}) {
        for (const std::int64_t reuse : {std::int64_t{0}, std::int64_t{900}, kMuch}) {
          for (const std::int64_t units : {0, 1, 7}) {
            const FetchLimits limits =
                fetch_limits({kEmbedding + kHead, kBlock, blocks}, {units, bucket, live, reuse});
            EXPECT_GE(limits.block_slots, std::min(blocks, 2));
            EXPECT_LE(limits.block_slots, blocks);
            EXPECT_GE(limits.prefetch_units, 1);
            EXPECT_LE(limits.prefetch_units, std::max(limits.block_slots - 1, 1));
          }
        }
      }
    }
  }
}

TEST(FetchLimits, SayWhatWasRaisedAndToWhat) {
  EXPECT_THAT(fetch_limits(kSizes, {0, 7, 8, 0}).raised,
              ElementsAre("zero_optimization.stage3_prefetch_bucket_size 7 is below what one block "
                          "needs (100 elements): raised to that",
                          "zero_optimization.stage3_max_live_parameters 8 is below what the "
                          "embedding, the head, one block and its successor need (710 elements): "
                          "raised to that"));
}

TEST(FetchLimits, OnTheHostOnlyTheBucketCounts) {
  EXPECT_EQ(host_fetch_limits(kSizes, {0, 450, 0, 0}).prefetch_units, 4);
  EXPECT_EQ(host_fetch_limits(kSizes, {6, 450, 0, 0}).prefetch_units, 6);
  EXPECT_THAT(host_fetch_limits(kSizes, {0, 450, 0, 0}).raised, IsEmpty());
  EXPECT_THAT(host_fetch_limits(kSizes, {0, 99, 0, 0}).raised, ElementsAre(HasSubstr("bucket")));
}

TEST(FetchLimits, AreLoweredToSlotsThatFitButNotBelowTheLeast) {
  FetchLimits limits = fetch_limits(kSizes, {4, 0, kMuch, kMuch});
  EXPECT_EQ(limits.block_slots, 12);
  lower_block_slots(limits, kBlocks, 8);
  EXPECT_EQ(limits.block_slots, 8);
  EXPECT_EQ(limits.prefetch_units, 4);
  lower_block_slots(limits, kBlocks, 0);
  EXPECT_EQ(limits.block_slots, 2);
  EXPECT_EQ(limits.prefetch_units, 1);
}

}  // namespace
}  // namespace sluice::engine
