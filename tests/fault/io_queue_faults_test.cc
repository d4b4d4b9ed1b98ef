// A workload of 200 requests, with every kind of fault at every N-th operation, once transient and
// once persistent. The oracle is a byte array: data that the queue reports as written must be
// there, and errors must name operation, path, offset and errno.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <iostream>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "aio/fault_backend.h"
#include "aio/io_queue.h"
#include "aio/log.h"
#include "aio/sim_drive.h"
#include "aio/striped_file.h"
#include "tests/aio/backends_under_test.h"
#include "tests/sanitized.h"

namespace sluice::aio {

// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest's name
void PrintTo(FaultKind fault, std::ostream* out) { *out << to_string(fault); }

namespace {

constexpr std::uint64_t kSimStride = sweep_stride(23);
constexpr std::uint64_t kRealStride = sweep_stride(2) == 1 ? 61 : 121;

constexpr int kRequests = 200;
constexpr std::size_t kRegions = 8;  // requests in different regions are in flight together
constexpr std::uint64_t kRegionBytes = 50'000;  // not a multiple of a sector: neighbours share one
constexpr std::uint64_t kSize = kRegions * kRegionBytes;

// The requests, drawn from a seed; request i works on region i % kRegions.
struct Step {
  IoKind kind;
  std::uint64_t offset_bytes;
  std::vector<std::byte> data;  // the data to write; its size is the size to read
};

std::vector<Step> draw_workload() {
  std::mt19937_64 random(20);
  std::vector<Step> steps;
  for (std::size_t i = 0; i < kRequests; ++i) {
    const std::uint64_t length = 1 + random() % (i % 3 == 0 ? 30'000 : 3'000);
    const std::uint64_t offset =
        i % kRegions * kRegionBytes + random() % (kRegionBytes - length + 1);
    const IoKind kind = i % 25 == 24 ? IoKind::kSync : i % 2 == 0 ? IoKind::kWrite : IoKind::kRead;
    steps.push_back({kind, offset, random_bytes(kind == IoKind::kSync ? 0 : length, random())});
  }
  return steps;
}

struct Outcome {
  Status status;
  std::uint64_t injected = 0;
  std::uint64_t retries = 0;
};

// Runs the workload on files in `folder` until it is done or a request fails. A read that differs
// from the oracle fails the test, as do different bytes after a run without errors.
Outcome run_workload(IoBackend& inner, const std::string& folder, const std::vector<Step>& steps,
                     const FaultPlan& plan) {
  FaultBackend faults(inner, {});
  auto queue = make_queue_or_die(faults, {.block_bytes = 8192, .queue_depth = 6});
  StripedFile::Options options;
  options.stripe_bytes = 16 * kKiB;
  options.weights = {2, 1};
  options.file.open = {.access = OpenOptions::Access::kReadWrite,
                       .create = OpenOptions::Create::kMustNotExist};
  options.file.size_bytes = kSize;
  const std::vector<std::string> paths = {folder + "/state.0", folder + "/state.1"};
  auto file = StripedFile::open(*queue, paths, options);
  if (!file.ok()) throw std::runtime_error(file.error().message());
  std::vector<std::byte> oracle(kSize);
  const Status zeroed = queue->write(**file, 0, oracle);
  if (!zeroed.ok()) throw std::runtime_error(zeroed.error().message());
  faults.set_plan(plan);
  queue->reset_stats();

  struct Lane {
    IoRequest request;
    const Step* step = nullptr;
    std::vector<std::byte> buffer;
  };
  std::array<Lane, kRegions> lanes;
  Outcome outcome;
  const auto finish = [&](Lane& lane) {
    if (lane.step == nullptr) return;
    const Status& status = queue->wait(lane.request);
    const Step& step = *std::exchange(lane.step, nullptr);
    if (!status.ok()) {
      if (outcome.status.ok()) outcome.status = status;
      return;
    }
    const auto place = oracle.begin() + static_cast<std::ptrdiff_t>(step.offset_bytes);
    if (step.kind == IoKind::kWrite) std::copy(step.data.begin(), step.data.end(), place);
    if (step.kind == IoKind::kRead) {
      EXPECT_TRUE(std::equal(lane.buffer.begin(), lane.buffer.end(), place)) << "a wrong read";
    }
  };
  for (std::size_t i = 0; i < steps.size() && outcome.status.ok(); ++i) {
    Lane& lane = lanes[i % kRegions];
    finish(lane);
    const Step& step = steps[i];
    lane.step = &step;
    lane.buffer = step.data;
    if (step.kind == IoKind::kSync) {
      lane.request.prepare_sync(**file);
    } else if (step.kind == IoKind::kWrite) {
      lane.request.prepare_write(**file, step.offset_bytes, lane.buffer);
    } else {
      lane.request.prepare_read(**file, step.offset_bytes, lane.buffer);
    }
    queue->submit(lane.request);
  }
  for (Lane& lane : lanes) finish(lane);
  outcome.injected = faults.injected();
  outcome.retries = queue->stats().retries;

  if (outcome.status.ok()) {
    faults.set_plan({});
    std::vector<std::byte> back(kSize);
    const Status read = queue->read(**file, 0, back);
    EXPECT_TRUE(read.ok());
    EXPECT_TRUE(back == oracle) << "the bytes differ";
  }
  file->reset();
  for (const auto& path : paths) EXPECT_OK(inner.files().remove(path));
  return outcome;
}

// The error has operation, path and, except for a sync, the offset; and the name of the errno, or
// the message that a file has ended.
void expect_error_says_all(const Error& error, FaultKind fault, const std::string& folder) {
  const std::string& text = error.message();
  const bool sync = text.rfind("sync", 0) == 0;
  EXPECT_THAT(text, testing::ContainsRegex("^(read|write|sync) ")) << text;
  EXPECT_THAT(text, testing::HasSubstr(folder + "/state.")) << text;
  if (!sync) {
    EXPECT_THAT(text, testing::ContainsRegex("of [0-9]+ bytes at offset [0-9]+ in ")) << text;
  }
  switch (fault) {
    case FaultKind::kEio:
    case FaultKind::kTornWrite:
      EXPECT_THAT(text, testing::HasSubstr("(EIO)"));
      break;
    case FaultKind::kEnospc:
      EXPECT_THAT(text, testing::HasSubstr("(ENOSPC)"));
      break;
    case FaultKind::kEintr:
      EXPECT_THAT(text, testing::HasSubstr("(EINTR)"));
      break;
    case FaultKind::kEagain:
      EXPECT_THAT(text, testing::HasSubstr("(EAGAIN)"));
      break;
    case FaultKind::kZero:
    case FaultKind::kShort:
      EXPECT_THAT(text, testing::AnyOf(testing::HasSubstr("end of the file"),
                                       testing::HasSubstr("made no progress")));
      break;
    case FaultKind::kDelay:
    case FaultKind::kReorder:
      ADD_FAILURE() << to_string(fault) << " must never end in an error: " << text;
  }
}

// A transient fault must not fail a request, except that a failed sync is final.
bool may_fail(FaultKind fault, bool persistent, const Error& error) {
  if (persistent) return fault != FaultKind::kDelay && fault != FaultKind::kReorder;
  return error.message().rfind("sync", 0) == 0 &&
         (fault == FaultKind::kEio || fault == FaultKind::kEnospc);
}

std::vector<FaultKind> every_fault() {
  std::vector<FaultKind> faults;
  for (std::size_t i = 0; i < kFaultKinds; ++i) faults.push_back(static_cast<FaultKind>(i));
  return faults;
}

// Each fault at every `stride`-th operation, until a run meets none. Returns the number of
// combinations.
int run_matrix(IoBackend& inner, const std::string& folder, const std::vector<FaultKind>& faults,
               std::uint64_t stride) {
  const std::vector<Step> steps = draw_workload();
  log::set_sink([](log::Level, std::string_view) {});  // thousands of warnings about retries
  int combinations = 0;
  int errors = 0;
  std::uint64_t retries = 0;
  for (const FaultKind fault : faults) {
    for (const bool persistent : {false, true}) {
      for (std::uint64_t nth = 1;; nth += stride) {
        SCOPED_TRACE(std::string(to_string(fault)) + " at operation " + std::to_string(nth) +
                     (persistent ? " and from there on" : ""));
        const Outcome outcome =
            run_workload(inner, folder, steps,
                         FaultPlan::of({.fault = fault, .nth = nth, .persistent = persistent}));
        retries += outcome.retries;
        if (!outcome.status.ok()) {
          ++errors;
          const Error& error = outcome.status.error();
          EXPECT_TRUE(may_fail(fault, persistent, error)) << error.message();
          expect_error_says_all(error, fault, folder);
        }
        if (outcome.injected == 0) {
          EXPECT_TRUE(outcome.status.ok());
          break;
        }
        ++combinations;
        if (testing::Test::HasFailure()) return combinations;
      }
    }
  }
  log::set_sink({});
  std::cout << "fault matrix (" << inner.name() << ", "
            << (faults.size() == 1 ? to_string(faults.front()) : "every fault")
            << "): " << combinations << " combinations of fault, "
            << "position and duration; " << errors << " ended in an error, "
            << combinations - errors << " in identical bytes, after " << retries
            << " retries; 0 hangs\n";
  return combinations;
}

std::size_t count_entries(const char* folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

class IoQueueFaults : public testing::TestWithParam<FaultKind> {};

TEST_P(IoQueueFaults, IsNeverSilentAtAnyOperationOfASimulatedDrive) {
  VirtualLoop loop;
  SimDrive drive(loop, {});
  ASSERT_OK(drive.files().make_directories("/d"));
  const int combinations = run_matrix(drive, "/d", {GetParam()}, kSimStride);
  EXPECT_GT(combinations, 100 / static_cast<int>(kSimStride));
  EXPECT_EQ(drive.used_bytes(), 0U);  // nothing left of the files
}

INSTANTIATE_TEST_SUITE_P(Every, IoQueueFaults, testing::ValuesIn(every_fault()),
                         [](const testing::TestParamInfo<FaultKind>& tested) {
                           std::string name(to_string(tested.param));
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !std::isalnum(c); },
                               '_');
                           return name;
                         });

// A retry would report success for data that the kernel may have dropped.
TEST(IoQueueSyncFaults, AnySyncThatFailsOnceIsAnError) {
  VirtualLoop loop;
  SimDrive drive(loop, {});
  ASSERT_OK(drive.files().make_directories("/d"));
  const std::vector<Step> steps = draw_workload();
  for (std::uint64_t nth = 1;; ++nth) {
    const Outcome outcome = run_workload(
        drive, "/d", steps,
        FaultPlan::of({.fault = FaultKind::kEio, .nth = nth, .targets = {FaultTarget::kSync}}));
    EXPECT_EQ(outcome.status.ok(), outcome.injected == 0) << "sync " << nth;
    if (outcome.injected == 0) {
      EXPECT_EQ(nth, 2 * 8 + 1U);  // 8 sync requests over 2 files
      break;
    }
  }
}

class IoQueueFaultsOnRealFiles : public EveryBackend {};

TEST_P(IoQueueFaultsOnRealFiles, NoFaultIsSilentAndNothingLeaks) {
  TemporaryFolder folder;
  std::thread([] {}).join();  // threads that the run-time starts with the first one
  const std::size_t descriptors = count_entries("/proc/self/fd");
  const std::size_t threads = count_entries("/proc/self/task");
  {
    const auto inner = backend(2, 4);
    const int combinations = run_matrix(*inner, folder.path(), every_fault(), kRealStride);
    EXPECT_GT(combinations, 50);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_EQ(count_entries("/proc/self/fd"), descriptors);
  // The kernel's own workers of a closed ring exit a little later.
  for (int i = 0; i < 500 && count_entries("/proc/self/task") > threads; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(count_entries("/proc/self/task"), threads);
}

SLUICE_TEST_EVERY_BACKEND(IoQueueFaultsOnRealFiles);

// The calls around the transfers: open, allocate, truncate, sync of folders, look-ups.
TEST(FileSystemFaults, EveryCallThatFailsIsReportedAndLeavesNothingBehind) {
  VirtualLoop loop;
  SimDrive drive(loop, {});
  ASSERT_OK(drive.files().make_directories("/d"));
  const std::vector<std::string> paths = {"/d/a", "/d/b"};
  const std::string single = "/d/c";
  int combinations = 0;
  int errors = 0;
  int done_without = 0;
  const auto fail_each = [&](FaultKind fault, const std::vector<FaultTarget>& targets) {
    for (std::uint64_t nth = 1;; ++nth) {
      SCOPED_TRACE(std::string(to_string(fault)) + " at call " + std::to_string(nth));
      FaultBackend faults(drive, FaultPlan::of({.fault = fault, .nth = nth, .targets = targets}));
      auto queue = make_queue_or_die(faults, {});
      StripedFile::Options options;
      options.file.open = {.access = OpenOptions::Access::kReadWrite,
                           .create = OpenOptions::Create::kMustNotExist};
      options.file.size_bytes = 3 * kMiB + 1;
      std::vector<std::string> made;
      const Status status = [&]() -> Status {
        SLUICE_ASSIGN_OR_RETURN(const auto striped, StripedFile::open(*queue, paths, options));
        made.insert(made.end(), paths.begin(), paths.end());
        SLUICE_ASSIGN_OR_RETURN(const auto file, DirectFile::open(*queue, single, options.file));
        made.push_back(single);
        return file->finish();
      }();
      for (const auto& path : made) EXPECT_OK(drive.files().remove(path));
      if (faults.injected() == 0) {
        EXPECT_TRUE(status.ok());
        break;
      }
      ++combinations;
      if (status.ok()) {
        EXPECT_EQ(targets.front(), FaultTarget::kLookUp);
        ++done_without;
      } else {
        EXPECT_THAT(status.error().message(), testing::HasSubstr("/d"));
        ++errors;
      }
      for (const auto& path : {paths[0], paths[1], single})
        EXPECT_FALSE(*drive.files().exists(path)) << path;
    }
  };
  for (const FaultKind fault : {FaultKind::kEio, FaultKind::kEnospc}) {
    fail_each(fault, {FaultTarget::kOpen, FaultTarget::kAllocate, FaultTarget::kTruncate});
  }
  fail_each(FaultKind::kEio, {FaultTarget::kLookUp});
  EXPECT_GT(errors, 8);
  // Only the query of free space, which serves a message, is optional: once per file.
  EXPECT_EQ(done_without, 3);
  EXPECT_GE(combinations, 8);
  EXPECT_EQ(drive.used_bytes(), 0U);
}

}  // namespace
}  // namespace sluice::aio
