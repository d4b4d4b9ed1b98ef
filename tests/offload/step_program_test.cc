#include "offload/step_program.h"

#include <gmock/gmock.h>

#include <algorithm>

namespace sluice::offload {
namespace {

using testing::ElementsAre;
using Op = StepOp;

// The last of three units borrows from the first, like a tied head.
ProgramUnits tied() {
  static const std::vector<std::vector<int>> lenders = {{}, {}, {0}};
  return {.count = 3, .lenders = [](int unit) -> const std::vector<int>& {
            return lenders[static_cast<std::size_t>(unit)];
          }};
}

ProgramUnits untied(int count) {
  static const std::vector<int> none;
  return {.count = count, .lenders = [](int /*unit*/) -> const std::vector<int>& { return none; }};
}

using O = StepOperation;

TEST(StepProgram, IsForwardHeadBackwardNormUpdate) {
  EXPECT_THAT(training_step(tied(), /*overlap_update=*/true),
              ElementsAre(O{Op::kAwaitUpdate, 0}, O{Op::kFetch, 0}, O{Op::kForward, 0},  //
                          O{Op::kAwaitUpdate, 1}, O{Op::kFetch, 1}, O{Op::kForward, 1},  //
                          O{Op::kAwaitUpdate, 2}, O{Op::kFetch, 2}, O{Op::kFetchAgain, 0},
                          O{Op::kHead, 2}, O{Op::kSendGradient, 2}, O{Op::kReadState, 2},       //
                          O{Op::kFetchAgain, 1}, O{Op::kBackward, 1}, O{Op::kSendGradient, 1},  //
                          O{Op::kBackward, 0}, O{Op::kSendGradient, 0},                         //
                          O{Op::kNorm, 0}, O{Op::kUpdate, 0}));
}

TEST(StepProgram, WaitsForAllUpdatesFirstWhereTheyAreNotOverlapped) {
  StepProgram program = training_step(tied(), /*overlap_update=*/false);
  EXPECT_EQ(program.front(), (O{Op::kAwaitUpdates, 0}));
  program.erase(program.begin());
  EXPECT_EQ(program, training_step(tied(), /*overlap_update=*/true));
}

TEST(StepProgram, SplitsAMicroBatchWhoseBackwardIsAskedForLater) {
  const SplitProgram first = micro_batch_passes(tied(), {.number = 0});
  EXPECT_EQ(first.backward, 10U);
  EXPECT_THAT(first.program,
              ElementsAre(O{Op::kAwaitUpdate, 0}, O{Op::kFetch, 0}, O{Op::kForward, 0},  //
                          O{Op::kAwaitUpdate, 1}, O{Op::kFetch, 1}, O{Op::kForward, 1},  //
                          O{Op::kAwaitUpdate, 2}, O{Op::kFetch, 2}, O{Op::kFetchAgain, 0},
                          O{Op::kHead, 2},  //
                          O{Op::kFetchAgain, 2}, O{Op::kFetchAgain, 0}, O{Op::kHead, 2},
                          O{Op::kKeepSum, 2},  //
                          O{Op::kFetchAgain, 1}, O{Op::kBackward, 1}, O{Op::kKeepSum, 1},
                          O{Op::kBackward, 0}, O{Op::kKeepSum, 0}));
  const SplitProgram last =
      micro_batch_passes(untied(2), {.number = 1, .reads_state = true, .sends = true});
  EXPECT_EQ(last.backward, 4U);
  EXPECT_THAT(
      last.program,
      ElementsAre(O{Op::kFetchAgain, 0, 1}, O{Op::kForward, 0, 1}, O{Op::kFetchAgain, 1, 1},
                  O{Op::kHead, 1, 1},  //
                  O{Op::kReadState, 1, 1}, O{Op::kFetchAgain, 1, 1}, O{Op::kFetchSum, 1, 1},
                  O{Op::kHead, 1, 1}, O{Op::kSendGradient, 1, 1},  //
                  O{Op::kFetchSum, 0, 1}, O{Op::kBackward, 0, 1}, O{Op::kSendGradient, 0, 1}));
  const SplitProgram loss = micro_batch_passes(tied(), {.number = 1, .has_backward = false});
  EXPECT_EQ(loss.backward, loss.program.size());
}

TEST(StepProgram, PassesAgainForEachWaveAndUpdatesOnce) {
  const StepProgram program = training_step(untied(3), /*overlap_update=*/true, /*waves=*/3);
  StepProgram of_middle;
  for (const O& it : program)
    if (it.wave == 1) of_middle.push_back(it);
  EXPECT_THAT(of_middle,
              ElementsAre(O{Op::kFetchAgain, 0, 1}, O{Op::kForward, 0, 1},  //
                          O{Op::kFetchAgain, 1, 1}, O{Op::kForward, 1, 1},  //
                          O{Op::kFetchAgain, 2, 1}, O{Op::kFetchSum, 2, 1}, O{Op::kHead, 2, 1},
                          O{Op::kKeepSum, 2, 1},  //
                          O{Op::kFetchAgain, 1, 1}, O{Op::kFetchSum, 1, 1}, O{Op::kBackward, 1, 1},
                          O{Op::kKeepSum, 1, 1},  //
                          O{Op::kFetchSum, 0, 1}, O{Op::kBackward, 0, 1}, O{Op::kKeepSum, 0, 1}));
  const auto count = [&](Op op, int wave) {
    return std::count_if(program.begin(), program.end(),
                         [&](const O& it) { return it.op == op && it.wave == wave; });
  };
  for (const Op once : {Op::kAwaitUpdate, Op::kFetch}) {
    EXPECT_EQ(count(once, 0), 3);
    EXPECT_EQ(count(once, 1) + count(once, 2), 0);
  }
  EXPECT_EQ(count(Op::kFetchSum, 0) + count(Op::kKeepSum, 2), 0);
  EXPECT_EQ(count(Op::kSendGradient, 0) + count(Op::kSendGradient, 1), 0);
  EXPECT_EQ(count(Op::kSendGradient, 2), 3);
  EXPECT_EQ(count(Op::kReadState, 2), 1);
  EXPECT_EQ(training_step(untied(3), true, 1), training_step(untied(3), true));
}

TEST(StepProgram, CutsWavesOfWhichTheLastMayBeSmaller) {
  const Waves waves{.micro_batches = 7, .of_a_wave = 3};
  EXPECT_EQ(waves.count(), 3);
  EXPECT_EQ(waves.first(2), 6);
  EXPECT_EQ(waves.size(1), 3);
  EXPECT_EQ(waves.size(2), 1);
}

// The next pass, in the other direction, begins with the units that the last one left.
TEST(StepProgram, AsksTheHostByTheDirectionOfThePass) {
  const auto ends = [](int unit, PassDirection direction) {
    return direction == PassDirection::kForward ? unit == 0 : unit == 2;
  };
  const StepProgram step = training_step(untied(4), true, 2);
  EXPECT_THAT(host_order(step, false, ends), ElementsAre(0, 1, 2, 3, 1, 1, 2, 3, 1));
}

TEST(StepProgram, OfAForwardPassIsTheTrainingStepsUpToItsHead) {
  for (const ProgramUnits& units : {tied(), untied(7)}) {
    StepProgram expected = training_step(units, true);
    const auto head = std::find_if(expected.begin(), expected.end(),
                                   [](const O& it) { return it.op == Op::kHead; });
    expected.erase(head + 1, expected.end());
    std::erase_if(expected, [](const O& it) { return it.op == Op::kAwaitUpdate; });
    EXPECT_EQ(forward_pass(units), expected);
  }
}

TEST(StepProgram, AnUntiedHeadFetchesNothingElse) {
  const StepProgram program = forward_pass(untied(3));
  EXPECT_EQ(std::count_if(program.begin(), program.end(),
                          [](const O& it) { return it.op == Op::kFetchAgain; }),
            0);
}

TEST(StepProgram, TellsInWhichOrderTheHostIsAsked) {
  const auto nothing = [](int /*unit*/, PassDirection /*direction*/) { return false; };
  const auto first = [](int unit, PassDirection /*direction*/) { return unit == 0; };
  const StepProgram step = training_step(tied(), true);
  EXPECT_THAT(host_order(step, true, nothing), ElementsAre(0, 0, 1, 1, 2, 2, 0, 1));
  EXPECT_THAT(host_order(step, true, first), ElementsAre(0, 0, 1, 1, 2, 2, 1));
  EXPECT_THAT(host_order(training_step(tied(), false), false, nothing), ElementsAre(0, 1, 2, 0, 1));
  EXPECT_THAT(host_order(forward_pass(tied()), false, nothing), ElementsAre(0, 1, 2, 0));
  EXPECT_THAT(update_order(step), ElementsAre(0, 1, 2));
}

}  // namespace
}  // namespace sluice::offload
