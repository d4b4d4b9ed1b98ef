#include "swap/swap_pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <random>
#include <thread>

#include "aio/sim_drive.h"
#include "tests/swap/swap_under_test.h"
#include "tests/swap/watched_backend.h"

namespace sluice::swap {
namespace {

using Order = SwapPipeline::Order;
using Loan = SwapPipeline::Loan;
using testing::HasSubstr;

constexpr Order kOrders[] = {Order::kMixed, Order::kBursts};

// ---- real drives ------------------------------------------------------------------------------

class SwapPipelineOn : public aio::EveryBackend {
 protected:
  aio::TemporaryFolder folder_;
};

TEST_P(SwapPipelineOn, GivesEveryRecordInOrderAndWritesEveryChange) {
  for (const Order order : kOrders) {
    for (const bool two_queues : {false, true}) {
      const auto inner = backend(2, 16);
      WatchedBackend watched(*inner);
      SwapUnderTest swap(
          watched, folder_.path(),
          {.pipeline = {.buffers = 3, .order = order}, .two_queues = two_queues, .threads = 2});
      std::vector<RecordId> sequence;
      for (int i = 0; i < 12; ++i)
        for (const RecordId id : swap.all_records()) sequence.push_back(id);
      ASSERT_OK(swap.pass(sequence));
      swap.expect_all_on_disk();
      EXPECT_FALSE(watched.overlapping_write());
      EXPECT_EQ(swap.pipeline().expected(), 0U);
      EXPECT_EQ(swap.pipeline().stats().records_written, sequence.size());
    }
  }
}

TEST_P(SwapPipelineOn, KeepsRandomSequencesRight) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto inner = backend(2, 16);
    SwapUnderTest swap(
        *inner, folder_.path(),
        {.pipeline = {.buffers = 2 + static_cast<int>(seed % 3), .order = kOrders[seed % 2]},
         .threads = 2});
    std::vector<RecordId> sequence(100);
    for (RecordId& id : sequence) id = static_cast<RecordId>(random() % 5);
    ASSERT_OK(swap.pass(sequence));
    const SwapStats stats = swap.pipeline().stats();
    EXPECT_EQ(stats.records_read + stats.records_forwarded, sequence.size());
    EXPECT_GT(stats.records_forwarded, 0U);
    EXPECT_EQ(stats.bytes_read, swap.read_stats().read.payload_bytes);
    EXPECT_EQ(stats.bytes_written, swap.write_stats().write.payload_bytes);
    swap.expect_all_on_disk();
  }
}

TEST_P(SwapPipelineOn, CancelLeavesEveryRecordWholeAtAnyMoment) {
  int cancelled = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto inner = backend(2, 16);
    SwapUnderTest swap(*inner, folder_.path(), {.pipeline = {.order = kOrders[seed % 2]}});
    std::vector<RecordId> sequence(60);
    for (RecordId& id : sequence) id = static_cast<RecordId>(random() % 5);
    const std::chrono::microseconds moment(random() % 6000);
    std::thread canceller([&] {
      std::this_thread::sleep_for(moment);
      swap.pipeline().cancel();
    });
    const Status ended = swap.pass(sequence);
    canceller.join();
    EXPECT_EQ(swap.pipeline().drain().error().code(), ErrorCode::kCancelled);
    if (!ended.ok()) {
      EXPECT_EQ(ended.error().code(), ErrorCode::kCancelled) << ended.error().message();
      ++cancelled;
    }
    swap.stop_pipeline();
    // Writes that were in flight have finished, so each record is whole, though it may be an older
    // one.
    for (const RecordId id : swap.all_records()) {
      ASSERT_TRUE(swap.store().generation(id).has_value());
      EXPECT_LE(*swap.store().generation(id), swap.model_generation(id));
      EXPECT_OK(swap.user().read(id));
    }
    EXPECT_EQ(swap.pool().free_count(), swap.pool().capacity());
  }
  EXPECT_GT(cancelled, 0);
}

SLUICE_TEST_EVERY_BACKEND(SwapPipelineOn);

// ---- the simulated drive ----------------------------------------------------------------------

class SwapPipelineOnSim : public testing::Test {
 protected:
  aio::SimDrive& drive(const aio::SimDrive::Options& options = {}) {
    drive_ = std::make_unique<aio::SimDrive>(loop_, options);
    EXPECT_TRUE(drive_->files().make_directories("/d").ok());
    return *drive_;
  }
  void pass_time(double ms) {
    bool over = false;
    loop_.schedule_after(std::llround(ms * 1e6), [&] { over = true; });
    loop_.run_until([&] { return over; });
  }

  aio::VirtualLoop loop_;
  std::unique_ptr<aio::SimDrive> drive_;
};

// One user that does anything the contract allows, at any moment of the transfers.
class RandomSwapper {
 public:
  RandomSwapper(aio::VirtualLoop& loop, SwapUnderTest& swap, int buffers, std::uint64_t seed)
      : loop_(loop), swap_(swap), buffers_(static_cast<std::size_t>(buffers)), random_(seed) {}

  void run(int actions) {
    for (int i = 0; i < actions && !testing::Test::HasFatalFailure(); ++i) act(random_() % 12);
    while (!loans_.empty() || !sequence_.empty()) {
      if (testing::Test::HasFatalFailure()) return;
      while (!loans_.empty()) put_back();
      if (!sequence_.empty()) take();
    }
    ASSERT_OK(swap_.pipeline().drain());
    const SwapStats stats = swap_.pipeline().stats();
    EXPECT_EQ(stats.records_written, written_);
    EXPECT_EQ(stats.records_forwarded, forwarded_);
    EXPECT_EQ(stats.records_read + forwarded_, given_);
    EXPECT_EQ(stats.bytes_read, swap_.read_stats().read.payload_bytes);
    EXPECT_EQ(stats.bytes_written, swap_.write_stats().write.payload_bytes);
  }

 private:
  void act(std::uint64_t what) {
    if (what < 2) {
      std::vector<RecordId> more(1 + random_() % 5);
      for (RecordId& id : more)
        id = static_cast<RecordId>(random_() % swap_.store().record_count());
      swap_.pipeline().expect(more);
      sequence_.insert(sequence_.end(), more.begin(), more.end());
    } else if (what < 5) {
      take();
    } else if (what < 8) {
      if (!loans_.empty()) put_back();
    } else if (what == 8 && random_() % 8 == 0) {
      ASSERT_OK(swap_.pipeline().drain());
    } else {
      for (std::uint64_t events = random_() % 6; events > 0 && loop_.run_one(); --events) {
      }
    }
  }
  void take() {
    if (sequence_.empty() || loans_.size() + 1 > buffers_ - 1) return;
    const RecordId due = sequence_.front();
    for (const Loan& loan : loans_)
      if (loan.record() == due) return;
    auto loan = swap_.pipeline().next();
    ASSERT_OK(loan.status());
    sequence_.pop_front();
    ++given_;
    if (!loan->check_generation()) ++forwarded_;
    ASSERT_NO_FATAL_FAILURE(swap_.expect_as_modelled(*loan, due));
    if (random_() % 4 == 0) {
      ASSERT_OK(loan->check(swap_.executor()));
    }
    loans_.push_back(std::move(*loan));
  }
  void put_back() {
    const auto at = loans_.begin() + static_cast<std::ptrdiff_t>(random_() % loans_.size());
    Loan loan = std::move(*at);
    loans_.erase(at);
    const RecordId record = loan.record();
    const std::uint64_t how = random_() % 6;
    if (how == 0) {
      swap_.pipeline().release(std::move(loan));
      return;
    }
    ASSERT_OK(swap_.change(loan));
    if (how == 1) return;  // changed, and dropped
    swap_.change_model(record);
    swap_.pipeline().write(std::move(loan));
    ++written_;
  }

  aio::VirtualLoop& loop_;
  SwapUnderTest& swap_;
  const std::size_t buffers_;
  std::mt19937_64 random_;
  std::deque<RecordId> sequence_;
  std::vector<Loan> loans_;
  std::uint64_t given_ = 0;
  std::uint64_t forwarded_ = 0;
  std::uint64_t written_ = 0;
};

void swap_at_random(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  aio::VirtualLoop loop;
  aio::SimDrive drive(loop, {.half_duplex = random() % 2 == 0,
                             .latency_jitter = 0.9,
                             .depth = 1 + static_cast<int>(random() % 8),
                             .seed = seed});
  ASSERT_OK(drive.files().make_directories("/d"));
  WatchedBackend watched(drive);
  const int buffers = 2 + static_cast<int>(random() % 5);
  const Order order = kOrders[random() % 2];
  std::vector<RecordSpec> records;
  for (std::uint64_t i = 0, count = 1 + random() % 8; i < count; ++i)
    records.push_back({"r", i * 100, 100, 1 + random() % 9000});
  {
    SwapUnderTest swap(
        watched, "/d",
        {.pipeline = {.buffers = buffers,
                      .order = order,
                      .burst_records = static_cast<int>(random() % 3)},
         .records = records,
         .queue = {.block_bytes = 4096, .queue_depth = 1 + static_cast<int>(random() % 6)},
         .two_queues = random() % 2 == 0});
    RandomSwapper(loop, swap, buffers, random()).run(120);
    swap.expect_all_on_disk();
  }
  EXPECT_FALSE(watched.overlapping_write());
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kSequences = 300;
#else
constexpr std::uint64_t kSequences = 3000;
#endif

TEST(SwapPipelineRandom, AgreesWithTheModelInThousandsOfRandomSequences) {
  for (std::uint64_t seed = 1; seed <= kSequences; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    swap_at_random(seed);
    ASSERT_FALSE(testing::Test::HasFailure());
  }
}

TEST_F(SwapPipelineOnSim, OneRecordAgainAndAgainIsReadOnce) {
  for (const Order order : kOrders) {
    SwapUnderTest swap(
        drive(), "/d",
        {.pipeline = {.buffers = 2, .order = order}, .records = equal_records(1, 50'000)});
    const std::vector<RecordId> sequence(100, 0);
    ASSERT_OK(swap.pass(sequence));
    swap.expect_all_on_disk();
    EXPECT_EQ(swap.pipeline().stats().records_read, 1U);
    EXPECT_EQ(swap.pipeline().stats().records_forwarded, 99U);
  }
}

// Records of 128 KiB at 128 KiB/ms: a millisecond each way.
class SwapPipelineTime : public SwapPipelineOnSim {
 protected:
  static constexpr int kRecords = 64;
  static constexpr std::uint64_t kRecordBytes = 128 * kKiB;
  static constexpr double kMs = 1e6;

  SwapUnderTest& make_swap(bool half_duplex, const SwapPipeline::Options& pipeline,
                           double write_speed = 1) {
    constexpr double kSpeed = 0.131072;
    drive({.read_gb_per_s = kSpeed,
           .write_gb_per_s = kSpeed * write_speed,
           .half_duplex = half_duplex,
           .turnaround_us = half_duplex ? turnaround_us_ : 0.0,
           .read_latency_us = 0,
           .write_latency_us = 0});
    watched_ = std::make_unique<WatchedBackend>(*drive_);
    swap_ = std::make_unique<SwapUnderTest>(
        *watched_, "/d",
        SwapUnderTestOptions{.pipeline = pipeline,
                             .records = equal_records(kRecords, kRecordBytes - kRecordHeaderBytes),
                             .queue = {.block_bytes = 16 * kKiB, .queue_depth = 16}});
    return *swap_;
  }
  // Returns milliseconds of virtual time.
  double pass(double compute_ms = 0) {
    const std::int64_t begin_ns = loop_.now_ns();
    swap_->pipeline().expect(swap_->all_records());
    for (const RecordId id : swap_->all_records()) {
      auto loan = swap_->pipeline().next();
      EXPECT_OK(loan.status());
      EXPECT_OK(swap_->change(*loan));
      EXPECT_EQ(loan->record(), id);
      if (compute_ms > 0) pass_time(compute_ms);
      swap_->pipeline().write(std::move(*loan));
    }
    EXPECT_OK(swap_->pipeline().drain());
    return static_cast<double>(loop_.now_ns() - begin_ns) / kMs;
  }
  void TearDown() override { swap_.reset(); }

  double turnaround_us_ = 0;
  std::unique_ptr<WatchedBackend> watched_;
  std::unique_ptr<SwapUnderTest> swap_;
};

TEST_F(SwapPipelineTime, ReadsAndWritesOverlapOnAFullDuplexDrive) {
  make_swap(/*half_duplex=*/false, {.buffers = 4});
  const double took_ms = pass();
  EXPECT_GE(took_ms, kRecords);
  EXPECT_LE(took_ms, kRecords * 1.05);
  const SwapStats stats = swap_->pipeline().stats();
  EXPECT_EQ(stats.bytes_read, kRecords * kRecordBytes);
  EXPECT_EQ(stats.bytes_written, kRecords * kRecordBytes);
  EXPECT_TRUE(watched_->both_directions_at_once());
}

TEST_F(SwapPipelineTime, ReachesTheBandwidthOfAHalfDuplexDrive) {
  for (const Order order : kOrders) {
    swap_.reset();
    make_swap(/*half_duplex=*/true, {.buffers = 4, .order = order});
    const double took_ms = pass();
    EXPECT_GE(took_ms, 2 * kRecords);
    EXPECT_LE(took_ms, 2 * kRecords * 1.05);
  }
}

TEST_F(SwapPipelineTime, ComputesWhileItReadsAndWrites) {
  for (const int buffers : {3, 4}) {
    swap_.reset();
    make_swap(/*half_duplex=*/false, {.buffers = buffers});
    const double took_ms = pass(/*compute_ms=*/1);
    EXPECT_GE(took_ms, kRecords);
    EXPECT_LE(took_ms, kRecords * 1.06) << buffers << " buffers";
  }
}

TEST_F(SwapPipelineTime, BurstsNeverMixDirectionsAndSaveTurnarounds) {
  turnaround_us_ = 500;
  make_swap(/*half_duplex=*/true, {.buffers = 8});
  const double mixed_ms = pass();
  EXPECT_TRUE(watched_->both_directions_at_once());
  swap_.reset();
  make_swap(/*half_duplex=*/true, {.buffers = 8, .order = Order::kBursts});
  const double bursts_ms = pass();
  EXPECT_FALSE(watched_->both_directions_at_once());
  constexpr double kTurns = 2.0 * kRecords / 4;  // 0.5 ms each
  EXPECT_LE(bursts_ms, 2 * kRecords + kTurns * 0.5 + 10);
  EXPECT_GE(mixed_ms, bursts_ms);
}

TEST_F(SwapPipelineTime, CountsTheTimeOfEachStage) {
  make_swap(/*half_duplex=*/false, {.buffers = 4});
  double took_ms = pass(/*compute_ms=*/3);
  SwapStats stats = swap_->pipeline().stats();
  EXPECT_NEAR(static_cast<double>(stats.compute_ns) / kMs, 3 * kRecords, 0.01);
  const auto sum = static_cast<double>(stats.compute_ns + stats.wait_read_ns + stats.wait_write_ns);
  EXPECT_NEAR(sum / kMs, took_ms, 0.01);

  swap_.reset();
  make_swap(/*half_duplex=*/false, {.buffers = 4}, /*write_speed=*/8);
  took_ms = pass(/*compute_ms=*/0.1);
  stats = swap_->pipeline().stats();
  EXPECT_GT(stats.wait_read_ns, stats.wait_write_ns);
  EXPECT_NEAR(static_cast<double>(stats.wait_read_ns) / kMs, 0.9 * kRecords, 3);

  swap_.reset();
  make_swap(/*half_duplex=*/false, {.buffers = 4}, /*write_speed=*/0.125);
  took_ms = pass(/*compute_ms=*/0.1);
  stats = swap_->pipeline().stats();
  EXPECT_GE(static_cast<double>(stats.wait_write_ns) / kMs, took_ms * 0.8);
}

// ---- memory, options, misuse -------------------------------------------------------------------

TEST_F(SwapPipelineOnSim, TakesExactlyItsBuffersOrNone) {
  SwapUnderTest swap(drive(), "/d", {.pipeline = {.buffers = 3}, .spare_buffers = 1});
  const auto three = 3 * align_up(swap.store().layout().largest_image_bytes(), 4096);
  EXPECT_EQ(swap.pool().usage().leased_bytes, three);
  std::vector<RecordId> sequence;
  for (int i = 0; i < 10; ++i)
    for (const RecordId id : swap.all_records()) sequence.push_back(id);
  ASSERT_OK(swap.pass(sequence));
  EXPECT_EQ(swap.pool().usage().peak_leased_bytes, three);

  const auto second = SwapPipeline::create(swap.store(), swap.pool(), {.buffers = 2});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code(), ErrorCode::kOutOfMemory);
  EXPECT_THAT(second.error().message(), HasSubstr("has 1 free"));
  EXPECT_EQ(swap.pool().free_count(), 1);
  swap.stop_pipeline();
  EXPECT_EQ(swap.pool().free_count(), 4);
}

TEST_F(SwapPipelineOnSim, RefusesOptionsThatMakeNoSense) {
  SwapUnderTest swap(drive(), "/d", {.pipeline = {.buffers = 2}, .spare_buffers = 2});
  for (const SwapPipeline::Options& options :
       {SwapPipeline::Options{.buffers = 1},
        SwapPipeline::Options{.buffers = SwapPipeline::kMaxBuffers + 1},
        SwapPipeline::Options{.buffers = 2, .burst_records = 3},
        SwapPipeline::Options{.buffers = 2, .burst_records = -1}}) {
    const auto made = SwapPipeline::create(swap.store(), swap.pool(), options);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code(), ErrorCode::kInvalidArgument);
  }
  auto small = std::move(aio::PinnedPool::create({.buffer_bytes = 4096, .capacity = 2})).value();
  const auto made = SwapPipeline::create(swap.store(), *small, {.buffers = 2});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(made.error().message(),
              HasSubstr(std::to_string(swap.store().layout().largest_image_bytes())));
}

TEST_F(SwapPipelineOnSim, FindsADamagedRecordAndDoesNotWriteIt) {
  SwapUnderTest swap(drive(), "/d", {.pipeline = {.buffers = 2}});
  std::vector<std::byte> bytes = swap.user().image_on_disk(2);
  bytes[kRecordHeaderBytes + 150'000] ^= std::byte{1};
  swap.user().put_on_disk(2, bytes);
  const std::uint64_t generation = *swap.store().generation(2);
  const std::vector<RecordId> sequence = {2, 0};
  swap.pipeline().expect(sequence);
  {
    auto loan = swap.pipeline().next();
    ASSERT_OK(loan.status());
    int worked_on = 0;
    const Status worked =
        loan->work(swap.executor(), [&](int, std::span<std::byte>) { ++worked_on; });
    ASSERT_FALSE(worked.ok());
    EXPECT_EQ(worked.error().code(), ErrorCode::kCorrupt);
    EXPECT_THAT(worked.error().message(), HasSubstr("record h.1[0..20000)"));
  }
  ASSERT_OK(swap.step(0));  // the others continue
  ASSERT_OK(swap.pipeline().drain());
  EXPECT_EQ(swap.store().generation(2), generation);
  EXPECT_EQ(swap.user().image_on_disk(2), bytes);
  EXPECT_EQ(swap.pipeline().stats().records_written, 1U);
}

using SwapPipelineDeathTest = SwapPipelineOnSim;

TEST_F(SwapPipelineDeathTest, StopsAtMisuse) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a forked child has no pinned buffers
  SwapUnderTest swap(drive(), "/d", {.pipeline = {.buffers = 2}});
  EXPECT_DEATH(static_cast<void>(swap.pipeline().next()), "without an expected record");
  const std::vector<RecordId> sequence = {0, 0, 1};
  swap.pipeline().expect(sequence);
  auto loan = swap.pipeline().next();
  ASSERT_OK(loan.status());
  EXPECT_DEATH(static_cast<void>(swap.pipeline().next()), "on loan");
  EXPECT_DEATH(swap.pipeline().write(std::move(*loan)), "not sealed");
  EXPECT_DEATH(swap.stop_pipeline(), "on loan");
}

}  // namespace
}  // namespace sluice::swap
