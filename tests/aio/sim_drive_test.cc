#include "aio/sim_drive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <deque>
#include <functional>
#include <memory>
#include <random>

#include "aio/real_file_system.h"
#include "aio/units.h"
#include "tests/aio/sim_test_util.h"

namespace sluice::aio {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

SimDrive::Options timing_only() {
  SimDrive::Options options;
  options.keep_data = false;
  return options;
}

// Keeps `in_flight` equal ops going until `count` have ended; the nanoseconds it took.
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
  // One of each in flight: they alternate.
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
  for (int i = 0; i < 64; ++i) {  // in the first 64 slots the latency is all there is to wait for
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
  while (a.pump() == PumpResult::kProgressed) {  // pumps the loop, and with it the other one
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

// ---- data, alignment, space -------------------------------------------------------------------

class SimDriveTest : public testing::Test {
 protected:
  VirtualLoop loop_;
  SimDrive drive_{loop_, {}};
};

TEST_F(SimDriveTest, AgreesWithAByteArrayForRandomBufferedTransfers) {
  const std::uint64_t seed = 3;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto file = open_file(drive_, "/f", false);
  std::vector<std::byte> oracle;
  for (int i = 0; i < 2000; ++i) {
    std::uint64_t offset = random() % 300'000;
    if (random() % 4 == 0) offset = align_down(offset, SparsePages::kPageBytes);
    const std::uint64_t length = random() % (i % 5 == 0 ? 150'000 : 700);
    switch (random() % 8) {
      case 0:
        ASSERT_OK(file->truncate(offset));
        oracle.resize(offset);
        break;
      case 1:
        ASSERT_OK(file->allocate(offset));
        oracle.resize(std::max<std::size_t>(oracle.size(), offset));
        break;
      case 2:
        ASSERT_EQ(sync_file(drive_, *file), 0);
        break;
      case 3:
      case 4: {
        const auto data = random() % 4 == 0 ? filled(length, 0) : random_bytes(length, random());
        ASSERT_EQ(write_at(drive_, *file, offset, data), static_cast<std::int64_t>(length));
        if (length > 0) oracle.resize(std::max<std::size_t>(oracle.size(), offset + length));
        std::copy(data.begin(), data.end(),
                  oracle.begin() + static_cast<std::ptrdiff_t>(length > 0 ? offset : 0));
        break;
      }
      default: {
        const std::size_t begin = std::min<std::size_t>(offset, oracle.size());
        const std::size_t end = std::min<std::size_t>(offset + length, oracle.size());
        ASSERT_EQ(read_at(drive_, *file, offset, length),
                  std::vector<std::byte>(oracle.begin() + static_cast<std::ptrdiff_t>(begin),
                                         oracle.begin() + static_cast<std::ptrdiff_t>(end)));
      }
    }
    ASSERT_EQ(*file->size_bytes(), oracle.size());
  }
  EXPECT_EQ(drive_.content("/f", SimDrive::View::kPresent), oracle);
}

TEST_F(SimDriveTest, MakesAWriteVisibleWhenItCompletes) {
  const auto file = open_file(drive_, "/f");
  const AlignedBytes data(filled(4096, 7));
  TestOp write(IoKind::kWrite, file.get(), 0, data.data(), 4096);
  write.submit(drive_);
  EXPECT_EQ(drive_.content("/f", SimDrive::View::kPresent)->size(), 0U);
  loop_.run();
  EXPECT_EQ(write.result, 4096);
  EXPECT_EQ(drive_.content("/f", SimDrive::View::kPresent), filled(4096, 7));
}

TEST_F(SimDriveTest, HoldsAHugeSparseFileForNothing) {
  const auto file = open_file(drive_, "/huge");
  ASSERT_OK(file->truncate(std::uint64_t{1} << 50));
  const std::uint64_t end = (std::uint64_t{1} << 50) - 4096;
  EXPECT_EQ(read_at(drive_, *file, end, 4096), filled(4096, 0));
  ASSERT_EQ(write_at(drive_, *file, end, filled(4096, 1)), 4096);
  EXPECT_EQ(read_at(drive_, *file, end, 8192), filled(4096, 1));  // cut at the end of the file
  EXPECT_EQ(drive_.used_bytes(), 4096U);
}

TEST_F(SimDriveTest, RefusesMisalignedDirectTransfersAsAKernelDoes) {
  const auto direct = open_file(drive_, "/f");
  EXPECT_EQ(direct->offset_alignment_bytes(), 4096U);
  const AlignedBytes data(3 * 4096);
  const auto result = [&](File& file, std::uint64_t offset, std::size_t shift, std::size_t length) {
    return run_op(drive_, TestOp(IoKind::kWrite, &file, offset, data.data() + shift, length));
  };
  EXPECT_EQ(result(*direct, 0, 0, 8192), 8192);
  EXPECT_EQ(result(*direct, 512, 0, 4096), -EINVAL);
  EXPECT_EQ(result(*direct, 0, 0, 4095), -EINVAL);
  EXPECT_EQ(result(*direct, 0, 16, 4096), -EINVAL);
  EXPECT_EQ(run_op(drive_, TestOp(IoKind::kRead, direct.get(), 0, data.data(), 100)), -EINVAL);
  EXPECT_EQ(result(*direct, UINT64_MAX - 4095, 0, 4096), -EINVAL);
  const auto buffered = open_file(drive_, "/f", false);
  EXPECT_FALSE(buffered->direct());
  EXPECT_EQ(result(*buffered, 513, 3, 1001), 1001);
  EXPECT_EQ(drive_.stats().failed_ops, 5U);
}

TEST_F(SimDriveTest, RefusesToWriteAFileOpenedForReading) {
  open_file(drive_, "/f");
  const auto file = drive_.files().open("/f", {});
  ASSERT_OK(file);
  EXPECT_EQ(write_at(drive_, **file, 0, filled(4096, 1)), -EBADF);
  EXPECT_FALSE((*file)->truncate(10).ok());
  EXPECT_FALSE((*file)->allocate(10).ok());
}

TEST_F(SimDriveTest, KeepsTimeAndSizesButNoBytesWhenAskedTo) {
  SimDrive drive(loop_, timing_only());
  const auto file = open_file(drive, "/f");
  EXPECT_EQ(write_at(drive, *file, 0, filled(8192, 9)), 8192);
  EXPECT_EQ(*file->size_bytes(), 8192U);
  EXPECT_EQ(drive.used_bytes(), 8192U);
  EXPECT_EQ(read_at(drive, *file, 4096, 8192), filled(4096, 0xEE));  // the buffer as it was
}

TEST(SimDriveSpace, IsTakenByAllocationAndFirstWritesAndGivenBack) {
  VirtualLoop loop;
  SimDrive::Options options;
  options.capacity_bytes = 40'960;
  SimDrive drive(loop, options);
  FileSystem& files = drive.files();
  auto a = open_file(drive, "/a");
  ASSERT_OK(a->allocate(5 * 4096 - 100));  // whole blocks
  EXPECT_EQ(*files.free_bytes("/"), 5 * 4096U);
  EXPECT_EQ(*a->size_bytes(), 5 * 4096U - 100);
  ASSERT_OK(a->allocate(4096));  // has it already
  EXPECT_EQ(*a->size_bytes(), 5 * 4096U - 100);
  const Status too_much = a->allocate(11 * 4096);
  ASSERT_FALSE(too_much.ok());
  EXPECT_EQ(too_much.error().code(), ErrorCode::kNoSpace);
  EXPECT_EQ(*files.free_bytes("/"), 5 * 4096U);

  auto b = open_file(drive, "/b");
  EXPECT_EQ(write_at(drive, *b, 0, filled(4 * 4096, 1)), 4 * 4096);
  EXPECT_EQ(write_at(drive, *b, 3 * 4096, filled(4 * 4096, 2)), -ENOSPC);  // one block of room
  EXPECT_EQ(drive.content("/b", SimDrive::View::kPresent), filled(4 * 4096, 1));
  EXPECT_EQ(write_at(drive, *b, 3 * 4096, filled(2 * 4096, 2)), 2 * 4096);
  EXPECT_EQ(*files.free_bytes("/"), 0U);
  EXPECT_EQ(write_at(drive, *a, 0, filled(5 * 4096, 3)), 5 * 4096);  // its own space
  EXPECT_EQ(write_at(drive, *b, 0, filled(5 * 4096, 3)), 5 * 4096);

  ASSERT_OK(b->truncate(4096 + 1));
  EXPECT_EQ(*files.free_bytes("/"), 3 * 4096U);
  ASSERT_OK(files.remove("/a"));
  EXPECT_EQ(*files.free_bytes("/"), 3 * 4096U);  // still open
  a.reset();
  EXPECT_EQ(*files.free_bytes("/"), 8 * 4096U);
  b.reset();
  ASSERT_OK(files.remove("/b"));
  EXPECT_EQ(*files.free_bytes("/"), 10 * 4096U);
  auto unnamed = files.open("/", {.create = OpenOptions::Create::kAnonymous});
  ASSERT_OK(unnamed);
  ASSERT_OK((*unnamed)->allocate(4096));
  EXPECT_TRUE(files.list("/")->empty());
  EXPECT_EQ(drive.used_bytes(), 4096U);
  unnamed->reset();
  EXPECT_EQ(drive.used_bytes(), 0U);
}

TEST(SimDriveOptions, RejectsWhatMakesNoSenseByName) {
  const auto message = [](const std::function<void(SimDrive::Options&)>& change) {
    SimDrive::Options options;
    change(options);
    const Status status = SimDrive::validate(options);
    return status.ok() ? std::string() : status.error().message();
  };
  EXPECT_EQ(message([](auto&) {}), "");
  EXPECT_THAT(message([](auto& o) { o.read_gb_per_s = 0; }), HasSubstr("bandwidth"));
  EXPECT_THAT(message([](auto& o) { o.write_gb_per_s = std::nan(""); }), HasSubstr("bandwidth"));
  EXPECT_THAT(message([](auto& o) { o.sync_us = -1; }), HasSubstr("latencies"));
  EXPECT_THAT(message([](auto& o) { o.latency_jitter = 1.5; }), HasSubstr("jitter"));
  EXPECT_THAT(message([](auto& o) { o.depth = 0; }), HasSubstr("depth"));
  EXPECT_THAT(message([](auto& o) { o.sector_bytes = 0; }), HasSubstr("sector"));
}

// ---- names ------------------------------------------------------------------------------------

// The oracle is this machine's own file system.
TEST_F(SimDriveTest, NamesBehaveAsOnARealFileSystem) {
  const std::uint64_t seed = 17;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const TemporaryFolder folder;
  RealFileSystem real;
  FileSystem& sim = drive_.files();
  const std::vector<std::string> names = {"/a",   "/b",     "/a/a",   "/a/b",   "/b/a",
                                          "/b/b", "/a/a/a", "/a/b/a", "/b/a/b/"};
  int succeeded = 0;
  for (int i = 0; i < 6000; ++i) {
    const std::string& x = names[random() % names.size()];
    const std::string& y = names[random() % names.size()];
    const std::string rx = folder.path() + x;
    const std::string ry = folder.path() + y;
    Status from_sim;
    Status from_real;
    std::string what;
    switch (random() % 6) {
      case 0:
      case 1: {
        if (x.back() == '/') continue;  // a trailing slash where a file is made: not imitated
        const OpenOptions options{.access = OpenOptions::Access::kReadWrite,
                                  .create = static_cast<OpenOptions::Create>(random() % 3),
                                  .direct = false};
        what = "open " + x + " " + std::to_string(static_cast<int>(options.create));
        from_sim = sim.open(x, options).status();
        from_real = real.open(rx, options).status();
        break;
      }
      case 2:
        what = "make " + x;
        from_sim = sim.make_directories(x);
        from_real = real.make_directories(rx);
        break;
      case 3:
        if (x.back() == '/') continue;
        what = "remove " + x;
        from_sim = sim.remove(x);
        from_real = real.remove(rx);
        break;
      default:
        if (x.back() == '/' || y.back() == '/') continue;
        what = "rename " + x + " " + y;
        from_sim = sim.rename(x, y);
        from_real = real.rename(rx, ry);
        break;
    }
    SCOPED_TRACE(what);
    ASSERT_EQ(from_sim.ok(), from_real.ok())
        << (from_real.ok() ? from_sim : from_real).error().message();
    if (!from_sim.ok() && what.substr(0, 4) != "make") {
      // Where two errors are possible, which one is found first is the kernel's choice.
      const auto number = from_sim.error().error_number();
      const auto real_number = from_real.error().error_number();
      const bool either = number == real_number || what.substr(0, 6) == "rename";
      ASSERT_TRUE(either) << from_sim.error().message() << " / " << from_real.error().message();
    }
    if (from_sim.ok()) ++succeeded;
    for (const std::string& name : {std::string("/"), x, y}) {
      const auto sim_list = sim.list(name);
      const auto real_list = real.list(folder.path() + name);
      ASSERT_EQ(sim_list.ok(), real_list.ok()) << name;
      if (sim_list.ok()) {
        ASSERT_EQ(*sim_list, *real_list) << name;
      }
      ASSERT_EQ(*sim.exists(name), *real.exists(folder.path() + name)) << name;
    }
  }
  EXPECT_GT(succeeded, 1000);
}

// Twice the same story, so that the simulated locks are held to the machine's own.
TEST_F(SimDriveTest, LocksBehaveAsOnARealFileSystem) {
  const TemporaryFolder folder;
  RealFileSystem real;
  const std::array<std::pair<FileSystem*, std::string>, 2> both = {{
      {&drive_.files(), ""},
      {&real, folder.path()},
  }};
  for (const auto& [files, root] : both) {
    SCOPED_TRACE(root.empty() ? "simulated" : "real");
    ASSERT_OK(files->make_directories(root + "/d"));
    const auto code = [&, files = files, root = root](const std::string& path) {
      const auto lock = files->lock(root + path);
      return lock.ok() ? std::optional<ErrorCode>() : lock.error().code();
    };
    EXPECT_EQ(code("/no/lock"), ErrorCode::kNotFound);
    EXPECT_EQ(code("/d"), ErrorCode::kInvalidArgument);
    auto lock = files->lock(root + "/d/lock");
    ASSERT_OK(lock);
    EXPECT_TRUE(*files->exists(root + "/d/lock"));
    EXPECT_EQ(code("/d/lock"), ErrorCode::kBusy);
    EXPECT_EQ(code("/d//lock"), ErrorCode::kBusy) << "another spelling of the same name";
    EXPECT_EQ(code("/d/other"), std::nullopt);
    ASSERT_OK(files->rename(root + "/d/lock", root + "/d/moved"));
    EXPECT_EQ(code("/d/moved"), ErrorCode::kBusy) << "the lock goes with the file";
    EXPECT_EQ(code("/d/lock"), std::nullopt) << "which is a new one";
    ASSERT_OK(files->remove(root + "/d/moved"));
    EXPECT_EQ(code("/d/moved"), std::nullopt);
    lock->reset();
    EXPECT_EQ(code("/d/lock"), std::nullopt);
    EXPECT_TRUE(*files->exists(root + "/d/lock"));
  }
}

TEST_F(SimDriveTest, SaysOperationPathAndErrnoWhenACallFails) {
  const auto missing = drive_.files().open("/no/such", {});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().message(), HasSubstr("open /no/such failed"));
  EXPECT_THAT(missing.error().message(), HasSubstr("ENOENT"));
}

}  // namespace
}  // namespace sluice::aio
