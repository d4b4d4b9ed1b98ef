#include "offload/param_offloader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <random>
#include <thread>

#include "aio/sim_drive.h"
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

// One thread that does anything the contract allows.
void access_at_random(ParamsUnderTest& test, std::uint64_t seed, int actions) {
  std::mt19937_64 random(seed);
  ParamOffloader& params = test.params();
  const auto any_unit = [&] { return static_cast<int>(random() % test.units()); };
  for (int i = 0; i < actions && !testing::Test::HasFailure(); ++i) {
    const std::uint64_t what = random() % 20;
    if (what < 7) {
      ASSERT_OK(test.read(any_unit()));
    } else if (what < 13) {
      ASSERT_OK(test.update(any_unit()));
    } else if (what == 13) {
      ASSERT_OK(test.replace(any_unit(), random()));
    } else if (what == 14) {
      std::vector<int> order(random() % 30);
      for (int& unit : order) unit = any_unit();
      params.expect(order);
    } else if (what == 15 && random() % 4 == 0) {
      ASSERT_OK(params.drain());
    } else if (what < 18) {
      params.prefetch(any_unit());
    } else {
      const int first = any_unit();
      const int second = any_unit();
      if (first == second) continue;
      auto read = params.acquire(first, Access::kRead);
      ASSERT_OK(read.status());
      ASSERT_OK(test.update(second));
      test.expect_as_modelled(*read);
    }
  }
  test.expect_all();
}

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

// A forward that reads each unit as soon as the update of it is done, in another thread; a third
// thread reads what it likes. All bytes of a unit are of one version, which never goes back.
TEST_P(ParamOffloaderOn, ReadersSeeWholeVersionsWhileAnotherThreadUpdates) {
  constexpr int kUnits = 8;
  constexpr int kSteps = 12;
  ParamsUnderTest test(*backend_, folders_,
                       {.units = equal_units(kUnits, 60'000), .cache_buffers = 4});
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
  // And no later call goes on as if nothing had happened.
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
  // Acquires in a thread of its own, notes its name, and keeps the lease until told.
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
  ASSERT_OK(params_->acquire(1, Access::kUpdate).status());  // the other unit is nobody's
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

// ---- the simulated drive ----------------------------------------------------------------------

// Units of 1 MiB, headers and all, at 1 MiB/ms each way.
class ParamOffloaderTime : public testing::Test {
 protected:
  static constexpr double kMs = 1e6;

  ParamsUnderTest& params(int units, int cache_buffers, int read_ahead = 2, double speed = 1.0) {
    constexpr double kMibPerMs = 1.048576;
    test_.reset();
    drive_ = std::make_unique<aio::SimDrive>(
        loop_, aio::SimDrive::Options{.read_gb_per_s = kMibPerMs * speed,
                                      .write_gb_per_s = kMibPerMs * speed,
                                      .half_duplex = false,
                                      .read_latency_us = 0,
                                      .write_latency_us = 0});
    EXPECT_OK(drive_->files().make_directories("/d"));
    test_ = std::make_unique<ParamsUnderTest>(
        *drive_, std::vector<std::string>{"/d"},
        ParamsUnderTestOptions{.units = equal_units(units, kMiB - swap::kRecordHeaderBytes),
                               .cache_buffers = cache_buffers,
                               .read_ahead = read_ahead});
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
  // In milliseconds of virtual time.
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
    test_->params().reset_stats();
    visit(descending(kUnits), Access::kRead, 5);
    const ParamStats stats = test_->params().stats();
    EXPECT_EQ(stats.reads, static_cast<std::uint64_t>(kUnits - buffers));
    EXPECT_EQ(stats.hits, static_cast<std::uint64_t>(kUnits));  // the rest came in time
    EXPECT_EQ(stats.wait_read_ns, 0);
  }
}

TEST_F(ParamOffloaderTime, WithoutAnOrderEveryUnitOfACycleIsRead) {
  params(kUnits, 4);
  visit(ascending(kUnits), Access::kRead, 0);
  test_->params().reset_stats();
  visit(ascending(kUnits), Access::kRead, 0);
  EXPECT_EQ(test_->params().stats().misses, kUnits);
  EXPECT_EQ(test_->params().stats().reads, kUnits);
}

TEST_F(ParamOffloaderTime, ReadingAheadHidesTheDrive) {
  params(kUnits, 3);
  visit(ascending(kUnits), Access::kRead, 0);
  EXPECT_NEAR(visit(ascending(kUnits), Access::kRead, 1.5), 2.5 * kUnits, 0.1);
  test_->params().expect(ascending(kUnits));
  EXPECT_NEAR(visit(ascending(kUnits), Access::kRead, 1.5), 1.5 * kUnits + 1, 0.1);
  test_->params().reset_stats();
  test_->params().expect(ascending(kUnits));
  EXPECT_NEAR(visit(ascending(kUnits), Access::kRead, 0.5), kUnits + 0.5, 0.1);
  const auto waited_ms = static_cast<double>(test_->params().stats().wait_read_ns) / kMs;
  EXPECT_NEAR(waited_ms, 0.5 * kUnits, 0.6);
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

// Reads of later units and writes of earlier ones go on while one is updated.
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

TEST_F(ParamOffloaderTime, AgreesWithTheModelInRandomOrder) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
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
