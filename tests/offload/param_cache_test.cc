#include "offload/params/param_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "offload/params/param_layout.h"

namespace sluice::offload {
namespace {

constexpr int kNone = ParamCache::kNone;

ParamCache one_class(int units, int buffers, int read_ahead) {
  const std::vector<int> classes(static_cast<std::size_t>(units), 0);
  const int counts[] = {buffers};
  ParamCache cache(classes, counts, read_ahead);
  for (int unit = 0; unit < units; ++unit) cache.set_readable(unit);
  return cache;
}

// The least number of reads if every unit is accessed from a buffer: Belady's MIN.
int fewest_reads(const std::vector<int>& order, std::size_t buffers) {
  std::set<int> held;
  int reads = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (held.contains(order[i])) continue;
    ++reads;
    if (held.size() == buffers) {
      const auto next = [&](int unit) {
        return std::find(order.begin() + static_cast<std::ptrdiff_t>(i), order.end(), unit);
      };
      held.erase(*std::ranges::max_element(held, {}, next));
    }
    held.insert(order[i]);
  }
  return reads;
}

int reads_of(ParamCache& cache, const std::vector<int>& order) {
  int reads = 0;
  for (const int unit : order) {
    cache.access(unit);
    if (cache.buffer_of(unit) == kNone) {
      EXPECT_TRUE(cache.take(unit));
      ++reads;
    }
    cache.pin(unit);
    while (cache.next_to_read() != kNone) ++reads;
    cache.unpin(unit);
  }
  return reads;
}

TEST(ParamCache, ReadsAsRarelyAsPossibleWhenItKnowsAllAccesses) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const int units = 2 + static_cast<int>(random() % 9);
    const int buffers = 1 + static_cast<int>(random() % 8);
    std::vector<int> order(random() % 60);
    for (int& unit : order) unit = static_cast<int>(random() % static_cast<std::uint64_t>(units));
    ParamCache cache = one_class(units, buffers, 0);
    cache.expect(order);
    EXPECT_EQ(reads_of(cache, order), fewest_reads(order, static_cast<std::size_t>(buffers)));
  }
}

// Forward and backward: the next pass begins with the units that the last one ended with.
TEST(ParamCache, ReadingAheadCostsNoFurtherReadsForwardAndBack) {
  constexpr int kUnits = 12;
  std::vector<int> order;
  for (int pass = 0; pass < 6; ++pass)
    for (int i = 0; i < kUnits; ++i) order.push_back(pass % 2 == 0 ? i : kUnits - 1 - i);
  for (int buffers = 2; buffers <= kUnits; ++buffers) {
    for (int read_ahead = 0; read_ahead < buffers; ++read_ahead) {
      ParamCache cache = one_class(kUnits, buffers, read_ahead);
      cache.expect(order);
      EXPECT_EQ(reads_of(cache, order), kUnits + 5 * (kUnits - buffers))
          << buffers << " buffers, " << read_ahead << " ahead";
    }
  }
}

TEST(ParamCache, LooksAheadNoFarther) {
  ParamCache cache = one_class(8, 8, 3);
  const std::vector<int> order = {5, 5, 4, 5, 3, 2, 1};
  cache.expect(order);
  EXPECT_EQ(cache.next_to_read(), 5);
  EXPECT_EQ(cache.next_to_read(), 4);
  EXPECT_EQ(cache.next_to_read(), 3);
  EXPECT_EQ(cache.next_to_read(), kNone);
  cache.access(5);
  EXPECT_EQ(cache.next_to_read(), kNone);  // 5 comes again
  cache.access(4);                         // out of order
  EXPECT_EQ(cache.next_to_read(), 2);
}

TEST(ParamCache, WithoutAnOrderTheLeastRecentlyUsedGoes) {
  ParamCache cache = one_class(4, 3, 0);
  for (const int unit : {0, 1, 2}) {
    cache.access(unit);
    ASSERT_TRUE(cache.take(unit));
  }
  cache.access(0);
  cache.access(3);
  ASSERT_TRUE(cache.take(3));
  EXPECT_EQ(cache.buffer_of(1), kNone);
  EXPECT_NE(cache.buffer_of(0), kNone);
}

TEST(ParamCache, HintsTakeNothingFromWhatIsExpectedNorFromEarlierHints) {
  ParamCache cache = one_class(6, 3, 1);
  const std::vector<int> order = {0};
  cache.expect(order);
  EXPECT_EQ(cache.next_to_read(), 0);
  EXPECT_TRUE(cache.hint(1));
  EXPECT_TRUE(cache.hint(2));
  EXPECT_FALSE(cache.hint(3));
  EXPECT_FALSE(cache.hint(0));
  cache.access(1);
  EXPECT_TRUE(cache.hint(3));  // in place of 1, which was used
  EXPECT_EQ(cache.buffer_of(1), kNone);
  EXPECT_NE(cache.buffer_of(0), kNone);
  EXPECT_NE(cache.buffer_of(2), kNone);
}

TEST(ParamCache, PinnedUnitsStayAndWaitersComeFirst) {
  ParamCache cache = one_class(4, 2, 2);
  for (const int unit : {0, 1}) {
    ASSERT_TRUE(cache.take(unit));
    cache.pin(unit);
  }
  EXPECT_FALSE(cache.take(2));
  const std::vector<int> order = {3};
  cache.expect(order);
  cache.begin_wait(2);
  cache.unpin(0);
  EXPECT_EQ(cache.next_to_read(), kNone);
  EXPECT_TRUE(cache.take(2));
  cache.end_wait(2);
  EXPECT_EQ(cache.buffer_of(0), kNone);
  cache.unpin(1);
  EXPECT_EQ(cache.next_to_read(), 3);
}

TEST(ParamCache, ClassesDoNotTouchEachOther) {
  const int classes[] = {0, 0, kNone, 1, 1};
  const int buffers[] = {1, 1};
  ParamCache cache(classes, buffers, 1);
  for (int unit = 0; unit < 5; ++unit) cache.set_readable(unit);
  const std::vector<int> order = {0, 1, 2, 3, 4};
  cache.expect(order);
  EXPECT_EQ(cache.next_to_read(), 0);
  EXPECT_EQ(cache.next_to_read(), 3);
  EXPECT_EQ(cache.next_to_read(), kNone);
  EXPECT_EQ(cache.buffer_of(2), kNone);
}

// ---- size classes ------------------------------------------------------------------------------

TEST(ParamLayout, PutsUnitsOfSimilarSizeIntoOneClass) {
  const std::vector<ParamUnit> units = {
      {"small", 100, Tier::kNvme}, {"large", 1 << 20, Tier::kNvme}, {"a", 100'000, Tier::kNvme},
      {"b", 76'000, Tier::kNvme},  {"c", 60'000, Tier::kNvme},      {"d", 100'000, Tier::kNvme},
      {"host", 5000, Tier::kCpu}};
  auto layout = ParamLayout::create(units, 2, 2);
  ASSERT_TRUE(layout.ok());
  const auto class_of = [&](int unit) { return layout->place(unit).size_class; };
  EXPECT_EQ(class_of(1), 0);
  EXPECT_EQ(class_of(2), 1);
  EXPECT_EQ(class_of(3), 1);
  EXPECT_EQ(class_of(5), 1);
  EXPECT_EQ(class_of(4), 2);
  EXPECT_EQ(class_of(0), 3);
  EXPECT_EQ(class_of(6), ParamLayout::kNone);
  ASSERT_EQ(layout->classes().size(), 4U);
  EXPECT_EQ(layout->classes()[1].buffers, 2);  // for three units
  EXPECT_EQ(layout->classes()[0].buffers, 1);
  EXPECT_EQ(layout->buffer_bytes(),
            (4096 + (2 << 20)) + 2 * (4096 + 200'704) + (4096 + 122'880) + (4096 + 4096));
  EXPECT_EQ(layout->cpu_bytes(), 12'288U);
}

// A record's header holds 480 checksums.
TEST(ParamLayout, MakesChunksLargeEnoughForTheLargestUnit) {
  const auto chunk_bytes = [](std::uint64_t bytes) {
    const ParamUnit unit{"u", bytes / 2, Tier::kNvme};
    return ParamLayout::create({&unit, 1}, 2, 2)->chunk_bytes();
  };
  constexpr std::uint64_t kMi = 1 << 20;
  EXPECT_EQ(chunk_bytes(2), kMi);
  EXPECT_EQ(chunk_bytes(480 * kMi), kMi);
  EXPECT_EQ(chunk_bytes(480 * kMi + 2), kMi + 4096);
  EXPECT_EQ(chunk_bytes(480 * 16 * kMi), 16 * kMi);
}

TEST(ParamLayout, LeavesOutWhatLivesOnTheGpu) {
  const std::vector<ParamUnit> units = {
      {"wte", 5000, Tier::kGpu}, {"h.0", 100, Tier::kCpu}, {"h.1", 100, Tier::kGpu}};
  const auto layout = ParamLayout::create(units, 2, 3);
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->cpu_bytes(), 4096U);
  EXPECT_EQ(layout->buffer_bytes(), 0U);
  EXPECT_EQ(layout->place(0).bytes, 0U);
  EXPECT_EQ(layout->place(1).offset_bytes, 0U);
}

TEST(ParamLayout, SaysWhatMakesNoSense) {
  const auto message = [](ParamUnit unit, int element_bytes, int buffers) {
    const auto layout = ParamLayout::create({&unit, 1}, element_bytes, buffers);
    return layout.ok() ? "" : layout.error().message();
  };
  EXPECT_NE(message({"h.7", 0, Tier::kNvme}, 2, 3).find("h.7"), std::string::npos);
  EXPECT_NE(message({"h.7", std::uint64_t{1} << 33, Tier::kNvme}, 2, 3).find("7.50G"),
            std::string::npos);
  EXPECT_NE(message({"h.7", 1, Tier::kCpu}, 3, 3).find("2 or 4"), std::string::npos);
  EXPECT_NE(message({"h.7", 1, Tier::kCpu}, 2, 1).find("1 buffers"), std::string::npos);
  EXPECT_FALSE(ParamLayout::create({}, 2, 3).ok());
  EXPECT_EQ(message({"h.7", 1, Tier::kCpu}, 4, 2), "");
}

}  // namespace
}  // namespace sluice::offload
