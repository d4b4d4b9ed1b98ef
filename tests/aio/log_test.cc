#include "aio/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace sluice::log {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

class LogTest : public testing::Test {
 protected:
  void TearDown() override {
    set_sink({});
    set_listener({});
  }
  void capture() {
    set_sink([this](Level level, std::string_view message) {
      const std::lock_guard lock(mutex_);
      messages_.emplace_back(level, std::string(message));
    });
  }
  std::mutex mutex_;
  std::vector<std::pair<Level, std::string>> messages_;
};

TEST_F(LogTest, LetsAListenerHearWhatGoesToTheSinkUntilItIsRemoved) {
  capture();
  std::vector<std::pair<Level, std::string>> heard;
  set_listener([&](Level level, std::string_view text) { heard.emplace_back(level, text); });
  info("i");
  warning_once("k", "w");
  warning_once("k", "w");
  set_listener({});
  error("e");
  EXPECT_THAT(heard, ElementsAre(Pair(Level::kInfo, "i"), Pair(Level::kWarning, "w")));
  EXPECT_EQ(messages_.size(), 3U);
}

TEST_F(LogTest, SendsEachLevelToTheSink) {
  capture();
  info("i");
  warning("w");
  error("e");
  EXPECT_THAT(messages_, ElementsAre(Pair(Level::kInfo, "i"), Pair(Level::kWarning, "w"),
                                     Pair(Level::kError, "e")));
}

TEST_F(LogTest, WritesOneLineOnStandardErrorWithItsLevel) {
  testing::internal::CaptureStderr();
  warning("the disk is nearly full: {} {0} %s");  // not a format: printed unchanged
  info("second");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("warning] the disk is nearly full: {} {0} %s\n"));
  EXPECT_THAT(text, HasSubstr("info] second\n"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

TEST_F(LogTest, SaysAOnceMessageOncePerKeyUntilTheSinkChanges) {
  capture();
  for (int i = 0; i < 3; ++i) {
    warning_once("a", "first a");
    info_once("b", "first b");
    warning_once("b", "never: the key is taken");
  }
  EXPECT_THAT(messages_,
              ElementsAre(Pair(Level::kWarning, "first a"), Pair(Level::kInfo, "first b")));
  capture();
  warning_once("a", "again");
  EXPECT_EQ(messages_.size(), 3U);
}

TEST_F(LogTest, AnEmptySinkRestoresStandardError) {
  capture();
  set_sink({});
  testing::internal::CaptureStderr();
  info("back");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("back"));
  EXPECT_TRUE(messages_.empty());
}

TEST_F(LogTest, ASinkMayLogAndChangeTheSink) {
  int calls = 0;
  set_sink([&](Level, std::string_view) {
    if (++calls == 1) {
      info("from inside");
      set_sink({});
    }
  });
  info("outside");
  EXPECT_EQ(calls, 2);
}

TEST_F(LogTest, TakesMessagesFromManyThreads) {
  capture();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 200; ++i) {
        info("many");
        warning_once("only", "only");
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(
      std::count(messages_.begin(), messages_.end(), std::pair(Level::kInfo, std::string("many"))),
      800);
  EXPECT_EQ(messages_.size(), 801U);
}

}  // namespace
}  // namespace sluice::log
