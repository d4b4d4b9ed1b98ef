#include "engine/observe/event_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/observe/log_parts.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::engine {
namespace {

class EventLogTest : public testing::Test {
 protected:
  std::vector<std::string> lines() const {
    std::ifstream in(path_);
    std::vector<std::string> all;
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
  }

  const aio::TemporaryFolder folder_;
  const std::string path_ = folder_.file("events.jsonl");
};

TEST_F(EventLogTest, WritesWhatWaitedBeforeTheFileWasOpen) {
  EventLog log;
  log.note("warning", 0, EventLog::member("text", "early \"and\" \xff broken\n"));
  ASSERT_OK(log.flush());
  EXPECT_TRUE(lines().empty());
  ASSERT_OK(log.open(path_));
  log.note("end", 7, {});
  ASSERT_OK(log.flush());
  ASSERT_EQ(lines().size(), 2U);
  const auto first = nlohmann::json::parse(lines()[0]);
  EXPECT_EQ(first["event"], "warning");
  EXPECT_EQ(first["text"], "early \"and\" \xef\xbf\xbd broken\n");
  EXPECT_GT(first["unix_s"], 1.6e9);
  EXPECT_EQ(nlohmann::json::parse(lines()[1])["step"], 7);
}

TEST_F(EventLogTest, EndsALineThatAKillToreAndAddsBehindIt) {
  std::ofstream(path_) << "{\"event\":\"be";
  EventLog log;
  ASSERT_OK(log.open(path_));
  log.note("end", 1, {});
  ASSERT_OK(log.flush());
  ASSERT_EQ(lines().size(), 2U);
  EXPECT_EQ(lines()[0], "{\"event\":\"be");
  EXPECT_EQ(nlohmann::json::parse(lines()[1])["event"], "end");
}

TEST_F(EventLogTest, KeepsNoMoreThanItsBoundAndCountsTheRest) {
  EventLog log;
  const std::string long_text(EventLog::kMostWaitingBytes / 4, 'x');
  for (int i = 0; i < 6; ++i) log.note("warning", i, EventLog::member("text", long_text));
  EXPECT_EQ(log.lost_events(), 3);
  ASSERT_OK(log.open(path_));
  ASSERT_OK(log.flush());
  EXPECT_EQ(lines().size(), 3U);
}

TEST_F(EventLogTest, TakesEventsOfAllThreadsWhole) {
  EventLog log;
  ASSERT_OK(log.open(path_));
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&log, thread] {
      for (int i = 0; i < 200; ++i) log.note("warning", thread, EventLog::member("text", "x"));
    });
  for (int i = 0; i < 50; ++i) ASSERT_OK(log.flush());
  for (std::thread& thread : threads) thread.join();
  ASSERT_OK(log.flush());
  ASSERT_EQ(lines().size(), 800U);
  for (const std::string& line : lines()) EXPECT_TRUE(nlohmann::json::accept(line)) << line;
}

TEST_F(EventLogTest, FailsWhereTheFileCannotBeMade) {
  EventLog log;
  EXPECT_FALSE(log.open(folder_.file("absent/events.jsonl")).ok());
  log.note("end", 1, {});  // ignored without harm
}

TEST_F(EventLogTest, BeginsAPartWhereWhatIsWrittenWouldNotFit) {
  constexpr std::uint64_t kPartBytes = 400;
  std::vector<std::string> heard;
  for (int life = 0; life < 2; ++life) {
    EventLog log;
    log.set_listener([&](std::string_view line) { heard.emplace_back(line); });
    ASSERT_OK(log.open(path_, kPartBytes));
    for (int i = 0; i < 20; ++i) {
      log.note("warning", 20 * life + i, EventLog::member("text", "some text"));
      ASSERT_OK(log.flush());
    }
  }
  const auto parts = log_parts(path_);
  EXPECT_GT(parts.size(), 5U);
  std::string all;
  for (const std::string& part : parts) {
    EXPECT_LE(std::filesystem::file_size(part), kPartBytes);
    std::ifstream in(part, std::ios::binary);
    all.append(std::istreambuf_iterator<char>(in), {});
  }
  std::string expected;
  for (const std::string& line : heard) expected += line;
  EXPECT_EQ(all, expected);
  EXPECT_EQ(heard.size(), 40U);
}

}  // namespace
}  // namespace sluice::engine
