// Saves, replaces, prunes and loads with a power loss, and with an injected failure, at each of
// their operations. In every case the newest valid checkpoint is the old one or the new one with
// exactly its bits, all valid checkpoints are whole, and the next save works.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <iostream>

#include "aio/fault_backend.h"
#include "aio/log.h"
#include "aio/sim_drive.h"
#include "aio/virtual_loop.h"
#include "engine/checkpoint/verify_checkpoint.h"
#include "tests/engine/checkpoint/checkpoint_under_test.h"
#include "tests/sanitized.h"

namespace sluice::engine {
namespace {

using aio::FaultBackend;
using aio::FaultKind;
using aio::FaultPlan;
using aio::PowerLoss;

constexpr std::uint64_t kSlowness = sweep_stride(13);

std::unique_ptr<aio::IoQueue> make_queue(aio::IoBackend& backend) {
  return aio::make_queue_or_die(backend, {.block_bytes = 8192, .queue_depth = 6, .max_retries = 2});
}

Status save_step(aio::IoQueue& queue, const Save& save) {
  return save_checkpoint(queue, CheckpointFolder(queue, kFolder).path_of(save.step), save);
}

// An operation on checkpoints, the state before it, and the valid state after it.
struct Scenario {
  const char* name;
  std::vector<Save> before;
  std::function<Status(aio::IoQueue&)> act;
  std::uint64_t old_version;  // version of the newest one before; 0: none
  std::uint64_t new_version;  // after
};

std::vector<Scenario> scenarios() {
  const Save first{.version = 1, .step = 6};
  const Save second{.version = 2, .step = 12};
  const Save again{.version = 3, .step = 12, .replace = true};
  return {
      {"the first save", {}, [=](aio::IoQueue& queue) { return save_step(queue, first); }, 0, 1},
      {"a save beside an older one",
       {first},
       [=](aio::IoQueue& queue) { return save_step(queue, second); },
       1,
       2},
      {"a save over an older one",
       {first, second},
       [=](aio::IoQueue& queue) { return save_step(queue, again); },
       2,
       3},
      {"a prune",
       {{.version = 5, .step = 2}, first, second},
       [](aio::IoQueue& queue) { return CheckpointFolder(queue, kFolder).prune(1).status(); },
       2,
       2},
      {"a save by three over one by two",
       {first, {.version = 2, .step = 12, .writers = 2}},
       [](aio::IoQueue& queue) {
         return save_step(queue, {.version = 3, .step = 12, .replace = true, .writers = 3});
       },
       2,
       3},
  };
}

// Strides between positions in the quick suites: saves over older ones, and those of several
// writers, have many. Each policy begins at another position.
std::array<std::uint64_t, 5> strides() { return {1, 2, 3, 2, 5}; }

struct Machine {
  explicit Machine(const Scenario& scenario) {
    EXPECT_OK(drive.files().make_directories("/run"));
    EXPECT_OK(drive.files().sync_directory("/"));
    const auto queue = make_queue(drive);
    for (const Save& save : scenario.before) EXPECT_OK(save_step(*queue, save));
  }
  aio::VirtualLoop loop;
  aio::SimDrive drive{loop, {}};
};

// The newest valid version on a machine that works again; 0: none.
std::uint64_t newest_version(aio::IoQueue& queue) {
  const auto newest = CheckpointFolder(queue, kFolder).newest();
  EXPECT_OK(newest);
  if (!newest.ok() || !*newest) return 0;
  const auto version = load_checkpoint(queue, (*newest)->path);
  EXPECT_OK(version);
  return version.ok() ? *version : 0;
}

void expect_all_whole(aio::IoQueue& queue) {
  const auto entries = CheckpointFolder(queue, kFolder).list();
  ASSERT_OK(entries);
  for (const CheckpointEntry& entry : *entries) {
    // Everything incomplete is recognised as an interrupted save, without a user's help.
    ASSERT_NE(entry.complete(), entry.leftover) << entry.status.error().message();
    if (!entry.complete()) continue;
    const auto report = verify_checkpoint(queue, entry.path, {});
    ASSERT_OK(report);
    EXPECT_TRUE(report->damaged.empty()) << report->damaged[0].problem;
  }
}

// The next start of the program. Returns the version that it found.
std::uint64_t start_again(aio::IoBackend& backend, const Scenario& scenario, const Status& told) {
  const auto queue = make_queue(backend);
  const std::uint64_t found = newest_version(*queue);
  EXPECT_TRUE(found == scenario.old_version || found == scenario.new_version) << found;
  EXPECT_TRUE(!told.ok() || found == scenario.new_version) << "a save that was done was lost";
  expect_all_whole(*queue);

  CheckpointFolder folder(*queue, kFolder);
  EXPECT_OK(folder.clean_leftovers());
  const auto names = backend.files().list(kFolder);
  EXPECT_TRUE(names.ok() || scenario.old_version == 0);
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>())
    EXPECT_EQ(name.find(".set-aside"), std::string::npos) << name;
  EXPECT_EQ(newest_version(*queue), found);
  const auto entries = folder.list();
  EXPECT_OK(entries);
  for (const CheckpointEntry& entry : *entries) EXPECT_TRUE(entry.complete()) << entry.name;
  EXPECT_OK(save_step(*queue, {.version = 9, .step = 20}));
  EXPECT_EQ(newest_version(*queue), 9U);
  EXPECT_OK(folder.prune(1));
  EXPECT_EQ(folder.list()->size(), 1U);
  return found;
}

class QuietLog {
 public:
  QuietLog() {
    log::set_sink([](log::Level, std::string_view) {});  // retries cause warnings
  }
  ~QuietLog() { log::set_sink({}); }
  QuietLog(const QuietLog&) = delete;
  QuietLog& operator=(const QuietLog&) = delete;
};

std::uint64_t operations_of(const Scenario& scenario) {
  Machine machine(scenario);
  const std::uint64_t before = machine.drive.operations();
  const auto queue = make_queue(machine.drive);
  EXPECT_OK(scenario.act(*queue));
  return machine.drive.operations() - before;
}

void lose_power_at_every_operation(const Scenario& scenario, std::uint64_t seeds,
                                   std::uint64_t stride = kSlowness) {
  const QuietLog quiet;
  const std::uint64_t operations = operations_of(scenario);
  std::uint64_t losses = 0;
  std::uint64_t found_new = 0;
  for (const PowerLoss policy : {PowerLoss::kOrdered, PowerLoss::kAny, PowerLoss::kDropUnsynced,
                                 PowerLoss::kKeepAll, PowerLoss::kTearLast}) {
    for (std::uint64_t i = losses % stride; i < operations * seeds; i += stride) {
      const std::uint64_t at = i % operations + 1;
      SCOPED_TRACE(std::string(scenario.name) + ", policy " +
                   std::to_string(static_cast<int>(policy)) + ", operation " + std::to_string(at));
      Machine machine(scenario);
      machine.drive.fail_after_ops(at, policy, /*seed=*/i);
      Status told;
      {
        const auto queue = make_queue(machine.drive);
        told = scenario.act(*queue);
      }
      machine.drive.restore_power();
      const std::uint64_t found = start_again(machine.drive, scenario, told);
      found_new += found == scenario.new_version ? 1 : 0;
      ++losses;
      if (testing::Test::HasFailure()) return;
    }
  }
  std::cout << scenario.name << ": " << losses << " power losses at " << operations
            << " operations; " << found_new << " times the new one counted\n";
  EXPECT_TRUE(found_new > 0 || stride > 5);
  EXPECT_TRUE(losses > found_new || scenario.old_version == scenario.new_version);
}

// Calls `run` with one plan after another until it reports that a plan had nothing to harm.
void fail_at_every_operation(const char* name, std::uint64_t stride,
                             const std::function<bool(const FaultPlan&)>& run) {
  const QuietLog quiet;
  std::uint64_t runs = 0;
  for (std::size_t kind = 0; kind < aio::kFaultKinds; ++kind) {
    for (const bool persistent : {false, true}) {
      for (std::uint64_t nth = 1;; nth += stride) {
        const auto fault = static_cast<FaultKind>(kind);
        SCOPED_TRACE(std::string(name) + ", " + std::string(to_string(fault)) + " at operation " +
                     std::to_string(nth) + (persistent ? " and all later" : ""));
        FaultPlan plan = FaultPlan::of({.fault = fault,
                                        .nth = nth,
                                        .persistent = persistent,
                                        .targets = aio::all_fault_targets()});
        plan.delay_ns = 100'000;
        if (!run(plan)) break;
        ++runs;
        if (testing::Test::HasFailure()) return;
      }
    }
  }
  std::cout << name << ": " << runs << " runs with a fault\n";
}

void fail_scenario(const Scenario& scenario, std::uint64_t stride) {
  int failed = 0;
  int done = 0;
  fail_at_every_operation(scenario.name, stride, [&](const FaultPlan& plan) {
    Machine machine(scenario);
    FaultBackend faults(machine.drive, plan);
    Status told;
    {
      const auto queue = make_queue(faults);
      told = scenario.act(*queue);
    }
    if (!told.ok()) {
      EXPECT_THAT(told.error().message(), testing::HasSubstr("/run"));
    }
    ++(told.ok() ? done : failed);
    start_again(machine.drive, scenario, told);
    return faults.injected() > 0;
  });
  std::cout << "  " << failed << " told an error, " << done << " went through\n";
  EXPECT_GT(failed, 0);
  EXPECT_GT(done, 0);
}

void fail_load(std::uint64_t stride, int writers) {
  Scenario saved = scenarios()[1];
  saved.before.front().writers = writers;
  int failed = 0;
  int done = 0;
  fail_at_every_operation("a load", stride, [&](const FaultPlan& plan) {
    Machine machine(saved);
    FaultBackend faults(machine.drive, plan);
    const auto queue = make_queue(faults);
    // Ranges that it returns are compared, whether or not a later range fails.
    const auto version = load_checkpoint(*queue, "/run/checkpoints/step-000000006");
    ++(version.ok() ? done : failed);
    if (!version.ok()) {
      EXPECT_THAT(version.error().message(), testing::HasSubstr("/run/checkpoints/step-000000006"));
    }
    const auto newest = CheckpointFolder(*queue, kFolder).newest();
    EXPECT_TRUE(!newest.ok() || *newest) << "a drive that fails is not an empty one";
    EXPECT_TRUE(faults.injected() > 0 || version.ok());
    return faults.injected() > 0;
  });
  std::cout << "  " << failed << " told an error, " << done << " went through\n";
  EXPECT_GT(failed, 0);
  EXPECT_GT(done, 0);
}

// A replacement that a kill left whole is completed before the next checkpoint begins.
TEST(CheckpointFaults, SettlesAReplacementThatWasCutOff) {
  const Scenario over = scenarios()[2];
  Machine machine(over);
  const auto queue = make_queue(machine.drive);
  const std::string path = "/run/checkpoints/step-000000012";
  ASSERT_OK(save_checkpoint(*queue, "/run/elsewhere", {.version = 7, .step = 12}));
  ASSERT_OK(machine.drive.files().rename("/run/elsewhere", path + ".new"));
  EXPECT_EQ(newest_version(*queue), 7U);
  EXPECT_EQ(CheckpointFolder(*queue, kFolder).find("12")->path, path + ".new");
  ASSERT_OK(over.act(*queue));
  EXPECT_EQ(newest_version(*queue), 3U);
  EXPECT_EQ(CheckpointFolder(*queue, kFolder).list()->size(), 2U);
}

class CheckpointPower : public testing::TestWithParam<std::size_t> {};
TEST_P(CheckpointPower, LossLeavesTheOldOrTheNewOne) {
  lose_power_at_every_operation(scenarios()[GetParam()], /*seeds=*/1,
                                strides()[GetParam()] * kSlowness);
}
INSTANTIATE_TEST_SUITE_P(Every, CheckpointPower, testing::Range<std::size_t>(0, 5));

class LongCheckpointPower : public testing::TestWithParam<std::size_t> {};
TEST_P(LongCheckpointPower, LossLeavesTheOldOrTheNewOne) {
  lose_power_at_every_operation(scenarios()[GetParam()], /*seeds=*/10);
}
INSTANTIATE_TEST_SUITE_P(Every, LongCheckpointPower, testing::Range<std::size_t>(0, 5));

class CheckpointFault : public testing::TestWithParam<std::size_t> {};
TEST_P(CheckpointFault, LeavesTheOldOrTheNewOne) {
  fail_scenario(scenarios()[GetParam()], 7 * strides()[GetParam()] * kSlowness);
}
INSTANTIATE_TEST_SUITE_P(Every, CheckpointFault, testing::Range<std::size_t>(0, 5));

class LongCheckpointFault : public testing::TestWithParam<std::size_t> {};
TEST_P(LongCheckpointFault, LeavesTheOldOrTheNewOne) {
  fail_scenario(scenarios()[GetParam()], kSlowness);
}
INSTANTIATE_TEST_SUITE_P(Every, LongCheckpointFault, testing::Range<std::size_t>(0, 5));

TEST(CheckpointFaults, NeverGiveAWrongValue) { fail_load(3 * kSlowness, 1); }
TEST(CheckpointFaults, NeverGiveAWrongValueOfParts) { fail_load(5 * kSlowness, 3); }
TEST(LongCheckpointFaults, NeverGiveAWrongValue) { fail_load(kSlowness, 1); }
TEST(LongCheckpointFaults, NeverGiveAWrongValueOfParts) { fail_load(kSlowness, 3); }

}  // namespace
}  // namespace sluice::engine
