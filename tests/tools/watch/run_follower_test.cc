// Follows runs by files as they are written, with the test's own clock and lock.
#include "tools/watch/run_follower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "engine/observe/event_log.h"
#include "tests/aio/backends_under_test.h"
#include "tools/watch/web_pages.h"

namespace sluice::watch {
namespace {

using nlohmann::json;
using testing::HasSubstr;
namespace fs = std::filesystem;

class FollowedRun : public testing::Test {
 protected:
  void add(const std::string& name, const std::string& text) const {
    std::ofstream(folder_.file(name), std::ios::binary | std::ios::app) << text;
  }
  static std::string step(std::int64_t number, double unix_s = 0, const std::string& more = "") {
    return "{\"step\":" + std::to_string(number) + ",\"loss\":" + std::to_string(4.0 / number) +
           ",\"tokens_per_s\":1000,\"step_ms\":100,\"forward_ms\":30,\"backward_ms\":60,"
           "\"update_exposed_ms\":5,\"nvme_write_bytes\":1000,\"unix_s\":" +
           std::to_string(unix_s) + more + "}\n";
  }
  static std::string event(const std::string& kind, std::int64_t number, double unix_s,
                           const std::string& more = "") {
    return "{\"event\":\"" + kind + "\",\"step\":" + std::to_string(number) +
           ",\"unix_s\":" + std::to_string(unix_s) + more + "}\n";
  }
  const RunView& polled() {
    follower_.poll();
    return follower_.view();
  }

  const aio::TemporaryFolder folder_;
  double now_s_ = engine::unix_seconds();
  double steady_s_ = 1000;
  RunLock lock_ = RunLock::kHeld;
  RunFollower follower_{{.path = folder_.path(),
                         .name = "demo",
                         .most_buckets = 20,
                         .now_unix_s = [this] { return now_s_; },
                         .steady_s = [this] { return steady_s_; },
                         .lock = [this](const std::string&) { return lock_; }}};
};

TEST_F(FollowedRun, TakesTheStepsOfTheConfigurationOnlyBeforeItHasBegun) {
  add("config.json", R"({"run": {"steps": 20}})");
  EXPECT_EQ(polled().facts.total_steps, 20);
  add("events.jsonl", event("begin", 0, now_s_));  // a module's begin: length unknown
  EXPECT_FALSE(polled().facts.total_steps.has_value());
}

TEST_F(FollowedRun, ReadsEventsWhoseFileIsAboutToBeBegunAnew) {
  add("events.jsonl", event("begin", 0, now_s_, ",\"steps\":20"));
  EXPECT_EQ(polled().facts.total_steps, 20);
  fs::rename(folder_.file("events.jsonl"), folder_.file("events.jsonl.1"));
  EXPECT_EQ(polled().facts.total_steps, 20);
}

TEST_F(FollowedRun, ShowsSampleTextsAndWhyItStoppedEarly) {
  add("events.jsonl", event("begin", 0, now_s_, ",\"steps\":20") +
                          event("sample", 4, now_s_, R"(,"prompt":"The","text":" drive\nspins")") +
                          event("early_stop", 8, now_s_, R"(,"text":"stopped early: why")") +
                          event("end", 8, now_s_, R"(,"how":"completed")"));
  const auto& rows = polled().facts.events;
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[1].text, "The drive spins");
  EXPECT_EQ(rows[1].kind, EventRow::Kind::kSample);
  EXPECT_EQ(rows[2].text, "stopped early: why");
  EXPECT_EQ(polled().phase, RunPhase::kCompleted);
  EXPECT_EQ(polled().facts.checkpoints, 0);
}

TEST_F(FollowedRun, CountsLinesThatAreTooLong) {
  add("metrics.jsonl", step(1) + std::string(report::kMostLineBytes + 1, 'x') + "\n" + step(2));
  EXPECT_EQ(polled().lines, 2);
  EXPECT_EQ(follower_.record().metrics.bad_lines, 1);
  EXPECT_EQ(polled().lines, 2);
  EXPECT_EQ(follower_.record().metrics.bad_lines, 1);
}

TEST_F(FollowedRun, ConcludesWhatTheRunIsAt) {
  EXPECT_EQ(polled().phase, RunPhase::kWaiting);
  add("config.json", R"({"run": {"eval_every": 10, "checkpoint_every": 5, "steps": 20}})");
  EXPECT_EQ(polled().phase, RunPhase::kStarting);
  lock_ = RunLock::kFree;
  EXPECT_EQ(polled().phase, RunPhase::kStopped);
  lock_ = RunLock::kHeld;
  add("events.jsonl", event("begin", 0, now_s_, ",\"steps\":20"));
  EXPECT_EQ(polled().phase, RunPhase::kStarting);
  const double began_s = now_s_;
  for (int i = 1; i <= 4; ++i) add("metrics.jsonl", step(i, began_s + i));
  now_s_ = began_s + 4.1;
  EXPECT_EQ(polled().phase, RunPhase::kTraining);
  EXPECT_NEAR(*polled().left_s, 16, 0.1);
  add("metrics.jsonl", step(5, began_s + 5));
  EXPECT_EQ(polled().phase, RunPhase::kSaving);
  add("events.jsonl", event("checkpoint", 5, began_s + 5.5, ",\"bytes\":10,\"took_s\":1"));
  EXPECT_EQ(polled().phase, RunPhase::kTraining);
  EXPECT_EQ(polled().facts.checkpoints, 1);
  for (int i = 6; i <= 9; ++i) add("metrics.jsonl", step(i, began_s + i));
  now_s_ = began_s + 9.5;
  EXPECT_EQ(polled().phase, RunPhase::kTraining);
  now_s_ = began_s + 12;  // step 10 is overdue: its evaluation runs
  EXPECT_EQ(polled().phase, RunPhase::kEvaluating);
  add("metrics.jsonl", step(10, began_s + 12, ",\"val_loss\":0.5"));
  EXPECT_EQ(polled().phase, RunPhase::kSaving);
  EXPECT_EQ(polled().val_loss, 0.5);
  add("events.jsonl", event("end", 10, began_s + 13, R"(,"how":"failed","reason":"disk full")"));
  EXPECT_EQ(polled().phase, RunPhase::kFailed);
  EXPECT_EQ(polled().facts.end_reason, "disk full");
  EXPECT_FALSE(polled().left_s);
  now_s_ = began_s + 100;  // another process holds the lock again
  EXPECT_EQ(polled().phase, RunPhase::kStarting);
}

TEST_F(FollowedRun, IsCrashedWhenItDidNotEndAndNobodyHoldsItsLock) {
  add("events.jsonl", event("begin", 0, now_s_, ",\"steps\":20"));
  add("metrics.jsonl", step(1, now_s_) + step(2, now_s_ + 1));
  lock_ = RunLock::kFree;
  EXPECT_EQ(polled().phase, RunPhase::kTraining);  // it may be ending just now
  now_s_ += 30;
  EXPECT_EQ(polled().phase, RunPhase::kCrashed);
  lock_ = RunLock::kUnknown;
  EXPECT_EQ(polled().phase, RunPhase::kTraining);
  now_s_ += 3600;
  EXPECT_EQ(polled().phase, RunPhase::kSilent);
  fs::remove(folder_.file("events.jsonl"));
  lock_ = RunLock::kFree;
  EXPECT_EQ(polled().phase, RunPhase::kStopped);
}

TEST_F(FollowedRun, IsCrashedWhereTheClockWasSetBackMeanwhile) {
  add("events.jsonl", event("begin", 0, now_s_));
  add("metrics.jsonl", step(1, now_s_));
  now_s_ -= 3600;
  EXPECT_EQ(polled().phase, RunPhase::kTraining);
  lock_ = RunLock::kFree;
  steady_s_ += 4;
  add("metrics.jsonl", step(2, now_s_));
  EXPECT_EQ(polled().phase, RunPhase::kTraining);
  steady_s_ += 4;
  EXPECT_EQ(polled().phase, RunPhase::kTraining);
  steady_s_ += 2;
  EXPECT_EQ(polled().phase, RunPhase::kCrashed);
}

TEST_F(FollowedRun, ReadsOnWhereAFileIsALinkToItself) {
  for (const char* const name : {"config.json", "events.jsonl", "trace.json", "metrics-cut.jsonl"})
    fs::create_symlink(name, folder_.file(name));
  add("metrics.jsonl", step(3));
  EXPECT_EQ(polled().last->step, 3);
}

TEST_F(FollowedRun, SeesARealLockWithoutTakingIt) {
  EXPECT_EQ(run_lock(folder_.path()), RunLock::kFree);
  add("lock", "");
  EXPECT_EQ(run_lock(folder_.path()), RunLock::kFree);  // left by a killed run
  const int file = ::open(folder_.file("lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(file, LOCK_EX | LOCK_NB), 0);
  EXPECT_EQ(run_lock(folder_.path()), RunLock::kHeld);
  ::close(file);
  EXPECT_EQ(run_lock(folder_.path()), RunLock::kFree);
  EXPECT_FALSE(lists_lock("1: POSIX  ADVISORY  WRITE 7 fe:00:12 0 EOF\n2: FLOCK \n", 12));
  EXPECT_TRUE(lists_lock("1: FLOCK  ADVISORY  WRITE 7 fe:00:12 0 EOF", 12));
}

TEST_F(FollowedRun, ForgetsARunThatWasOverwritten) {
  for (int i = 1; i <= 30; ++i) add("metrics.jsonl", step(i, now_s_ + i));
  EXPECT_EQ(polled().last->step, 30);
  const std::string cursor = follower_.cursor();
  std::ofstream(folder_.file("metrics.jsonl")) << step(1, now_s_ + 40);
  EXPECT_EQ(polled().last->step, 1);
  EXPECT_EQ(polled().written_bytes, 1000);
  EXPECT_EQ(json::parse(follower_.increment(cursor))["keep_points"], 0);
}

TEST_F(FollowedRun, DoesNotReadThroughALinkOutOfTheFolder) {
  const aio::TemporaryFolder elsewhere;
  std::ofstream(elsewhere.file("secret.json")) << R"({"password": "swordfish"})";
  std::ofstream(elsewhere.file("m.jsonl")) << step(7);
  fs::create_symlink(elsewhere.file("secret.json"), folder_.file("config.json"));
  fs::create_symlink(elsewhere.file("m.jsonl"), folder_.file("metrics.jsonl"));
  EXPECT_FALSE(polled().last);
  const std::string all = follower_.increment("0");
  EXPECT_THAT(all, testing::Not(HasSubstr("swordfish")));
  EXPECT_THAT(all, HasSubstr("config.json is a link"));
  EXPECT_THAT(all, HasSubstr("metrics.jsonl is a link"));
  // A link that stays inside the folder is read.
  fs::remove(folder_.file("metrics.jsonl"));
  std::ofstream(folder_.file("m.jsonl")) << step(7);
  fs::create_symlink("m.jsonl", folder_.file("metrics.jsonl"));
  EXPECT_EQ(polled().last->step, 7);
}

// Code that checks the name and then opens it failed in one of some hundred polls.
TEST_F(FollowedRun, DoesNotReadThroughALinkThatIsSwappedInMeanwhile) {
  const aio::TemporaryFolder elsewhere;
  std::ofstream(elsewhere.file("secret.json")) << R"({"password": "swordfish"})";
  std::ofstream(elsewhere.file("m.jsonl")) << step(7);
  add("mine.json", R"({"mine": 1})");
  add("mine.jsonl", step(3));
  std::atomic<bool> ends = false;
  std::thread swaps([&] {
    const std::string next = folder_.file("next");
    while (!ends) {
      for (const auto& [name, theirs, mine] :
           {std::array<std::string, 3>{"config.json", "secret.json", "mine.json"},
            std::array<std::string, 3>{"metrics.jsonl", "m.jsonl", "mine.jsonl"}}) {
        fs::create_symlink(elsewhere.file(theirs), next);
        fs::rename(next, folder_.file(name));
        fs::copy_file(folder_.file(mine), next);
        fs::rename(next, folder_.file(name));
      }
    }
  });
  constexpr int kPolls = 1500;
  for (int i = 0; i < kPolls; ++i) {
    const RunView& seen = polled();
    if (seen.last) {
      EXPECT_EQ(seen.last->step, 3);
    }
    EXPECT_THAT(follower_.increment("0"), testing::Not(HasSubstr("swordfish")));
  }
  ends = true;
  swaps.join();
}

// Applies an increment like the page's script.
json whole_column(const json& column, std::size_t count) {
  if (column.is_null()) return json(std::vector<json>(count));
  return column.contains("all") ? json(std::vector<json>(count, column["all"])) : column["v"];
}

void show_on(json& page, const json& added) {
  const auto keep = added["keep_points"].get<std::size_t>();
  const json& series = added["series"];
  const std::size_t count = series["last"].size();
  if (keep == 0) page["columns"] = json::object();
  json columns = json::object();
  std::set<std::string> names;
  for (const auto& part : {page["columns"], series["columns"]})
    for (const auto& [name, column] : part.items()) names.insert(name);
  for (const std::string& name : names) {
    json values = page["columns"].value(name, json(std::vector<json>(page["last"].size())));
    while (values.size() > keep) values.erase(values.size() - 1);
    for (const json& value : whole_column(series["columns"].value(name, json()), count))
      values.push_back(value);
    columns[name] = values;
  }
  while (page["last"].size() > keep) page["last"].erase(page["last"].size() - 1);
  for (const json& last : series["last"]) page["last"].push_back(last);
  page["columns"] = columns;
  const auto events = added["keep_events"].get<std::size_t>();
  while (page["events"].size() > events) page["events"].erase(page["events"].size() - 1);
  for (const json& one : added["events"]) page["events"].push_back(one);
}

TEST_F(FollowedRun, GivesIncrementsThatMakeUpTheWhole) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 draw(seed);
  const json nothing = {
      {"last", json::array()}, {"columns", json::object()}, {"events", json::array()}};
  json page = nothing;
  std::string cursor = "0";
  std::int64_t number = 0;
  std::size_t sent = 0;
  std::size_t whole_sent = 0;
  for (int i = 0; i < 200; ++i) {
    for (auto k = draw() % 5; k > 0; --k) {
      ++number;
      if (draw() % 40 == 0) number = std::max<std::int64_t>(1, number - 10);  // two writers
      add("metrics.jsonl",
          draw() % 30 == 0 ? "not JSON\n"
                           : step(number, now_s_ + i, draw() % 10 == 0 ? ",\"val_loss\":1.5" : ""));
    }
    if (draw() % 20 == 0)
      add("events.jsonl",
          event(draw() % 3 == 0 ? "begin" : "warning", number, now_s_, ",\"text\":\"x\""));
    if (draw() % 60 == 0) {
      fs::resize_file(folder_.file("metrics.jsonl"), 0);
      number = 0;
    }
    follower_.poll();
    const std::string added = follower_.increment(cursor);
    cursor = follower_.cursor();
    sent += added.size();
    if (added != "null") show_on(page, json::parse(added));
    json whole = nothing;
    const std::string all = follower_.increment("0");
    whole_sent += all.size();
    show_on(whole, json::parse(all));
    ASSERT_EQ(page, whole) << "after poll " << i;
  }
  EXPECT_EQ(follower_.increment(cursor), "null");
  EXPECT_LT(sent, whole_sent * 3 / 4);  // 20 points, which are rebucketed at times
}

TEST_F(FollowedRun, TakesAnyCursorForNoneOfItsOwn) {
  add("metrics.jsonl", step(1) + step(2));
  polled();
  const std::string whole = follower_.increment("0");
  for (const std::string& cursor :
       {std::string(), std::string("1.1.1.999999999.1.99999.1.1"), std::string("../../etc/passwd"),
        std::string("9223372036854775807.1.1.1.1.1.1.1"), std::string(10'000, '.'),
        std::string("1.1.3.-2.1.0.1.2"), std::string("1.1.0.0.0.0.0.0.0.0.0.0")})
    EXPECT_EQ(json::parse(follower_.increment(cursor))["series"], json::parse(whole)["series"])
        << cursor;
}

TEST_F(FollowedRun, ShowsWhatAnybodyWroteAndNoMore) {
  const std::string deep(100'000, '[');
  add("metrics.jsonl", "{\"step\":1,\"loss\":null}\n{\"step\":-3}\n{\"step\":1e300}\n" + deep +
                           "\n{\"step\":2,\"loss\":1e999,\"lr\":\"x\"}\n\x1b[2J\xff\xfe\n" +
                           "{\"step\":9007199254740992,\"loss\":-1}\n{\"step\":2,\"lo");
  add("events.jsonl",
      "{\"event\":\"begin\",\"step\":0,\"unix_s\":1e308,\"tiers\":{\"gpu\":[1]},"
      "\"plan\":{\"step_s\":1e-300,\"busy_s\":{\"x\":1e300}},\"steps\":-5,"
      "\"model\":{\"family\":7}}\n" +
          deep + "\n");
  add("config.json", deep);
  add("trace.json", deep);
  const RunView& view = polled();
  EXPECT_EQ(view.facts.begins, 1);
  EXPECT_FALSE(view.facts.total_steps);
  EXPECT_GE(view.notices.size(), 3U);
  EXPECT_TRUE(json::accept(follower_.increment("0")));
  const RunFollower* const run = &follower_;
  EXPECT_THAT(exposition({&run, 1}), HasSubstr("sluice_step{run=\"demo\"} "));
}

TEST_F(FollowedRun, ExposesEveryNumberOfTheMetrics) {
  std::string line = "{\"step\":3";
  for (const std::string& name : report::metric_columns())
    if (name != "trained_s") line += ",\"" + name + "\":2000";
  add("metrics.jsonl", line + "}\n");
  polled();
  const RunFollower* const run = &follower_;
  const std::string text = exposition({&run, 1});
  const auto samples = std::count(text.begin(), text.end(), '\n');
  for (const char* const sample :
       {"sluice_step_seconds{run=\"demo\"} 2\n",
        "sluice_nvme_write_bytes_total{run=\"demo\"} 2000\n",
        "# TYPE sluice_nvme_write_bytes_total counter\n", "sluice_loss_nats{run=\"demo\"} 2000\n",
        "sluice_gpu_peak_bytes{run=\"demo\"} 2000\n",
        "sluice_tokens_seen_total{run=\"demo\"} 2000\n",
        "sluice_last_step_timestamp_seconds{run=\"demo\"} 2000\n"})
    EXPECT_THAT(text, HasSubstr(sample));
  // Every column is there under some name: all samples of 2000 or 2 except one come from that line.
  std::size_t found = 0;
  for (std::size_t at = text.find("\"} 2"); at != text.npos; at = text.find("\"} 2", at + 1))
    ++found;
  EXPECT_GE(found, report::metric_columns().size() - 1) << samples;
}

}  // namespace
}  // namespace sluice::watch
