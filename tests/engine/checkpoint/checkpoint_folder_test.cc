// Which checkpoints a run has, which one is the newest, and which ones are removed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "aio/fault_backend.h"
#include "aio/sim_drive.h"
#include "aio/small_file.h"
#include "aio/virtual_loop.h"
#include "engine/checkpoint/remove_checkpoint.h"
#include "swap/sealed_json.h"
#include "tests/engine/checkpoint/checkpoint_under_test.h"

namespace sluice::engine {
namespace {

using testing::ContainsRegex;
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
  // Like a file of a later program version: the checksum is right.
  void set_version(std::int64_t step, int version) {
    const std::string path = folder_.path_of(step) + "/checkpoint.json";
    auto content =
        nlohmann::json::parse(aio::read_small_file(*queue_, path, 1 << 20).value())["content"];
    content["version"] = version;
    content["new_key"] = "x";
    put(path, swap::to_sealed_text(content));
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

// The oracle is the list of losses below, by hand.
TEST_F(CheckpointList, KeepsTheBestBesideTheNewest) {
  const auto save_with = [this](std::int64_t step, std::optional<double> validation_loss) {
    ASSERT_OK(save_checkpoint(*queue_, folder_.path_of(step),
                              {.version = static_cast<std::uint64_t>(step),
                               .step = step,
                               .validation_loss = validation_loss}));
  };
  EXPECT_FALSE(*folder_.best());
  save_with(1, std::nullopt);
  EXPECT_THAT(folder_.find("best").error().message(), HasSubstr("has a validation loss"));
  save_with(2, 3.5);
  save_with(3, 2.5);
  save_with(4, 2.5);
  save_with(5, 9.0);
  EXPECT_EQ((*folder_.best())->step, 3);
  EXPECT_EQ(folder_.find("best")->step, 3);
  EXPECT_THAT(*folder_.prune(1, 5, /*keep_best=*/true),
              ElementsAre("step-000000001", "step-000000002", "step-000000004"));
  save_with(6, 1.0);
  EXPECT_THAT(*folder_.prune(1, 6, /*keep_best=*/true),
              ElementsAre("step-000000003", "step-000000005"));
  save_with(7, 8.0);
  put(folder_.path_of(6) + "/checkpoint.json", "{}");  // what is damaged is not the best
  EXPECT_EQ((*folder_.best())->step, 7);
  EXPECT_THAT(*folder_.prune(1, 7, /*keep_best=*/true), IsEmpty());
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
  for (const std::int64_t step : {1, 2, 3, 4, 5, 6}) save(step);
  set_version(6, 99);
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
  EXPECT_THAT(problem(3), ContainsRegex("checkpoint.json:.*no checksum"));
  EXPECT_THAT(problem(4), HasSubstr("still being copied"));
  EXPECT_THAT(problem(5), ContainsRegex("version 99.*to 9"));
  EXPECT_EQ((*entries)[4].status.error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ((*entries)[5].status.error().code(), ErrorCode::kNewerVersion);
  EXPECT_EQ(folder_.find("3").error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(folder_.find("step-6").error().code(), ErrorCode::kNewerVersion);
  EXPECT_EQ((*folder_.before(6))->step, 1);
  EXPECT_EQ(folder_.later_than(4)->size(), 2U);
}

// If the newest checkpoint cannot be read, an older one does not become "the newest".
TEST_F(CheckpointList, HasNoNewestWhileTheNewestCannotBeRead) {
  for (const std::int64_t step : {1, 2}) save(step);
  const std::string manifest = folder_.path_of(2) + "/checkpoint.json";
  const std::string whole = aio::read_small_file(*queue_, manifest, 1 << 20).value();
  const auto refused = [&](ErrorCode code) {
    const auto newest = folder_.newest();
    EXPECT_FALSE(newest.ok());
    if (newest.ok()) return std::string();
    EXPECT_EQ(newest.error().code(), code);
    EXPECT_EQ((*folder_.newest_entry())->step, 2);
    return newest.error().message();
  };
  std::string damaged = whole;
  damaged[damaged.size() / 2] ^= 4;
  put(manifest, damaged);
  EXPECT_THAT(refused(ErrorCode::kCorrupt), HasSubstr("checkpoint step-000000002 is damaged"));
  put(manifest, whole.substr(0, whole.size() / 2));
  EXPECT_THAT(refused(ErrorCode::kCorrupt), HasSubstr("not JSON"));
  put(manifest, whole);
  set_version(2, 99);
  EXPECT_THAT(refused(ErrorCode::kNewerVersion), HasSubstr("newer version"));
  ASSERT_OK(drive_.files().remove(manifest));
  EXPECT_THAT(refused(ErrorCode::kCorrupt), HasSubstr("still being copied"));
  put(manifest, whole);
  ASSERT_OK(drive_.files().remove(folder_.path_of(2) + "/exp_avg-00001-of-00004.safetensors"));
  EXPECT_THAT(refused(ErrorCode::kCorrupt), HasSubstr("exp_avg-00001-of-00004.safetensors"));
}

// rsync writes under temporary names, and may not have completed any file yet.
TEST_F(CheckpointList, HasNoNewestWhileTheFirstFileOfOneIsCopied) {
  save(1);
  for (const std::string& name : {folder_.path_of(2), folder_.path_of(3) + ".new"}) {
    ASSERT_OK(drive_.files().make_directories(name));
    const std::string part = name + "/.exp_avg-00001-of-00013.safetensors.AbCdEf";
    put(part, "so far");
    const auto newest = folder_.newest();
    ASSERT_FALSE(newest.ok());
    EXPECT_EQ(newest.error().code(), ErrorCode::kCorrupt);
    EXPECT_THAT(newest.error().message(), HasSubstr("still being copied"));
    EXPECT_THAT(*folder_.clean_leftovers(), IsEmpty());
    EXPECT_FALSE(remove_checkpoint(*queue_, name).ok());
    EXPECT_TRUE(*drive_.files().exists(part));
    EXPECT_EQ((*folder_.before(9))->step, 1);
  }
  EXPECT_EQ(folder_.list()->size(), 3U);
}

TEST_F(CheckpointList, DoesNotTakeOneStepForAnother) {
  save(3);
  ASSERT_OK(drive_.files().rename(folder_.path_of(3), folder_.path_of(9)));
  EXPECT_THAT(folder_.newest().error().message(), ContainsRegex("step 3:.*was renamed"));
  EXPECT_EQ(folder_.list()->at(0).step, 9);
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

// The state after a removal that could delete nothing.
TEST_F(CheckpointList, IsPrunedOfWhatARemovalThatFailedHasLeft) {
  for (const std::int64_t step : {1, 2, 3, 4}) save(step);
  const std::string manifest = folder_.path_of(2) + "/checkpoint.json";
  ASSERT_OK(drive_.files().rename(manifest, manifest + ".removed"));
  EXPECT_THAT(*folder_.prune(2), ElementsAre("step-000000001"));
  EXPECT_THAT(names(), ElementsAre("step-000000003", "step-000000004"));
}

TEST_F(CheckpointList, IsPrunedOfNothingLaterAndOfNothingThatCannotBeRead) {
  for (const std::int64_t step : {1, 2, 3, 4, 5, 6, 7}) save(step);
  set_version(1, 99);
  put(folder_.path_of(2) + "/checkpoint.json", "{}");
  EXPECT_EQ(folder_.beyond(1, 5)->size(), 2U);
  EXPECT_THAT(*folder_.prune(1, 5), ElementsAre("step-000000003", "step-000000004"));
  EXPECT_THAT(names(), ElementsAre("step-000000001", "step-000000002", "step-000000005",
                                   "step-000000006", "step-000000007"));
}

TEST_F(CheckpointList, IsCleanedOfLeftoversAndOfNothingElse) {
  save(1);
  for (const std::int64_t step : {2, 3}) {  // the state after an interrupted removal
    save(step);
    const std::string manifest = folder_.path_of(step) + "/checkpoint.json";
    ASSERT_OK(drive_.files().rename(manifest, manifest + ".removed"));
  }
  put(folder_.path_of(3) + "/notes.txt", "mine");
  const std::string foreign = std::string(kFolder) + "/best";
  ASSERT_OK(drive_.files().make_directories(foreign));
  put(foreign + "/master-00001-of-00001.safetensors", "mine too");
  ASSERT_OK(drive_.files().make_directories(folder_.path_of(4) + ".new"));
  put(folder_.path_of(4) + ".new/master-00001-of-00001.safetensors", "cut off");
  put(std::string(kFolder) + "/step-000000009.txt", "mine as well");

  EXPECT_THAT(*folder_.clean_leftovers(),
              ElementsAre("step-000000002", "step-000000003", "step-000000004.new"));
  EXPECT_THAT(names(), ElementsAre("best", "step-000000001", "step-000000003.set-aside",
                                   "step-000000009.txt"));
  EXPECT_THAT(*drive_.files().list(folder_.path_of(3) + ".set-aside"), ElementsAre("notes.txt"));
  EXPECT_THAT(*drive_.files().list(foreign), ElementsAre("master-00001-of-00001.safetensors"));
  ASSERT_OK(load_checkpoint(*queue_, folder_.path_of(1)));
  EXPECT_THAT(*folder_.clean_leftovers(), IsEmpty());
}

// For any request: a folder that is being copied, a damaged one, one of a newer version.
TEST_F(CheckpointList, KeepsWhatCannotBeReadWhateverIsRemoved) {
  for (const std::int64_t step : {1, 2, 3, 4}) save(step);
  ASSERT_OK(drive_.files().remove(folder_.path_of(1) + "/checkpoint.json"));  // not copied yet
  set_version(2, 99);
  ASSERT_OK(drive_.files().remove(folder_.path_of(3) + "/master-00001-of-00004.safetensors"));
  ASSERT_OK(drive_.files().rename(folder_.path_of(4), folder_.path_of(5) + ".new"));
  const auto content = [&] {
    std::vector<std::vector<std::string>> all = {names()};
    for (const std::string& name : names())
      all.push_back(*drive_.files().list(std::string(kFolder) + "/" + name));
    return all;
  };
  const auto before = content();
  EXPECT_THAT(*folder_.clean_leftovers(), IsEmpty());
  EXPECT_THAT(*folder_.prune(1), IsEmpty());
  const auto entries = folder_.list();
  for (const CheckpointEntry& entry : *entries) {
    const Status removed = remove_checkpoint(*queue_, entry.path);
    ASSERT_FALSE(removed.ok());
    EXPECT_THAT(removed.error().message(), HasSubstr("; it is kept"));
  }
  EXPECT_FALSE(settle_replacement(*queue_, folder_.path_of(5)).ok());
  EXPECT_EQ(content(), before);
}

// A run that has come this far has to save: entries in the way get another name.
TEST_F(CheckpointList, SetsAsideWhatIsInTheWayOfASave) {
  save(1);
  set_version(1, 99);
  save(2);
  ASSERT_OK(drive_.files().rename(folder_.path_of(2), folder_.path_of(1) + ".new"));
  for (const std::uint64_t version : {5, 6}) {
    ASSERT_OK(save_checkpoint(*queue_, folder_.path_of(1),
                              {.version = version, .step = 1, .replace = true}));
    EXPECT_EQ(*load_checkpoint(*queue_, folder_.path_of(1)), version);
  }
  EXPECT_THAT(names(), ElementsAre("step-000000001", "step-000000001.new.set-aside",
                                   "step-000000001.set-aside"));
  set_version(1, 99);
  EXPECT_EQ(save_checkpoint(*queue_, folder_.path_of(1), {.step = 1}).error().code(),
            ErrorCode::kAlreadyExists);
  ASSERT_OK(save_checkpoint(*queue_, folder_.path_of(1), {.step = 1, .replace = true}));
  EXPECT_EQ(names().size(), 4U);
  EXPECT_EQ(names()[3], "step-000000001.set-aside-2");
}

TEST_F(CheckpointList, SetsLaterOnesAsideInAFolderOfTheirOwn) {
  for (const int life : {1, 2}) {
    for (const std::int64_t step : {1, 2, 3}) {
      if (life == 1 || step > 1) save(step);
    }
    set_version(3, 99);  // also an unreadable one
    const auto aside = folder_.set_aside(*folder_.later_than(1), 1);
    ASSERT_OK(aside);
    EXPECT_EQ(*aside,
              std::string(kFolder) + "/set-aside-at-step-000000001" + (life == 1 ? "" : "-2"));
    const CheckpointFolder moved(*queue_, *aside + "/checkpoints");
    EXPECT_EQ(moved.list()->size(), 2U);
    EXPECT_TRUE(moved.find("2").ok());
    EXPECT_EQ((*folder_.newest())->step, 1);
  }
  EXPECT_EQ(names().size(), 3U);
}

TEST_F(CheckpointList, SetsNothingAsideWhereThePreparationFails) {
  for (const std::int64_t step : {1, 2, 3}) save(step);
  const auto before = names();
  std::string aside;
  const auto refused = folder_.set_aside(*folder_.later_than(1), 1, [&](const std::string& to) {
    aside = to;
    EXPECT_EQ(CheckpointFolder(*queue_, to + "/checkpoints").list()->size(), 0U);
    return Status(Error(ErrorCode::kNoSpace, "full"));
  });
  EXPECT_EQ(refused.error().code(), ErrorCode::kNoSpace);
  EXPECT_EQ(aside, std::string(kFolder) + "/set-aside-at-step-000000001");
  EXPECT_EQ(names(), before);
  EXPECT_EQ(folder_.list()->size(), 3U);
}

TEST_F(CheckpointList, LosesOneThatIsRemovedTwice) {
  save(1);
  ASSERT_OK(remove_checkpoint(*queue_, folder_.path_of(1)));
  ASSERT_OK(remove_checkpoint(*queue_, folder_.path_of(1)));
  EXPECT_THAT(names(), IsEmpty());
}

// The remains of a killed save hinder nothing.
TEST_F(CheckpointList, TakesASaveWhereOneWasCutOff) {
  save(1);
  ASSERT_OK(drive_.files().rename(folder_.path_of(1), folder_.path_of(1) + ".new"));
  ASSERT_OK(drive_.files().remove(folder_.path_of(1) + ".new/checkpoint.json"));
  put(folder_.path_of(1) + ".new/checkpoint.json.new", "cut off");
  EXPECT_TRUE(folder_.list()->at(0).leftover);
  EXPECT_FALSE(*folder_.newest());
  save(1);
  EXPECT_EQ((*folder_.newest())->step, 1);
  EXPECT_EQ(drive_.files().list(folder_.path_of(1))->size(), 3 * 4 + 2U);
}

// For example if a link leads to a drive that is not mounted or does not answer.
TEST(CheckpointSearch, ThatFailsIsNotAnEmptyFolder) {
  const aio::TemporaryFolder temporary;
  const auto backend = aio::make_backend_or_die(aio::BackendKind::kPosix);
  const auto queue = aio::make_queue_or_die(*backend, {});
  const std::string path = temporary.file("checkpoints");
  const CheckpointFolder folder(*queue, path);
  EXPECT_FALSE(*folder.newest());
  std::filesystem::create_symlink(temporary.file("unmounted"), path);
  EXPECT_THAT(folder.newest().error().message(), HasSubstr("is its drive mounted?"));
  std::filesystem::remove(path);
  std::ofstream(path) << "a file";
  EXPECT_THAT(folder.newest().error().message(), HasSubstr("must be a folder"));
  EXPECT_EQ(folder.newest().error().code(), ErrorCode::kIo);
  std::filesystem::remove(path);
  std::filesystem::create_directories(path);
  EXPECT_FALSE(*folder.newest());
  std::filesystem::create_symlink(temporary.file("unmounted"), path + "/step-000000007");
  EXPECT_THAT(folder.newest().error().message(),
              testing::AllOf(HasSubstr("step-000000007 cannot be read"), HasSubstr("mounted?")));

  aio::FaultBackend faults(*backend, {});
  const auto bad_queue = aio::make_queue_or_die(faults, {});
  faults.set_plan(aio::FaultPlan::of(
      {.fault = aio::FaultKind::kEio, .persistent = true, .targets = {aio::FaultTarget::kLookUp}}));
  EXPECT_EQ(CheckpointFolder(*bad_queue, path).newest().error().code(), ErrorCode::kIo);
  EXPECT_EQ(CheckpointFolder(*bad_queue, path).clean_leftovers().ok(), false);
}

}  // namespace
}  // namespace sluice::engine
