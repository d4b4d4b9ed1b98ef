// Which folders a run accepts as its own, and what is removed from them.
#include "engine/checkpoint/run_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "aio/small_file.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/remove_checkpoint.h"
#include "tests/aio/backends_under_test.h"
#include "tests/engine/checkpoint/checkpoint_under_test.h"

namespace sluice::engine {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kRunConfig = R"({"model": {"layers": 2}, "run": {"steps": 3}})";
constexpr const char* kModelConfig = R"({"model_type": "qwen3", "model": {}})";

class RunDirectory : public testing::Test {
 protected:
  using Files = std::map<std::string, std::string>;
  void put(const Files& files) {
    for (const auto& [name, text] : files) {
      fs::create_directories(fs::path(file(name)).parent_path());
      std::ofstream(file(name)) << text;
    }
  }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  void begin_anew() {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  std::vector<std::string> names() const { return *backend_->files().list(path_); }
  Status check() const { return check_run_directory(*queue_, path_); }
  void save(std::int64_t step) {
    fs::create_directories(file("checkpoints"));
    ASSERT_OK(save_checkpoint(*queue_, CheckpointFolder(*queue_, file("checkpoints")).path_of(step),
                              {.version = 1, .step = step}));
  }

  const aio::TemporaryFolder folder_;
  const std::string path_ = folder_.file("run");
  const std::unique_ptr<aio::IoBackend> backend_ =
      aio::make_backend_or_die(aio::BackendKind::kPosix);
  const std::unique_ptr<aio::IoQueue> queue_ =
      aio::make_queue_or_die(*backend_, {.block_bytes = 8192});
};

TEST_F(RunDirectory, IsAnEmptyFolderOrOneThatARunWrote) {
  ASSERT_OK(check());  // the folder does not exist
  for (const Files& files : std::vector<Files>{
           {},
           {{"lock", ""}, {"sluice-ranks", "7"}, {"sluice-ranks.new", ""}},
           {{".nfs0001", ""}, {"lost+found/x", ""}, {"slurm-12.out", "begun"}},
           // Folders of older versions, whole and interrupted.
           {{"lock", ""}, {"config.json", kRunConfig}, {"metrics.jsonl.2", ""}, {"notes.txt", ""}},
           {{"lock", ""}, {"config.json.new", "{"}, {"tokenizer/tokenizer.json", "{}"}}}) {
    begin_anew();
    put(files);
    SCOPED_TRACE(testing::PrintToString(files));
    EXPECT_OK(check());
  }
  ASSERT_OK(mark_run_directory(*queue_, path_));
  put({{"notes.txt", "mine"}, {"data/train.bin", ""}});
  EXPECT_OK(check());
  // Edited by hand, or damaged.
  put({{"config.json", "{// mine\n\"model\": {},}"}});
  EXPECT_OK(check());
  begin_anew();
  save(3);
  put({{"config.json", "not JSON"}, {"lock", ""}});
  EXPECT_OK(check());
  fs::remove(file("config.json"));
  put({{"pytorch_model.bin", ""}});
  EXPECT_OK(check());
}

TEST_F(RunDirectory, IsNoFolderOfAnythingElse) {
  for (const Files& files : std::vector<Files>{
           {{"config.json", kModelConfig}, {"model.safetensors", ""}, {"tokenizer.json", "{}"}},
           {{"config.json", kModelConfig}, {"lock", ""}},
           {{"config.json", "not JSON"}, {"lock", ""}},
           {{"config.json", std::string(100'000, '[')}, {"lock", ""}},
           {{"config.json", kRunConfig}},  // written by a user, not by a run
           {{"tokenizer.json", "{}"}, {"trace.json", "{}"}},
           {{"lock", ""}, {"tokenizer.json", "{}"}, {"trace.json", "{}"}},
           {{"train.bin", ""}, {"train.bin.json", "{}"}},
           {{"checkpoints/step-000000003/notes", "mine"}},
           {{"sluice-run.json", R"({"format": "other", "files": ["a"]})"}, {"thesis.tex", ""}}}) {
    begin_anew();
    put(files);
    const Status checked = check();
    ASSERT_FALSE(checked.ok()) << testing::PrintToString(files);
    EXPECT_EQ(checked.error().code(), ErrorCode::kAlreadyExists);
    EXPECT_THAT(checked.error().message(), HasSubstr(path_ + " is not a run's folder"));
  }
  // Nor is a folder into which a model was saved inside a run's folder.
  begin_anew();
  ASSERT_OK(mark_run_directory(*queue_, path_));
  put({{"config.json", kModelConfig}});
  EXPECT_FALSE(check().ok());
}

TEST_F(RunDirectory, HasNoFileOfItsOwnThatIsALink) {
  const std::string theirs = folder_.file("theirs");
  fs::create_directories(theirs);
  for (const char* const name :
       {"events.jsonl", "metrics.jsonl", "metrics.jsonl.1", "events.jsonl.new", "config.json",
        "config.json.new", "trace.json.new", "lock", "tokenizer", "tokenizer.new", "checkpoints",
        "sluice-run.json", "sluice-run.json.new", "sluice-ranks.new", "base_model.json"}) {
    begin_anew();
    ASSERT_OK(mark_run_directory(*queue_, path_));
    fs::remove(file(name));
    fs::create_symlink(theirs, file(name));
    const Status checked = check();
    ASSERT_FALSE(checked.ok()) << name;
    EXPECT_EQ(checked.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(checked.error().message(), HasSubstr(file(name) + " is a link"));
  }
}

TEST_F(RunDirectory, LosesOnlyWhatItsMarkNames) {
  begin_anew();
  ASSERT_OK(mark_run_directory(*queue_, path_));
  put({{"config.json", kRunConfig},
       {"metrics.jsonl", ""},
       {"metrics.jsonl.1", ""},
       {"metrics.jsonl.bak", ""},
       {"events.jsonl.12", ""},
       {"trace.json", ""},
       {"tokenizer.json", "mine"},
       {"notes.txt", "mine"},
       {"lock", ""}});
  ASSERT_OK(remove_run_files(*queue_, path_));
  EXPECT_THAT(names(), ElementsAre("lock", "metrics.jsonl.bak", "notes.txt", "sluice-run.json",
                                   "tokenizer.json"));
  // A mark that names more than a run has.
  begin_anew();
  put({{"sluice-run.json",
        R"({"format": "sluice-run", "files": ["../thesis", "notes.txt", "trace.json", 7]})"},
       {"config.json", kRunConfig},
       {"notes.txt", "mine"},
       {"trace.json", ""}});
  std::ofstream(folder_.file("thesis")) << "mine";
  ASSERT_OK(remove_run_files(*queue_, path_));
  EXPECT_THAT(names(), ElementsAre("config.json", "notes.txt", "sluice-run.json"));
  EXPECT_TRUE(fs::exists(folder_.file("thesis")));
  // A folder of an older version, with the tokenizer directly in it.
  begin_anew();
  put({{"lock", ""}, {"config.json", kRunConfig}, {"tokenizer.json", "old"}});
  ASSERT_OK(remove_run_files(*queue_, path_));
  EXPECT_THAT(names(), ElementsAre("before-step-1-tokenizer.json", "lock", "sluice-run.json"));
  put({{"notes.txt", "mine"}});
  EXPECT_OK(check());  // if the run ended here
  // A run of that version that continued, and so has a mark.
  begin_anew();
  put({{"lock", ""}, {"config.json", kRunConfig}, {"tokenizer.json", "old"}});
  ASSERT_OK(mark_run_directory(*queue_, path_));
  ASSERT_OK(mark_run_directory(*queue_, path_));
  EXPECT_TRUE(may_hold_old_tokenizer(*queue_, path_));
  ASSERT_OK(remove_run_files(*queue_, path_));
  ASSERT_OK(mark_run_directory(*queue_, path_));
  EXPECT_FALSE(may_hold_old_tokenizer(*queue_, path_));
  EXPECT_THAT(names(), ElementsAre("before-step-1-tokenizer.json", "lock", "sluice-run.json"));
}

// A checkpoint that was moved to another drive and replaced by a link.
TEST_F(RunDirectory, KeepsCheckpointsThatLinksLeadTo) {
  for (const std::int64_t step : {1, 2, 3}) save(step);
  const CheckpointFolder checkpoints(*queue_, file("checkpoints"));
  const std::string moved = folder_.file("step-000000001");
  fs::rename(checkpoints.path_of(1), moved);
  fs::create_symlink(moved, checkpoints.path_of(1));
  CheckpointFolder pruned(*queue_, file("checkpoints"));
  const auto removed = pruned.prune(1);
  ASSERT_OK(removed);
  EXPECT_THAT(*removed, ElementsAre("step-000000002"));
  EXPECT_TRUE(fs::exists(moved + "/checkpoint.json"));
  EXPECT_THAT(remove_checkpoint(*queue_, checkpoints.path_of(1)).error().message(),
              AllOf(HasSubstr("is a link"), HasSubstr("it is kept")));
  // The remains of an interrupted save, elsewhere.
  const std::string cut = folder_.file("cut");
  fs::create_directories(cut);
  std::ofstream(cut + "/master-00001-of-00001.safetensors") << "theirs";
  fs::create_symlink(cut, checkpoints.path_of(4) + ".new");
  EXPECT_THAT(*pruned.clean_leftovers(), IsEmpty());
  ASSERT_NO_FATAL_FAILURE(save(4));
  EXPECT_TRUE(fs::exists(cut + "/master-00001-of-00001.safetensors"));
  EXPECT_FALSE(fs::is_symlink(checkpoints.path_of(4)));
  EXPECT_EQ((*checkpoints.newest())->step, 4);
  EXPECT_TRUE((*checkpoints.newest())->complete());
}

}  // namespace
}  // namespace sluice::engine
