// A frozen generation of the state on NVMe: a process that continues from it gets the bits of the
// run that froze it, whatever that run did afterwards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "aio/log.h"
#include "tests/offload/offloader_under_test.h"

namespace sluice::offload {
namespace {

using aio::FaultKind;

constexpr TierFractions kHostAndNvme{.gpu = 0, .cpu = 0.4, .nvme = 0.6};
constexpr const char* kFolder = "/runs/a/checkpoints/step-1";

// What a checkpoint has: where the store's part is, and the whole state. A resume may use only the
// part that is not in the store.
struct Checkpoint {
  int steps = 0;
  swap::FrozenStore store;
  std::vector<CanonicalUnit> state;
};

Result<Checkpoint> freeze(Rig& rig, int steps) {
  Checkpoint checkpoint{.steps = steps};
  SLUICE_ASSIGN_OR_RETURN(const FrozenState frozen, rig.offloader().freeze(rig.source(), kFolder));
  checkpoint.store = frozen.store;
  SLUICE_ASSIGN_OR_RETURN(checkpoint.state, rig.snapshot());
  return checkpoint;
}

Status resume_to_the_end(Rig& rig, const Problem& problem, const Checkpoint& checkpoint) {
  SLUICE_RETURN_IF_ERROR(rig.resume(checkpoint.store, checkpoint.state));
  SLUICE_RETURN_IF_ERROR(rig.forward(checkpoint.steps - 1));
  for (int step = checkpoint.steps; step < problem.steps(); ++step)
    SLUICE_RETURN_IF_ERROR(rig.run_step(step, !rig.is_simulated() && step % 2 == 1, step % 3 == 0));
  EXPECT_EQ(rig.difference_from_solution(), "");
  return {};
}

class OptimizerOffloaderInPlace : public testing::TestWithParam<ProblemKind> {};

TEST_P(OptimizerOffloaderInPlace, ContinuesWithTheSameBitsWhereverTheRestLies) {
  const Problem problem(GetParam(), small_units(), 8);
  int number = 0;
  for (const TierFractions& fractions : {kAllNvme, kHostAndNvme, kFullMix})
    for (const bool keeps_parameters : {false, true}) {
      const Drive drive = number % 3 == 0 ? Drive::kSim : Drive::kPosix;
      const bool background = number % 3 != 0;
      SCOPED_TRACE(number);
      Rig rig(problem, {.fractions = fractions,
                        .sub_group_elements = number % 2 == 0 ? 7001U : 1U << 20,
                        .threads = 1 + number % 3,
                        .drive = drive,
                        .buffers = 2 + number % 3,
                        .record_elements = kTileElements,
                        .in_place = true});
      ++number;
      ASSERT_OK(rig.restore());
      for (int step = 0; step < 3; ++step)
        ASSERT_OK(rig.run_step(step, background, keeps_parameters && step == 2));
      const auto checkpoint = freeze(rig, 3);
      ASSERT_OK(checkpoint.status());
      ASSERT_OK(rig.offloader().keep_frozen());
      for (int step = 3; step < 6; ++step) ASSERT_OK(rig.run_step(step, background));
      ASSERT_OK(resume_to_the_end(rig, problem, *checkpoint));
    }
}

TEST_P(OptimizerOffloaderInPlace, FreezesAgainAndContinuesFromTheNewestThatWasKept) {
  const Problem problem(GetParam(), small_units(), 9);
  Rig rig(problem, {.fractions = kHostAndNvme, .sub_group_elements = 7001, .in_place = true});
  ASSERT_OK(rig.restore());
  ASSERT_OK(freeze(rig, 0).status());
  ASSERT_OK(rig.offloader().drop_frozen());
  Result<Checkpoint> kept = Error(ErrorCode::kInternal, "none");
  for (int step = 0; step < 5; ++step) {
    ASSERT_OK(rig.run_step(step, false, step % 2 == 0));
    kept = freeze(rig, step + 1);
    ASSERT_OK(kept.status());
    ASSERT_OK(rig.offloader().keep_frozen());
  }
  ASSERT_OK(rig.run_step(5, false));
  ASSERT_OK(freeze(rig, 6).status());
  ASSERT_OK(rig.offloader().drop_frozen());
  ASSERT_OK(rig.run_step(6, false));
  ASSERT_OK(rig.run_step(7, false));
  // Twice: the first resumed process is killed as well, after some steps.
  ASSERT_OK(rig.resume(kept->store, kept->state));
  for (int step = 5; step < 8; ++step) ASSERT_OK(rig.run_step(step, false));
  ASSERT_OK(resume_to_the_end(rig, problem, *kept));
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerOffloaderInPlace, testing::ValuesIn(kProblemKinds));

TEST(OptimizerOffloaderInPlaceUse, RefusesChangesUntilTheFrozenStateIsKeptOrDropped) {
  const Problem problem(kProblemKinds[0], small_units(), 2);
  Rig rig(problem, {.fractions = kHostAndNvme, .in_place = true});
  ASSERT_OK(rig.restore());
  ASSERT_OK(freeze(rig, 0).status());
  const auto expect_refused = [](const Status& status) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.error().message(), testing::HasSubstr("frozen"));
  };
  expect_refused(rig.run_step(0, false));
  expect_refused(rig.restore());
  expect_refused(freeze(rig, 0).status());
  const int units[] = {0};
  expect_refused(
      rig.offloader().amend(rig.source(), units, [](int, const StateSlice&) { return Status(); }));
  ASSERT_OK(rig.offloader().drop_frozen());
  ASSERT_OK(rig.run_step(0, false));
  ASSERT_OK(rig.run_step(1, false));
  EXPECT_EQ(rig.difference_from_solution(), "");

  Rig plain(problem, {.fractions = kHostAndNvme});
  ASSERT_OK(plain.restore());
  EXPECT_EQ(plain.offloader().freeze(plain.source(), kFolder).status().error().code(),
            ErrorCode::kInvalidArgument);
}

TEST(OptimizerOffloaderInPlaceUse, RefusesAStoreOfAnotherPlacement) {
  const Problem problem(kProblemKinds[0], small_units(), 2);
  Rig rig(problem, {.fractions = kHostAndNvme, .drive = Drive::kPosix, .in_place = true});
  ASSERT_OK(rig.restore());
  const auto checkpoint = freeze(rig, 0);
  ASSERT_OK(rig.offloader().keep_frozen());
  OptimizerOffloader::Options other = rig.options();
  other.placement = place_by_fractions(problem.units(), 5000, kAllNvme).value();
  other.adopt = checkpoint->store;
  const auto adopted = OptimizerOffloader::create(other, rig.environment());
  ASSERT_FALSE(adopted.ok());
  EXPECT_EQ(adopted.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(adopted.error().message(), testing::HasSubstr("sluice copy"));
}

// ---- faults ----------------------------------------------------------------------------------

// A step that keeps the parameters, and a freeze; each IO of theirs fails in turn. The checkpoint
// before it, or this one if it was made, continues with the right bits.
class FreezeUnderFaults {
 public:
  // Whether the fault happened.
  bool run(const aio::FaultRule& rule) {
    Rig rig(problem_, {.fractions = kHostAndNvme, .sub_group_elements = 1001, .in_place = true});
    EXPECT_OK(rig.restore());
    EXPECT_OK(rig.run_step(0, false));
    auto newest = freeze(rig, 1);
    EXPECT_OK(newest.status());
    EXPECT_OK(rig.offloader().keep_frozen());
    rig.faults().set_plan(aio::FaultPlan::of(rule));
    const Result<FrozenState> frozen = step_and_freeze(rig, rule.nth % 2 == 0);
    const bool met = rig.faults().injected() > 0;
    rig.faults().set_plan({});
    if (frozen.ok()) {
      auto state = rig.snapshot();
      EXPECT_OK(state.status());
      *newest = {.steps = 2, .store = frozen->store, .state = *std::move(state)};
    } else {
      EXPECT_TRUE(met) << frozen.error().message();
      EXPECT_THAT(frozen.error().message(), testing::HasSubstr("/nvme"));
      ++errors_;
    }
    EXPECT_OK(resume_to_the_end(rig, problem_, *newest));
    return met;
  }
  int errors() const { return errors_; }

 private:
  static Result<FrozenState> step_and_freeze(Rig& rig, bool keeps_parameters) {
    SLUICE_RETURN_IF_ERROR(rig.run_step(1, false, keeps_parameters));
    SLUICE_ASSIGN_OR_RETURN(FrozenState frozen, rig.offloader().freeze(rig.source(), kFolder));
    SLUICE_RETURN_IF_ERROR(rig.offloader().keep_frozen());
    return frozen;
  }

  const Problem problem_{
      kProblemKinds[0], {{"wte", {{0, 9001}}}, {"h.0", {{0, 5500}, {1, 333}}}}, 4};
  int errors_ = 0;
};

TEST(OptimizerOffloaderInPlaceFaults, LeaveACheckpointThatContinues) {
  log::set_sink([](log::Level, std::string_view) {});  // hundreds of retries
  FreezeUnderFaults faults;
  for (const FaultKind fault : {FaultKind::kEio, FaultKind::kTornWrite, FaultKind::kEnospc})
    for (const bool persistent : {false, true})
      for (std::uint64_t nth = 1;; nth += kSanitized ? 7 : 1) {
        SCOPED_TRACE(std::string(to_string(fault)) + (persistent ? " from" : " at") + " IO " +
                     std::to_string(nth) + " on");
        if (!faults.run({.fault = fault, .nth = nth, .persistent = persistent}) || HasFailure())
          break;
      }
  log::set_sink({});
  EXPECT_GT(faults.errors(), kSanitized ? 10 : 60);
}

}  // namespace
}  // namespace sluice::offload
