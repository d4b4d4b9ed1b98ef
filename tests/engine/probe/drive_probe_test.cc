#include "engine/probe/drive_probe.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "aio/fault_backend.h"
#include "tests/aio/sim_test_util.h"

namespace sluice::engine {
namespace {

using aio::SimDrive;
using aio::VirtualLoop;

constexpr double kFewPercent = 0.03;

void expect_near(double rate_bytes_per_s, double expected_gb_per_s) {
  EXPECT_NEAR(1e-9 * rate_bytes_per_s, expected_gb_per_s, kFewPercent * expected_gb_per_s);
}

// Without data: only time matters.
SimDrive::Options drive(double read_gb_per_s, double write_gb_per_s) {
  return {.read_gb_per_s = read_gb_per_s, .write_gb_per_s = write_gb_per_s, .keep_data = false};
}

void make_folders(SimDrive& sim) {
  for (const char* folder : {"/nvme", "/fast", "/slow", "/a/b", "/c"})
    ASSERT_OK(sim.files().make_directories(folder));
}

TEST(DriveProbe, ReportsWhatASimulatedDriveDoes) {
  VirtualLoop loop;
  SimDrive sim(loop, drive(7.0, 5.0));
  make_folders(sim);
  const auto rates = probe_drives(sim, {.folders = {"/nvme"}});
  ASSERT_OK(rates);
  expect_near(rates->in_bytes_per_s, 7.0);
  expect_near(rates->out_bytes_per_s, 5.0);
  // Both directions alternate on one pipe, block by block.
  const double both = 1 / (1 / 7.0 + 1 / 5.0);
  expect_near(rates->in_both_bytes_per_s, both);
  expect_near(rates->out_both_bytes_per_s, both);
}

TEST(DriveProbe, SeesThatDirectionsDoNotDisturbEachOther) {
  VirtualLoop loop;
  SimDrive::Options options = drive(3.0, 2.0);
  options.half_duplex = false;
  SimDrive sim(loop, options);
  make_folders(sim);
  const auto rates = probe_drives(sim, {.folders = {"/nvme"}});
  ASSERT_OK(rates);
  expect_near(rates->in_both_bytes_per_s, 3.0);
  expect_near(rates->out_both_bytes_per_s, 2.0);
}

TEST(DriveProbe, MovesBlocksOfTheRunsSizeAtTheRunsDepth) {
  VirtualLoop loop;
  SimDrive::Options options = drive(7.0, 7.0);
  options.read_latency_us = 1000;
  options.write_latency_us = 500;
  SimDrive sim(loop, options);
  make_folders(sim);
  constexpr double kBlock = 64.0 * 1024;
  constexpr int kDepth = 4;
  const auto rates = probe_drives(
      sim,
      {.folders = {"/nvme"}, .block_bytes = static_cast<std::uint64_t>(kBlock), .queue_depth = 4});
  ASSERT_OK(rates);
  // Latency limits what so few blocks in flight can transfer.
  expect_near(rates->in_bytes_per_s, kDepth * kBlock / (1e6 + kBlock / 7.0));
  expect_near(rates->out_bytes_per_s, kDepth * kBlock / (0.5e6 + kBlock / 7.0));
  EXPECT_EQ(sim.stats().max_in_service, 2 * kDepth);
}

TEST(DriveProbe, LeavesNothingBehindAndTakesNoLongerThanItSays) {
  VirtualLoop loop;
  SimDrive sim(loop, drive(6.0, 6.0));
  make_folders(sim);
  std::vector<double> told;
  ASSERT_OK(probe_drives(sim, {.folders = {"/a/b", "/c"}},
                         [&](double fraction) { told.push_back(fraction); }));
  EXPECT_EQ(sim.files().list("/a/b")->size(), 0U);
  EXPECT_EQ(sim.used_bytes(), 0U);
  EXPECT_LT(loop.now_ns(), 1'700'000'000);
  EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
  EXPECT_EQ(told.front(), 0);
  EXPECT_EQ(told.back(), 1);
}

TEST(DriveProbe, MeasuresAVerySlowDriveOnTheFewBlocksItHasWritten) {
  VirtualLoop loop;
  SimDrive sim(loop, drive(0.05, 0.01));  // a gigabyte would take minutes
  make_folders(sim);
  const auto rates = probe_drives(sim, {.folders = {"/nvme"}, .queue_depth = 2});
  ASSERT_OK(rates);
  EXPECT_NEAR(1e-9 * rates->in_bytes_per_s, 0.05, 0.005);
  EXPECT_NEAR(1e-9 * rates->out_bytes_per_s, 0.01, 0.003);  // three blocks, give or take one
  EXPECT_LT(loop.now_ns(), 4'000'000'000);
}

// Detects reads of blocks that were never written: drives answer those without accessing their
// medium.
class WrittenBeforeRead final : public aio::IoBackend {
 public:
  explicit WrittenBeforeRead(aio::IoBackend& inner) : inner_(inner) {}
  std::string_view name() const override { return inner_.name(); }
  aio::FileSystem& files() override { return inner_.files(); }
  const Clock& clock() const override { return inner_.clock(); }
  aio::PumpResult pump() override { return inner_.pump(); }
  void submit(std::span<aio::IoOp* const> ops) noexcept override {
    for (const aio::IoOp* op : ops) {
      const std::uint64_t end = op->offset_bytes + op->length_bytes;
      if (op->kind == aio::IoKind::kWrite) {
        written_.push_back({op->offset_bytes, end});
        bytes_of_[op->file->path()] += op->length_bytes;
      }
      if (op->kind != aio::IoKind::kRead) continue;
      ++reads_;
      unwritten_ += std::none_of(written_.begin(), written_.end(), [&](const auto& range) {
        return range.first <= op->offset_bytes && end <= range.second;
      });
    }
    inner_.submit(ops);
  }
  int reads() const { return reads_; }
  int unwritten() const { return unwritten_; }
  const std::map<std::string, std::uint64_t>& written_bytes() const { return bytes_of_; }
  std::uint64_t highest_write() const {
    std::uint64_t end = 0;
    for (const auto& range : written_) end = std::max(end, range.second);
    return end;
  }

 private:
  aio::IoBackend& inner_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> written_;
  std::map<std::string, std::uint64_t> bytes_of_;
  int reads_ = 0;
  int unwritten_ = 0;
};

TEST(DriveProbe, ReadsOnlyWhatItHasWritten) {
  VirtualLoop loop;
  SimDrive sim(loop, drive(1.0, 0.2));  // too slow to fill the file
  make_folders(sim);
  WrittenBeforeRead watched(sim);
  ASSERT_OK(probe_drives(watched, {.folders = {"/nvme"}, .queue_depth = 4}));
  EXPECT_GT(watched.reads(), 100);
  EXPECT_EQ(watched.unwritten(), 0);
}

TEST(DriveProbe, TakesAtMostAQuarterOfWhatIsFree) {
  VirtualLoop loop;
  SimDrive::Options options = drive(5.0, 5.0);
  options.capacity_bytes = 400 * kMiB;
  SimDrive sim(loop, options);
  make_folders(sim);
  WrittenBeforeRead watched(sim);
  ASSERT_OK(probe_drives(watched, {.folders = {"/nvme"}}));
  EXPECT_EQ(watched.highest_write(), 100 * kMiB);
  options.capacity_bytes = 40 * kMiB;
  SimDrive full(loop, options);
  make_folders(full);
  const auto refused = probe_drives(full, {.folders = {"/nvme"}});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kNoSpace);
  EXPECT_THAT(refused.error().message(),
              testing::AllOf(testing::HasSubstr("/nvme"), testing::HasSubstr("40M"),
                             testing::HasSubstr("budget.nvme_paths")));
}

TEST(DriveProbe, DealsStripesAsTheRunDoes) {
  VirtualLoop loop;
  SimDrive::Options options = drive(5.0, 5.0);
  options.capacity_bytes = 400 * kMiB;
  SimDrive sim(loop, options);
  make_folders(sim);
  WrittenBeforeRead watched(sim);
  ASSERT_OK(probe_drives(watched, {.folders = {"/fast", "/slow"}, .weights = {3, 1}}));
  ASSERT_EQ(watched.written_bytes().size(), 2U);
  const auto fast = static_cast<double>(watched.written_bytes().begin()->second);
  const auto slow = static_cast<double>(watched.written_bytes().rbegin()->second);
  EXPECT_NEAR(fast / slow, 3, 0.05);
  EXPECT_EQ(watched.highest_write(), 100 * kMiB);  // a quarter of the free space on the fuller one
  // No path needs more room than it would alone.
  options.capacity_bytes = 64 * kMiB;
  SimDrive small(loop, options);
  make_folders(small);
  EXPECT_OK(probe_drives(small, {.folders = {"/fast", "/slow"}, .weights = {3, 1}}));
}

TEST(DriveProbe, TellsTheErrorOfADriveThatFails) {
  for (const aio::FaultTarget target : {aio::FaultTarget::kRead, aio::FaultTarget::kWrite}) {
    VirtualLoop loop;
    SimDrive sim(loop, drive(5.0, 5.0));
    make_folders(sim);
    aio::FaultBackend broken(
        sim,
        aio::FaultPlan::of(
            {.fault = aio::FaultKind::kEio, .nth = 40, .persistent = true, .targets = {target}}));
    const auto rates = probe_drives(broken, {.folders = {"/nvme"}});
    ASSERT_FALSE(rates.ok());
    EXPECT_EQ(rates.error().code(), ErrorCode::kIo);
    EXPECT_THAT(rates.error().message(), testing::HasSubstr("/nvme"));
  }
}

class DriveProbeReal : public aio::EveryBackend {};

TEST_P(DriveProbeReal, MeasuresTwoFoldersOfThisMachine) {
  const aio::TemporaryFolder folder;
  for (const char* name : {"a", "b"}) std::filesystem::create_directory(folder.file(name));
  const auto real = backend();
  const auto rates = probe_drives(*real, {.folders = {folder.file("a"), folder.file("b")},
                                          .block_bytes = 256 * kKiB,
                                          .queue_depth = 4,
                                          .most_file_bytes = 64 * kMiB,
                                          .fill_seconds = 0.1,
                                          .seconds = 0.1});
  ASSERT_OK(rates);
  for (const double rate : {rates->in_bytes_per_s, rates->out_bytes_per_s,
                            rates->in_both_bytes_per_s, rates->out_both_bytes_per_s})
    EXPECT_GT(rate, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.file("a")));
  EXPECT_TRUE(std::filesystem::is_empty(folder.file("b")));
}

SLUICE_TEST_EVERY_BACKEND(DriveProbeReal);

}  // namespace
}  // namespace sluice::engine
