// The simulated drive's times, compared with closed forms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>

#include "aio/sim_drive.h"
#include "aio/units.h"
#include "tests/aio/sim_test_util.h"

namespace sluice::aio {
namespace {

using testing::ElementsAre;

SimDrive::Options timing_only() {
  SimDrive::Options options;
  options.keep_data = false;
  return options;
}

// Keeps `in_flight` equal ops running until `count` have ended; returns the nanoseconds it took.
struct Load {
  IoKind kind = IoKind::kRead;
  std::uint32_t op_bytes = 1 << 20;
  int in_flight = 1;
  int count = 1000;
};

std::int64_t time_of(SimDrive& drive, File& file, const std::vector<Load>& loads) {
  struct Looping : IoOp {
    SimDrive* drive = nullptr;
    int* left = nullptr;
    int* running = nullptr;
  };
  std::deque<Looping> ops;
  std::deque<int> left;
  int running = 0;
  const std::int64_t start_ns = drive.clock().now_ns();
  for (const Load& load : loads) {
    left.push_back(load.count - load.in_flight);
    for (int i = 0; i < load.in_flight; ++i) {
      Looping& op = ops.emplace_back();
      op.kind = load.kind;
      op.file = &file;
      op.length_bytes = load.op_bytes;
      op.drive = &drive;
      op.left = &left.back();
      op.running = &running;
      op.on_done = [](IoOp& base, std::int64_t result) noexcept {
        auto& self = static_cast<Looping&>(base);
        EXPECT_EQ(result, self.length_bytes);
        if (*self.left == 0) {
          --*self.running;
          return;
        }
        --*self.left;
        IoOp* again = &self;
        self.drive->submit({&again, 1});
      };
      ++running;
      IoOp* first = &op;
      drive.submit({&first, 1});
    }
  }
  while (running > 0 && drive.pump() == PumpResult::kProgressed) {
  }
  EXPECT_EQ(running, 0);
  return drive.clock().now_ns() - start_ns;
}

// ---- timing -----------------------------------------------------------------------------------

TEST(SimDriveTiming, IsLatencyPlusTransferForEachOpWhenOneIsInFlight) {
  VirtualLoop loop;
  auto options = timing_only();
  options.read_gb_per_s = 4.0;
  options.write_gb_per_s = 2.0;
  options.read_latency_us = 80;
  options.write_latency_us = 15;
  SimDrive drive(loop, options);
  const auto file = open_file(drive, "/f");
  ASSERT_OK(file->allocate(kMiB));
  const auto reads =
      time_of(drive, *file, {{.kind = IoKind::kRead, .op_bytes = 64000 / 4096 * 4096}});
  EXPECT_NEAR(static_cast<double>(reads), 1000 * (80'000 + 61'440 / 4.0), 1000);
  const auto writes = time_of(drive, *file, {{.kind = IoKind::kWrite, .op_bytes = 1 << 20}});
  EXPECT_NEAR(static_cast<double>(writes), 1000 * (15'000 + 1'048'576 / 2.0), 1000);
}

TEST(SimDriveTiming, AgreesWithTheClosedFormForAnyDepthAndSize) {
  for (const int depth : {1, 4, 32}) {
    for (const int in_flight : {1, 3, 16, 64}) {
      for (const std::uint32_t op_bytes : {4096U, 131'072U, 1U << 20}) {
        SCOPED_TRACE("depth " + std::to_string(depth) + ", in flight " + std::to_string(in_flight) +
                     ", bytes " + std::to_string(op_bytes));
        VirtualLoop loop;
        auto options = timing_only();
        options.depth = depth;
        options.read_gb_per_s = 3.2;
        options.read_latency_us = 90;
        SimDrive drive(loop, options);
        const auto file = open_file(drive, "/f");
        ASSERT_OK(file->allocate(kMiB));
        constexpr int kCount = 6400;
        const auto took_ns = time_of(drive, *file,
                                     {{.kind = IoKind::kRead,
                                       .op_bytes = op_bytes,
                                       .in_flight = in_flight,
                                       .count = kCount}});
        const double slots = std::min(depth, in_flight);
        const double expected =
            std::min(3.2, slots * op_bytes / (90'000 + static_cast<double>(op_bytes) / 3.2));
        EXPECT_NEAR(gb_per_s(std::uint64_t{kCount} * op_bytes, took_ns), expected, 0.02 * expected);
        EXPECT_EQ(drive.stats().max_in_service, std::min(depth, in_flight));
        EXPECT_EQ(drive.stats().busy_ns, took_ns);
      }
    }
  }
}

TEST(SimDriveTiming, SharesOnePipeBetweenReadsAndWritesOnlyWhenHalfDuplex) {
  const std::vector<Load> both = {{.kind = IoKind::kRead, .in_flight = 16},
                                  {.kind = IoKind::kWrite, .in_flight = 16}};
  const double read_ns = 1000 * 1'048'576 / 7.0;
  const double write_ns = 1000 * 1'048'576 / 5.0;
  for (const bool half_duplex : {true, false}) {
    VirtualLoop loop;
    auto options = timing_only();
    options.half_duplex = half_duplex;
    SimDrive drive(loop, options);
    const auto file = open_file(drive, "/f");
    ASSERT_OK(file->allocate(kMiB));
    const auto took_ns = static_cast<double>(time_of(drive, *file, both));
    const double expected = half_duplex ? read_ns + write_ns : std::max(read_ns, write_ns);
    EXPECT_NEAR(took_ns, expected, 0.01 * expected) << (half_duplex ? "half duplex" : "separate");
    EXPECT_NEAR(static_cast<double>(drive.stats().read.pipe_busy_ns), read_ns, 1000);
    EXPECT_NEAR(static_cast<double>(drive.stats().write.pipe_busy_ns), write_ns, 1000);
    EXPECT_EQ(drive.stats().read.bytes, 1000 * kMiB);
    EXPECT_EQ(drive.stats().write.ops, 1000U);
  }
}

TEST(SimDriveTiming, PaysForEveryChangeOfDirection) {
  VirtualLoop loop;
  auto options = timing_only();
  options.turnaround_us = 50;
  options.read_latency_us = options.write_latency_us = 10;
  SimDrive drive(loop, options);
  const auto file = open_file(drive, "/f");
  ASSERT_OK(file->allocate(kMiB));
  // With one of each in flight they alternate.
  const auto alternating = static_cast<double>(
      time_of(drive, *file,
              {{.kind = IoKind::kRead, .count = 100}, {.kind = IoKind::kWrite, .count = 100}}));
  EXPECT_NEAR(alternating, 100 * (1'048'576 / 7.0 + 1'048'576 / 5.0 + 2 * 50'000), 200'000);
  const auto reads =
      static_cast<double>(time_of(drive, *file, {{.kind = IoKind::kRead, .in_flight = 2}}));
  EXPECT_NEAR(reads, 1000 * (1'048'576 / 7.0), 200'000);
}

TEST(SimDriveTiming, StartsADelayedOpNoEarlierThanItsDelay) {
  VirtualLoop loop;
  auto options = timing_only();
  options.read_latency_us = 10;
  SimDrive drive(loop, options);
  const auto file = open_file(drive, "/f");
  ASSERT_OK(file->allocate(kMiB));
  TestOp late(IoKind::kRead, file.get(), 0, nullptr, 4096);
  late.delay_ns = 1'000'000;
  TestOp soon(IoKind::kRead, file.get(), 0, nullptr, 4096);
  TestOp nop(IoKind::kNop, nullptr);
  nop.delay_ns = 500'000;
  for (TestOp* op : {&late, &soon, &nop}) op->submit(drive);
  loop.run();
  EXPECT_EQ(soon.done_ns, 10'000 + 586);  // 4096 / 7, rounded up
  EXPECT_EQ(nop.done_ns, 500'000);
  EXPECT_EQ(nop.result, 0);
  EXPECT_EQ(late.done_ns, 1'010'586);
}

TEST(SimDriveTiming, ServesSyncsAndKeepsTheOrderOfArrival) {
  VirtualLoop loop;
  SimDrive::Options options;
  options.depth = 1;
  options.sync_us = 400;
  options.write_latency_us = 20;
  options.write_gb_per_s = 4.096;
  SimDrive drive(loop, options);
  const auto file = open_file(drive, "/f");
  const AlignedBytes data(4096);
  std::vector<int> order;
  std::deque<TestOp> ops;
  for (int i = 0; i < 6; ++i) {
    TestOp& op =
        ops.emplace_back(i == 3 ? IoKind::kSync : IoKind::kWrite, file.get(), 0, data.data(), 4096);
    op.order = &order;
    op.id = i;
    op.submit(drive);
  }
  EXPECT_EQ(drive.ops_in_flight(), 6);
  loop.run();
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(loop.now_ns(), 5 * 21'000 + 400'000);
  EXPECT_EQ(drive.stats().syncs, 1U);
  EXPECT_EQ(drive.ops_in_flight(), 0);
}

TEST(SimDriveTiming, RepeatsItsHistoryForOneSeedAndNotForAnother) {
  const auto history = [](std::uint64_t seed) {
    VirtualLoop loop;
    auto options = timing_only();
    options.latency_jitter = 0.5;
    options.read_latency_us = 100;
    options.seed = seed;
    SimDrive drive(loop, options);
    const auto file = open_file(drive, "/f");
    EXPECT_OK(file->allocate(kMiB));
    std::deque<TestOp> ops;
    std::vector<std::int64_t> times;
    for (int i = 0; i < 200; ++i) {
      ops.emplace_back(IoKind::kRead, file.get(), 0, nullptr, 4096).submit(drive);
    }
    loop.run();
    for (const TestOp& op : ops) times.push_back(op.done_ns);
    return times;
  };
  const auto first = history(5);
  EXPECT_EQ(first, history(5));
  EXPECT_NE(first, history(6));
  for (int i = 0; i < 64; ++i) {  // the first 64 slots only wait for the latency
    EXPECT_GE(first[static_cast<std::size_t>(i)], 50'000);
    EXPECT_LE(first[static_cast<std::size_t>(i)], 150'000 + 64 * 586);
  }
}

TEST(SimDriveTiming, RunsTwoDrivesOfOneLoopSideBySide) {
  VirtualLoop loop;
  SimDrive a(loop, timing_only());
  SimDrive b(loop, timing_only());
  const auto file_a = open_file(a, "/f");
  const auto file_b = open_file(b, "/f");
  ASSERT_OK(file_a->allocate(64 * kMiB));
  ASSERT_OK(file_b->allocate(64 * kMiB));
  std::deque<TestOp> ops;
  for (std::uint64_t i = 0; i < 64; ++i) {
    ops.emplace_back(IoKind::kRead, file_a.get(), i * kMiB, nullptr, kMiB).submit(a);
    ops.emplace_back(IoKind::kRead, file_b.get(), i * kMiB, nullptr, kMiB).submit(b);
  }
  while (a.pump() == PumpResult::kProgressed) {  // pumps the loop, and with it the other drive
  }
  for (const TestOp& op : ops) EXPECT_EQ(op.result, 1 << 20);
  EXPECT_NEAR(gb_per_s(128 * kMiB, loop.now_ns()), 14.0, 0.2);
}

TEST(SimDriveTiming, EndsEveryOpBeforeItIsDestroyed) {
  VirtualLoop loop;
  auto drive = std::make_unique<SimDrive>(loop, timing_only());
  TestOp op(IoKind::kNop, nullptr);
  op.delay_ns = 1'000'000;
  op.submit(*drive);
  drive.reset();
  EXPECT_EQ(op.result, 0);
  loop.run();
}

}  // namespace
}  // namespace sluice::aio
