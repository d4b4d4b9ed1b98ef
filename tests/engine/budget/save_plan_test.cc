// When a run saves, and its warning at the start if the checkpoints do not fit.
#include "engine/budget/save_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "aio/units.h"

namespace sluice::engine {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t kMinuteNs = 60'000'000'000;

class SavePlanTest : public testing::Test {
 protected:
  SavePlanTest() {
    run_.steps = 1000;
    run_.checkpoint_at_end = true;
    run_.keep_last_checkpoints = 2;
    needs_ = {.folder = "runs/a", .checkpoint_bytes = 100 * kGiB, .free_bytes = 300 * kGiB};
  }
  SavePlan plan() const { return plan_saves(run_, needs_); }
  std::string warning() const { return plan().warning.value_or("none"); }
  void expect_room_for(std::uint64_t checkpoints) {
    needs_.free_bytes = checkpoints * needs_.checkpoint_bytes;
    EXPECT_EQ(warning(), "none");
    needs_.free_bytes = *needs_.free_bytes - 1;
    EXPECT_NE(warning(), "none");
  }

  config::Run run_;
  SaveNeeds needs_;
};

TEST_F(SavePlanTest, SaysWhatASaveInPlaceWrites) {
  needs_.in_place = true;
  run_.keep_last_checkpoints = 1;
  EXPECT_THAT(plan().schedule, HasSubstr("the optimizer state stays on NVMe, and 100G of files are "
                                         "written for each, the newest is kept)"));
}

TEST_F(SavePlanTest, SavesEveryHalfHourWhereWhatIsKeptAndOneMoreFit) {
  EXPECT_EQ(plan().every_minutes, 30);
  EXPECT_EQ(plan().schedule,
            "saves every 30 minutes, at the end, and on interruption, to "
            "runs/a/checkpoints (100G each, the newest 2 are kept)");
  expect_room_for(3);
  EXPECT_EQ(plan().every_minutes, 0);
  run_.keep_last_checkpoints = 7;
  expect_room_for(8);
}

TEST_F(SavePlanTest, SaysWhatDoesNotFitAndWhatWould) {
  needs_.free_bytes = 310 * kGiB;
  needs_.other_bytes = 40 * kGiB;
  const SavePlan planned = plan();
  EXPECT_EQ(planned.every_minutes, 0);
  EXPECT_TRUE(planned.at_end);
  EXPECT_THAT(planned.schedule, Not(HasSubstr("minutes")));
  EXPECT_EQ(
      planned.warning,
      "3 more checkpoints of 100G each (run.keep_last 2, and the one being written) may not "
      "fit on the disk of runs/a, where 310G are free, less 40G for the run's other "
      "files. So the run does not save by time. Choose an --out on a disk with more space, "
      "free some space there, or set run.keep_last=1; run.checkpoint_minutes=30 saves by time "
      "nevertheless");
  needs_.free_bytes = 150 * kGiB;  // not even two fit
  EXPECT_THAT(warning(), Not(HasSubstr("run.keep_last=")));
  needs_.free_bytes = 30 * kGiB;  // less than the others need
  EXPECT_THAT(warning(), HasSubstr("other saves fail"));
}

TEST_F(SavePlanTest, ObeysWhatIsSetAndWarnsWhereItDoesNotFit) {
  run_.checkpoint_minutes = 5;
  EXPECT_THAT(plan().schedule, HasSubstr("every 5 minutes"));
  expect_room_for(3);
  EXPECT_EQ(plan().every_minutes, 5);
  EXPECT_THAT(warning(), AllOf(HasSubstr("A save fails"), HasSubstr("run.keep_last=1"),
                               Not(HasSubstr("by time"))));
  run_.checkpoint_minutes = 0;
  EXPECT_EQ(plan().every_minutes, 0);
  expect_room_for(1);  // the one at the end
  EXPECT_THAT(warning(), HasSubstr("checkpoint of 100G"));
}

TEST_F(SavePlanTest, NeedsNoRoomForCheckpointsThatWillBeReplaced) {
  needs_.complete_checkpoints = 2;
  expect_room_for(1);
  needs_.complete_checkpoints = 1;
  expect_room_for(2);
  needs_.complete_checkpoints = 9;  // more than are kept: removed after the next save
  expect_room_for(1);
}

TEST_F(SavePlanTest, CountsNoMoreCheckpointsThanTheRunWillWrite) {
  run_.checkpoint_minutes = 0;
  run_.checkpoint_every_steps = 300;
  run_.keep_last_checkpoints = 0;
  expect_room_for(4);  // 300, 600, 900, 1000
  needs_.first_step = 601;
  expect_room_for(2);
  run_.checkpoint_at_end = false;
  expect_room_for(1);
  run_.keep_last_checkpoints = 5;
  expect_room_for(1);
  run_.checkpoint_every_steps = 250;
  run_.checkpoint_at_end = true;
  expect_room_for(2);  // 750, 1000: the last one counts once
}

TEST_F(SavePlanTest, KeepsAllByTimeWhereThereIsRoomForAWeekOrForAllThatAreKnown) {
  run_.keep_last_checkpoints = 0;
  EXPECT_EQ(plan().every_minutes, 0);
  EXPECT_THAT(warning(), HasSubstr("saving by time"));
  expect_room_for(7 * 24 * 2 + 1);  // and the one at the end
  run_.checkpoint_every_steps = 4;
  expect_room_for(7 * 24 * 2 + 250);
  run_.checkpoint_every_steps = 0;
  needs_.step_s = 3.6;  // an hour in total: two by time, and one at the end
  EXPECT_EQ(plan().every_minutes, 30);
  expect_room_for(3);
}

// Even if some values are unknown, there is at most one per step.
TEST_F(SavePlanTest, CountsNoMoreCheckpointsThanThereAreStepsLeft) {
  run_.keep_last_checkpoints = 0;
  run_.steps = 10;
  expect_room_for(10);
  EXPECT_THAT(warning(), ContainsRegex("10 more.*100G.*run.keep_last 0"));
  needs_.first_step = 8;
  expect_room_for(3);
  run_.keep_last_checkpoints = 5;
  expect_room_for(3);
  needs_.step_s = 1e6;
  expect_room_for(3);
}

TEST_F(SavePlanTest, NeedsRoomForTheBestToo) {
  run_.keep_best = true;
  run_.eval_every_steps = 100;
  needs_.free_bytes = 400 * kGiB;
  EXPECT_EQ(plan().schedule,
            "saves every 30 minutes, after each evaluation with the lowest validation loss so far, "
            "at the end, and on interruption, to runs/a/checkpoints (100G each, the newest "
            "2 and the best are kept)");
  expect_room_for(4);
  EXPECT_THAT(warning(), HasSubstr("run.keep_last 2, the best"));
  run_.checkpoint_at_end = false;  // the best is reason enough for saves
  run_.checkpoint_minutes = 0;
  EXPECT_TRUE(plan().saves());
  run_.steps = 100;  // one evaluation
  expect_room_for(1);
}

TEST_F(SavePlanTest, SavesNothingWhereNothingIsWanted) {
  run_.checkpoint_at_end = false;
  EXPECT_FALSE(plan().saves());
  EXPECT_THAT(plan().schedule, HasSubstr("no checkpoints are saved"));
  needs_.free_bytes = 0;
  EXPECT_EQ(warning(), "none");
  run_.checkpoint_every_steps = 100;
  needs_.free_bytes = 300 * kGiB;
  EXPECT_EQ(plan().schedule,
            "saves every 100 steps, every 30 minutes, and on interruption, to "
            "runs/a/checkpoints (100G each, the newest 2 are kept)");
}

TEST_F(SavePlanTest, ComparesAStepAndASaveWithTheUsualGracePeriod) {
  needs_.step_s.reset();
  needs_.checkpoint_bytes = 2'000'000'000;
  EXPECT_EQ(stop_sentence(plan().stop),
            "SIGTERM or SIGUSR1 ends the run after a step and a save (2 s at an assumed 1 GB/s); "
            "the usual grace period is 30 s (Kubernetes, Slurm)");
  needs_.step_s = 27.6;
  needs_.save_bytes_per_s = 4e9;
  EXPECT_EQ(stop_sentence(plan().stop),
            "SIGTERM or SIGUSR1 ends the run after a step (28 s) and a save (less than 1 s): "
            "within the usual grace period of 30 s (Kubernetes, Slurm)");
  needs_.step_s = 40;
  needs_.checkpoint_bytes = 96'000'000'000;
  EXPECT_EQ(stop_sentence(plan().stop),
            "SIGTERM or SIGUSR1 ends the run after a step (40 s) and a save (24 s): longer than "
            "the usual grace period of 30 s, after which it is killed without a save. Allow more "
            "(Kubernetes: terminationGracePeriodSeconds; Slurm: --signal=USR1@128)");
  needs_.step_s = 1e300;
  EXPECT_THAT(stop_sentence(plan().stop), HasSubstr("longer than"));
}

TEST_F(SavePlanTest, TakesADiskThatCannotBeAskedForOneWithRoom) {
  needs_.free_bytes.reset();
  EXPECT_EQ(plan().every_minutes, 30);
  EXPECT_EQ(warning(), "none");
}

TEST(SaveClock, CountsFromTheEndOfTheLastSaveWhateverItWasFor) {
  SaveClock clock({.every_steps = 100, .every_minutes = 30, .at_end = true}, 250, 0);
  EXPECT_FALSE(clock.is_due(99, 30 * kMinuteNs - 1));
  EXPECT_TRUE(clock.is_due(99, 30 * kMinuteNs));
  EXPECT_TRUE(clock.is_due(100, kMinuteNs));  // by steps
  clock.save_began();
  // No save by time while one is running, however long it takes; a save by steps waits for it.
  EXPECT_FALSE(clock.is_due(101, 300 * kMinuteNs));
  EXPECT_TRUE(clock.is_due(200, 300 * kMinuteNs));
  clock.save_ended(300 * kMinuteNs);
  EXPECT_FALSE(clock.is_due(201, 330 * kMinuteNs - 1));
  EXPECT_TRUE(clock.is_due(201, 330 * kMinuteNs));
  EXPECT_TRUE(clock.is_due(250, 301 * kMinuteNs));  // the end
}

TEST(SaveClock, NeverSavesByTimeWithoutMinutes) {
  const SaveClock clock({.every_steps = 0, .every_minutes = 0, .at_end = false}, 9, 0);
  EXPECT_FALSE(clock.is_due(9, 1'000'000 * kMinuteNs));
}

}  // namespace
}  // namespace sluice::engine
