// The queue over a backend that injects faults, in virtual time and over threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <thread>

#include "aio/direct_file.h"
#include "aio/io_queue.h"
#include "tests/aio/fault_backend_under_test.h"

namespace sluice::aio {
namespace {

using testing::HasSubstr;

FaultPlan a_bit_of_everything(std::uint64_t seed) {
  FaultPlan plan;
  plan.seed = seed;
  plan.probability.fill(0.05);
  plan.delay_ns = 300'000;
  plan.probability[static_cast<std::size_t>(FaultKind::kReorder)] = 0.2;
  return plan;
}

// Writes and reads through the queue while everything occasionally fails; bytes must agree with an
// array. Returns the number of faults.
std::uint64_t exercise(IoBackend& inner, const std::string& path, std::uint64_t seed) {
  FaultBackend backend(inner, {});
  const auto queue =
      make_queue_or_die(backend, {.block_bytes = 8192, .queue_depth = 8, .max_retries = 20});
  DirectFile::Options options;
  options.open = {.access = OpenOptions::Access::kReadWrite,
                  .create = OpenOptions::Create::kMustNotExist};
  options.size_bytes = 100'001;
  auto file = DirectFile::open(*queue, path, options);
  EXPECT_OK(file);
  backend.set_plan(a_bit_of_everything(seed));
  std::mt19937_64 random(seed);
  std::vector<std::byte> oracle(100'001);
  for (int i = 0; i < 40; ++i) {
    const std::uint64_t offset = random() % oracle.size();
    const std::uint64_t length = random() % (oracle.size() - offset + 1);
    if (i % 2 == 0) {
      const auto data = random_bytes(length, random());
      EXPECT_OK(queue->write(**file, offset, data));
      std::copy(data.begin(), data.end(), oracle.begin() + static_cast<std::ptrdiff_t>(offset));
    } else {
      std::vector<std::byte> back(length);
      EXPECT_OK(queue->read(**file, offset, back));
      EXPECT_EQ(std::memcmp(back.data(), oracle.data() + offset, length), 0)
          << offset << " " << length;
    }
  }
  const std::uint64_t faults = backend.injected();
  backend.set_plan({});
  file->reset();
  EXPECT_OK(backend.files().remove(path));
  return faults;
}

TEST_F(FaultBackendTest, TheQueueSurvivesRandomFaultsInVirtualTime) {
  std::uint64_t faults = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    faults += exercise(drive_, "/queue", seed);
  }
  EXPECT_GT(faults, 500U);
}

TEST(FaultBackendThreads, TheQueueSurvivesRandomFaultsOverThreads) {
  const TemporaryFolder folder;
  const auto inner = make_backend_or_die(BackendKind::kPosix, 1, 6);
  std::uint64_t faults = 0;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    faults += exercise(*inner, folder.file("f"), seed);
  }
  EXPECT_GT(faults, 100U);
}

TEST(FaultBackendThreads, EveryOpEndsOnceWhenManyThreadsSubmit) {
  const TemporaryFolder folder;
  const auto inner = make_backend_or_die(BackendKind::kPosix, 1, 4);
  struct Counted : IoOp {
    std::atomic<int>* ended = nullptr;
    std::atomic<int> times = 0;
  };
  constexpr int kOps = 300;
  std::atomic<int> ended = 0;
  std::deque<Counted> ops(4 * kOps);
  {
    FaultBackend backend(*inner, a_bit_of_everything(3));
    const auto file = open_file(backend, folder.file("f"));
    const AlignedBytes data(8192);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (std::size_t i = 0; i < kOps; ++i) {
          Counted& op = ops[t * kOps + i];
          op.kind = IoKind::kWrite;
          op.file = file.get();
          op.data = data.data();
          op.length_bytes = 8192;
          op.ended = &ended;
          op.on_done = [](IoOp& base, std::int64_t) noexcept {
            auto& self = static_cast<Counted&>(base);
            ++self.times;
            ++*self.ended;
          };
          IoOp* one = &op;
          backend.submit({&one, 1});
        }
      });
    }
    for (auto& thread : threads) thread.join();
    while (ended < 4 * kOps) std::this_thread::yield();
    EXPECT_GT(backend.injected(FaultKind::kReorder), 100U);
  }
  for (const Counted& op : ops) ASSERT_EQ(op.times, 1);
}

TEST_F(FaultBackendTest, APersistentFaultEndsTheRequestWithASentence) {
  const auto queue = make_queue_or_die(backend_, {.block_bytes = 4096, .queue_depth = 4});
  DirectFile::Options options;
  options.open.access = OpenOptions::Access::kReadWrite;
  auto file = DirectFile::open(*queue, "/f", options);
  ASSERT_OK(file);
  // A direct file's last sector never gets past a short count.
  for (const FaultKind fault :
       {FaultKind::kEio, FaultKind::kEnospc, FaultKind::kEintr, FaultKind::kEagain,
        FaultKind::kZero, FaultKind::kTornWrite, FaultKind::kShort}) {
    SCOPED_TRACE(std::string(to_string(fault)));
    plan(always(fault));
    const Status status = queue->write(**file, 0, filled(16'384, 1));
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().message(), HasSubstr("/f"));
  }
  for (const FaultKind fault : {FaultKind::kDelay, FaultKind::kReorder}) {
    SCOPED_TRACE(std::string(to_string(fault)));
    plan(always(fault));
    EXPECT_OK(queue->write(**file, 0, filled(16'384, 1)));
  }
}

TEST_F(FaultBackendTest, WaitsForItsOpsWhenItIsDestroyed) {
  TestOp held(IoKind::kSync, nullptr);
  {
    FaultPlan plan = FaultPlan::of(always(FaultKind::kDelay));
    FaultBackend backend(drive_, plan);
    held.file = file_.get();
    held.submit(backend);
  }
  EXPECT_EQ(held.result, 0);
}

}  // namespace
}  // namespace sluice::aio
