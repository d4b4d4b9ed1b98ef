#include "swap/store_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/aio/backends_under_test.h"
#include "tests/swap/store_directory_under_test.h"

namespace sluice::swap {
namespace {

using testing::HasSubstr;

TEST_F(StoreDirectoryOnFiles, IsMadeAndSaysWhoseItIs) {
  auto run = take("gpt2-xl.1");
  ASSERT_OK(run);
  EXPECT_EQ((*run)->path(), folder_.file("sluice-gpt2-xl.1"));
  EXPECT_EQ((*run)->previous_owner(), std::nullopt);
  std::ifstream owner(folder_.file("sluice-gpt2-xl.1/owner.json"));
  std::stringstream text;
  text << owner.rdbuf();
  EXPECT_EQ(text.str(),
            "{\n  \"pid\": 7,\n  \"host\": \"here\",\n"
            "  \"started_utc\": \"2026-01-02T03:04:05Z\"\n}\n");
}

TEST_F(StoreDirectoryOnFiles, BelongsByDefaultToThisProcessOnThisHostFromNowOn) {
  const RunOwner self = RunOptions().self;
  EXPECT_EQ(self.pid, ::getpid());
  std::array<char, 256> host{};
  ASSERT_EQ(::gethostname(host.data(), host.size()), 0);
  EXPECT_EQ(self.host, host.data());
  std::tm utc{};
  ASSERT_EQ(::strptime(self.started_utc.c_str(), "%Y-%m-%dT%H:%M:%SZ", &utc),
            self.started_utc.c_str() + 20);
  EXPECT_LE(std::abs(std::difftime(::timegm(&utc), std::time(nullptr))), 5);
}

TEST_F(StoreDirectoryOnFiles, IsTakenByOneAtATimeAndABusyOneNamesItsOwner) {
  auto first = take("a");
  ASSERT_OK(first);
  const auto second = take("a", impatient(8));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code(), ErrorCode::kBusy);
  EXPECT_EQ(second.error().message(),
            folder_.file("sluice-a") +
                " is in use by process 7 on host here since 2026-01-02T03:04:05Z: choose another "
                "name for this run, or stop that one");
  EXPECT_OK(take("b"));
  std::filesystem::remove((*first)->path() + "/owner.json");
  EXPECT_THAT(take("a").error().message(), HasSubstr("has not identified itself"));
  first->reset();
  EXPECT_OK(take("a"));
}

TEST_F(StoreDirectoryOnFiles, KeepsTheFilesOfARunThatEndedAndTellsWhoseTheyWere) {
  { ASSERT_OK(take("a")); }
  write("sluice-a/state.0", "state");
  const auto next = take("a", impatient(8));
  ASSERT_OK(next);
  ASSERT_TRUE((*next)->previous_owner().has_value());
  EXPECT_EQ((*next)->previous_owner()->pid, 7);
  EXPECT_TRUE(std::filesystem::exists(folder_.file("sluice-a/state.0")));
  EXPECT_EQ(runs().at(0).owner->pid, 8);
}

TEST_F(StoreDirectoryOnFiles, RefusesNamesThatAreNoneForARun) {
  for (const std::string& bad :
       {std::string(), std::string("."), std::string(".."), std::string(".a"), std::string("a/b"),
        std::string("../a"), std::string("a b"), std::string("\xC3\xA9"), std::string(65, 'a'),
        std::string("a\0b", 3), std::string("a\n")}) {
    const auto run = take(bad);
    ASSERT_FALSE(run.ok()) << bad;
    EXPECT_EQ(run.error().code(), ErrorCode::kInvalidArgument) << bad;
    EXPECT_THAT(run.error().message(), HasSubstr("name for a run"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  for (const std::string& good : {std::string(64, 'a'), std::string("Aa09._-"), std::string("-")}) {
    EXPECT_OK(take(good));
  }
}

TEST_F(StoreDirectoryOnFiles, WantsThePathToExist) {
  const std::string missing = folder_.file("missing");
  const auto sentence = testing::AllOf(
      testing::StartsWith("NVMe path: " + missing + " does not exist; " +
                          std::filesystem::canonical(folder_.path()).string() + " does, on the "),
      testing::EndsWith("mkdir -p " + missing));
  const auto run = StoreDirectory::take(*queue_, missing, "a", impatient());
  ASSERT_FALSE(run.ok());
  EXPECT_EQ(run.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(run.error().message(), sentence);
  const auto found = find_runs(*queue_, missing, impatient());
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(found.error().message(), sentence);
  EXPECT_FALSE(std::filesystem::exists(missing));
}

TEST_F(StoreDirectoryOnFiles, RemovesEveryFileAndTheFolder) {
  auto run = take("a");
  ASSERT_OK(run);
  for (const char* name : {"state.0", "state.1", "manifest.new", "owner.json.new", ".hidden"}) {
    write(std::string("sluice-a/") + name, "x");
  }
  ASSERT_OK((*run)->remove_all());
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  EXPECT_OK((*run)->remove_all());
  auto again = take("a", impatient(8));
  ASSERT_OK(again);
  EXPECT_EQ((*again)->previous_owner(), std::nullopt);
  run->reset();
  EXPECT_EQ(take("a").error().code(), ErrorCode::kBusy);
}

TEST_F(StoreDirectoryOnFiles, RemovesNothingWhereItHoldsAnUnknownFolder) {
  auto run = take("a");
  ASSERT_OK(run);
  write("sluice-a/state.0", "x");
  write("sluice-a/thesis/chapter1", "precious");
  const Status removed = (*run)->remove_all();
  ASSERT_FALSE(removed.ok());
  EXPECT_THAT(removed.error().message(), HasSubstr("sluice-a is not removed"));
  EXPECT_THAT(removed.error().message(), HasSubstr("the folder thesis"));
  EXPECT_TRUE(std::filesystem::exists(folder_.file("sluice-a/state.0")));
  EXPECT_EQ(take("a").error().code(), ErrorCode::kBusy) << "still held";
  std::filesystem::remove_all(folder_.file("sluice-a/thesis"));
  EXPECT_OK((*run)->remove_all());
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(StoreDirectoryOnFiles, LeavesForeignFoldersAlone) {
  write("sluice-valley/photo.jpg", "photo");
  write("sluice-notes", "a file");
  std::filesystem::create_directory(folder_.file("sluice-empty"));
  write("sluice-.hidden/lock", "");
  write("other/lock", "");
  EXPECT_TRUE(runs().empty());
  const auto folder = take("valley");
  EXPECT_EQ(folder.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_THAT(folder.error().message(), HasSubstr("sluice-valley is a folder"));
  const auto file = take("notes");
  EXPECT_EQ(file.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_THAT(file.error().message(), HasSubstr("sluice-notes is a file"));
  EXPECT_OK(take("empty"));
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
    left.push_back(entry.path().string().substr(folder_.path().size() + 1));
  }
  EXPECT_THAT(left, testing::UnorderedElementsAre(
                        "sluice-valley", "sluice-valley/photo.jpg", "sluice-notes", "sluice-empty",
                        "sluice-empty/lock", "sluice-empty/owner.json", "sluice-.hidden",
                        "sluice-.hidden/lock", "other", "other/lock"));
}

TEST_F(StoreDirectoryOnFiles, FindsLiveAndDeadRunsAndWhatTheyHold) {
  const auto live = take("live");
  ASSERT_OK(live);
  { ASSERT_OK(take("dead")); }
  write("sluice-dead/state.0", std::string(5000, 'x'));
  write("sluice-dead/state.1", std::string(100, 'x'));
  write("sluice-dead/folder/file", "not counted");
  RunOptions elsewhere = impatient(9);
  elsewhere.self.host = "there";
  { ASSERT_OK(take("remote", elsewhere)); }
  write("sluice-garbled/lock", "");
  write("sluice-garbled/owner.json", "{\"pid\": \"seven\"}");
  write("sluice-large/owner.json", std::string(1 << 20, ' '));
  write("sluice-pipe/lock", "");
  ASSERT_EQ(::mkfifo(folder_.file("sluice-pipe/owner.json").c_str(), 0600), 0);
  write("sluice-unowned/lock", "");
  write("sluice-unowned/store.json", "whose?");

  const auto found = runs();
  ASSERT_EQ(found.size(), 7U);
  const auto owner_bytes = std::filesystem::file_size(folder_.file("sluice-dead/owner.json"));
  EXPECT_EQ(found[0].run, "dead");
  EXPECT_EQ(found[0].directory, folder_.file("sluice-dead"));
  EXPECT_EQ(found[0].condition, StoreCondition::kLeftover);
  EXPECT_EQ(found[0].owner, impatient().self);
  EXPECT_EQ(found[0].bytes, 5100 + owner_bytes);
  EXPECT_EQ(found[1].run, "garbled");
  EXPECT_EQ(found[1].condition, StoreCondition::kUnclaimed);
  EXPECT_EQ(found[1].owner, std::nullopt);
  EXPECT_EQ(found[2].run, "large");
  EXPECT_EQ(found[2].owner, std::nullopt);
  EXPECT_FALSE(std::filesystem::exists(folder_.file("sluice-large/lock")))
      << "looks, makes nothing";
  EXPECT_EQ(found[3].run, "live");
  EXPECT_EQ(found[3].condition, StoreCondition::kInUse);
  EXPECT_EQ(found[4].run, "pipe");
  EXPECT_EQ(found[4].condition, StoreCondition::kUnknown);
  EXPECT_THAT(found[4].problem.error().message(), HasSubstr("sluice-pipe/owner.json"));
  EXPECT_EQ(found[5].run, "remote");
  EXPECT_EQ(found[5].condition, StoreCondition::kElsewhere);
  EXPECT_EQ(found[5].owner->pid, 9);
  EXPECT_EQ(found[6].run, "unowned");
  EXPECT_EQ(found[6].condition, StoreCondition::kUnknown);
  // The inspection has released every lock.
  EXPECT_OK(take("dead"));
  EXPECT_OK(take("garbled"));
}

}  // namespace
}  // namespace sluice::swap
