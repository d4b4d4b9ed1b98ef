// MetricsFile: all parts of a run's metrics.jsonl, for display. engine::read_metrics(), which a
// resumed run relies on, is strict; this reader takes what it can. It counts and lists lines that
// it cannot read, and accepts missing keys, and steps that are missing, repeated or out of order.
//
// Memory: as StepSeries; lists are bounded and say how many entries they left out.
// Errors: only if the file cannot be read.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aio/result.h"
#include "tools/report/step_series.h"
#include "tools/report/text_lines.h"

namespace sluice::report {

// The columns of the series: the numbers of metrics.jsonl and, last, `trained_s`, the sum of all
// step times so far without the time between steps.
const std::vector<std::string>& metric_columns();
std::size_t metric_column(std::string_view name);  // the column must exist

struct StepList {
  static constexpr std::size_t kMost = 500;
  std::vector<std::int64_t> steps;  // the first ones only
  std::int64_t count = 0;           // all steps added
  void add(std::int64_t step);
};

struct StepGap {
  std::int64_t first = 0;  // first missing step
  std::int64_t last = 0;
};

struct MetricsFile {
  static constexpr std::size_t kMostGaps = 100;

  StepSeries series;
  std::int64_t lines = 0;  // step lines
  StepList skipped;
  StepList not_finite_loss;
  std::vector<StepGap> gaps;
  std::int64_t gap_count = 0;
  std::int64_t bad_lines = 0;
  bool has_torn_end = false;
  std::int64_t out_of_order = 0;  // lines whose step is not after the previous one
  double nvme_read_bytes = 0;     // over all lines
  double nvme_write_bytes = 0;
};

// Reads line by line, to follow a file that grows.
class MetricsReader {
 public:
  struct Step {
    std::int64_t step = 0;
    std::span<const double> values;  // by column; unknown values are not finite
    bool skipped = false;
  };
  explicit MetricsReader(std::size_t most_buckets, std::function<void(const Step&)> visit = {})
      : file_{.series = StepSeries(metric_columns().size(), most_buckets)},
        visit_(std::move(visit)) {}

  void take(const TextLine& text);
  void add_unreadable(std::int64_t lines) { file_.bad_lines += lines; }

  const MetricsFile& file() const { return file_; }
  // How often a line fell before the last bucket, which changes buckets that were already final.
  std::int64_t rewrites() const { return rewrites_; }

 private:
  MetricsFile file_;
  std::function<void(const Step&)> visit_;
  std::optional<std::int64_t> last_;
  double trained_s_ = 0;
  double tokens_ = 0;
  std::int64_t rewrites_ = 0;
};

// Reads all parts of the file.
Result<MetricsFile> read_metrics_file(const std::string& path, std::size_t most_buckets);

}  // namespace sluice::report
