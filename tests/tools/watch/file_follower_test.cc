// Files that grow, are cut, replaced and renamed while they are followed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "tests/aio/backends_under_test.h"
#include "tools/watch/run_follower.h"

namespace sluice::watch {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
namespace fs = std::filesystem;

class FollowedFile : public testing::Test {
 protected:
  std::string path(const std::string& name = "metrics.jsonl") const { return folder_.file(name); }
  void add(const std::string& text) const {
    std::ofstream(path(), std::ios::binary | std::ios::app) << text;
  }
  void put(const std::string& text) const { std::ofstream(path(), std::ios::binary) << text; }
  // Like a writer that keeps `parts` parts.
  void rotate(int parts) const {
    for (int i = parts; i > 0; --i) {
      const std::string from = i == 1 ? path() : path() + "." + std::to_string(i - 1);
      if (fs::exists(from)) fs::rename(from, path() + "." + std::to_string(i));
    }
  }
  const std::vector<std::string>& polled() {
    EXPECT_OK(follower_.poll());
    return lines_;
  }

  const aio::TemporaryFolder folder_;
  std::vector<std::string> lines_;
  int restarts_ = 0;
  FileFollower follower_{
      path(),
      {.restart =
           [this] {
             lines_.clear();
             ++restarts_;
           },
       .line = [this](const report::TextLine& line) { lines_.emplace_back(line.text); }}};
};

TEST_F(FollowedFile, GivesALineOnceItsEndIsThere) {
  EXPECT_THAT(polled(), IsEmpty());  // there is no file yet
  add("on");
  EXPECT_THAT(polled(), IsEmpty());
  EXPECT_TRUE(follower_.has_torn_end());
  add("e\ntwo\nth");
  EXPECT_THAT(polled(), ElementsAre("one", "two"));
  add("ree\n");
  EXPECT_THAT(polled(), ElementsAre("one", "two", "three"));
  EXPECT_THAT(polled(), ElementsAre("one", "two", "three"));
  EXPECT_EQ(restarts_, 0);
}

TEST_F(FollowedFile, BeginsAnewWhereTheFileWasCutOrOverwritten) {
  put("one\ntwo\nthree\n");
  EXPECT_THAT(polled(), ElementsAre("one", "two", "three"));
  fs::resize_file(path(), 4);
  EXPECT_THAT(polled(), ElementsAre("one"));
  put("other\n");  // the same file, and longer than what was read
  EXPECT_THAT(polled(), ElementsAre("other"));
  put("othes\nand more\n");
  EXPECT_THAT(polled(), ElementsAre("othes", "and more"));
  fs::remove(path());
  EXPECT_THAT(polled(), IsEmpty());
  put("last\n");
  EXPECT_THAT(polled(), ElementsAre("last"));
  EXPECT_EQ(restarts_, 4);
}

TEST_F(FollowedFile, FollowsARotationWithoutBeginningAnew) {
  put("1\n2\n");
  EXPECT_THAT(polled(), ElementsAre("1", "2"));
  add("3\n");
  rotate(3);
  EXPECT_THAT(polled(), ElementsAre("1", "2", "3"));  // after the rename, before the new file
  put("4\n");
  EXPECT_THAT(polled(), ElementsAre("1", "2", "3", "4"));
  add("5\n");
  rotate(3);
  put("6\n");
  EXPECT_THAT(polled(), ElementsAre("1", "2", "3", "4", "5", "6"));
  EXPECT_EQ(restarts_, 0);
}

TEST_F(FollowedFile, ReadsEarlierPartsFromTheOldestOn) {
  put("1\n");
  rotate(3);
  put("2\n");
  rotate(3);
  put("3\n");
  EXPECT_THAT(polled(), ElementsAre("1", "2", "3"));
}

TEST_F(FollowedFile, NamesWhatIsNoFile) {
  fs::create_directory(path());
  const Status status = follower_.poll();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), testing::HasSubstr(path()));
  fs::remove(path());
  put("1\n");
  EXPECT_THAT(polled(), ElementsAre("1"));
}

// After any history the result is all lines of all existing parts, in order.
TEST_F(FollowedFile, HasAllLinesAfterAnyHistory) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 draw(seed);
  constexpr int kParts = 2;
  std::vector<std::string> parts(1);  // the newest last
  int next = 0;
  for (int i = 0; i < 3000; ++i) {
    const auto kind = draw() % 100;
    if (kind < 70) {
      const std::string text = std::to_string(next++) + (draw() % 8 == 0 ? "" : "\n");
      parts.back() += text;
      add(text);
    } else if (kind < 76) {
      rotate(kParts);
      if (!parts.back().empty() || fs::exists(path() + ".1")) parts.emplace_back();
      if (parts.size() > kParts + 1) parts.erase(parts.begin());
      put("");
    } else if (kind < 79) {
      parts.back().resize(draw() % (parts.back().size() + 1));
      put("");
      add(parts.back());
    } else if (kind < 80) {
      parts.back() = "anew " + std::to_string(next++) + "\n" + parts.back();
      put(parts.back());
    } else {
      EXPECT_OK(follower_.poll());
    }
  }
  parts.back() += "end\n";
  add("end\n");
  std::vector<std::string> wanted;
  for (const std::string& part : parts) {
    report::LineSplitter split(
        [&](const report::TextLine& line) { wanted.emplace_back(line.text); });
    split.feed(part);
    split.finish();
  }
  // The lines before them may only be of parts that are gone.
  std::vector<std::string> last = polled();
  ASSERT_GE(last.size(), wanted.size());
  last.erase(last.begin(), last.end() - static_cast<std::ptrdiff_t>(wanted.size()));
  EXPECT_EQ(last, wanted);
}

}  // namespace
}  // namespace sluice::watch
