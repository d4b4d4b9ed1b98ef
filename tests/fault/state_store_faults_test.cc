// The life of a state store - made, written, closed, opened, written, closed - with the power lost,
// and with a failure injected, at every one of its operations. Whatever remains, the next start
// either finds a whole store with the bytes of one moment, or is told that there is none; and it
// can make a new one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <optional>

#include "aio/fault_backend.h"
#include "aio/log.h"
#include "aio/sim_drive.h"
#include "aio/virtual_loop.h"
#include "swap/state_store.h"
#include "tests/aio/backends_under_test.h"
#include "tests/swap/store_under_test.h"

namespace sluice::swap {
namespace {

using aio::FaultBackend;
using aio::FaultKind;
using aio::FaultPlan;
using aio::IoBackend;
using aio::IoQueue;
using aio::PowerLoss;
using aio::SimDrive;
using aio::VirtualLoop;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kStride = 7;  // sanitized code is slow: a sample of the positions
#else
constexpr std::uint64_t kStride = 1;
#endif

const std::vector<std::string> kPaths = {"/a", "/b"};

// What the run was told, in the order of its life.
struct Acknowledged {
  int closed_version = 0;  // the last close() that returned ok
  int begun_version = 0;   // the last one that was begun
  bool in_use = false;     // open() or create() went through since
  Status error;
};

class StateStoreLife : public testing::Test {
 protected:
  // Every life but the first finds what the one before left, and says so.
  void SetUp() override {
    log::set_sink([](log::Level, std::string_view) {});
  }
  void TearDown() override { log::set_sink({}); }

  std::unique_ptr<aio::Executor> executor_ = std::move(aio::make_executor(1)).value();

  static StateStore::Options options() {
    StateStore::Options options;
    options.paths = kPaths;
    options.run = "life";
    options.stripe_bytes = 64 * kKiB;
    options.chunk_bytes = 64 * kKiB;
    options.store_id = 42;
    return options;
  }
  static std::unique_ptr<IoQueue> make_queue(IoBackend& backend) {
    return aio::make_queue_or_die(backend, {.block_bytes = 128 * kKiB, .queue_depth = 4});
  }

  Status write_all(StateStore& store, int version) {
    StoreUser user(store, *executor_);
    for (RecordId id = 0; id < store.record_count(); ++id)
      SLUICE_RETURN_IF_ERROR(user.try_write(id, static_cast<std::uint64_t>(version)));
    return {};
  }

  Acknowledged live(IoBackend& backend) {
    Acknowledged told;
    auto queue = make_queue(backend);
    const auto close = [&](StateStore& store, int version) -> Status {
      told.begun_version = version;
      SLUICE_RETURN_IF_ERROR(store.close());
      told.closed_version = version;
      told.in_use = false;
      return {};
    };
    told.error = [&]() -> Status {
      {
        SLUICE_ASSIGN_OR_RETURN(const auto store,
                                StateStore::create({*queue, *queue}, options(), test_records()));
        told.in_use = true;
        SLUICE_RETURN_IF_ERROR(write_all(*store, 1));
        SLUICE_RETURN_IF_ERROR(close(*store, 1));
      }
      told.in_use = true;  // once its marks are gone it is, even if open() does not return
      SLUICE_ASSIGN_OR_RETURN(const auto store, StateStore::open({*queue, *queue}, kPaths, "life"));
      SLUICE_RETURN_IF_ERROR(write_all(*store, 2));
      return close(*store, 2);
    }();
    return told;
  }

  // The next start, on a machine that works. Returns the version it found whole, or 0.
  int start_again(IoBackend& backend, const Acknowledged& told, std::uint64_t at) {
    auto queue = make_queue(backend);
    int found = 0;
    {
      auto store = StateStore::open({*queue, *queue}, kPaths, "life");
      if (store.ok()) {
        StoreUser user(**store, *executor_);
        for (RecordId id = 0; id < (*store)->record_count(); ++id) {
          const Status read = user.read(id);
          EXPECT_TRUE(read.ok()) << "operation " << at << ": " << read.error().message();
          const int version = user.holds(id, 1) ? 1 : user.holds(id, 2) ? 2 : -1;
          if (id == 0) found = version;
          EXPECT_EQ(version, found) << "records of two moments, at operation " << at;
        }
        EXPECT_GE(found, told.closed_version) << "an older store than the closed one at " << at;
        EXPECT_LE(found, told.begun_version);
      } else {
        EXPECT_FALSE(told.closed_version > 0 && !told.in_use)
            << "a closed store was lost at operation " << at << ": " << store.error().message();
        EXPECT_THAT(store.error().code(), testing::AnyOf(ErrorCode::kNotFound, ErrorCode::kCorrupt))
            << store.error().message();
      }
    }
    StateStore::Options anew = options();
    anew.replace_whole = true;
    anew.store_id = 43;
    auto store = StateStore::create({*queue, *queue}, anew, test_records());
    EXPECT_TRUE(store.ok()) << "operation " << at << ": "
                            << (store.ok() ? "" : store.error().message());
    if (store.ok()) {
      EXPECT_TRUE(write_all(**store, 3).ok());
      StoreUser(**store, *executor_).expect_all(3);
    }
    return found;
  }

  static void make_paths(IoBackend& backend) {
    for (const std::string& path : kPaths) {
      ASSERT_OK(backend.files().make_directories(path));
      ASSERT_OK(backend.files().sync_directory("/"));
    }
  }
};

TEST_F(StateStoreLife, SurvivesPowerLossAtEveryOperation) {
  std::uint64_t operations = 0;
  {
    VirtualLoop loop;
    SimDrive drive(loop, {});
    make_paths(drive);
    const std::uint64_t before = drive.operations();
    ASSERT_OK(live(drive).error);
    operations = drive.operations() - before;
  }
  int whole[3] = {0, 0, 0};
  std::uint64_t runs = 0;
  for (const PowerLoss policy : {PowerLoss::kOrdered, PowerLoss::kAny, PowerLoss::kDropUnsynced,
                                 PowerLoss::kKeepAll, PowerLoss::kTearLast}) {
    for (std::uint64_t at = 1; at <= operations; at += kStride) {
      VirtualLoop loop;
      SimDrive drive(loop, {});
      make_paths(drive);
      drive.fail_after_ops(at, policy, /*seed=*/at);
      const Acknowledged told = live(drive);
      drive.restore_power();
      const int found = start_again(drive, told, at);
      if (found >= 0 && found < 3) ++whole[found];
      ++runs;
      if (HasFailure()) FAIL() << "policy " << static_cast<int>(policy);
    }
  }
  std::cout << runs << " power losses at " << operations << " operations: " << whole[0]
            << " without a whole store, " << whole[1] << " with the first, " << whole[2]
            << " with the second\n";
  EXPECT_GT(whole[0], 0);
  EXPECT_GT(whole[1], 0);
  EXPECT_GT(whole[2], 0);
}

// Every operation fails once, or from then on always. An error must come out or the result be
// right.
void fail_at_every_operation(const std::function<bool(const FaultPlan&)>& run, const char* where) {
  std::uint64_t runs = 0;
  for (const FaultKind fault : {FaultKind::kEio, FaultKind::kShort, FaultKind::kTornWrite,
                                FaultKind::kEnospc, FaultKind::kDelay}) {
    for (const bool persistent : {false, true}) {
      for (std::uint64_t nth = 1;; nth += kStride) {
        FaultPlan plan = FaultPlan::of({.fault = fault,
                                        .nth = nth,
                                        .persistent = persistent,
                                        .targets = aio::all_fault_targets()});
        plan.delay_ns = 100'000;
        ++runs;
        if (!run(plan)) break;  // nothing was left to fail: the end of its life was reached
        if (testing::Test::HasFailure()) FAIL() << to_string(fault) << " at operation " << nth;
      }
    }
  }
  std::cout << runs << " lives with a fault, " << where << "\n";
}

TEST_F(StateStoreLife, SurvivesAFaultAtEveryOperation) {
  fail_at_every_operation(
      [&](const FaultPlan& plan) {
        VirtualLoop loop;
        SimDrive drive(loop, {});
        make_paths(drive);
        FaultBackend faults(drive, plan);
        const Acknowledged told = live(faults);
        const bool harmed = faults.injected() > 0;
        EXPECT_TRUE(harmed || told.error.ok());
        start_again(drive, told, plan.rules[0].nth);
        return harmed;
      },
      "on the simulated drive");
}

}  // namespace
}  // namespace sluice::swap
