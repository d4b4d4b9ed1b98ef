// Which run is the median, which shape is best, which files may be replaced.
#include "bench/aio_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "bench/aio_sweep.h"
#include "bench/result_file.h"

namespace sluice::bench {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

RunResult run_of(double gb_per_s, bool interrupted = false) {
  RunResult run;
  run.seconds = 1;
  run.read_bytes = static_cast<std::uint64_t>(gb_per_s * 1e9);
  run.interrupted = interrupted;
  return run;
}

TEST(MedianRun, IsTheMiddleOneWhateverTheOrder) {
  EXPECT_DOUBLE_EQ(median_run({run_of(3), run_of(1), run_of(2)}).gb_per_s(), 2);
}

TEST(MedianRun, IsTheSlowerMiddleOneOfAnEvenNumber) {
  EXPECT_DOUBLE_EQ(median_run({run_of(4), run_of(1), run_of(2), run_of(3)}).gb_per_s(), 2);
}

TEST(MedianRun, LeavesInterruptedRunsOut) {
  EXPECT_DOUBLE_EQ(median_run({run_of(3), run_of(1, true), run_of(4)}).gb_per_s(), 3);
}

SweepPoint point(std::uint64_t block_bytes, int depth, std::vector<std::optional<double>> speeds) {
  AioSession::Options shape;
  shape.block_bytes = block_bytes;
  shape.queue_depth = depth;
  return {.shape = shape, .gb_per_s = std::move(speeds)};
}

TEST(BestPoint, IsTheFastestBeyondTheTie) {
  const std::vector<SweepPoint> points{point(1 << 20, 4, {2.0, 2.2}), point(1 << 20, 64, {3, 3}),
                                       point(1 << 20, 8, {2.9, 2.9})};
  EXPECT_EQ(best_point(points).shape.queue_depth, 64);
}

TEST(BestPoint, TakesTheLeastMemoryAmongEquals) {
  const std::vector<SweepPoint> points{point(1 << 20, 64, {3, 3}), point(1 << 18, 32, {2.96, 2.96}),
                                       point(1 << 20, 32, {2.99, 2.99})};
  EXPECT_EQ(best_point(points).shape.bytes_in_flight(), 8U << 20);
}

TEST(Sweep, ShowsNoSpeedOfAShapeWithWhichNothingCompleted) {
  const std::vector<SweepPoint> points{point(1 << 20, 4, {std::nullopt, std::nullopt}),
                                       point(1 << 20, 8, {1.0, std::nullopt})};
  const SweepPoint& best = best_point(points);
  EXPECT_EQ(best.shape.queue_depth, 8);
  EXPECT_DOUBLE_EQ(*best.mean(), 0.5);
  const std::string table = sweep_tables(points, best);
  EXPECT_THAT(table, HasSubstr(" - "));
  EXPECT_THAT(table, HasSubstr("[0.500]"));
  EXPECT_THAT(table, testing::Not(HasSubstr("0.000")));
  AioOptions options;
  options.modes = {Mode::kRead};
  const auto json = nlohmann::json::parse(sweep_json({}, options, points, best));
  EXPECT_TRUE(json["sweep"]["points"][0]["gb_per_s"].is_null());
  EXPECT_TRUE(json["sweep"]["points"][0]["tries_gb_per_s"][1].is_null());
  EXPECT_EQ(json["sweep"]["points"][1]["gb_per_s"], 0.5);
}

TEST(RunResult, OfAMixedRunNeedsReadsAndWrites) {
  RunResult run;
  run.mode = Mode::kMixed;
  run.operations = 3;
  run.written_bytes = 3 << 20;
  run.shape.block_bytes = 1 << 20;
  EXPECT_FALSE(run.has_every_kind());
  EXPECT_THAT(nothing_completed(run, 0.5).message(), ContainsRegex("1M.*0.5 s"));
  run.mode = Mode::kWrite;
  EXPECT_TRUE(run.has_every_kind());
}

TEST(SweepGrid, LeavesOutWhatDoesNotFitFileMemoryOrQueue) {
  AioOptions options;
  options.modes = {Mode::kMixed};
  options.size_bytes = 64 << 20;
  const auto grid = sweep_grid(options, 4, std::uint64_t{1} << 40);
  EXPECT_FALSE(grid.empty());
  for (const auto& shape : grid) EXPECT_LE(shape.bytes_in_flight(), options.size_bytes);
  const auto small = sweep_grid(options, 4, 16 << 20);
  for (const auto& shape : small) EXPECT_LE(shape.bytes_in_flight(), 4U << 20);
}

TEST(SweepGrid, KeepsWhatWasGiven) {
  AioOptions options;
  options.modes = {Mode::kRead};
  options.size_bytes = std::uint64_t{1} << 40;
  options.queue_depth = 7;
  options.sweep_depth = false;
  options.threads = 3;
  options.sweep_threads = false;
  const auto grid = sweep_grid(options, 4, std::uint64_t{1} << 40);
  EXPECT_EQ(grid.size(), 7U);
  for (const auto& shape : grid) {
    EXPECT_EQ(shape.queue_depth, 7);
    EXPECT_EQ(shape.threads, 3);
    EXPECT_FALSE(shape.writable);
  }
}

TEST(AioSection, HasTheKeysThatDeepSpeedReads) {
  AioSession::Options shape;
  shape.block_bytes = 1 << 18;
  shape.queue_depth = 16;
  shape.threads = 2;
  const std::string text = aio_section_json(shape);
  EXPECT_THAT(text, HasSubstr("\"block_size\": 262144"));
  EXPECT_THAT(text, HasSubstr("\"queue_depth\": 16"));
  EXPECT_THAT(text, HasSubstr("\"intra_op_parallelism\": 2"));
  EXPECT_THAT(text, HasSubstr("\"single_submit\": false"));
  EXPECT_THAT(text, HasSubstr("\"overlap_events\": true"));
}

class ResultFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "/result_file_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string put(const std::string& text) {
    std::ofstream(folder_ + "/file") << text;
    return folder_ + "/file";
  }
  std::string read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  std::string folder_;
};

TEST_F(ResultFileTest, ReplacesAnEarlierResultAndAnEmptyFile) {
  using Kind = ResultFile::Kind;
  for (const char* old : {"{\"aio\": {}}", ""}) {
    const ResultFile file("--out", put(old), Kind::kAioSection);
    EXPECT_TRUE(file.check().ok());
    EXPECT_TRUE(file.write("new").ok());
    EXPECT_EQ(read(folder_ + "/file"), "new");
  }
  EXPECT_TRUE(ResultFile("--json", put("{\"version\": 1, \"machine\": {}}"), Kind::kMeasurement)
                  .check()
                  .ok());
}

TEST_F(ResultFileTest, RefusesToReplaceSomebodysFile) {
  using Kind = ResultFile::Kind;
  for (const char* old : {"text", "{\"aio\": {}, \"fp16\": {}}", "[]", "{\"version\": 1}"}) {
    for (const Kind kind : {Kind::kAioSection, Kind::kMeasurement}) {
      const Status status = ResultFile("--out", put(old), kind).check();
      ASSERT_FALSE(status.ok()) << old;
      EXPECT_THAT(status.error().message(), HasSubstr("--out " + folder_ + "/file"));
    }
  }
}

TEST_F(ResultFileTest, LeavesNoTemporaryFileAndKeepsALink) {
  const std::string real = put("");
  const std::string link = folder_ + "/link";
  std::filesystem::create_symlink("file", link);
  EXPECT_TRUE(ResultFile("--json", link, ResultFile::Kind::kMeasurement).write("x").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(read(real), "x");
  const auto entries = std::filesystem::directory_iterator(folder_);
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 2);
}

TEST_F(ResultFileTest, SaysSoWhenTheFolderIsMissing) {
  const Status status =
      ResultFile("--json", folder_ + "/no/x.json", ResultFile::Kind::kMeasurement).check();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), HasSubstr("no folder"));
}

}  // namespace
}  // namespace sluice::bench
