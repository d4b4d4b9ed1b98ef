// ParamOffloader on a drive in virtual time: what is read, what is not read, and what waits.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "aio/sim_drive.h"
#include "offload/params/param_offloader.h"
#include "tests/offload/params_under_test.h"

namespace sluice::offload {
namespace {

// Units of 256 KiB, including headers, at 256 KiB/ms each way.
class ParamOffloaderTime : public testing::Test {
 protected:
  static constexpr double kMs = 1e6;

  ParamsUnderTest& params(int units, int cache_buffers) {
    constexpr double kUnitPerMs = 0.262144;
    test_.reset();
    drive_ =
        std::make_unique<aio::SimDrive>(loop_, aio::SimDrive::Options{.read_gb_per_s = kUnitPerMs,
                                                                      .write_gb_per_s = kUnitPerMs,
                                                                      .half_duplex = false,
                                                                      .read_latency_us = 0,
                                                                      .write_latency_us = 0});
    EXPECT_OK(drive_->files().make_directories("/d"));
    test_ = std::make_unique<ParamsUnderTest>(
        *drive_, std::vector<std::string>{"/d"},
        ParamsUnderTestOptions{.units = equal_units(units, 256 * kKiB - swap::kRecordHeaderBytes),
                               .cache_buffers = cache_buffers});
    test_->fill();
    EXPECT_OK(test_->params().drain());
    return *test_;
  }
  void TearDown() override { test_.reset(); }

  void pass_time(double ms) {
    bool over = false;
    loop_.schedule_after(std::llround(ms * kMs), [&] { over = true; });
    loop_.run_until([&] { return over; });
  }
  // Returns milliseconds of virtual time.
  double visit(const std::vector<int>& order, Access access, double compute_ms) {
    const std::int64_t begin_ns = loop_.now_ns();
    for (const int unit : order) {
      auto lease = test_->params().acquire(unit, access);
      EXPECT_OK(lease.status());
      test_->expect_as_modelled(*lease);
      pass_time(compute_ms);
      if (access == Access::kUpdate) test_->change(*lease);
    }
    return static_cast<double>(loop_.now_ns() - begin_ns) / kMs;
  }

  aio::VirtualLoop loop_;
  std::unique_ptr<aio::SimDrive> drive_;
  std::unique_ptr<ParamsUnderTest> test_;
};

constexpr int kUnits = 16;

TEST_F(ParamOffloaderTime, ReadsNothingTwiceWithABufferForEachUnit) {
  params(kUnits, kUnits);
  for (int step = 0; step < 3; ++step) {
    visit(ascending(kUnits), Access::kRead, 0.1);
    visit(descending(kUnits), Access::kRead, 0.1);
    visit(ascending(kUnits), Access::kUpdate, 0.1);
  }
  ASSERT_OK(test_->params().drain());
  EXPECT_EQ(test_->params().stats().reads, 0U);
  EXPECT_EQ(test_->params().stats().hits, 9 * kUnits);
  EXPECT_EQ(test_->params().stats().writes, 4 * kUnits);
}

TEST_F(ParamOffloaderTime, BackwardBeginsWithWhatForwardLeft) {
  for (const int buffers : {3, 4, 8}) {
    params(kUnits, buffers);
    std::vector<int> order = ascending(kUnits);
    for (const int unit : descending(kUnits)) order.push_back(unit);
    test_->params().expect(order);
    visit(ascending(kUnits), Access::kRead, 5);
    const ParamStats before = test_->params().stats();
    visit(descending(kUnits), Access::kRead, 5);
    const ParamStats after = test_->params().stats();
    EXPECT_EQ(after.reads - before.reads, static_cast<std::uint64_t>(kUnits - buffers));
    // The rest arrived in time.
    EXPECT_EQ(after.hits - before.hits, static_cast<std::uint64_t>(kUnits));
    EXPECT_EQ(after.wait_read_ns, before.wait_read_ns);
  }
}

TEST_F(ParamOffloaderTime, WithoutAnOrderEveryUnitOfACycleIsRead) {
  params(kUnits, 4);
  visit(ascending(kUnits), Access::kRead, 0);
  const ParamStats before = test_->params().stats();
  visit(ascending(kUnits), Access::kRead, 0);
  EXPECT_EQ(test_->params().stats().misses - before.misses, kUnits);
  EXPECT_EQ(test_->params().stats().reads - before.reads, kUnits);
}

TEST_F(ParamOffloaderTime, ReadingAheadHidesTheDrive) {
  params(kUnits, 3);
  visit(ascending(kUnits), Access::kRead, 0);
  EXPECT_NEAR(visit(ascending(kUnits), Access::kRead, 1.5), 2.5 * kUnits, 0.1);
  test_->params().expect(ascending(kUnits));
  EXPECT_NEAR(visit(ascending(kUnits), Access::kRead, 1.5), 1.5 * kUnits + 1, 0.1);
  const std::int64_t before_ns = test_->params().stats().wait_read_ns;
  test_->params().expect(ascending(kUnits));
  EXPECT_NEAR(visit(ascending(kUnits), Access::kRead, 0.5), kUnits + 0.5, 0.1);
  const std::int64_t waited_ns = test_->params().stats().wait_read_ns - before_ns;
  EXPECT_NEAR(static_cast<double>(waited_ns) / kMs, 0.5 * kUnits, 0.6);
}

TEST_F(ParamOffloaderTime, AHintBringsAUnitInTime) {
  params(4, 2);
  test_->params().prefetch(0);
  EXPECT_EQ(test_->params().stats().reads, 0U);
  pass_time(1.01);
  EXPECT_TRUE(test_->params().in_memory(0));
  EXPECT_EQ(visit({0}, Access::kRead, 0), 0);
  EXPECT_EQ(test_->params().stats().reads, 1U);
}

// Later units are read and earlier ones written while one is updated.
TEST_F(ParamOffloaderTime, UpdatesReadAndWriteAtOnce) {
  params(kUnits, 4);
  test_->params().expect(ascending(kUnits));
  const double took_ms = visit(ascending(kUnits), Access::kUpdate, 1);
  EXPECT_NEAR(took_ms, kUnits + 1, 0.2);
  const std::int64_t begin_ns = loop_.now_ns();
  ASSERT_OK(test_->params().drain());
  EXPECT_NEAR(static_cast<double>(loop_.now_ns() - begin_ns) / kMs, 1, 0.01);
  EXPECT_EQ(test_->params().stats().writes, 2 * kUnits);
}

TEST_F(ParamOffloaderTime, ReadersShareABufferThatIsBeingWrittenAndUpdatersWait) {
  params(4, 2);
  ASSERT_OK(test_->update(0));
  std::int64_t begin_ns = loop_.now_ns();
  ASSERT_OK(test_->read(0));
  EXPECT_EQ(loop_.now_ns(), begin_ns);
  EXPECT_EQ(test_->params().stats().shared, 1U);
  ASSERT_OK(test_->update(0));
  EXPECT_NEAR(static_cast<double>(loop_.now_ns() - begin_ns) / kMs, 1, 0.01);
  begin_ns = loop_.now_ns();
  ASSERT_OK(test_->params().drain());
  EXPECT_NEAR(static_cast<double>(loop_.now_ns() - begin_ns) / kMs, 1, 0.01);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kRandomRuns = 40;
#else
constexpr std::uint64_t kRandomRuns = 500;
#endif

TEST_F(ParamOffloaderTime, AgreesWithTheModelInRandomOrder) {
  for (std::uint64_t seed = 1; seed <= kRandomRuns; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    aio::SimDrive drive(loop_, {.half_duplex = random() % 2 == 0,
                                .latency_jitter = 0.9,
                                .depth = 1 + static_cast<int>(random() % 8),
                                .seed = seed});
    ASSERT_OK(drive.files().make_directories("/d"));
    std::vector<ParamUnit> units;
    for (std::uint64_t i = 0, count = 1 + random() % 10; i < count; ++i) {
      units.push_back({"u" + std::to_string(i), 1 + random() % 9000,
                       random() % 4 == 0 ? Tier::kCpu : Tier::kNvme});
    }
    ParamsUnderTest test(drive, {"/d"},
                         {.units = units,
                          .cache_buffers = 2 + static_cast<int>(random() % 4),
                          .read_ahead = static_cast<int>(random() % 5),
                          .queue = {.block_bytes = 4096, .queue_depth = 4},
                          .two_queues = random() % 2 == 0});
    test.fill();
    access_at_random(test, random(), 60);
    ASSERT_FALSE(HasFailure());
  }
}

}  // namespace
}  // namespace sluice::offload
