// Files as left by a killed run, a full disk, two writers and malice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "aio/bounded_json.h"
#include "engine/observe/metrics_log.h"
#include "engine/observe/trace_log.h"
#include "tests/aio/backends_under_test.h"
#include "tools/report/json_text.h"
#include "tools/report/report_data.h"
#include "tools/report/report_page.h"
#include "tools/report/text_lines.h"

namespace sluice::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ReportFiles : public testing::Test {
 protected:
  void put(const std::string& name, const std::string& text) const {
    std::ofstream(folder_.file(name), std::ios::binary) << text;
  }
  static std::string step(int number, const std::string& more = "") {
    return "{\"step\":" + std::to_string(number) + ",\"loss\":" + std::to_string(number) + ".5" +
           more + "}\n";
  }
  Result<MetricsFile> metrics(const std::string& text) const {
    put("metrics.jsonl", text);
    return read_metrics_file(folder_.file("metrics.jsonl"), 100);
  }
  // The folder's current data, in the form that the page gets.
  nlohmann::json data() const {
    const auto run = read_run(path(), 100);
    EXPECT_OK(run);
    return nlohmann::json::parse(report_json({*run}, {}))["runs"][0];
  }
  std::string path() const { return folder_.path(); }

  const aio::TemporaryFolder folder_;
};

TEST_F(ReportFiles, TakesLinesThatARunWrote) {
  const auto log = engine::MetricsLog::resume(folder_.file("metrics.jsonl"), 0);
  ASSERT_OK(log);
  for (int number = 1; number <= 3; ++number) {
    engine::StepMetrics step;
    step.step = number;
    step.loss = 0.5 * number;
    step.tokens_seen = 100 * number;
    step.unix_s = 1.7e9 + number;
    step.step_ms = 250;
    step.skipped = number == 2;
    step.nvme_write_bytes = 1000;
    if (number == 3) step.val_loss = 2.5;
    ASSERT_OK((*log)->append(step));
  }
  put("config.json", "{}");
  const auto run = data();
  EXPECT_EQ(run["series"]["last"], nlohmann::json({1, 2, 3}));
  EXPECT_FALSE(run["series"].contains("first"));
  const auto& columns = run["series"]["columns"];
  EXPECT_EQ(columns["loss"]["v"], nlohmann::json({0.5, 1.0, 1.5}));
  EXPECT_EQ(columns["tokens_seen"]["v"], nlohmann::json({100, 200, 300}));
  EXPECT_EQ(columns["unix_s"]["v"][2], 1.7e9 + 3);
  EXPECT_EQ(columns["trained_s"]["v"], nlohmann::json({0.25, 0.5, 0.75}));
  EXPECT_EQ(columns["val_loss"]["v"], nlohmann::json({nullptr, nullptr, 2.5}));
  EXPECT_EQ(columns["step_ms"]["all"], 250);
  EXPECT_EQ(run["skipped"]["steps"], nlohmann::json({2}));
  EXPECT_EQ(run["drives"]["write_bytes"], 3000);
}

TEST_F(ReportFiles, TakesAllPartsFromTheOldestOn) {
  put("config.json", "{}");
  put("metrics.jsonl.12", step(1));
  put("metrics.jsonl.2", step(2) + step(3));
  put("metrics.jsonl.1", step(4));
  put("metrics.jsonl.x", step(9));
  put("events.jsonl.1", R"({"event":"warning","unix_s":1,"step":1,"text":"old"})"
                        "\n");
  put("events.jsonl", R"({"event":"warning","unix_s":2,"step":2,"text":"new"})"
                      "\n");
  EXPECT_EQ(data()["series"]["last"], nlohmann::json({1, 2, 3, 4}));
  put("metrics.jsonl", step(5));
  const auto run = data();
  EXPECT_EQ(run["series"]["last"], nlohmann::json({1, 2, 3, 4, 5}));
  ASSERT_EQ(run["events"].size(), 2U);
  EXPECT_EQ(run["events"][0]["text"], "old");
}

TEST_F(ReportFiles, DerivesTokensOfOlderLines) {
  const auto file = metrics(step(1, ",\"tokens_per_s\":400,\"step_ms\":500") +
                            step(2, ",\"tokens_per_s\":400,\"step_ms\":500"));
  ASSERT_OK(file);
  EXPECT_EQ(file->series.buckets()[1].cells[metric_column("tokens_seen")].most, 400);
}

TEST_F(ReportFiles, CountsLinesThatCannotBeReadAndTakesTheOthers) {
  const auto file = metrics(step(1) + "not json\n" + "[1,2]\n" + "{\"loss\":1}\n" +
                            "{\"step\":-4}\n" + "{\"step\":1.5}\n" + "{\"step\":1e400}\n" +
                            "{\"step\":3,\"loss\":NaN}\n" + "\n" + step(2));
  ASSERT_OK(file);
  EXPECT_EQ(file->lines, 2);
  EXPECT_EQ(file->bad_lines, 7);
  EXPECT_FALSE(file->has_torn_end);
}

TEST_F(ReportFiles, TakesTheBusiestAndAllIdleExpertsOfLists) {
  const auto file =
      metrics(step(1, R"(,"busiest_expert":[1.5,4,2],"idle_experts":[1,0,3],"balance_loss":2.5)") +
              step(2, R"(,"busiest_expert":[[9],{"a":9},null,"9",1],"idle_experts":{"a":[1]})") +
              step(3, R"(,"busiest_expert":[],"other":[7],"idle_experts":4)"));
  ASSERT_OK(file);
  EXPECT_EQ(file->lines, 3);
  const auto cell = [&](int line, const char* name) {
    return file->series.buckets()[static_cast<std::size_t>(line)].cells[metric_column(name)];
  };
  EXPECT_EQ(cell(0, "busiest_expert").most, 4);
  EXPECT_EQ(cell(0, "idle_experts").most, 4);
  EXPECT_EQ(cell(0, "balance_loss").most, 2.5);
  EXPECT_EQ(cell(1, "busiest_expert").most, 1);
  EXPECT_EQ(cell(1, "idle_experts").count, 0);
  EXPECT_EQ(cell(2, "busiest_expert").count, 0);
}

TEST_F(ReportFiles, LeavesATornEndOutAtAnyByte) {
  const std::string whole = step(1) + step(2);
  for (std::size_t length = step(1).size() + 1; length + 1 < whole.size(); ++length) {
    const auto file = metrics(whole.substr(0, length));
    ASSERT_OK(file);
    EXPECT_EQ(file->lines, 1) << length;
    EXPECT_TRUE(file->has_torn_end) << length;
    EXPECT_EQ(file->bad_lines, 0) << length;
  }
}

TEST_F(ReportFiles, ShowsNumbersThatAreNotFiniteAsMissingAndNamesTheirSteps) {
  const auto file = metrics(step(1) + "{\"step\":2,\"loss\":null,\"grad_norm\":null}\n" + step(3));
  ASSERT_OK(file);
  EXPECT_THAT(file->not_finite_loss.steps, ElementsAre(2));
  EXPECT_EQ(file->series.buckets()[1].cells[metric_column("loss")].count, 0);
}

TEST_F(ReportFiles, NamesMissingSteps) {
  put("metrics.jsonl", step(1) + step(5) + step(7));
  put("config.json", "{}");
  const auto run = data();
  EXPECT_EQ(run["gaps"], nlohmann::json::parse("[[2,4],[6,6]]"));
  EXPECT_THAT(run["notices"].dump(), HasSubstr("2 places: first 2 to 4"));
}

TEST_F(ReportFiles, ShowsBothOfTwoWriters) {
  put("metrics.jsonl", step(1) + step(2) + "{\"step\":2,\"loss\":9.5}\n" + step(3) + step(1));
  put("config.json", "{}");
  const auto run = data();
  EXPECT_EQ(run["series"]["columns"]["loss"]["hi"], nlohmann::json({1.5, 9.5, 3.5}));
  EXPECT_EQ(run["series"]["columns"]["loss"]["lo"], nlohmann::json({1.5, 2.5, 3.5}));
  EXPECT_THAT(run["notices"].dump(), HasSubstr("two programs"));
}

TEST_F(ReportFiles, PassesOverALineOfMegabytes) {
  const auto file =
      metrics(step(1) + std::string(std::size_t{2} * kMostLineBytes, '[') + "\n" + step(2));
  ASSERT_OK(file);
  EXPECT_EQ(file->lines, 2);
  EXPECT_EQ(file->bad_lines, 1);
  const auto deep = metrics(step(1) + std::string(kMostLineBytes / 2, '[') + "\n" + step(2));
  ASSERT_OK(deep);
  EXPECT_EQ(deep->lines, 2);
}

// A library that writes such a document recurses to its full depth.
TEST_F(ReportFiles, RefusesWhatIsNestedHundredsOfThousandsDeep) {
  for (const std::size_t depth : {std::size_t{60000}, std::size_t{900000}}) {
    std::string objects;
    std::string ends(depth, '}');
    for (std::size_t i = 0; i < depth; ++i) objects += "{\"a\":";
    const std::string arrays = std::string(depth, '[') + std::string(depth, ']');
    const std::string begin = "{\"event\":\"begin\",\"unix_s\":1,\"step\":1,\"machine\":";
    put("metrics.jsonl", step(1) + "{\"step\":2,\"a\":" + arrays + "}\n");
    put("config.json", "{\"a\":" + arrays + "}");
    put("events.jsonl", begin + arrays + "}\n" + begin + objects + "1" + ends + "}\n");
    put("trace.json", "{\"a\":" + arrays + "}\n");
    const auto run = data();
    EXPECT_EQ(run["events"].size(), 0U);
    EXPECT_THAT(run["notices"].dump(), HasSubstr("config.json cannot be read"));
    put("config.json", objects + "1" + ends);
    EXPECT_THAT(data()["notices"].dump(), HasSubstr("config.json cannot be read"));
  }
  EXPECT_FALSE(is_nested_too_deep("{\"[[\\\"[\":[" + std::string(500, '"') + "]}"));
}

TEST_F(ReportFiles, RefusesWhatIsNoRun) {
  EXPECT_EQ(read_run(folder_.file("absent"), 10).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(read_run(path(), 10).error().code(), ErrorCode::kNotFound);
  put("text", "words\n");
  EXPECT_EQ(read_run(folder_.file("text"), 10).error().code(), ErrorCode::kInvalidArgument);
  ASSERT_EQ(::mkfifo(folder_.file("pipe").c_str(), 0600), 0);
  EXPECT_EQ(read_run(folder_.file("pipe"), 10).error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(ReportFiles, SaysWhatIsMissingOrDamagedBesideTheMetrics) {
  put("metrics.jsonl", step(1));
  put("config.json", "{\"run\":");
  put("events.jsonl",
      "{\"event\":\"begin\"}\nwords\n{\"event\":\"end\",\"unix_s\":1,\"step\":1}\n{");
  const auto run = data();
  EXPECT_THAT(run["notices"].dump(), HasSubstr("config.json cannot be read"));
  EXPECT_THAT(run["notices"].dump(), HasSubstr("2 lines of"));
  EXPECT_EQ(run["events"].size(), 1U);
}

// A run's folder may come from another user, and the page is passed on.
TEST_F(ReportFiles, EmbedsNothingThatALinkLeadsTo) {
  const aio::TemporaryFolder elsewhere;
  const auto secret = [&](const std::string& name, const std::string& text) {
    std::ofstream(elsewhere.file(name)) << text;
    std::filesystem::create_symlink(elsewhere.file(name), folder_.file(name));
  };
  put("m.jsonl", step(7));
  std::filesystem::create_symlink("m.jsonl", folder_.file("metrics.jsonl"));  // stays inside
  secret("config.json", R"({"password": "swordfish"})");
  secret("events.jsonl",
         "{\"event\":\"warning\",\"unix_s\":1,\"step\":1,\"text\":\"swordfish\"}\n");
  secret("trace.json", "{\"a\":\"swordfish\"}");
  secret("metrics-cut.jsonl", step(5));
  const auto run = data();
  EXPECT_THAT(run.dump(), testing::Not(HasSubstr("swordfish")));
  for (const char* const name : {"config.json", "events.jsonl", "trace.json", "metrics-cut.jsonl"})
    EXPECT_THAT(run["notices"].dump(),
                HasSubstr(std::string(name) + " is a link to a file outside of the run's folder"));
  // A file that the user names is read, wherever it is.
  put("named", step(3));
  std::filesystem::create_symlink(folder_.file("named"), elsewhere.file("named"));
  const auto named = read_run(elsewhere.file("named"), 10);
  ASSERT_OK(named);
  EXPECT_EQ(named->metrics.lines, 1);
}

TEST_F(ReportFiles, SaysWhatChangedFromOneLifeToTheNext) {
  const auto begin = [](const std::string& steps) {
    return "{\"event\":\"begin\",\"unix_s\":1,\"step\":0,\"tiers\":{\"gpu\":{\"bytes\":5}},"
           "\"config\":[{\"path\":\"run.steps\",\"value\":\"" +
           steps + "\"},{\"path\":\"run.seed\",\"value\":\"1\"}]}\n";
  };
  put("metrics.jsonl", step(1));
  put("events.jsonl", begin("10") + begin("20"));
  const auto events = data()["events"];
  ASSERT_EQ(events.size(), 2U);
  EXPECT_FALSE(events[0].contains("config"));
  EXPECT_TRUE(events[1].contains("tiers"));
  EXPECT_EQ(events[1]["changes"], nlohmann::json::parse(R"([["run.steps","10","20"]])"));
}

// Compared with a trace of known spans, two of which overlap and one of which ends after the steps.
TEST_F(ReportFiles, AddsUpHowLongEachTrackOfATraceWasBusy) {
  engine::TraceLog log;
  log.start({.first_step = 1, .last_step = 1});
  log.begin_step(1, 1'000'000'000);
  using engine::TraceTrack;
  const auto add = [&](TraceTrack track, std::int64_t begin_ms, std::int64_t end_ms) {
    log.add({.track = track,
             .name = "x",
             .begin_ns = begin_ms * 1'000'000,
             .end_ns = end_ms * 1'000'000,
             .args = {{{"bytes", 1000}}}});
  };
  add(TraceTrack::kCompute, 1000, 1600);
  add(TraceTrack::kNvmeRead, 1000, 1200);
  add(TraceTrack::kNvmeRead, 1100, 1300);
  add(TraceTrack::kNvmeWrite, 1900, 2100);
  log.begin_step(2, 2'000'000'000);
  log.end_steps(2'000'000'000);
  ASSERT_OK(log.write_json(folder_.file("trace.json")));
  const auto trace = read_trace_file(folder_.file("trace.json"));
  ASSERT_OK(trace);
  EXPECT_NEAR(trace->window_s, 1.0, 1e-6);
  ASSERT_EQ(trace->tracks.size(), 3U);
  EXPECT_EQ(trace->tracks[1].name, "NVMe read");
  EXPECT_NEAR(trace->tracks[0].busy_s, 0.6, 1e-6);
  EXPECT_NEAR(trace->tracks[1].busy_s, 0.3, 1e-6);
  EXPECT_NEAR(trace->tracks[1].bytes, 2000, 1e-6);
  EXPECT_NEAR(trace->tracks[2].busy_s, 0.1, 1e-6);
  EXPECT_NEAR(trace->tracks[2].bytes, 500, 1);
  put("metrics.jsonl", step(1));
  EXPECT_EQ(data()["trace"]["tracks"].size(), 3U);
  put("trace.json", "{\"otherData\":{\"window_us\":[1]},\"traceEvents\":[\n{\"pid\":1}\n");
  EXPECT_FALSE(data().contains("trace"));
  EXPECT_THAT(data()["notices"].dump(), HasSubstr("trace.json cannot be read"));
}

TEST_F(ReportFiles, BoundsEvents) {
  std::string text;
  for (int i = 0; i < 700; ++i)
    text +=
        "{\"event\":\"warning\",\"unix_s\":1,\"step\":" + std::to_string(i) + ",\"text\":\"x\"}\n";
  text += "{\"event\":\"warning\",\"unix_s\":1,\"step\":1,\"text\":\"" + std::string(100000, 'y') +
          "\"}\n";
  put("events.jsonl", text);
  const auto events = read_events_file(folder_.file("events.jsonl"));
  ASSERT_OK(events);
  EXPECT_EQ(events->events.size(), EventsFile::kMostOfAKind);
  EXPECT_EQ(events->left_out, 200);
  EXPECT_EQ(events->bad_lines, 1);
  text.clear();
  for (int i = 0; i < 2001; ++i)
    text += R"({"event":"sample","unix_s":1,"step":1,"prompt":"a","text":"b"})"
            "\n";
  put("events.jsonl", text + R"({"event":"early_stop","unix_s":1,"step":1,"text":"c"})" + "\n");
  const auto samples = read_events_file(folder_.file("events.jsonl"));
  ASSERT_OK(samples);
  EXPECT_EQ(samples->events.size(), EventsFile::kMostSamples + 1);
  EXPECT_EQ(samples->left_out, 1);
  EXPECT_EQ(samples->bad_lines, 0);
}

// Random bytes are read or refused, and always make a page.
TEST_F(ReportFiles, MakeAPageOutOfAnyBytes) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 draw(seed);
  const std::string sound = step(1) + step(2, ",\"unit_hashes\":{\"a\":\"b\"}") + step(3) +
                            "{\"event\":\"warning\",\"unix_s\":1,\"step\":1,\"text\":\"t\"}\n" +
                            "{\"model\":{\"layers\":[1,2,{\"a\":null}]}}\n";
  for (int round = 0; round < 60; ++round) {
    for (const char* const name :
         {"metrics.jsonl", "events.jsonl", "config.json", "metrics-cut.jsonl", "trace.json"}) {
      std::string text = sound;
      for (unsigned i = draw() % 12; i > 0; --i) {
        const std::size_t at = draw() % text.size();
        if (draw() % 3 == 0)
          text.erase(at, 1 + draw() % 9);
        else
          text[at] = static_cast<char>(draw());
        if (text.empty()) text = "{";
      }
      put(name, text);
    }
    const auto run = read_run(path(), 10);
    ASSERT_OK(run);
    const std::string json = report_json({*run}, {});
    ASSERT_TRUE(nlohmann::json::accept(json));
    ASSERT_EQ(json.find_first_of("<>&"), json.npos);
  }
}

}  // namespace
}  // namespace sluice::report
