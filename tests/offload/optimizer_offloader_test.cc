#include "offload/state/optimizer_offloader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <thread>

#include "tests/offload/offloader_under_test.h"

namespace sluice::offload {
namespace {

constexpr TierFractions kAllCpu{.gpu = 0, .cpu = 1, .nvme = 0};
constexpr TierFractions kHostMix{.gpu = 0, .cpu = 0.4, .nvme = 0.6};
constexpr TierFractions kPlacements[] = {kAllCpu, kAllNvme, kHostMix, kFullMix};

// Sub-groups of many tiles, half as many under a sanitizer.
constexpr std::uint64_t kLargeSubGroup = kSanitized ? 1 << 19 : 1 << 20;
std::vector<UnitSpec> large_units() {
  return {{"wte", {{0, 2 * kLargeSubGroup + 202'848}}},
          {"h.0", {{0, kLargeSubGroup + 101'424}, {1, 4099}}},
          {"ln_f", {{1, 777}}}};
}

struct Plan {
  RigOptions rig;
  bool background = false;
  bool prefetch = false;
  int overflow_before = -1;  // a step that is prefetched for but never runs
};

std::string describe(const Plan& plan) {
  return "gpu/cpu/nvme " + std::to_string(plan.rig.fractions.gpu) + "/" +
         std::to_string(plan.rig.fractions.cpu) + "/" + std::to_string(plan.rig.fractions.nvme) +
         ", sub-groups of " + std::to_string(plan.rig.sub_group_elements) + ", " +
         std::to_string(plan.rig.threads) + " threads, " +
         (plan.background ? "background" : "foreground");
}

void expect_solution(const Problem& problem, const Plan& plan) {
  SCOPED_TRACE(describe(plan));
  Rig rig(problem, plan.rig);
  ASSERT_OK(rig.restore());
  for (int step = 0; step < problem.steps(); ++step) {
    if (plan.prefetch || step == plan.overflow_before) ASSERT_OK(rig.offloader().prefetch());
    if (step == plan.overflow_before) ASSERT_OK(rig.offloader().prefetch());
    ASSERT_OK(rig.run_step(step, plan.background));
    const auto& order = rig.source().ready_order;
    ASSERT_TRUE(order.size() == problem.units().size() &&
                std::is_sorted(order.begin(), order.end()));
  }
  ASSERT_EQ(rig.difference_from_solution(), "");
}

// ---- bits ------------------------------------------------------------------------------------

class OptimizerOffloaderOfEveryForm : public testing::TestWithParam<ProblemKind> {};

// Every placement with every size of sub-groups; threads, background, prefetch and instruction set
// alternate.
TEST_P(OptimizerOffloaderOfEveryForm, GivesTheSameBitsWhereverTheStateLies) {
  const Problem problem(GetParam(), small_units(), kSanitized ? 6 : 50);
  int number = 0;
  for (const TierFractions& fractions : kPlacements) {
    for (const std::uint64_t elements : {1024U, 1U << 20, 7001U}) {
      const bool background = number % 2 == 1;
      expect_solution(problem, {.rig = {.fractions = fractions,
                                        .sub_group_elements = elements,
                                        .threads = 1 + number % 4,
                                        .drive = background ? Drive::kPosix : Drive::kSim,
                                        .isa = number % 3 == 0 ? Isa::kScalar : best_isa(),
                                        .buffers = 2 + number % 3,
                                        .record_elements = kTileElements},
                                .background = background,
                                .prefetch = number % 4 >= 2,
                                .overflow_before = kSanitized ? 3 : 20});
      if (HasFatalFailure()) return;
      ++number;
    }
  }
}

// Parameter groups inside sub-groups: the oracle steps them separately.
TEST_P(OptimizerOffloaderOfEveryForm, GivesTheSameBitsWhateverScalarsApplyWithinASubGroup) {
  const Problem problem(GetParam(), units_with_scalars(), kSanitized ? 3 : 12);
  int number = 0;
  for (const TierFractions& fractions : kPlacements) {
    for (const std::uint64_t elements : {1024U, 1U << 20, 7001U}) {
      expect_solution(problem, {.rig = {.fractions = fractions,
                                        .sub_group_elements = elements,
                                        .threads = 1 + number % 4,
                                        .isa = number % 3 == 0 ? Isa::kScalar : best_isa(),
                                        .record_elements = kTileElements},
                                .prefetch = number % 2 == 1});
      if (HasFatalFailure()) return;
      ++number;
    }
  }
}

// Every placement, size, number of threads, in the foreground and in the background.
class LongOptimizerOffloader : public testing::TestWithParam<ProblemKind> {};

TEST_P(LongOptimizerOffloader, GivesTheSameBitsInEveryCombination) {
  const Problem problem(GetParam(), large_units(), 50);
  for (const TierFractions& fractions : kPlacements) {
    for (const std::uint64_t elements : {1024U, 1U << 20, 70'001U}) {
      for (int threads = 1; threads <= 4; ++threads) {
        for (const bool background : {false, true}) {
          // Thousands of small records per step: only on the simulated drive, which runs no
          // background.
          const bool many = elements == 1024 && fractions.nvme > 0;
          if (many && background && threads != 2) continue;
          expect_solution(problem, {.rig = {.fractions = fractions,
                                            .sub_group_elements = elements,
                                            .threads = threads,
                                            .drive = background ? Drive::kPosix : Drive::kSim},
                                    .background = background,
                                    .prefetch = threads % 2 == 0,
                                    .overflow_before = 20});
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

std::string kind_name(const testing::TestParamInfo<ProblemKind>& info) {
  return name_of(AdamwKind{info.param.grad, info.param.form, false, info.param.moments});
}
INSTANTIATE_TEST_SUITE_P(All, OptimizerOffloaderOfEveryForm, testing::ValuesIn(kProblemKinds),
                         kind_name);
INSTANTIATE_TEST_SUITE_P(All, LongOptimizerOffloader, testing::ValuesIn(kProblemKinds), kind_name);

// Sub-groups of many tiles, records of several tiles, and threads that share a tile.
TEST(OptimizerOffloader, GivesTheSameBitsOnLargeUnits) {
  const Problem problem(kProblemKinds[0], large_units(), kSanitized ? 1 : 3);
  for (const TierFractions& fractions : kPlacements) {
    expect_solution(problem, {.rig = {.fractions = fractions,
                                      .sub_group_elements = kLargeSubGroup,
                                      .threads = 4,
                                      .drive = Drive::kPosix,
                                      .record_elements = 4 * kTileElements,
                                      .huge_pages = true},
                              .background = true,
                              .prefetch = true});
  }
}

TEST(UringOptimizerOffloader, GivesTheSameBitsInTheBackground) {
  const Problem problem(kProblemKinds[0], small_units(), 20);
  expect_solution(problem, {.rig = {.fractions = kFullMix,
                                    .sub_group_elements = 7001,
                                    .threads = 2,
                                    .drive = Drive::kUring},
                            .background = true,
                            .prefetch = true});
}

// The oracle of the tests above can fail: another learning rate gives another solution.
TEST(OptimizerOffloader, IsHeldToBitsThatDifferWhenTheStepDoes) {
  const Problem problem(kProblemKinds[0], small_units(), 2);
  Rig rig(problem, {.fractions = kAllCpu});
  ASSERT_OK(rig.restore());
  ASSERT_OK(rig.run_step(0, false));
  rig.source().set_gradients(1);
  std::vector<AdamwScalars> groups = problem.scalars(1);
  groups[1].step_size *= 1.01F;
  ASSERT_OK(rig.offloader().step({.groups = groups, .source = &rig.source()}));
  EXPECT_NE(rig.difference_from_solution(), "");
}

// So can the oracle for scalars within sub-groups.
TEST(OptimizerOffloader, IsHeldToTheScalarsOfASingleElement) {
  const Problem problem(kProblemKinds[2], units_with_scalars(), 1);
  auto units = units_with_scalars();
  units[1].scalars = {{2, 2}, {0, 126}, {0, 20'372}, {2, 332}, {1, 1}};
  const Problem other(kProblemKinds[2], units, 1);
  Rig rig(other, {.fractions = kAllCpu});
  ASSERT_OK(rig.restore());
  ASSERT_OK(rig.run_step(0, false));
  EXPECT_EQ(rig.difference_from_solution(), "");
  EXPECT_NE(problem.param_hash(0, 1), other.param_hash(0, 1));
}

TEST(OptimizerOffloader, GoesOnFromASnapshotUnderAnotherPlacement) {
  for (const ProblemKind& kind : kProblemKinds) {
    const Problem problem(kind, small_units(), 6);
    std::vector<CanonicalUnit> state(problem.units().size());
    for (std::size_t u = 0; u < state.size(); ++u) state[u] = problem.initial(static_cast<int>(u));
    for (int step = 0; step < problem.steps(); step += 2) {
      Rig rig(problem, {.fractions = kPlacements[step / 2 + 1],
                        .sub_group_elements = 5000U + 333 * static_cast<unsigned>(step)});
      ASSERT_OK(rig.restore(state));
      ASSERT_OK(rig.run_step(step, false));
      // A snapshot does not disturb the run, nor does a snapshot of prefetched state or a failed
      // one.
      ASSERT_OK(rig.offloader().prefetch());
      ASSERT_OK(rig.snapshot());
      ASSERT_OK(rig.run_step(step + 1, false));
      auto taken = rig.snapshot();
      ASSERT_OK(taken);
      state = std::move(*taken);
      if (step + 2 == problem.steps()) {
        ASSERT_EQ(rig.difference_from_solution(), "");
      }
    }
  }
}

TEST(OptimizerOffloader, RestoresOverWhatIsThere) {
  const Problem problem(kProblemKinds[1], small_units(), 3);
  Rig rig(problem, {.fractions = kFullMix, .sub_group_elements = 4000});
  for (int round = 0; round < 3; ++round) {
    ASSERT_OK(rig.restore());
    for (int step = 0; step < problem.steps(); ++step) ASSERT_OK(rig.run_step(step, false));
    ASSERT_EQ(rig.difference_from_solution(), "");
    ASSERT_OK(rig.offloader().prefetch());  // the next restore discards it
  }
}

TEST(OptimizerOffloader, ReadsNothingTwiceThatAnOverflowedStepHadPrefetched) {
  const Problem problem(kProblemKinds[0], small_units(), 2);
  Rig rig(problem, {.fractions = kAllNvme, .sub_group_elements = 7001});
  ASSERT_OK(rig.restore());
  ASSERT_OK(rig.run_step(0, false));
  ASSERT_OK(rig.offloader().drain());
  const swap::SwapStats before = rig.offloader().stats();
  for (int i = 0; i < 3; ++i) ASSERT_OK(rig.offloader().prefetch());
  ASSERT_OK(rig.run_step(1, false));
  ASSERT_OK(rig.offloader().drain());
  const swap::SwapStats after = rig.offloader().stats();
  const std::uint64_t taken =
      after.records_read + after.records_forwarded - before.records_read - before.records_forwarded;
  EXPECT_EQ(taken, 15U);  // 10 of wte, 4 of h.0, 1 of ln_f
  EXPECT_EQ(after.records_written - before.records_written, taken);
}

// ---- ready -----------------------------------------------------------------------------------

// Holds the update of one unit until it is released.
class Gate {
 public:
  Gate(TestSource& source, int held_unit) {
    source.on_begin = [this, held_unit](int unit) -> Status {
      if (unit == held_unit) let_go_.wait();
      return {};
    };
  }
  ~Gate() { open(); }
  void open() {
    if (!std::exchange(open_, true)) let_go_.count_down();
  }

 private:
  std::latch let_go_{1};
  bool open_ = false;
};

TEST(OptimizerOffloader, MakesAUnitReadyBeforeLaterUnitsAreDone) {
  const Problem problem(kProblemKinds[0], small_units(), 2);
  Rig rig(problem, {.fractions = kHostMix, .sub_group_elements = 7001, .drive = Drive::kPosix});
  ASSERT_OK(rig.restore());
  EXPECT_TRUE(rig.offloader().is_ready(0));
  {
    Gate gate(rig.source(), 1);
    ASSERT_OK(rig.start_step(0, true));
    ASSERT_OK(rig.offloader().wait_ready(0));
    EXPECT_EQ(rig.source().param_hash(0), problem.param_hash(0, 0));
    EXPECT_FALSE(rig.offloader().is_ready(1));
    EXPECT_FALSE(rig.offloader().is_ready(2));
    std::atomic<bool> returned{false};
    std::thread waiter([&] {
      EXPECT_OK(rig.offloader().wait_ready(2));
      returned = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(returned);
    gate.open();
    waiter.join();
    EXPECT_EQ(rig.source().param_hash(2), problem.param_hash(0, 2));
    ASSERT_OK(rig.offloader().drain());
  }
  rig.source().on_begin = nullptr;
  ASSERT_OK(rig.run_step(1, true));
  EXPECT_EQ(rig.difference_from_solution(), "");
}

TEST(OptimizerOffloader, EnqueuesAUnitOnTheGpuOnceAStepWhoeverAsks) {
  const Problem problem(kProblemKinds[0], small_units(), 4);
  Rig rig(problem, {.fractions = kFullMix, .sub_group_elements = 4000, .drive = Drive::kPosix});
  ASSERT_OK(rig.restore());
  ASSERT_OK(rig.start_step(0, true));  // no caller waits; step 1 completes the rest
  ASSERT_OK(rig.offloader().drain());
  rig.device().synchronize();
  ASSERT_OK(rig.start_step(1, true));
  for (int round = 0; round < 3; ++round)
    for (const int unit : {2, 0}) ASSERT_OK(rig.offloader().wait_ready(unit));
  ASSERT_OK(rig.forward(1));
  ASSERT_OK(rig.start_step(2, false));
  ASSERT_OK(rig.offloader().wait_ready(1));
  ASSERT_OK(rig.offloader().drain());
  rig.device().synchronize();
  ASSERT_OK(rig.run_step(3, true));
  EXPECT_EQ(rig.difference_from_solution(), "");
}

}  // namespace
}  // namespace sluice::offload
