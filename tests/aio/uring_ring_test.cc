#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>

#include "aio/direct_file.h"
#include "aio/uring_backend.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::aio {
namespace {

std::size_t count_descriptors() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

struct Counting : IoOp {
  std::atomic<int>* ended = nullptr;
  std::int64_t outcome = 1;
};
void count(IoOp& op, std::int64_t result) noexcept {
  auto& counting = static_cast<Counting&>(op);
  counting.outcome = result;
  ++*counting.ended;
}

TEST(Uring, RunsMoreOpsThanTheRingHasRoomForFromSeveralThreads) {
  auto backend = UringBackend::create({.threads = 2, .queue_depth = 4});
  ASSERT_OK(backend);
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kOps = 500;
  std::atomic<int> ended{0};
  std::vector<Counting> ops(kThreads * kOps);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < kOps; ++i) {
        Counting& op = ops[t * kOps + i];
        op.kind = IoKind::kNop;
        op.on_done = count;
        op.ended = &ended;
        if (i % 3 == 0) op.delay_ns = static_cast<std::int64_t>(i) * 1000;
        IoOp* const pointer = &op;
        (*backend)->submit({&pointer, 1});
      }
    });
  }
  for (auto& thread : threads) thread.join();
  while (ended < static_cast<int>(kThreads * kOps)) std::this_thread::yield();
  for (const auto& op : ops) EXPECT_EQ(op.outcome, 0);
}

TEST(Uring, StartsADelayedOpNoEarlierThanAsked) {
  auto backend = UringBackend::create({});
  ASSERT_OK(backend);
  std::atomic<int> ended{0};
  Counting op;
  op.on_done = count;
  op.ended = &ended;
  op.delay_ns = 30'000'000;
  IoOp* const pointer = &op;
  const std::int64_t begin_ns = (*backend)->clock().now_ns();
  (*backend)->submit({&pointer, 1});
  while (ended == 0) std::this_thread::yield();
  EXPECT_GE((*backend)->clock().now_ns() - begin_ns, 30'000'000);
}

TEST(Uring, LeaksNoDescriptorThreadOrSlot) {
  const std::size_t before = count_descriptors();
  TemporaryFolder folder;
  for (int round = 0; round < 5; ++round) {
    auto backend = UringBackend::create({.threads = 3});
    ASSERT_OK(backend);
    auto queue = make_queue_or_die(**backend, {});
    // Three times the table of files: slots come back when files close.
    for (int i = 0; i < 3 * UringBackend::kFileSlots; ++i) {
      DirectFile::Options options;
      options.open = {.access = OpenOptions::Access::kReadWrite,
                      .create = OpenOptions::Create::kAnonymous};
      options.size_bytes = 4096;
      const auto file = DirectFile::open(*queue, folder.path(), options);
      ASSERT_OK(file);
      ASSERT_GE((*file)->file().backend_slot, 0) << "file " << i << " was not registered";
    }
  }
  EXPECT_EQ(count_descriptors(), before);
}

TEST(Uring, GivesTheSameBytesThroughRegisteredAndUnregisteredMemory) {
  auto backend = UringBackend::create({.threads = 2});
  ASSERT_OK(backend);
  auto queue = make_queue_or_die(**backend, {.block_bytes = 64 * kKiB});
  TemporaryFolder folder;
  DirectFile::Options options;
  options.open = {.access = OpenOptions::Access::kReadWrite,
                  .create = OpenOptions::Create::kAnonymous};
  options.size_bytes = 4 * kMiB;
  const auto file = DirectFile::open(*queue, folder.path(), options);
  ASSERT_OK(file);
  const auto expected = random_bytes(options.size_bytes, 3);
  auto written = PageMemory::map(options.size_bytes, true);
  auto read = PageMemory::map(options.size_bytes, true);
  ASSERT_OK(written);
  ASSERT_OK(read);
  std::copy(expected.begin(), expected.end(), written->data());
  ASSERT_TRUE((*backend)->attach_memory(written->bytes()));
  // Only a part of the target: blocks inside it go registered, the others, and one across, do not.
  ASSERT_TRUE((*backend)->attach_memory(read->bytes().subspan(kMiB, kMiB + 32 * kKiB)));
  ASSERT_OK(queue->write(**file, 0, written->bytes()));
  ASSERT_OK(queue->read(**file, 0, read->bytes()));
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), read->data()));
  (*backend)->detach_memory(read->bytes());
  (*backend)->detach_memory(written->bytes());
  ASSERT_OK(queue->read(**file, 0, read->bytes()));
}

// Both files hold slot 0 of their own backend's table.
TEST(Uring, DoesNotTakeAnotherBackendsSlotForItsOwn) {
  auto first = UringBackend::create({});
  auto second = UringBackend::create({});
  ASSERT_OK(first);
  ASSERT_OK(second);
  auto first_queue = make_queue_or_die(**first, {});
  auto second_queue = make_queue_or_die(**second, {});
  TemporaryFolder folder;
  DirectFile::Options options;
  options.open = {.access = OpenOptions::Access::kReadWrite,
                  .create = OpenOptions::Create::kMustNotExist};
  options.size_bytes = 8192;
  const auto mine = DirectFile::open(*first_queue, folder.file("mine"), options);
  const auto other = DirectFile::open(*second_queue, folder.file("other"), options);
  ASSERT_OK(mine);
  ASSERT_OK(other);
  const auto data = random_bytes(8192, 9);
  ASSERT_OK(second_queue->write(**mine, 0, data));
  std::vector<std::byte> back(8192);
  ASSERT_OK(first_queue->read(**mine, 0, back));
  EXPECT_EQ(back, data);
  ASSERT_OK(second_queue->read(**other, 0, back));
  EXPECT_EQ(back, std::vector<std::byte>(8192));
}

TEST(Uring, NamesTheRangeOfItsOptions) {
  for (const auto& options :
       {UringBackend::Options{.threads = 0}, UringBackend::Options{.threads = 65},
        UringBackend::Options{.queue_depth = 0}, UringBackend::Options{.queue_depth = 4097}}) {
    const auto backend = UringBackend::create(options);
    ASSERT_FALSE(backend.ok());
    EXPECT_EQ(backend.error().code(), ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace sluice::aio
