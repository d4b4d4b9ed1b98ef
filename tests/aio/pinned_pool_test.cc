#include "aio/pinned_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "aio/log.h"
#include "aio/units.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::aio {
namespace {

std::unique_ptr<PinnedPool> pool_or_die(const PinnedPool::Options& options) {
  auto pool = PinnedPool::create(options);
  if (!pool.ok()) throw std::runtime_error(pool.error().message());
  return std::move(*pool);
}

// The value of a line of /proc/self/status, in bytes.
std::uint64_t process_status(const std::string& key) {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    std::uint64_t kib = 0;
    if (word == key + ":" && status >> kib) return kib * kKiB;
  }
  return 0;
}

TEST(PinnedPool, LendsDistinctAlignedBuffersOfTheSizeAskedFor) {
  const auto pool = pool_or_die({.buffer_bytes = 5000, .capacity = 7});
  std::vector<PinnedPool::Lease> leases(7);
  pool->acquire_all(leases);
  std::set<std::byte*> addresses;
  for (const auto& lease : leases) {
    EXPECT_EQ(lease.bytes().size(), 5000U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(lease.bytes().data()) % 4096, 0U);
    std::fill(lease.bytes().begin(), lease.bytes().end(), std::byte{1});
    addresses.insert(lease.bytes().data());
  }
  EXPECT_EQ(addresses.size(), 7U);
  EXPECT_EQ(pool->free_count(), 0);
  PinnedPool::Lease one;
  EXPECT_FALSE(pool->try_acquire_all({&one, 1}));
}

TEST(PinnedPool, CountsExactly) {
  const auto pool = pool_or_die({.buffer_bytes = 5000, .capacity = 4});
  EXPECT_EQ(pool->usage().total_bytes, 4 * 8192U);
  {
    auto first = pool->acquire();
    PinnedPool::Lease second;
    EXPECT_TRUE(pool->try_acquire_all({&second, 1}));
    EXPECT_EQ(pool->usage().leased_bytes, 2 * 8192U);
    auto moved = std::move(first);
    EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): that it is empty is what is tested
    EXPECT_EQ(pool->usage().leased_bytes, 2 * 8192U);
    moved.release();
    moved.release();
    EXPECT_EQ(pool->usage().leased_bytes, 8192U);
    moved = std::move(second);
  }
  EXPECT_EQ(pool->usage().leased_bytes, 0U);
  EXPECT_EQ(pool->usage().peak_leased_bytes, 2 * 8192U);
  EXPECT_EQ(pool->usage().waits, 0U);
}

TEST(PinnedPool, TakesExactlyItsMemoryFromTheStart) {
  constexpr std::uint64_t kBytes = 64 * kMiB;
  const std::uint64_t before = process_status("VmRSS");
  const auto pool = pool_or_die({.buffer_bytes = 4 * kMiB, .capacity = 16});
  const std::uint64_t after = process_status("VmRSS");
  EXPECT_EQ(pool->usage().total_bytes, kBytes);
  EXPECT_GE(after - before, kBytes - kMiB);  // resident before any write
  EXPECT_LE(after - before, kBytes + kMiB);
}

TEST(PinnedPool, ServesWaitersInOrderSoThatALargeWishIsNotStarved) {
  const auto pool = pool_or_die({.buffer_bytes = 4096, .capacity = 3});
  auto held = pool->acquire();
  std::atomic<bool> large_served{false};
  std::thread large([&] {
    std::vector<PinnedPool::Lease> all(3);
    pool->acquire_all(all);
    large_served = true;
  });
  PinnedPool::Lease one;
  const auto get_one = [&] { return pool->try_acquire_all({&one, 1}); };
  while (get_one()) {
    one.release();
    std::this_thread::yield();
  }
  // Two buffers are free, but the large request came first and must not be overtaken.
  EXPECT_EQ(pool->free_count(), 2);
  EXPECT_FALSE(get_one());
  EXPECT_FALSE(large_served);
  held.release();
  large.join();
  EXPECT_TRUE(large_served);
  EXPECT_EQ(pool->usage().waits, 1U);
  EXPECT_TRUE(get_one());
}

TEST(PinnedPool, NeverDeadlocksWhenTasksTakeAllTheirLeasesAtOnce) {
  const auto pool = pool_or_die({.buffer_bytes = 4096, .capacity = 4});
  std::vector<std::thread> threads;
  std::atomic<int> rounds{0};
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        std::vector<PinnedPool::Lease> leases(static_cast<std::size_t>(1 + (t + i) % 4));
        pool->acquire_all(leases);
        leases.front().bytes()[0] = static_cast<std::byte>(t);
        ++rounds;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(rounds, 6 * 300);
  EXPECT_EQ(pool->free_count(), 4);
  EXPECT_LE(pool->usage().peak_leased_bytes, 4 * 4096U);
}

TEST(PinnedPool, CallsTheHookOnceForItsWholeMemoryAndUndoesIt) {
  std::vector<std::span<std::byte>> pinned;
  std::vector<std::span<std::byte>> unpinned;
  {
    const auto pool = pool_or_die(
        {.buffer_bytes = 8192,
         .capacity = 3,
         .hook = {.pin =
                      [&](std::span<std::byte> memory) {
                        pinned.push_back(memory);
                        return Status();
                      },
                  .unpin = [&](std::span<std::byte> memory) { unpinned.push_back(memory); }}});
    ASSERT_EQ(pinned.size(), 1U);
    EXPECT_EQ(pinned[0].size(), 3 * 8192U);
    EXPECT_TRUE(unpinned.empty());
  }
  ASSERT_EQ(unpinned.size(), 1U);
  EXPECT_EQ(unpinned[0].data(), pinned[0].data());
}

TEST(PinnedPool, ReportsAHookThatFails) {
  const auto pool = PinnedPool::create(
      {.buffer_bytes = 4096,
       .capacity = 1,
       .hook = {.pin =
                    [](std::span<std::byte>) {
                      return Status(Error(ErrorCode::kOutOfMemory, "the driver said no"));
                    },
                .unpin = [](std::span<std::byte>) { FAIL() << "unpinned what was not pinned"; }}});
  ASSERT_FALSE(pool.ok());
  EXPECT_EQ(pool.error().message(), "the driver said no");
}

TEST(PinnedPool, RefusesSizesThatMakeNoSense) {
  EXPECT_FALSE(PinnedPool::create({.buffer_bytes = 0, .capacity = 1}).ok());
  EXPECT_FALSE(PinnedPool::create({.buffer_bytes = 4096, .capacity = 0}).ok());
  const auto huge = PinnedPool::create({.buffer_bytes = kTiB, .capacity = 1 << 30});
  ASSERT_FALSE(huge.ok());
  EXPECT_EQ(huge.error().code(), ErrorCode::kOutOfMemory);
}

// The limit binds only users without CAP_IPC_LOCK, so a child first gives up its privileges.
TEST(PinnedPool, GoesOnUnlockedBeyondTheMemlockLimitAndNamesIt) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers make mlock do nothing";
#endif
  const auto child = [] {
    const rlimit limit{65536, 65536};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) _exit(10);
    if (::geteuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) _exit(11);
    std::string said;
    log::set_sink([&](log::Level, std::string_view message) { said += message; });
    const auto pool = PinnedPool::create({.buffer_bytes = kMiB, .capacity = 1});
    if (said.find("the limit is 64K") == std::string::npos) _exit(12);
    _exit(pool.ok() && !(*pool)->usage().locked ? 0 : 13);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sluice::aio
