// Store directories during power losses and failing calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "aio/fault_backend.h"
#include "aio/log.h"
#include "aio/sim_drive.h"
#include "aio/small_file.h"
#include "swap/store_directory.h"
#include "tests/aio/backends_under_test.h"
#include "tests/swap/store_directory_under_test.h"

namespace sluice::swap {
namespace {

using aio::FaultBackend;
using aio::FaultKind;
using aio::FaultPlan;
using aio::FaultTarget;
using aio::FileSystem;
using aio::SimDrive;
using testing::HasSubstr;

// ---- power loss and faults --------------------------------------------------------------------

class StoreDirectoryOnSimDrive : public testing::Test {
 protected:
  struct Machine {
    Machine() {
      EXPECT_OK(files.make_directories("/nvme"));
      EXPECT_OK(files.sync_directory("/"));
    }
    // The state after a run that wrote two files and died.
    void leave_a_dead_run() {
      const auto run = take(1);
      EXPECT_OK(run);
      for (const char* name : {"/state.0", "/state.1"}) {
        EXPECT_OK(aio::write_small_file(*queue, (*run)->path() + name, "state"));
      }
    }
    Result<std::unique_ptr<StoreDirectory>> take(std::int64_t pid) {
      return StoreDirectory::take(*queue, "/nvme", "a", impatient(pid));
    }
    void lose_power(PowerLoss policy, std::uint64_t seed) {
      drive.power_loss(policy, seed);
      loop.run();
      drive.restore_power();
    }
    aio::VirtualLoop loop;
    SimDrive drive{loop, {}};
    FileSystem& files = drive.files();
    std::unique_ptr<IoQueue> queue = make_queue_or_die(drive, {});
  };

  void SetUp() override {
    log::set_sink([](log::Level, std::string_view) {});
  }
  void TearDown() override { log::set_sink({}); }

  static FaultPlan plan(FaultKind fault, std::uint64_t nth, bool persistent) {
    return FaultPlan::of({.fault = fault,
                          .nth = nth,
                          .persistent = persistent,
                          .targets = aio::all_fault_targets()});
  }
};

TEST_F(StoreDirectoryOnSimDrive, CanBeTakenAgainAfterAPowerLossAtAnyOperationOfTaking) {
  for (const bool dead_run : {false, true}) {
    for (const PowerLoss policy : kAllPolicies) {
      for (std::uint64_t seed = 1; seed <= 12; ++seed) {
        for (std::uint64_t nth = 1;; ++nth) {
          SCOPED_TRACE("policy " + std::to_string(static_cast<int>(policy)) + ", seed " +
                       std::to_string(seed) + ", operation " + std::to_string(nth));
          Machine machine;
          if (dead_run) machine.leave_a_dead_run();
          machine.drive.fail_after_ops(nth, policy, seed);
          const auto cut = machine.take(2);
          const bool was_cut = !machine.drive.powered();
          ASSERT_EQ(cut.ok(), !was_cut);
          machine.lose_power(policy, seed);
          const auto found = find_runs(*machine.queue, "/nvme", impatient());
          ASSERT_OK(found);
          if (cut.ok()) {
            ASSERT_EQ(found->size(), 1U);
            ASSERT_EQ(found->front().owner->pid, 2);
          }
          const auto next = machine.take(3);
          ASSERT_OK(next);
          const auto owner = read_owner(*machine.queue, (*next)->path());
          ASSERT_OK(owner);
          ASSERT_EQ((*owner)->pid, 3);
          ASSERT_EQ(*machine.files.exists("/nvme/sluice-a/state.1"), dead_run);
          if (!was_cut) break;
        }
      }
    }
  }
}

TEST_F(StoreDirectoryOnSimDrive, StaysOursOrGoesAfterAPowerLossAtAnyOperationOfRemoval) {
  int found_again = 0;
  for (const PowerLoss policy : kAllPolicies) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      for (std::uint64_t nth = 1;; ++nth) {
        SCOPED_TRACE("policy " + std::to_string(static_cast<int>(policy)) + ", seed " +
                     std::to_string(seed) + ", operation " + std::to_string(nth));
        Machine machine;
        machine.leave_a_dead_run();
        const auto run = machine.take(2);
        ASSERT_OK(run);
        machine.drive.fail_after_ops(nth, policy, seed);
        const Status removed = (*run)->remove_all();
        const bool was_cut = !machine.drive.powered();
        ASSERT_EQ(removed.ok(), !was_cut);
        machine.lose_power(policy, seed);
        const auto found = find_runs(*machine.queue, "/nvme", impatient());
        ASSERT_OK(found);
        if (removed.ok()) {
          ASSERT_TRUE(machine.files.list("/nvme")->empty());
        } else if (found->empty() && *machine.files.exists("/nvme/sluice-a")) {
          ASSERT_TRUE(machine.files.list("/nvme/sluice-a")->empty()) << "files nobody would find";
        }
        found_again += found->empty() ? 0 : 1;
        const auto next = machine.take(3);
        ASSERT_OK(next);
        ASSERT_OK((*next)->remove_all());
        ASSERT_TRUE(machine.files.list("/nvme")->empty());
        if (!was_cut) break;
      }
    }
  }
  EXPECT_GT(found_again, 100);
}

TEST_F(StoreDirectoryOnSimDrive, TakingReportsEveryCallThatFailsAndCanBeRepeated) {
  int failed = 0;
  for (const bool dead_run : {false, true}) {
    for (const FaultKind fault : {FaultKind::kEio, FaultKind::kEnospc, FaultKind::kEintr}) {
      for (const bool persistent : {false, true}) {
        for (std::uint64_t nth = 1;; ++nth) {
          SCOPED_TRACE(std::string(to_string(fault)) + " at call " + std::to_string(nth));
          Machine machine;
          if (dead_run) machine.leave_a_dead_run();
          FaultBackend faults(machine.drive, plan(fault, nth, persistent));
          const auto queue = make_queue_or_die(faults, {});
          auto run = StoreDirectory::take(*queue, "/nvme", "a", impatient(2));
          const std::uint64_t injected = faults.injected();
          if (injected == 0) ASSERT_OK(run);
          if (run.ok()) {  // possible, since writes are retried
            faults.set_plan({});
            ASSERT_EQ(machine.take(3).error().code(), ErrorCode::kBusy);
            ASSERT_EQ((*read_owner(*machine.queue, (*run)->path()))->pid, 2);
            run->reset();
          } else {
            ++failed;
            ASSERT_THAT(run.error().message(), HasSubstr("/nvme"));
          }
          ASSERT_OK(machine.take(3));
          ASSERT_EQ(*machine.files.exists("/nvme/sluice-a/state.1"), dead_run);
          if (injected == 0) break;
        }
      }
    }
  }
  EXPECT_GT(failed, 80);
}

TEST_F(StoreDirectoryOnSimDrive, RemovalReportsEveryCallThatFailsAndCanBeRepeated) {
  int failed = 0;
  for (const FaultKind fault : {FaultKind::kEio, FaultKind::kEintr}) {
    for (const bool persistent : {false, true}) {
      for (std::uint64_t nth = 1;; ++nth) {
        SCOPED_TRACE(std::string(to_string(fault)) + " at call " + std::to_string(nth));
        Machine machine;
        machine.leave_a_dead_run();
        FaultBackend faults(machine.drive, {});
        const auto queue = make_queue_or_die(faults, {});
        auto run = StoreDirectory::take(*queue, "/nvme", "a", impatient(2));
        ASSERT_OK(run);
        faults.set_plan(plan(fault, nth, persistent));
        const Status removed = (*run)->remove_all();
        const std::uint64_t injected = faults.injected();
        ASSERT_EQ(removed.ok(), injected == 0);
        if (!removed.ok()) {
          ++failed;
          ASSERT_THAT(removed.error().message(), HasSubstr("/nvme"));
        }
        faults.set_plan({});
        ASSERT_OK((*run)->remove_all());
        machine.lose_power(PowerLoss::kDropUnsynced, 1);
        ASSERT_TRUE(machine.files.list("/nvme")->empty());
        if (injected == 0) break;
      }
    }
  }
  EXPECT_GT(failed, 40);
}

// Between the removal of the lock's file and of the folder the name is free. A repeated removal
// then finds the files of the run that took it.
TEST_F(StoreDirectoryOnSimDrive, ARepeatedRemovalSparesTheRunThatTookTheNameMeanwhile) {
  Machine machine;
  FaultBackend faults(machine.drive, {});
  const auto queue = make_queue_or_die(faults, {});
  auto first = StoreDirectory::take(*queue, "/nvme", "a", impatient(1));
  ASSERT_OK(first);
  faults.set_plan(FaultPlan::of({.nth = 3, .targets = {FaultTarget::kRemove}}));
  ASSERT_FALSE((*first)->remove_all().ok());
  ASSERT_TRUE(machine.files.list("/nvme/sluice-a")->empty());
  const auto second = machine.take(2);
  ASSERT_OK(second);
  ASSERT_OK((*first)->remove_all());
  first->reset();
  EXPECT_EQ((*read_owner(*machine.queue, "/nvme/sluice-a"))->pid, 2);
  EXPECT_EQ(machine.take(3).error().code(), ErrorCode::kBusy);
}

TEST_F(StoreDirectoryOnSimDrive, LookingReportsEveryCallThatFailsAndHoldsNoLockAfterwards) {
  int failed = 0;
  for (const bool persistent : {false, true}) {
    for (std::uint64_t nth = 1;; ++nth) {
      SCOPED_TRACE("call " + std::to_string(nth));
      Machine machine;
      machine.leave_a_dead_run();
      FaultBackend faults(machine.drive, plan(FaultKind::kEio, nth, persistent));
      const auto queue = make_queue_or_die(faults, {});
      const auto found = find_runs(*queue, "/nvme", impatient());
      const std::uint64_t injected = faults.injected();
      if (found.ok()) {
        ASSERT_EQ(found->size(), 1U);
        const FoundRun& run = found->front();
        ASSERT_EQ(run.condition == StoreCondition::kUnknown, !run.problem.ok());
        if (run.problem.ok()) {  // possible, since reads are retried
          ASSERT_EQ(run.condition, StoreCondition::kLeftover);
          ASSERT_EQ(run.owner->pid, 1);
          ASSERT_GT(run.bytes, 10U);
        } else {
          ++failed;
          ASSERT_THAT(run.problem.error().message(), HasSubstr("/nvme/sluice-a"));
        }
      } else {
        ++failed;
        ASSERT_THAT(found.error().message(), HasSubstr("/nvme"));
      }
      ASSERT_OK(machine.take(2));
      if (injected == 0) {
        ASSERT_OK(found);
        ASSERT_OK(found->front().problem);
        break;
      }
    }
  }
  EXPECT_GT(failed, 20);
}

}  // namespace
}  // namespace sluice::swap
