// The life of a state store - created, written and read twice, removed - with a power loss, and
// with an injected failure, at each of its operations. The remains are recognised, and the next
// start creates a new store in their place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <iostream>

#include "aio/fault_backend.h"
#include "aio/log.h"
#include "aio/sim_drive.h"
#include "aio/virtual_loop.h"
#include "swap/state_store.h"
#include "swap/store_inventory.h"
#include "tests/aio/backends_under_test.h"
#include "tests/sanitized.h"
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

constexpr std::uint64_t kStride = sweep_stride(7);

const std::vector<std::string> kPaths = {"/a", "/b"};

// The results that the run received.
struct Acknowledged {
  bool removed = false;  // remove() returned ok
  Status error;
};

class StateStoreLife : public testing::Test {
 protected:
  // Every life but the first finds the remains of the previous one, and says so.
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

  // Writes every record and reads it back: an error, or the right bytes.
  Status step(StateStore& store, std::uint64_t version) {
    StoreUser user(store, *executor_);
    for (RecordId id = 0; id < store.record_count(); ++id)
      SLUICE_RETURN_IF_ERROR(user.try_write(id, version));
    for (RecordId id = 0; id < store.record_count(); ++id) {
      SLUICE_RETURN_IF_ERROR(user.read(id));
      EXPECT_TRUE(user.holds(id, version)) << store.name(id);
    }
    return {};
  }

  Acknowledged live(IoBackend& backend) {
    Acknowledged told;
    auto queue = make_queue(backend);
    told.error = [&]() -> Status {
      SLUICE_ASSIGN_OR_RETURN(const auto store,
                              StateStore::create({*queue, *queue}, options(), test_records()));
      SLUICE_RETURN_IF_ERROR(step(*store, 1));
      SLUICE_RETURN_IF_ERROR(step(*store, 2));
      SLUICE_RETURN_IF_ERROR(store->remove());
      told.removed = true;
      return {};
    }();
    return told;
  }

  // The number of folders found. None may be in doubt, since all belonged to runs of this machine.
  static std::size_t look_at_rest(IoQueue& queue, std::uint64_t at) {
    std::size_t folders = 0;
    for (const std::string& path : kPaths) {
      const auto found = find_runs(queue, path);
      EXPECT_TRUE(found.ok()) << "operation " << at;
      if (!found.ok()) continue;
      for (const FoundRun& run : *found) {
        EXPECT_THAT(run.condition,
                    testing::AnyOf(StoreCondition::kLeftover, StoreCondition::kUnclaimed))
            << "operation " << at << ": " << describe(run);
      }
      folders += found->size();
    }
    return folders;
  }

  // The next start, on a machine that works. Returns how many folders it found.
  std::size_t start_again(IoBackend& backend, const Acknowledged& told, std::uint64_t at) {
    auto queue = make_queue(backend);
    const std::size_t folders = look_at_rest(*queue, at);
    EXPECT_TRUE(!told.removed || folders == 0) << "operation " << at;
    const auto report = scrub(*queue, *executor_, kPaths, "life");
    if (!report.ok()) {
      EXPECT_THAT(report.error().code(), testing::AnyOf(ErrorCode::kNotFound, ErrorCode::kCorrupt))
          << "operation " << at << ": " << report.error().message();
    }
    StateStore::Options anew = options();
    anew.store_id = 43;
    const auto store = StateStore::create({*queue, *queue}, anew, test_records());
    EXPECT_TRUE(store.ok()) << "operation " << at << ": "
                            << (store.ok() ? "" : store.error().message());
    if (!store.ok()) return folders;
    EXPECT_TRUE(step(**store, 3).ok());
    return folders;
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
  std::uint64_t rests = 0;
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
      if (start_again(drive, told, at) > 0) ++rests;
      ++runs;
      if (HasFailure()) FAIL() << "policy " << static_cast<int>(policy);
    }
  }
  std::cout << runs << " power losses at " << operations << " operations, after which " << rests
            << " times something was left\n";
  EXPECT_GT(rests, 0U);
  EXPECT_LT(rests, runs);
}

// Every operation fails once, or permanently from then on. The result must be an error or right.
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
        if (!run(plan)) break;  // nothing was left to fail: the end of the life was reached
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
