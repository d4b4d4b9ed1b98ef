// Which checkpoints a run keeps, replaces and removes, including on a failing drive.
#include "engine/run/run_checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "aio/fault_backend.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "tests/engine/run/resume_under_test.h"
#include "tests/engine/run/run_under_test.h"

namespace sluice::engine {
namespace {

using testing::HasSubstr;

TEST(RunCheckpoints, KeepsTheNewestAndReplacesOneOfTheSameStep) {
  const SmallRun small;
  const auto run = small.start();
  const auto checkpoints = checkpoints_of(*run, {.keep_last = 2});
  for (int i = 0; i < 4; ++i) {
    run->step();
    ASSERT_TRUE(checkpoints->save({}).ok());
  }
  ASSERT_TRUE(checkpoints->save({.loss = 2.0}).ok());
  const auto saved = checkpoints->finished();
  ASSERT_EQ(saved.size(), 5U);
  EXPECT_THAT(saved[2].removed, testing::ElementsAre("step-000000001"));
  const CheckpointFolder folder(*run->drives().reads,
                                RunCheckpoints::folder_of(run->config().run.dir));
  const auto list = folder.list();
  ASSERT_TRUE(list.ok());
  ASSERT_EQ(list->size(), 2U);
  EXPECT_EQ((*list)[0].step, 3);
  EXPECT_EQ((*list)[1].step, 4);
  EXPECT_EQ((*list)[1].loss, 2.0);
  EXPECT_TRUE((*list)[1].complete());
}

// The user decides about later checkpoints, and a save is not the time to ask.
TEST(RunCheckpoints, LeavesLaterCheckpointsAlone) {
  const SmallRun small;
  std::string second;
  {
    const auto run = small.start();
    const auto checkpoints = checkpoints_of(*run, {});
    for (int i = 0; i < 5; ++i) {
      run->step();
      ASSERT_TRUE(checkpoints->save({}).ok());
    }
    second = checkpoints->finished()[1].path;
  }
  const auto run = small.make();
  ASSERT_TRUE(resume(*run, second).ok());
  run->step();
  const auto checkpoints = checkpoints_of(*run, {.keep_last = 2});
  ASSERT_TRUE(checkpoints->save({.loss = 2.0}).ok());
  const auto saved = checkpoints->finished();
  EXPECT_THAT(saved.at(0).removed, testing::ElementsAre("step-000000001"));
  const auto list =
      CheckpointFolder(*run->drives().reads, RunCheckpoints::folder_of(run->config().run.dir))
          .list();
  ASSERT_TRUE(list.ok());
  ASSERT_EQ(list->size(), 4U);
  EXPECT_EQ((*list)[1].loss, 2.0);
  EXPECT_EQ((*list)[3].step, 5);
}

// The state after a kill between a save and the removal of an older checkpoint.
TEST(RunCheckpoints, RemovesAtTheNextStartWhatAKillLeft) {
  const SmallRun small;
  const auto run = small.start();
  std::vector<std::string> paths;
  for (int i = 0; i < 3; ++i) {
    run->step();
    paths.push_back(save(*run, false));
  }
  const auto pruned = [&](TrainingRun& of) {
    EXPECT_TRUE(checkpoints_of(of, {.keep_last = 2})->prune().ok());
    return CheckpointFolder(*run->drives().reads, RunCheckpoints::folder_of(run->config().run.dir))
        .list()
        .value();
  };
  {
    // The checkpoint that it resumes from must not be removed.
    const auto older = small.make();
    ASSERT_TRUE(resume(*older, paths[0]).ok());
    EXPECT_EQ(pruned(*older).size(), 3U);
  }
  EXPECT_EQ(pruned(*run).front().step, 2);
}

// The run's drive fails while it has a checkpoint.
class RunCheckpointsOnABadDrive : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    run_->step();
    save(*run_, false);
    run_->step();
  }

  std::vector<CheckpointEntry> list() {
    auto found =
        CheckpointFolder(*run_->drives().reads, RunCheckpoints::folder_of(run_->config().run.dir))
            .list();
    EXPECT_TRUE(found.ok());
    return *std::move(found);
  }

  const SmallRun small_;
  const std::unique_ptr<TrainingRun> run_ = small_.start();
  const std::unique_ptr<aio::IoBackend> drive_ = aio::make_backend_or_die(aio::BackendKind::kPosix);
  aio::FaultBackend bad_drive_{*drive_, {}};
  const std::unique_ptr<aio::IoQueue> queue_ =
      aio::make_queue_or_die(bad_drive_, {.queue_depth = 4, .max_retries = 0});
};

TEST_P(RunCheckpointsOnABadDrive, LosesNoCheckpointAndTheRunGoesOn) {
  const struct {
    aio::FaultKind fault;
    aio::FaultTarget target;
    ErrorCode code;
  } faults[] = {
      {aio::FaultKind::kEnospc, aio::FaultTarget::kAllocate, ErrorCode::kNoSpace},
      {aio::FaultKind::kEnospc, aio::FaultTarget::kWrite, ErrorCode::kNoSpace},
      {aio::FaultKind::kEio, aio::FaultTarget::kWrite, ErrorCode::kIo},
      {aio::FaultKind::kEio, aio::FaultTarget::kSync, ErrorCode::kIo},
      {aio::FaultKind::kEio, aio::FaultTarget::kRename, ErrorCode::kIo},
  };
  const auto checkpoints = RunCheckpoints::create(
      *run_, *queue_,
      {.directory = run_->config().run.dir, .keep_last = 1, .background = GetParam()});
  ASSERT_TRUE(checkpoints.ok());
  for (const auto& fault : faults) {
    bad_drive_.set_plan(
        aio::FaultPlan::of({.fault = fault.fault, .persistent = true, .targets = {fault.target}}));
    ASSERT_TRUE((*checkpoints)->save({}).ok());
    (*checkpoints)->wait();
    const auto saved = (*checkpoints)->finished();
    ASSERT_EQ(saved.size(), 1U);
    ASSERT_FALSE(saved[0].status.ok());
    EXPECT_EQ(saved[0].status.error().code(), fault.code) << saved[0].status.error().message();
    EXPECT_THAT(saved[0].status.error().message(), HasSubstr(checkpoint_name(saved[0].step)));
    EXPECT_GT(run_->step().loss, 0);
    const auto left = list();
    ASSERT_EQ(left.size(), 1U) << "what was begun is left";
    EXPECT_EQ(left[0].step, 1);
    EXPECT_TRUE(left[0].complete());
    bad_drive_.set_plan({});
    ASSERT_TRUE(resume(*small_.make(), left[0].path).ok());
  }
}

INSTANTIATE_TEST_SUITE_P(All, RunCheckpointsOnABadDrive, testing::Bool(),
                         [](const auto& test) { return test.param ? "background" : "foreground"; });

// If it was moved, or its drive unmounted, the path leads to another folder or to none.
TEST(RunCheckpoints, MakeNoFolderWhereTheRunsIsNotAnyMore) {
  const SmallRun small;
  const auto run = small.start();
  const std::string directory = run->config().run.dir;
  const std::string moved = directory + "-moved";
  std::filesystem::create_directories(directory);
  const auto lock = run->drives().backend->files().lock(directory + "/lock");
  ASSERT_TRUE(lock.ok());
  const auto check = [&]() -> Status {
    if (*(*lock)->is_at(directory + "/lock")) return {};
    return Error(ErrorCode::kNotFound, directory + " no longer exists");
  };
  for (const bool background : {false, true}) {
    const auto checkpoints =
        checkpoints_of(*run, {.background = background, .check_directory = check});
    const auto save = [&] {
      run->step();
      EXPECT_TRUE(checkpoints->save({}).ok());
      checkpoints->wait();
      return checkpoints->finished().at(0);
    };
    EXPECT_TRUE(save().status.ok());
    std::filesystem::rename(directory, moved);
    const SavedCheckpoint refused = save();
    EXPECT_TRUE(refused.directory_lost);
    EXPECT_THAT(refused.status.error().message(), HasSubstr("no longer exists"));
    EXPECT_FALSE(std::filesystem::exists(directory));
    std::filesystem::rename(moved, directory);
    const SavedCheckpoint saved = save();
    EXPECT_TRUE(saved.status.ok());
    EXPECT_FALSE(saved.directory_lost);
  }
}

// The run's folder is a file, so nothing can be written there.
TEST(RunCheckpoints, SaysWhatFailedAndTheRunGoesOn) {
  const SmallRun small;
  const auto run = small.start();
  std::ofstream(run->config().run.dir) << "in the way";
  for (const bool background : {false, true}) {
    const auto checkpoints = checkpoints_of(*run, {.background = background});
    run->step();
    ASSERT_TRUE(checkpoints->save({}).ok());
    checkpoints->wait();
    const auto saved = checkpoints->finished();
    ASSERT_EQ(saved.size(), 1U);
    ASSERT_FALSE(saved[0].status.ok());
    EXPECT_THAT(saved[0].status.error().message(), HasSubstr(run->config().run.dir));
  }
  EXPECT_GT(run->step().loss, 0);
}

}  // namespace
}  // namespace sluice::engine
