// Configurations as runs store them, and changes between two of them.
#include "engine/config/stored_config.h"

#include "engine/config/changes.h"
#include "engine/config/json_text.h"
#include "engine/config/resolve.h"
#include "tests/engine/config/resolving.h"

namespace sluice::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ChangedKeys, NamesWhatDiffersAndWhetherItDecidesResults) {
  const Config was = accepted(resolve_run(run_with(R"("gradient_clipping": 1)"))).config;
  EXPECT_TRUE(changed_keys(was, was).empty());
  const Config is =
      accepted(resolve_run(run_with(R"("gradient_clipping": 2, "run": {"log_every": 3},
                                       "steps_per_print": 7, "aio": {"queue_depth": 4})")))
          .config;
  std::vector<std::string> said;
  for (const KeyChange& change : changed_keys(was, is))
    said.push_back(to_text(change) + (decides_results(change.path) ? "!" : ""));
  EXPECT_THAT(said,
              testing::UnorderedElementsAre(
                  testing::MatchesRegex("gradient_clipping was 1.* and is 2.*!"),
                  testing::StartsWith("run.log_every was "), "steps_per_print was 10 and is 7",
                  testing::MatchesRegex("aio.queue_depth was .* and is 4")));
}

// A run may be moved together with its folder; ".." depends on links.
TEST(StoredConfig, KeepsPathsThatMeanTheSameFromAnyFolder) {
  Resolved resolved = accepted(resolve_run(run_with(
      R"("data": {"train": ["runs/a/data/train.bin", "./x//b.bin", "runs/ab/c.bin", "/d.bin"],
                  "validation": "runs/a/../val.bin"})")));
  resolved.config.run.dir = "./runs/a/";
  const auto kept = run_folder_json(resolved, "/home/me");
  ASSERT_TRUE(kept.ok()) << kept.error().message();
  const Source moved = in_run_folder({.name = "config.json", .text = *kept}, "/else/where");
  const Config read = accepted(resolve({.run_file = moved})).config;
  EXPECT_THAT(read.data.train, ElementsAre("/else/where/data/train.bin", "/home/me/x/b.bin",
                                           "/home/me/runs/ab/c.bin", "/d.bin"));
  EXPECT_THAT(read.data.validation, ElementsAre("/home/me/runs/a/../val.bin"));
  EXPECT_EQ(read.run.dir, "");
  const auto of_checkpoint = stored_config(resolved.config, "/home/me");
  ASSERT_TRUE(of_checkpoint.ok());
  EXPECT_EQ(of_checkpoint->data.train[0], "/home/me/runs/a/data/train.bin");
}

// Earlier versions stored run.dir, and paths as they were given.
TEST(StoredConfig, OfAnEarlierVersionHasPathsFromWhereTheRunWasBegun) {
  const auto train_of = [](const std::string& dir, const std::string& folder) {
    const Source kept{.name = "config.json",
                      .text = R"({"run": {"dir": ")" + dir +
                              R"("}, "data": {"train": ["data/train.bin", "/d.bin"]}})"};
    const Json read = Json::parse(in_run_folder(kept, folder).text);
    EXPECT_EQ(read.at("data").at("train").at(1), "/d.bin");
    return read.at("data").at("train").at(0).get<std::string>();
  };
  EXPECT_EQ(train_of("runs/a", "/home/me/runs/a"), "/home/me/data/train.bin");
  EXPECT_EQ(train_of("./runs/a/", "/home/me/runs//a/."), "/home/me/data/train.bin");
  EXPECT_EQ(train_of("", "/home/me/runs/a"), "/home/me/runs/a/data/train.bin");
  // DIR named from within its parent folder, and from within itself.
  const std::filesystem::path here = std::filesystem::current_path();
  const std::string name = here.filename().string();
  const std::string above = (here.parent_path() / "data/train.bin").string();
  EXPECT_EQ(train_of(name, "."), above);
  EXPECT_EQ(train_of(name + "/a", "a"), above);
  // Moved, or begun anywhere: relative to the working folder, as earlier versions read them.
  EXPECT_EQ(train_of("runs/a", "/else/where"), "data/train.bin");
  EXPECT_EQ(train_of("/home/me/runs/a", "/home/me/runs/a"), "data/train.bin");
}

TEST(StoredConfig, OfAnEarlierVersionHasARunDirectoryWhereItLies) {
  const Source kept{.name = "config.json", .text = R"({"run": {"dir": "runs/a", "steps": 7}})"};
  EXPECT_EQ(in_run_folder(kept, "/home/me/runs/a").text, R"({"run":{"steps":7}})");
  EXPECT_EQ(Json::parse(in_run_folder(kept, "/else/where").text), Json::parse(kept.text));
}

TEST(StoredConfig, NeedsAWorkingFolderForRelativePathsAlone) {
  Config config;
  config.data.train = {"/a.bin"};
  EXPECT_TRUE(stored_config(config, "").ok());
  config.data.train = {"a.bin"};
  const auto stored = stored_config(config, "");
  ASSERT_FALSE(stored.ok());
  EXPECT_THAT(stored.error().message(), HasSubstr("the relative path a.bin"));
}

}  // namespace
}  // namespace sluice::config
