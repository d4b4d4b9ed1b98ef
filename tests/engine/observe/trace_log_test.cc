#include "engine/observe/trace_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>

#include "tests/aio/backends_under_test.h"

namespace sluice::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kHour = 3'600'000'000'000;

// A written trace, checked against the rules that Perfetto needs to show it correctly.
class Written {
 public:
  explicit Written(const TraceLog& log) {
    const std::string path = folder_.file("trace.json");
    const Status status = log.write_json(path);
    EXPECT_TRUE(status.ok()) << status.error().message();
    std::ifstream file(path);
    json = nlohmann::json::parse(file);
    check();
  }

  std::vector<nlohmann::json> spans() const {
    std::vector<nlohmann::json> found;
    for (const auto& event : json.at("traceEvents"))
      if (event.at("ph") == "X") found.push_back(event);
    return found;
  }
  std::string thread_name(const nlohmann::json& span) const {
    return names_.at(span.at("tid").get<int>());
  }
  std::multiset<std::string> thread_names() const {
    std::multiset<std::string> all;
    for (const auto& [thread, name] : names_) all.insert(name);
    return all;
  }
  nlohmann::json json;

 private:
  void check() {
    for (const auto& event : json.at("traceEvents")) {
      ASSERT_EQ(event.at("pid"), 1);
      if (event.at("ph") == "M") {
        if (event.at("name") == "thread_name") {
          EXPECT_TRUE(names_.emplace(event.at("tid"), event.at("args").at("name")).second);
        }
        continue;
      }
      ASSERT_EQ(event.at("ph"), "X");
      ASSERT_TRUE(event.at("ts").is_number() && event.at("dur").is_number());
      ASSERT_GE(event.at("ts").get<double>(), 0);
      ASSERT_GE(event.at("dur").get<double>(), 0);
      ASSERT_TRUE(names_.contains(event.at("tid"))) << "a span on a track without a name";
    }
    // Two spans of a thread do not overlap, or one contains the other.
    std::map<int, std::vector<std::pair<std::int64_t, std::int64_t>>> threads;
    for (const auto& span : spans()) {
      const auto ns = [&](const char* key) {
        return std::llround(span.at(key).get<double>() * 1e3);
      };
      threads[span.at("tid")].emplace_back(ns("ts"), ns("ts") + ns("dur"));
    }
    for (const auto& [thread, all] : threads) {
      for (const auto& a : all) {
        for (const auto& b : all) {
          const bool apart = a.second <= b.first || b.second <= a.first;
          const bool inside = (a.first <= b.first && b.second <= a.second) ||
                              (b.first <= a.first && a.second <= b.second);
          ASSERT_TRUE(apart || inside) << "thread " << thread << ": " << a.first << " " << b.first;
        }
      }
    }
  }
  const aio::TemporaryFolder folder_;
  std::map<int, std::string> names_;
};

TEST(TraceLog, WritesATrackAResourceWithNamesTimesAndArguments) {
  TraceLog log;
  log.start({.first_step = 3, .last_step = 3});
  log.begin_step(3, kHour);
  log.add({TraceTrack::kCompute, "forward", kHour + 1'000, kHour + 9'500});
  log.add({TraceTrack::kCompute,
           "h.\"0\"",
           kHour + 2'000,
           kHour + 3'001,
           {{{"unit", 1}, {"bytes", 1LL << 40}}}});
  log.add({TraceTrack::kNvmeWrite, "state out", kHour + 4'000, kHour + 5'000, {{{"bytes", 7}}}});
  const Written trace(log);
  EXPECT_THAT(trace.thread_names(),
              ElementsAre("AdamW", "D2H", "H2D", "NVMe read", "NVMe write", "compute"));
  const auto spans = trace.spans();
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans[0].at("name"), "forward");
  EXPECT_EQ(spans[0].at("ts"), 0.0);
  EXPECT_EQ(spans[0].at("dur"), 8.5);
  EXPECT_EQ(spans[1].at("name"), "h.\"0\"");
  EXPECT_EQ(spans[1].at("dur"), 1.001);
  EXPECT_EQ(spans[1].at("args"), (nlohmann::json{{"unit", 1}, {"bytes", 1LL << 40}}));
  EXPECT_EQ(trace.thread_name(spans[1]), "compute");
  EXPECT_EQ(trace.thread_name(spans[2]), "NVMe write");
  EXPECT_EQ(trace.json.at("otherData").at("dropped_spans"), 0);
}

TEST(TraceLog, HasATrackOfTheLinkWhereRanksHaveUsedIt) {
  TraceLog log;
  log.start({.first_step = 3, .last_step = 3});
  log.begin_step(3, kHour);
  log.add({TraceTrack::kLink, "h.0", kHour + 1'000, kHour + 2'000, {{{"bytes", 7}}}});
  const Written trace(log);
  EXPECT_THAT(trace.thread_names(),
              ElementsAre("AdamW", "D2H", "H2D", "NVMe read", "NVMe write", "compute", "link"));
  ASSERT_EQ(trace.spans().size(), 1U);
  EXPECT_EQ(trace.thread_name(trace.spans()[0]), "link");
}

TEST(TraceLog, SaysWhichPhaseOfWhichUnitASpanIsAndOfWhichRank) {
  TraceLog log;
  log.start({.first_step = 3, .last_step = 3});
  log.begin_step(3, kHour);
  log.add({.track = TraceTrack::kRun,
           .name = "step",
           .begin_ns = kHour,
           .end_ns = kHour + 9'000,
           .args = {{{"step", 3}}}});
  for (const char* phase : {"forward", "recompute", "backward"})
    log.add({.name = "h.0",
             .begin_ns = kHour + 1'000,
             .end_ns = kHour + 2'000,
             .args = {{{"wave", 1}, {"micro_batch", 5}}},
             .phase = phase});
  log.add({.track = TraceTrack::kWaits,
           .name = "h.0",
           .begin_ns = kHour + 2'000,
           .end_ns = kHour + 3'000,
           .phase = "await parameters"});
  const Written trace(log);
  EXPECT_THAT(trace.thread_names(), ElementsAre("AdamW", "D2H", "H2D", "NVMe read", "NVMe write",
                                                "compute", "run", "waits"));
  const auto spans = trace.spans();
  ASSERT_EQ(spans.size(), 5U);
  EXPECT_EQ(spans[0].at("args"), (nlohmann::json{{"step", 3}}));
  const std::string phases[] = {"forward", "recompute", "backward"};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(spans[i + 1].at("name"), phases[i] + " h.0");
    EXPECT_EQ(
        spans[i + 1].at("args"),
        (nlohmann::json{{"phase", phases[i]}, {"unit", "h.0"}, {"wave", 1}, {"micro_batch", 5}}));
  }
  EXPECT_EQ(spans[4].at("name"), "await parameters h.0");
  const auto of_rank = nlohmann::json::parse(
      "[" + log.events({.number = 2, .of_several = true, .origin_ns = kHour}) + "]");
  const auto wait = std::find_if(of_rank.begin(), of_rank.end(), [](const auto& event) {
    return event.at("name") == "await parameters h.0";
  });
  ASSERT_NE(wait, of_rank.end());
  EXPECT_EQ(wait->at("args"),
            (nlohmann::json{{"phase", "await parameters"}, {"unit", "h.0"}, {"rank", 2}}));
}

TEST(TraceLog, KeepsWhatOverlapsTheStepsAskedFor) {
  TraceLog log;
  log.start({.first_step = 2, .last_step = 3});
  const auto kept = [&](std::int64_t begin_ns, std::int64_t end_ns) {
    const std::size_t before = log.spans();
    log.add({TraceTrack::kAdamw, "x", begin_ns, end_ns});
    return log.spans() > before;
  };
  log.begin_step(1, 100);
  EXPECT_FALSE(log.active());
  EXPECT_FALSE(kept(110, 120));
  log.begin_step(2, 200);
  EXPECT_TRUE(log.active());
  EXPECT_TRUE(kept(150, 210));
  EXPECT_FALSE(kept(150, 190));  // reported late
  log.begin_step(3, 300);
  EXPECT_TRUE(kept(310, 320));
  log.begin_step(4, 400);
  EXPECT_FALSE(log.active());
  EXPECT_TRUE(kept(390, 450));  // begun in step 3
  EXPECT_FALSE(kept(400, 450));
  log.begin_step(5, 500);
  EXPECT_FALSE(kept(510, 520));
}

TEST(TraceLog, SaysWhenTheStepsAskedForBeganAndEnded) {
  TraceLog log;
  log.start({.first_step = 1, .last_step = 1});
  log.begin_step(1, kHour + 2'500);
  log.add({TraceTrack::kNvmeWrite, "x", kHour, kHour + 3'000});
  EXPECT_FALSE(Written(log).json.at("otherData").contains("window_us"));  // still open
  log.end_steps(kHour + 9'000);
  EXPECT_EQ(Written(log).json.at("otherData").at("window_us"), (nlohmann::json{2.5, 9.0}));
}

TEST(TraceLog, KeepsNothingUntilItIsStarted) {
  TraceLog log;
  log.begin_step(0, 100);
  EXPECT_FALSE(log.active());
  log.add({TraceTrack::kCompute, "x", 110, 120});
  EXPECT_EQ(log.spans(), 0U);
  EXPECT_EQ(log.dropped_spans(), 0U);
  EXPECT_TRUE(Written(log).spans().empty());
}

TEST(TraceLog, CountsWhatDoesNotFit) {
  TraceLog log;
  log.start({.first_step = 0, .last_step = 0, .capacity_spans = 5});
  log.begin_step(0, 0);
  for (int i = 0; i < 12; ++i) log.add({TraceTrack::kH2d, "x", 10 + i, 11 + i});
  EXPECT_EQ(log.spans(), 5U);
  EXPECT_EQ(log.dropped_spans(), 7U);
  const Written trace(log);
  EXPECT_EQ(trace.spans().size(), 5U);
  EXPECT_EQ(trace.json.at("otherData").at("dropped_spans"), 7);
}

TEST(TraceLog, PutsTransfersThatOverlapSideBySide) {
  TraceLog log;
  log.start({.first_step = 0, .last_step = 0});
  log.begin_step(0, 0);
  log.add({TraceTrack::kNvmeRead, "a", 10, 30});
  log.add({TraceTrack::kNvmeRead, "b", 15, 20});  // within a, but not a part of it
  log.add({TraceTrack::kNvmeRead, "c", 20, 40});
  log.add({TraceTrack::kNvmeRead, "d", 35, 50});
  const Written trace(log);
  std::map<std::string, std::string> thread_of;
  for (const auto& span : trace.spans()) thread_of[span.at("name")] = trace.thread_name(span);
  EXPECT_EQ(thread_of.at("a"), "NVMe read");
  EXPECT_EQ(thread_of.at("b"), "NVMe read 2");
  EXPECT_EQ(thread_of.at("c"), "NVMe read 2");
  EXPECT_EQ(thread_of.at("d"), "NVMe read");
}

TEST(TraceLog, IsWrittenWellForAnySpans) {
  const std::uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  TraceLog log;
  log.start({.first_step = 0, .last_step = 0});
  log.begin_step(0, 0);
  for (int i = 0; i < 600; ++i) {
    const auto begin = static_cast<std::int64_t>(1 + random() % 5000);
    const auto end = begin + static_cast<std::int64_t>(random() % 300);
    log.add({static_cast<TraceTrack>(random() % kTraceTracks), "x", begin, end});
  }
  EXPECT_EQ(Written(log).spans().size(), 600U);
}

TEST(TraceLog, TakesSpansFromManyThreadsAtOnce) {
  constexpr int kThreads = 6;
  constexpr int kSpans = 2000;
  TraceLog log;
  log.start({.first_step = 0, .last_step = 0, .capacity_spans = kThreads * kSpans - 100});
  log.begin_step(0, 0);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&log, thread] {
      for (int i = 0; i < kSpans; ++i)
        log.add({TraceTrack::kCompute, "x", 1 + i, 2 + i, {{{"thread", thread}, {"i", i}}}});
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(log.dropped_spans(), 100U);
  const aio::TemporaryFolder folder;
  ASSERT_OK(log.write_json(folder.file("trace.json")));
  std::ifstream file(folder.file("trace.json"));
  std::set<std::pair<int, int>> seen;
  const auto json = nlohmann::json::parse(file);
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("ph") == "X")
      seen.emplace(event.at("args").at("thread"), event.at("args").at("i"));
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kThreads * kSpans - 100));
}

class TickingClock final : public Clock {
 public:
  std::int64_t now_ns() const override { return ++ticks; }
  mutable std::int64_t ticks = 0;
};

TEST(TraceLog, LooksAtTheClockOnlyWhileItIsActive) {
  TraceLog log;
  TickingClock clock;
  { const TraceScope scope(log, clock, TraceTrack::kCompute, "x"); }
  EXPECT_EQ(clock.ticks, 0);
  log.start({.first_step = 0, .last_step = 0});
  log.begin_step(0, 0);
  { const TraceScope scope(log, clock, TraceTrack::kCompute, "x"); }
  EXPECT_EQ(clock.ticks, 2);
  const auto spans = Written(log).spans();
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].at("dur"), 0.001);
}

TEST(TraceLog, UnderstandsARangeOfSteps) {
  const auto range = [](const std::string& text) {
    const auto options = TraceLog::parse_steps(text);
    if (!options.ok()) return options.error().message();
    return std::to_string(options->first_step) + " to " + std::to_string(options->last_step);
  };
  EXPECT_EQ(range("10:12"), "10 to 12");
  EXPECT_EQ(range("7"), "7 to 7");
  for (const char* text :
       {"", ":", "1:", ":2", "2:1", "-1:2", "1:2:3", "a:b", "1 :2", "99999999999999999999"})
    EXPECT_THAT(range(text), HasSubstr("range of steps")) << text;
}

TEST(TraceLog, SaysWhereItCouldNotBeWritten) {
  const aio::TemporaryFolder folder;
  const Status status = TraceLog().write_json(folder.file("no/trace.json"));
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), HasSubstr(folder.file("no/trace.json")));
}

}  // namespace
}  // namespace sluice::engine
