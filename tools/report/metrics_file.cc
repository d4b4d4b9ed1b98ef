#include "tools/report/metrics_file.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>

#include "engine/observe/log_parts.h"
#include "engine/observe/step_metrics.h"

namespace sluice::report {
namespace {

constexpr std::string_view kBusiest = "busiest_expert";
constexpr std::string_view kIdle = "idle_experts";
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kMostStep = std::int64_t{1} << 53;  // the largest exact integer in a page

struct Line {
  std::vector<double> values = std::vector<double>(metric_columns().size(), kUnknown);
  std::optional<std::int64_t> step;
  bool skipped = false;
  bool has_null_loss = false;
};

// Reads a line's numbers without building a document: a run has a hundred thousand lines.
class LineReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit LineReader(Line& line) : line_(line) {}
  bool is_object() const { return is_object_; }

  bool null() override {
    if (depth_ == 1 && key_ == "loss") line_.has_null_loss = true;
    return true;
  }
  bool boolean(bool value) override {
    if (depth_ == 1 && key_ == "skipped") line_.skipped = value;
    return true;
  }
  bool number_integer(number_integer_t value) override {
    return number(static_cast<double>(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ == 1 && key_ == "step" && value <= static_cast<std::uint64_t>(kMostStep))
      line_.step = static_cast<std::int64_t>(value);
    return number(static_cast<double>(value));
  }
  bool number_float(number_float_t value, const string_t& /*text*/) override {
    return number(value);
  }
  bool string(string_t& /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool start_object(std::size_t /*elements*/) override {
    if (depth_++ == 0) is_object_ = true;
    return true;
  }
  bool key(string_t& value) override {
    if (depth_ == 1) key_ = value;
    return true;
  }
  bool end_object() override { return --depth_, true; }
  bool start_array(std::size_t /*elements*/) override {
    if (depth_++ == 1) is_list_ = true;
    return true;
  }
  bool end_array() override {
    if (--depth_ == 1) is_list_ = false;
    return true;
  }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return false;
  }

 private:
  // Takes the largest number of a list by layer, or the sum of its counts.
  bool of_layer(double value) {
    if (key_ != kBusiest && key_ != kIdle) return true;
    double& all = line_.values[metric_column(key_)];
    if (!std::isfinite(all))
      all = value;
    else
      all = key_ == kIdle ? all + value : std::max(all, value);
    return true;
  }
  bool number(double value) {
    if (depth_ == 2 && is_list_) return of_layer(value);
    if (depth_ != 1) return true;
    const std::vector<std::string>& columns = metric_columns();
    const auto found = std::find(columns.begin(), columns.end(), key_);
    if (found != columns.end())
      line_.values[static_cast<std::size_t>(found - columns.begin())] = value;
    return true;
  }

  Line& line_;
  std::string key_;
  int depth_ = 0;
  bool is_list_ = false;  // the value of key_
  bool is_object_ = false;
};

std::optional<Line> parse(std::string_view text) {
  Line line;
  LineReader reader(line);
  if (!nlohmann::json::sax_parse(text, &reader) || !reader.is_object() || !line.step)
    return std::nullopt;
  return line;
}

// Computes values that lines of schema 1 lack from those that they have.
void complete(Line& line, double& trained_s, double& tokens) {
  static const std::size_t kStepMs = metric_column("step_ms");
  static const std::size_t kTokensPerS = metric_column("tokens_per_s");
  static const std::size_t kTokensSeen = metric_column("tokens_seen");
  static const std::size_t kTrained = metric_column("trained_s");
  const double step_s = line.values[kStepMs] / 1e3;
  if (std::isfinite(step_s) && step_s > 0) trained_s += step_s;
  line.values[kTrained] = trained_s;
  const double own = line.values[kTokensPerS] * step_s;
  if (std::isfinite(line.values[kTokensSeen]))
    tokens = line.values[kTokensSeen];
  else if (std::isfinite(own))
    line.values[kTokensSeen] = tokens += std::round(own);
}

void add_gap(MetricsFile& file, std::int64_t after, std::int64_t step) {
  if (step <= after + 1) return;
  ++file.gap_count;
  if (file.gaps.size() < MetricsFile::kMostGaps) file.gaps.push_back({after + 1, step - 1});
}

void add_line(MetricsFile& file, const Line& line) {
  const std::int64_t step = *line.step;
  ++file.lines;
  if (line.skipped) file.skipped.add(step);
  if (line.has_null_loss) file.not_finite_loss.add(step);
  const auto sum = [&](double& total, const char* name) {
    const double value = line.values[metric_column(name)];
    if (std::isfinite(value) && value > 0) total += value;
  };
  sum(file.nvme_read_bytes, "nvme_read_bytes");
  sum(file.nvme_write_bytes, "nvme_write_bytes");
  file.series.add(step, line.values);
}

}  // namespace

const std::vector<std::string>& metric_columns() {
  static const std::vector<std::string> columns = [] {
    std::vector<std::string> names;
    const engine::StepMetrics metrics;
    engine::for_each_metric(metrics, [&](const char* name, const auto& value) {
      using Value = std::remove_cvref_t<decltype(value)>;
      if constexpr (!std::is_same_v<Value, bool> &&
                    !std::is_same_v<Value, std::vector<engine::UnitHashes>>)
        if (name != std::string_view("step")) names.emplace_back(name);
    });
    names.emplace_back("trained_s");
    return names;
  }();
  return columns;
}

std::size_t metric_column(std::string_view name) {
  const std::vector<std::string>& columns = metric_columns();
  return static_cast<std::size_t>(std::find(columns.begin(), columns.end(), name) -
                                  columns.begin());
}

void StepList::add(std::int64_t step) {
  ++count;
  if (steps.size() < kMost) steps.push_back(step);
}

void MetricsReader::take(const TextLine& text) {
  auto line = parse(text.text);
  if (!line && !text.ended) {
    file_.has_torn_end = true;
    return;
  }
  if (!line) {
    ++file_.bad_lines;
    return;
  }
  if (last_ && *line->step <= *last_) ++file_.out_of_order;
  if (last_) add_gap(file_, *last_, *line->step);
  last_ = std::max(last_.value_or(0), *line->step);
  complete(*line, trained_s_, tokens_);
  // A gradient that overflowed has no norm.
  if (line->skipped) line->values[metric_column("grad_norm")] = kUnknown;
  const auto& buckets = file_.series.buckets();
  if (!buckets.empty() && *line->step / file_.series.width() < buckets.back().index) ++rewrites_;
  add_line(file_, *line);
  if (visit_) visit_({.step = *line->step, .values = line->values, .skipped = line->skipped});
}

Result<MetricsFile> read_metrics_file(const std::string& path, std::size_t most_buckets) {
  std::optional<MetricsReader> reader;
  SLUICE_RETURN_IF_ERROR(engine::visit_log_parts(
      path, [&] { reader.emplace(most_buckets); },
      [&](const std::string& part) -> Status {
        SLUICE_ASSIGN_OR_RETURN(
            const std::int64_t too_long,
            read_lines(part, [&](const TextLine& text) { reader->take(text); }));
        reader->add_unreadable(too_long);
        return {};
      }));
  return reader->file();
}

}  // namespace sluice::report
