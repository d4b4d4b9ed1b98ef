// MetricsFile: a run's metrics.jsonl, all parts of it, for people to look at. Unlike
// engine::read_metrics(), which a run that goes on relies on, it takes what can be taken: lines
// that cannot be read are counted and named, keys may be missing, steps may be missing, come twice
// or in any order.
//
// Memory: that of a StepSeries; lists are bounded, and say how many they left out.
// Errors: only where the file cannot be read.
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

// Of the series: the numbers of metrics.jsonl and, last, `trained_s`: the time of all steps up to
// this one, without what was between them.
const std::vector<std::string>& metric_columns();
std::size_t metric_column(std::string_view name);  // that there is

struct StepList {
  static constexpr std::size_t kMost = 500;
  std::vector<std::int64_t> steps;  // the first ones
  std::int64_t count = 0;           // of all
  void add(std::int64_t step);
};

struct StepGap {
  std::int64_t first = 0;  // missing
  std::int64_t last = 0;
};

struct MetricsFile {
  static constexpr std::size_t kMostGaps = 100;

  StepSeries series;
  std::int64_t lines = 0;  // of steps
  StepList skipped;
  StepList not_finite_loss;
  std::vector<StepGap> gaps;
  std::int64_t gap_count = 0;
  std::int64_t bad_lines = 0;
  bool has_torn_end = false;
  std::int64_t out_of_order = 0;  // lines of a step that is not after the one before
  double nvme_read_bytes = 0;     // of all lines
  double nvme_write_bytes = 0;
};

// Line by line, for who follows a file that grows.
class MetricsReader {
 public:
  struct Step {
    std::int64_t step = 0;
    std::span<const double> values;  // by column; what is not known is not finite
    bool skipped = false;
  };
  explicit MetricsReader(std::size_t most_buckets, std::function<void(const Step&)> visit = {})
      : file_{.series = StepSeries(metric_columns().size(), most_buckets)},
        visit_(std::move(visit)) {}

  void take(const TextLine& text);
  void add_unreadable(std::int64_t lines) { file_.bad_lines += lines; }

  const MetricsFile& file() const { return file_; }
  // How often a line fell before the series' last bucket: then what came before has changed, too.
  std::int64_t rewrites() const { return rewrites_; }

 private:
  MetricsFile file_;
  std::function<void(const Step&)> visit_;
  std::optional<std::int64_t> last_;
  double trained_s_ = 0;
  double tokens_ = 0;
  std::int64_t rewrites_ = 0;
};

// All parts.
Result<MetricsFile> read_metrics_file(const std::string& path, std::size_t most_buckets);

}  // namespace sluice::report
