// Which checkpoints a run has, which one is the newest, and which ones go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "aio/sim_drive.h"
#include "aio/small_file.h"
#include "aio/virtual_loop.h"
#include "engine/checkpoint/remove_checkpoint.h"
#include "tests/engine/checkpoint/checkpoint_under_test.h"

namespace sluice::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class CheckpointList : public testing::Test {
 protected:
  void save(std::int64_t step) {
    ASSERT_OK(save_checkpoint(*queue_, folder_.path_of(step),
                              {.version = static_cast<std::uint64_t>(step), .step = step}));
  }
  void put(const std::string& path, const std::string& text) {
    ASSERT_OK(aio::write_small_file(*queue_, path, text));
  }
  std::vector<std::string> names() { return *drive_.files().list(kFolder); }

  aio::VirtualLoop loop_;
  aio::SimDrive drive_{loop_, {}};
  std::unique_ptr<aio::IoQueue> queue_ = aio::make_queue_or_die(drive_, {.block_bytes = 8192});
  CheckpointFolder folder_{*queue_, kFolder};
};

TEST_F(CheckpointList, IsEmptyWhereThereIsNoFolder) {
  EXPECT_THAT(*folder_.list(), IsEmpty());
  EXPECT_FALSE(*folder_.newest());
  EXPECT_THAT(*folder_.prune(1), IsEmpty());
  EXPECT_THAT(*folder_.clean_leftovers(), IsEmpty());
  const auto found = folder_.find("3");
  EXPECT_EQ(found.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(found.error().message(), HasSubstr("nor any other"));
}

TEST_F(CheckpointList, IsByStepNotByName) {
  for (const std::int64_t step : {1'000'000'000, 5, 999'999'999, 0}) save(step);
  const auto entries = folder_.list();
  ASSERT_OK(entries);
  std::vector<std::int64_t> steps;
  for (const CheckpointEntry& entry : *entries) {
    EXPECT_TRUE(entry.complete());
    EXPECT_EQ(entry.loss, test_state(1, 1).loss);
    EXPECT_GT(entry.bytes, 200'000U);
    steps.push_back(entry.step);
  }
  EXPECT_THAT(steps, ElementsAre(0, 5, 999'999'999, 1'000'000'000));
  EXPECT_EQ((*folder_.newest())->step, 1'000'000'000);
  EXPECT_EQ(folder_.find("5")->path, folder_.path_of(5));
  EXPECT_EQ(folder_.find("step-000000005")->step, 5);
  EXPECT_THAT(folder_.find("6").error().message(),
              HasSubstr("there are step-000000000, step-000000005"));
}

TEST_F(CheckpointList, SaysWhyOneIsNotComplete) {
  for (const std::int64_t step : {1, 2, 3, 4, 5}) save(step);
  ASSERT_OK(drive_.files().remove(folder_.path_of(5) + "/checkpoint.json"));
  put(folder_.path_of(4) + "/checkpoint.json", "{}");
  put(folder_.path_of(3) + "/exp_avg-00002-of-00004.safetensors", "short");
  ASSERT_OK(drive_.files().remove(folder_.path_of(2) + "/master-00001-of-00004.safetensors"));
  ASSERT_OK(drive_.files().remove(folder_.path_of(1) + "/model.safetensors.index.json"));
  const auto entries = folder_.list();
  ASSERT_OK(entries);
  EXPECT_TRUE((*entries)[0].complete());  // the index is for others
  const auto problem = [&](std::size_t i) { return (*entries)[i].status.error().message(); };
  EXPECT_THAT(problem(1), HasSubstr("master-00001-of-00004.safetensors is missing"));
  EXPECT_THAT(problem(2), HasSubstr("exp_avg-00002-of-00004.safetensors has 5 bytes"));
  EXPECT_THAT(problem(3), HasSubstr("checkpoint.json: it has no checksum"));
  EXPECT_THAT(problem(4), HasSubstr("no checkpoint was finished"));
  EXPECT_FALSE((*entries)[4].has_manifest);
  EXPECT_TRUE((*entries)[3].has_manifest);
  EXPECT_EQ((*folder_.newest())->step, 1);
  EXPECT_EQ(folder_.find("3").error().code(), ErrorCode::kCorrupt);
}

TEST_F(CheckpointList, DoesNotTakeOneStepForAnother) {
  save(3);
  ASSERT_OK(drive_.files().rename(folder_.path_of(3), folder_.path_of(9)));
  EXPECT_FALSE(*folder_.newest());
  EXPECT_THAT(folder_.list()->at(0).status.error().message(), HasSubstr("of step 3"));
}

TEST_F(CheckpointList, IsPrunedToTheNewestCompleteOnes) {
  for (const std::int64_t step : {1, 2, 3, 4, 5, 6}) save(step);
  put(folder_.path_of(6) + "/checkpoint.json", "{}");  // does not count
  EXPECT_THAT(*folder_.prune(10), IsEmpty());
  EXPECT_THAT(*folder_.prune(2), ElementsAre("step-000000001", "step-000000002", "step-000000003"));
  EXPECT_THAT(names(), ElementsAre("step-000000004", "step-000000005", "step-000000006"));
  ASSERT_OK(load_checkpoint(*queue_, folder_.path_of(4)));
  ASSERT_OK(load_checkpoint(*queue_, folder_.path_of(5)));
  EXPECT_EQ(folder_.prune(0).error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(CheckpointList, IsCleanedOfLeftoversAndOfNothingElse) {
  save(1);
  save(2);
  ASSERT_OK(drive_.files().remove(folder_.path_of(2) + "/checkpoint.json"));
  save(3);
  ASSERT_OK(drive_.files().remove(folder_.path_of(3) + "/checkpoint.json"));
  put(folder_.path_of(3) + "/notes.txt", "mine");
  const std::string foreign = std::string(kFolder) + "/best";
  ASSERT_OK(drive_.files().make_directories(foreign));
  put(foreign + "/master-00001-of-00001.safetensors", "mine too");
  ASSERT_OK(drive_.files().make_directories(folder_.path_of(4) + ".new"));
  put(folder_.path_of(4) + ".new/master-00001-of-00001.safetensors", "cut off");
  put(std::string(kFolder) + "/step-000000009.txt", "mine as well");

  EXPECT_THAT(*folder_.clean_leftovers(),
              ElementsAre("step-000000002", "step-000000003", "step-000000004.new"));
  EXPECT_THAT(names(),
              ElementsAre("best", "step-000000001", "step-000000003", "step-000000009.txt"));
  EXPECT_THAT(*drive_.files().list(folder_.path_of(3)), ElementsAre("notes.txt"));
  EXPECT_THAT(*drive_.files().list(foreign), ElementsAre("master-00001-of-00001.safetensors"));
  ASSERT_OK(load_checkpoint(*queue_, folder_.path_of(1)));
}

TEST_F(CheckpointList, LosesOneThatIsRemovedTwice) {
  save(1);
  ASSERT_OK(remove_checkpoint(drive_.files(), folder_.path_of(1)));
  ASSERT_OK(remove_checkpoint(drive_.files(), folder_.path_of(1)));
  EXPECT_THAT(names(), IsEmpty());
}

// What a killed save left is in nobody's way.
TEST_F(CheckpointList, TakesASaveWhereOneWasCutOff) {
  save(1);
  ASSERT_OK(drive_.files().remove(folder_.path_of(1) + "/checkpoint.json"));
  put(folder_.path_of(1) + "/checkpoint.json.new", "cut off");
  save(1);
  EXPECT_EQ((*folder_.newest())->step, 1);
  EXPECT_EQ(drive_.files().list(folder_.path_of(1))->size(), 3 * 4 + 2U);
}

}  // namespace
}  // namespace sluice::engine
