#include "engine/probe/host_probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "aio/machine_info.h"
#include "aio/units.h"
#include "engine/probe/timed_passes.h"
#include "tests/aio/sim_test_util.h"

namespace sluice::engine {
namespace {

class FakeClock final : public Clock {
 public:
  std::int64_t now_ns() const override { return now_ns_; }
  void advance(double seconds) { now_ns_ += static_cast<std::int64_t>(1e9 * seconds); }

 private:
  std::int64_t now_ns_ = 0;
};

TEST(TimedPasses, AreTheMedianWithoutTheFirst) {
  FakeClock clock;
  const std::vector<double> takes = {50, 1, 2, 40, 1.5, 2.5};  // the first one warms up
  std::size_t pass = 0;
  EXPECT_DOUBLE_EQ(median_pass_seconds(clock, 47, [&] { clock.advance(takes.at(pass++)); }), 2);
  EXPECT_EQ(pass, takes.size());
}

TEST(TimedPasses, AreAtLeastThreeHoweverLongTheyTake) {
  FakeClock clock;
  int passes = 0;
  EXPECT_DOUBLE_EQ(median_pass_seconds(clock, 0.1,
                                       [&] {
                                         ++passes;
                                         clock.advance(9);
                                       }),
                   9);
  EXPECT_EQ(passes, 4);
}

TEST(MemoryCopy, CopiesEveryByteAndNoOther) {
  for (const int threads : {1, 2, 3, 7}) {
    const auto executor = aio::make_executor(threads);
    ASSERT_OK(executor);
    for (const std::size_t bytes : {std::size_t{64}, 3 * 4096 + std::size_t{192}, 1 << 20 | 64UL}) {
      const aio::AlignedBytes from(aio::random_bytes(bytes, bytes));
      const aio::AlignedBytes to(bytes + 64, std::byte{0x5A});
      copy_past_caches(**executor, to.data(), from.data(), bytes);
      EXPECT_TRUE(std::equal(from.data(), from.data() + bytes, to.data()));
      EXPECT_TRUE(std::all_of(to.data() + bytes, to.data() + bytes + 64,
                              [](std::byte byte) { return byte == std::byte{0x5A}; }));
    }
  }
}

TEST(CopyOverlap, CountsTheShareOfACopyUnderWay) {
  const std::vector<double> ends = {1, 2, 4};
  EXPECT_DOUBLE_EQ(copies_done(ends, 0.5), 0.5);
  EXPECT_DOUBLE_EQ(copies_done(ends, 2), 2);
  EXPECT_DOUBLE_EQ(copies_done(ends, 3), 2.5);
  EXPECT_DOUBLE_EQ(copies_done(ends, 9), 3);
}

TEST(HostProbe, WorksOnMuchMoreThanTheCachesWithinWhatIsFree) {
  EXPECT_EQ(host_probe_bytes(0, kTiB), 256 * kMiB);
  EXPECT_EQ(host_probe_bytes(100 * kMiB, kTiB), 400 * kMiB);
  EXPECT_EQ(host_probe_bytes(900 * kMiB, kTiB), 2 * kGiB);
  EXPECT_EQ(host_probe_bytes(100 * kMiB, kGiB), 256 * kMiB);
  EXPECT_EQ(host_probe_bytes(100 * kMiB, kMiB), 64 * kMiB);
}

TEST(HostProbe, FindsRatesThatMemoryAndCoresCanHave) {
  const auto executor = aio::make_executor(2);
  ASSERT_OK(executor);
  using offload::GradType;
  using offload::ParamForm;
  const std::vector<std::pair<offload::StateForm, GradType>> kinds = {
      {{ParamForm::kSplit}, GradType::kBf16},
      {{ParamForm::kSplit, offload::ElementType::kBf16}, GradType::kBf16},
      {{ParamForm::kFp32AndFp16}, GradType::kFp16},
      {{ParamForm::kFp32}, GradType::kFp32}};
  for (const auto& [form, grad] : kinds) {
    const auto speeds = probe_host(**executor, {.form = form,
                                                .grad_type = grad,
                                                .isa = offload::best_isa(),
                                                .memory_bytes = 32 * kMiB,
                                                .copy_seconds = 0.02,
                                                .adamw_seconds = 0.02});
    ASSERT_OK(speeds);
    EXPECT_GT(speeds->copy_bytes_per_s, 1e7);
    EXPECT_LT(speeds->copy_bytes_per_s, 1e13);
    EXPECT_GT(speeds->adamw_elements_per_s, 1e5);
    EXPECT_LT(speeds->adamw_elements_per_s, 1e12);
  }
}

TEST(HostProbe, SaysHowMuchMemoryCouldNotBeHad) {
  const auto executor = aio::make_executor(1);
  ASSERT_OK(executor);
  const auto speeds = probe_host(**executor, {.memory_bytes = std::uint64_t{1} << 60});
  ASSERT_FALSE(speeds.ok());
  EXPECT_EQ(speeds.error().code(), ErrorCode::kOutOfMemory);
}

}  // namespace
}  // namespace sluice::engine
