#include "offload/params/param_offloader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <random>
#include <thread>

#include "tests/offload/params_under_test.h"

namespace sluice::offload {
namespace {

using testing::HasSubstr;

// ---- real drives ------------------------------------------------------------------------------

class ParamOffloaderOn : public aio::EveryBackend {
 protected:
  void SetUp() override {
    backend_ = backend(2, 16);
    for (const char* drive : {"a", "b"}) {
      std::filesystem::create_directory(folder_.file(drive));
      folders_.push_back(folder_.file(drive));
    }
  }

  aio::TemporaryFolder folder_;
  std::vector<std::string> folders_;
  std::unique_ptr<aio::IoBackend> backend_;
};

TEST_P(ParamOffloaderOn, HoldsWhatWasPutInWhateverTheOrder) {
  const auto executor = std::move(aio::make_executor(2)).value();
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ParamsUnderTest test(*backend_, folders_,
                         {.cache_buffers = 2 + static_cast<int>(seed % 3),
                          .read_ahead = static_cast<int>(seed % 4),
                          .two_queues = seed % 2 == 0,
                          .executor = seed % 2 == 0 ? executor.get() : nullptr});
    test.fill();
    access_at_random(test, seed, 300);
    EXPECT_GT(test.params().stats().reads, 0U);
    EXPECT_EQ(test.params().stats().bytes_read, test.read_stats().read.payload_bytes);
  }
}

// A forward reads each unit as soon as another thread has updated it; a third thread reads at
// random. All bytes of a unit are of one version, and versions never go back.
TEST_P(ParamOffloaderOn, ReadersSeeWholeVersionsWhileAnotherThreadUpdates) {
  constexpr int kUnits = 8;
  constexpr int kSteps = 12;
  ParamsUnderTest test(*backend_, folders_,
                       {.units = equal_units(kUnits, 60'000), .cache_buffers = 3});
  ParamOffloader& params = test.params();
  for (int unit = 0; unit < kUnits; ++unit)
    ASSERT_OK(params.acquire(unit, Access::kReplace).status());
  std::vector<int> order;
  for (int step = 0; step < kSteps; ++step)
    for (int unit = 0; unit < kUnits; ++unit) order.insert(order.end(), {unit, unit});
  params.expect(order);

  std::array<std::atomic<int>, kUnits> done{};
  const auto version_of = [&](int unit) {
    auto lease = params.acquire(unit, Access::kRead);
    EXPECT_OK(lease.status());
    const std::byte first = lease->bytes().front();
    EXPECT_TRUE(std::ranges::all_of(lease->bytes(), [&](std::byte b) { return b == first; }));
    return static_cast<int>(first);
  };
  std::thread updater([&] {
    for (int step = 1; step <= kSteps; ++step) {
      for (int unit = 0; unit < kUnits; ++unit) {
        auto lease = params.acquire(unit, Access::kUpdate);
        ASSERT_OK(lease.status());
        ASSERT_EQ(static_cast<int>(lease->bytes().front()), step - 1);
        std::ranges::fill(lease->bytes(), static_cast<std::byte>(step));
        lease->release();
        done[static_cast<std::size_t>(unit)] = step;
      }
    }
  });
  std::thread looker([&] {
    std::mt19937_64 random(7);
    std::array<int, kUnits> seen{};
    for (int i = 0; i < 150; ++i) {
      const auto unit = static_cast<std::size_t>(random() % kUnits);
      if (random() % 3 == 0) params.prefetch(static_cast<int>(unit));
      const int version = version_of(static_cast<int>(unit));
      ASSERT_GE(version, seen[unit]);
      seen[unit] = version;
    }
  });
  for (int step = 1; step <= kSteps; ++step) {
    for (int unit = 0; unit < kUnits; ++unit) {
      while (done[static_cast<std::size_t>(unit)] < step) std::this_thread::yield();
      EXPECT_GE(version_of(unit), step);
    }
  }
  updater.join();
  looker.join();
  ASSERT_OK(params.drain());
  EXPECT_EQ(params.stats().writes, kUnits * (kSteps + 1));
}

// Even while a thread reads ahead; free buffers go to the thread that waits.
TEST_P(ParamOffloaderOn, WaitsForABufferUntilALeaseIsReturned) {
  ParamsUnderTest test(*backend_, folders_, {.units = equal_units(5, 60'000)});
  test.fill();
  auto first = test.params().acquire(0, Access::kRead);
  auto second = test.params().acquire(1, Access::kRead);
  std::atomic<bool> came{false};
  std::thread third([&] {
    EXPECT_OK(test.update(2));
    came = true;
  });
  test.params().expect(std::vector<int>{3, 4});
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_FALSE(came);
  first->release();
  third.join();
  EXPECT_GT(test.params().stats().wait_buffer_ns, 20'000'000);
  test.expect_as_modelled(*second);
  second->release();
  test.expect_all();
}

TEST_P(ParamOffloaderOn, FindsADamagedRecordAndNamesIt) {
  ParamsUnderTest test(*backend_, {folders_[0]}, {.units = equal_units(4, 60'000)});
  test.fill();
  ASSERT_OK(test.params().drain());
  for (const int unit : {2, 3}) ASSERT_OK(test.read(unit));
  ASSERT_FALSE(test.params().in_memory(1));
  {
    std::fstream file(folders_[0] + "/sluice-test/records",
                      std::ios::in | std::ios::out | std::ios::binary);
    const auto place = static_cast<std::streamoff>(test.params().layout().place(0).image_bytes +
                                                   swap::kRecordHeaderBytes + 31'000);
    file.seekg(place);
    const char byte = static_cast<char>(file.get() ^ 0x04);
    file.seekp(place);
    file.put(byte);
    ASSERT_TRUE(file.good());
  }
  ASSERT_OK(test.read(0));
  const Status damaged = test.read(1);
  ASSERT_FALSE(damaged.ok());
  EXPECT_EQ(damaged.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(damaged.error().message(), HasSubstr("record u1[0..30000) of run test"));
  // And no later call ignores the failure.
  EXPECT_EQ(test.read(0).error().message(), damaged.error().message());
  EXPECT_EQ(test.params().drain().error().message(), damaged.error().message());
}

TEST_P(ParamOffloaderOn, RemovesItsFilesAndOnlyThen) {
  {
    ParamsUnderTest test(*backend_, folders_, {});
    test.fill();
    EXPECT_FALSE(std::filesystem::is_empty(folders_[0]));
    ASSERT_OK(test.params().remove());
    EXPECT_EQ(test.read(0).error().code(), ErrorCode::kCancelled);
  }
  for (const std::string& folder : folders_) EXPECT_TRUE(std::filesystem::is_empty(folder));
  {
    ParamsUnderTest test(*backend_, folders_, {});
    test.fill();
    test.close();
  }
  EXPECT_FALSE(std::filesystem::is_empty(folders_[1]));
}

SLUICE_TEST_EVERY_BACKEND(ParamOffloaderOn);

// ---- memory alone -----------------------------------------------------------------------------

class ParamAccess : public testing::Test {
 protected:
  void SetUp() override {
    ParamOffloader::Options options;
    options.units = equal_units(2, 10'000, Tier::kCpu);
    options.lock = aio::MemoryLock::kNone;
    auto made = ParamOffloader::create(options, {});
    ASSERT_OK(made.status());
    params_ = std::move(*made);
    for (const int unit : {0, 1}) ASSERT_OK(params_->acquire(unit, Access::kReplace).status());
  }
  // Acquires in a separate thread, records its name, and keeps the lease until `may_go`.
  std::thread user(const char* name, Access access, std::atomic<bool>& may_go) {
    return std::thread([this, name, access, &may_go] {
      const auto lease = params_->acquire(0, access);
      EXPECT_OK(lease.status());
      {
        const std::lock_guard lock(mutex_);
        came_ += name;
      }
      while (!may_go) std::this_thread::yield();
    });
  }
  std::string came() {
    const std::lock_guard lock(mutex_);
    return came_;
  }
  void wait_for(const std::string& who) {
    while (came() != who) std::this_thread::yield();
  }
  static void let_them_wait() { std::this_thread::sleep_for(std::chrono::milliseconds(30)); }

  std::unique_ptr<ParamOffloader> params_;
  std::mutex mutex_;
  std::string came_;
};

TEST_F(ParamAccess, ReadersShareAnUpdaterIsAloneAndComesBeforeLaterReaders) {
  std::array<std::atomic<bool>, 4> may_go{};
  std::thread first = user("r", Access::kRead, may_go[0]);
  wait_for("r");
  std::thread second = user("R", Access::kRead, may_go[1]);
  wait_for("rR");
  std::thread updater = user("u", Access::kUpdate, may_go[2]);
  let_them_wait();
  std::thread third = user("l", Access::kRead, may_go[3]);
  let_them_wait();
  EXPECT_EQ(came(), "rR");
  ASSERT_OK(params_->acquire(1, Access::kUpdate).status());  // the other unit is free
  may_go[0] = true;
  let_them_wait();
  EXPECT_EQ(came(), "rR");
  may_go[1] = true;
  wait_for("rRu");
  let_them_wait();
  EXPECT_EQ(came(), "rRu");
  may_go[2] = true;
  wait_for("rRul");
  may_go[3] = true;
  for (std::thread* thread : {&first, &second, &updater, &third}) thread->join();
  EXPECT_GT(params_->stats().wait_access_ns, 50'000'000);
}

TEST_F(ParamAccess, ALeaseCanBeMovedAndEndsOnce) {
  auto made = params_->acquire(0, Access::kUpdate);
  ASSERT_OK(made.status());
  ParamOffloader::Lease lease = std::move(*made);
  EXPECT_FALSE(*made);
  EXPECT_EQ(lease.unit(), 0);
  EXPECT_EQ(lease.bytes().size(), 10'000U);
  lease = ParamOffloader::Lease();
  ASSERT_OK(params_->acquire(0, Access::kUpdate).status());
}

using ParamOffloaderDeathTest = ParamAccess;

TEST_F(ParamOffloaderDeathTest, StopsAtMisuse) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a forked child has no pinned memory
  const auto lease = params_->acquire(0, Access::kRead);
  EXPECT_DEATH(params_.reset(), "while a lease was out");
  ParamOffloader::Options options = {.units = equal_units(1, 100, Tier::kCpu)};
  const auto empty = std::move(ParamOffloader::create(options, {})).value();
  EXPECT_DEATH(static_cast<void>(empty->acquire(0, Access::kRead)), "before they were set");
}

}  // namespace
}  // namespace sluice::offload
