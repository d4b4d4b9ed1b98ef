#include "engine/observe/metrics_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/observe/log_parts.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

StepMetrics metrics_of(std::int64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.tokens_seen = 4096 * step;
  metrics.unix_s = 1764115266.125 + static_cast<double>(step);
  metrics.loss = 4.25 / static_cast<double>(step);
  metrics.lr = 3e-4;
  metrics.grad_norm = 0.1;
  metrics.loss_scale = 65536;
  metrics.skipped = step % 3 == 0;
  metrics.tokens_per_s = 1234.5;
  metrics.step_ms = 100.25;
  metrics.forward_ms = 1;
  metrics.backward_ms = 2;
  metrics.update_ms = 3;
  metrics.update_exposed_ms = 4;
  metrics.nvme_read_bytes = 1ULL << 60;
  metrics.nvme_write_bytes = 6;
  metrics.h2d_bytes = 7;
  metrics.d2h_bytes = 8;
  metrics.gpu_peak_bytes = 9;
  metrics.host_pinned_bytes = 10;
  metrics.host_rss_bytes = 11;
  if (step % 2 == 0) metrics.val_loss = 3.75;
  if (step % 4 == 0) {
    metrics.balance_loss = 2.25;
    metrics.busiest_expert = {1.5, 3};
    metrics.idle_experts = {0, 2};
  }
  if (step % 4 == 0) metrics.unit_hashes = {{"wte", ~0ULL, 1}, {"h.0", 1ULL << 63, 0}};
  return metrics;
}

class MetricsLogTest : public testing::Test {
 protected:
  std::string content() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void put(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }

  void write_steps(std::int64_t first, std::int64_t last) const {
    const auto log = MetricsLog::resume(path_, first - 1);
    ASSERT_OK(log);
    for (std::int64_t step = first; step <= last; ++step)
      ASSERT_OK((*log)->append(metrics_of(step)));
  }
  void expect_steps(std::int64_t last) const {
    const auto all = read_metrics(path_);
    ASSERT_OK(all);
    ASSERT_EQ(static_cast<std::int64_t>(all->size()), last);
    for (std::int64_t step = 1; step <= last; ++step)
      EXPECT_EQ((*all)[static_cast<std::size_t>(step - 1)], metrics_of(step));
  }

  const aio::TemporaryFolder folder_;
  const std::string path_ = folder_.file("metrics.jsonl");
};

TEST_F(MetricsLogTest, WritesOneObjectAStepWithEveryField) {
  write_steps(1, 2);
  std::ifstream in(path_);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 2U);
  std::vector<std::string> keys;
  const auto json = nlohmann::ordered_json::parse(lines[1]);
  for (const auto& entry : json.items()) keys.push_back(entry.key());
  EXPECT_THAT(keys,
              ElementsAre("schema", "step", "tokens_seen", "unix_s", "loss", "lr", "grad_norm",
                          "loss_scale", "skipped", "tokens_per_s", "step_ms", "forward_ms",
                          "backward_ms", "update_ms", "update_exposed_ms", "nvme_read_bytes",
                          "nvme_write_bytes", "h2d_bytes", "d2h_bytes", "gpu_peak_bytes",
                          "host_pinned_bytes", "host_rss_bytes", "val_loss"));
  EXPECT_EQ(json["step"], 2);
  EXPECT_EQ(json["loss"], 2.125);
  EXPECT_EQ(json["skipped"], false);
  EXPECT_EQ(json["nvme_read_bytes"], 1ULL << 60);
  EXPECT_FALSE(nlohmann::json::parse(lines[0]).contains("val_loss"));
  expect_steps(2);
}

// In the format of earlier versions.
TEST_F(MetricsLogTest, ReadsAndContinuesAFileOfSchema1) {
  write_steps(1, 2);
  std::string older;
  std::ifstream in(path_);
  for (std::string line; std::getline(in, line);) {
    auto json = nlohmann::ordered_json::parse(line);
    for (const char* const key : {"schema", "tokens_seen", "unix_s"}) json.erase(key);
    older += json.dump() + "\n";
  }
  put(older);
  const auto all = read_metrics(path_);
  ASSERT_OK(all);
  StepMetrics expected = metrics_of(1);
  expected.tokens_seen.reset();
  expected.unix_s.reset();
  EXPECT_EQ(all->at(0), expected);
  write_steps(3, 3);
  EXPECT_EQ(read_metrics(path_)->at(2), metrics_of(3));
  EXPECT_TRUE(content().starts_with(older));
}

TEST_F(MetricsLogTest, RefusesALineOfANewerSchema) {
  write_steps(1, 1);
  std::string text = content();
  const std::string mark = "\"schema\":" + std::to_string(kMetricsSchema);
  text.replace(text.find(mark), mark.size(), "\"schema\":99");
  put(text);
  EXPECT_EQ(read_metrics(path_).error().code(), ErrorCode::kNewerVersion);
  EXPECT_EQ(MetricsLog::resume(path_, 1).error().code(), ErrorCode::kNewerVersion);
  EXPECT_EQ(content(), text);
}

TEST_F(MetricsLogTest, KnowsTheLastLineThatItContinues) {
  write_steps(1, 4);
  EXPECT_EQ((*MetricsLog::resume(path_, 3))->last_kept(), metrics_of(3));
  EXPECT_EQ((*MetricsLog::resume(path_, 0))->last_kept(), std::nullopt);
}

TEST_F(MetricsLogTest, WritesNullForALossThatIsNotFinite) {
  const auto log = MetricsLog::resume(path_, 0);
  ASSERT_OK(log);
  StepMetrics metrics = metrics_of(1);
  metrics.loss = std::numeric_limits<double>::quiet_NaN();
  metrics.grad_norm = std::numeric_limits<double>::infinity();
  ASSERT_OK((*log)->append(metrics));
  EXPECT_THAT(content(), HasSubstr(R"("loss":null,"lr":0.0003,"grad_norm":null)"));
  const auto all = read_metrics(path_);
  ASSERT_OK(all);
  EXPECT_TRUE(std::isnan(all->at(0).loss));
}

TEST_F(MetricsLogTest, GoesOnBehindALastLineTornAtAnyByte) {
  write_steps(1, 3);
  const std::string whole = content();
  const std::size_t third = whole.rfind('\n', whole.size() - 2) + 1;
  for (std::size_t length = third; length <= whole.size(); ++length) {
    SCOPED_TRACE(length);
    put(whole.substr(0, length));
    // A line is complete once its last brace is there, with or without a newline.
    const bool third_is_whole = length + 1 >= whole.size();
    expect_steps(third_is_whole ? 3 : 2);
    write_steps(third_is_whole ? 4 : 3, 4);
    expect_steps(4);
  }
  put(whole + std::string(100, '\0'));  // possible content after a power loss
  write_steps(4, 4);
  expect_steps(4);
}

TEST_F(MetricsLogTest, CutsTheStepsThatAreRunAgain) {
  write_steps(1, 9);
  write_steps(6, 7);
  expect_steps(7);
  write_steps(8, 8);
  expect_steps(8);
  ASSERT_OK(MetricsLog::resume(path_, 0));
  EXPECT_EQ(content(), "");
}

TEST_F(MetricsLogTest, KeepsTheLinesThatItCuts) {
  write_steps(1, 9);
  const std::string whole = content();
  const auto from_line = [&](int line) {
    std::size_t at = 0;
    while (--line > 0) at = whole.find('\n', at) + 1;
    return whole.substr(at);
  };
  const auto file_text = [&](const std::string& name) {
    std::ifstream in(folder_.file(name), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  {
    const auto log = MetricsLog::resume(path_, 7);
    ASSERT_OK(log);
    EXPECT_EQ((*log)->cut_lines(), 2);
    EXPECT_EQ((*log)->cut_path(), folder_.file("metrics-cut.jsonl"));
  }
  EXPECT_EQ(file_text("metrics-cut.jsonl"), from_line(8));
  put(whole + "{\"step\":10,\"lo");  // torn: never acknowledged
  EXPECT_EQ((*MetricsLog::resume(path_, 8))->cut_lines(), 1);
  EXPECT_EQ(file_text("metrics-cut.jsonl"), from_line(8) + from_line(9));
  put(whole.substr(0, whole.size() - 1));  // complete except for its newline
  EXPECT_EQ((*MetricsLog::resume(path_, 5, folder_.file("other.jsonl")))->cut_lines(), 4);
  EXPECT_EQ(file_text("other.jsonl"), from_line(6));
  EXPECT_EQ((*MetricsLog::resume(path_, 5))->cut_lines(), 0);

  put(whole);
  const auto refused = MetricsLog::resume(path_, 5, folder_.file("no folder/other.jsonl"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(content(), whole) << "nothing was cut";
}

TEST_F(MetricsLogTest, BeginsAnewWhereNothingIs) {
  ASSERT_OK(MetricsLog::resume(path_, 7));
  EXPECT_TRUE(read_metrics(path_)->empty());
  EXPECT_EQ(read_metrics(folder_.file("none")).error().code(), ErrorCode::kNotFound);
}

TEST_F(MetricsLogTest, NamesTheLineThatIsNoMetrics) {
  write_steps(1, 3);
  const std::string whole = content();
  const auto refused = [&](const std::string& text) {
    put(text);
    const auto log = MetricsLog::resume(path_, 10);
    EXPECT_FALSE(log.ok());
    EXPECT_EQ(content(), text) << "nothing was cut";
    return log.ok() ? "accepted" : log.error().message();
  };
  EXPECT_THAT(refused("my notes\n" + whole),
              HasSubstr(path_ + ": line 1 does not contain metrics of a step"));
  EXPECT_THAT(refused(whole + "{}\n"), HasSubstr("line 4"));
  EXPECT_THAT(refused(whole + "\n" + whole), HasSubstr("line 4"));
  std::string negative = whole;
  negative.replace(negative.find("\"d2h_bytes\":8"), 13, "\"d2h_bytes\":-8");
  EXPECT_THAT(refused(negative), HasSubstr("line 1"));
}

TEST_F(MetricsLogTest, PassesOverKeysItDoesNotKnow) {
  write_steps(1, 1);
  std::string text = content();
  text.insert(1, R"("of_a_later_version":[1,2],)");
  put(text);
  expect_steps(1);
}

// While it exists, no file of this process can grow beyond this many bytes.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(std::size_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    rlimit tight = before_;
    tight.rlim_cur = bytes;
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  }
  ~FileSizeLimit() {
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before_), 0);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit before_{};
  void (*const old_handler_)(int);
};

TEST_F(MetricsLogTest, KeepsInMemoryWhatAFullDiskDoesNotTakeAndWritesItWhenThereIsRoom) {
  write_steps(1, 1);
  const auto log = MetricsLog::resume(path_, 1);
  ASSERT_OK(log);
  {
    const FileSizeLimit limit(content().size() + 20);  // the second line does not fit
    for (std::int64_t step = 2; step <= 4; ++step) {
      const Status failed = (*log)->append(metrics_of(step));
      ASSERT_FALSE(failed.ok());
      EXPECT_EQ(failed.error().code(), ErrorCode::kNoSpace);
      EXPECT_THAT(failed.error().message(), HasSubstr(path_));
      EXPECT_EQ((*log)->waiting_lines(), step - 1);
      expect_steps(1);
    }
    EXPECT_FALSE((*log)->flush().ok());
  }
  ASSERT_OK((*log)->append(metrics_of(5)));
  EXPECT_EQ((*log)->waiting_lines(), 0);
  EXPECT_EQ((*log)->lost_lines(), 0);
  expect_steps(5);
}

// At any position where the disk becomes full, earlier lines are complete, and later ones still
// wait.
TEST_F(MetricsLogTest, WritesTheLinesThatFitAndLeavesNoneTorn) {
  write_steps(1, 5);
  const std::string whole = content();
  const std::size_t first_end = whole.find('\n') + 1;
  constexpr std::size_t kStride = 37;  // not every byte, which would take too long
  for (std::size_t room = first_end; room < whole.size(); room += kStride) {
    SCOPED_TRACE(room);
    put(whole.substr(0, first_end));
    const auto log = MetricsLog::resume(path_, 1);
    ASSERT_OK(log);
    {
      const FileSizeLimit none(first_end);
      for (std::int64_t step = 2; step <= 5; ++step)
        ASSERT_FALSE((*log)->append(metrics_of(step)).ok());
    }
    {
      const FileSizeLimit some(room);
      ASSERT_FALSE((*log)->flush().ok());
      EXPECT_EQ(content(), whole.substr(0, whole.rfind('\n', room - 1) + 1));
      expect_steps(5 - (*log)->waiting_lines());
    }
    ASSERT_OK((*log)->flush());
    EXPECT_EQ(content(), whole);
  }
}

TEST_F(MetricsLogTest, CountsTheLinesThatNoLongerFitIntoMemoryAndTriesAgainWhenItCloses) {
  StepMetrics large = metrics_of(1);
  large.unit_hashes = {{std::string(MetricsLog::kMostWaitingBytes / 4, 'x'), 1, 2}};
  {
    const auto log = MetricsLog::resume(path_, 0);
    ASSERT_OK(log);
    const FileSizeLimit none(0);
    for (large.step = 1; large.step <= 5; ++large.step) EXPECT_FALSE((*log)->append(large).ok());
    EXPECT_EQ((*log)->waiting_lines(), 3);
    EXPECT_EQ((*log)->lost_lines(), 2);
  }
  // The limit ends before the log does.
  const auto all = read_metrics(path_);
  ASSERT_OK(all);
  EXPECT_EQ(all->size(), 3U);
}

// The child reports each step that append() acknowledged, until it is killed.
TEST_F(MetricsLogTest, HasEveryAcknowledgedStepAfterAKill) {
  constexpr int kRuns = 10;
  std::int64_t last = 0;
  for (int run = 0; run < kRuns; ++run) {
    int pipe_ends[2];
    ASSERT_EQ(pipe(pipe_ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto log = MetricsLog::resume(path_, last);
      for (std::int64_t step = last + 1; log.ok(); ++step) {
        if (!(*log)->append(metrics_of(step)).ok()) break;
        if (write(pipe_ends[1], &step, sizeof step) != sizeof step) break;
      }
      _exit(1);
    }
    std::int64_t told = last;
    while (told < last + 20 + run * 7)
      ASSERT_EQ(read(pipe_ends[0], &told, sizeof told), static_cast<ssize_t>(sizeof told));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    const auto all = read_metrics(path_);
    ASSERT_OK(all);
    ASSERT_GE(static_cast<std::int64_t>(all->size()), told);
    last = static_cast<std::int64_t>(all->size());
    expect_steps(last);
  }
}

class MetricsPartsTest : public MetricsLogTest {
 protected:
  static constexpr std::uint64_t kPartBytes = 4096;  // about eight lines

  void write_parts(std::int64_t first, std::int64_t last) const {
    const auto log = MetricsLog::resume(path_, first - 1, {}, kPartBytes);
    ASSERT_OK(log);
    for (std::int64_t step = first; step <= last; ++step)
      ASSERT_OK((*log)->append(metrics_of(step)));
  }
  std::string part(int number) const { return path_ + "." + std::to_string(number); }
};

TEST_F(MetricsPartsTest, BeginsAPartBeforeALineThatWouldNotFit) {
  write_parts(1, 100);
  const auto parts = log_parts(path_);
  ASSERT_GT(parts.size(), 5U);
  EXPECT_EQ(parts.back(), path_);
  EXPECT_EQ(parts.front(), part(static_cast<int>(parts.size()) - 1));
  for (const std::string& one : parts) {
    EXPECT_LE(std::filesystem::file_size(one), kPartBytes);
    EXPECT_TRUE(one == path_ || std::filesystem::file_size(one) > kPartBytes / 2) << one;
  }
  expect_steps(100);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
}

TEST_F(MetricsPartsTest, AResumeCutsAcrossPartsAndGoesOn) {
  const std::string cut_path = folder_.file("cut.jsonl");
  write_parts(1, 100);
  for (const std::int64_t last : {99, 60, 31, 8, 1, 0}) {
    {
      const auto log = MetricsLog::resume(path_, last, cut_path, kPartBytes);
      ASSERT_OK(log);
      EXPECT_EQ((*log)->cut_lines(), 100 - last);
      EXPECT_EQ((*log)->last_kept().has_value(), last > 0);
      if ((*log)->last_kept()) {
        EXPECT_EQ((*log)->last_kept()->step, last);
      }
    }
    EXPECT_TRUE(std::filesystem::exists(path_)) << last;
    expect_steps(last);
    const auto cut = read_metrics(cut_path);
    ASSERT_OK(cut);
    ASSERT_EQ(static_cast<std::int64_t>(cut->size()), 100 - last);
    EXPECT_EQ(cut->front(), metrics_of(last + 1));
    EXPECT_EQ(cut->back(), metrics_of(100));
    std::filesystem::remove(cut_path);
    EXPECT_EQ(log_parts(path_).size() > 1, last > 8) << last;
    write_parts(last + 1, 100);
    expect_steps(100);
  }
}

// For any crash: between two renames of parts, or while parts were cut.
TEST_F(MetricsPartsTest, GoesOnWhereANumberOrTheFileItselfIsMissing) {
  write_parts(1, 40);
  const std::size_t parts = log_parts(path_).size();
  ASSERT_GE(parts, 4U);
  // Between the renames of part 2 and part 1.
  for (int number = static_cast<int>(parts) - 1; number >= 2; --number)
    std::filesystem::rename(part(number), part(number + 1));
  expect_steps(40);
  // After the rename of the file itself.
  std::filesystem::rename(part(1), part(2));
  std::filesystem::rename(path_, part(1));
  expect_steps(40);
  write_parts(31, 60);
  expect_steps(60);
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(MetricsPartsTest, RefusesWhatIsTornBeforeTheLastPartAndCutsNothing) {
  write_parts(1, 40);
  std::filesystem::resize_file(part(2), std::filesystem::file_size(part(2)) - 20);
  EXPECT_THAT(read_metrics(path_).error().message(), HasSubstr("metrics.jsonl.2: line "));
  EXPECT_EQ(MetricsLog::resume(path_, 1'000).error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(log_parts(path_).front(), part(static_cast<int>(log_parts(path_).size()) - 1));
}

TEST_F(MetricsPartsTest, GrowsOnWhereNoPartCanBeBegun) {
  write_parts(1, 5);
  // A file cannot replace a folder of this name.
  std::filesystem::create_directory(path_ + ".new");
  std::filesystem::create_directory(path_ + ".new/x");
  write_parts(6, 40);
  EXPECT_EQ(log_parts(path_).size(), 1U);
  expect_steps(40);
  std::filesystem::remove_all(path_ + ".new");
  write_parts(41, 60);
  EXPECT_GT(log_parts(path_).size(), 1U);
  expect_steps(60);
}

TEST_F(MetricsPartsTest, AReaderTakesAllAgainWherePartsWereRenamedMeanwhile) {
  write_parts(1, 20);
  int begun = 0;
  std::vector<std::string> read;
  ASSERT_OK(visit_log_parts(
      path_,
      [&] {
        ++begun;
        read.clear();
      },
      [&](const std::string& one) -> Status {
        if (begun == 1 && read.empty()) write_parts(21, 40);
        read.push_back(one);
        return {};
      }));
  EXPECT_EQ(begun, 2);
  EXPECT_EQ(read, log_parts(path_));
}

}  // namespace
}  // namespace sluice::engine
