#include "tools/report/run_record.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "aio/bounded_json.h"
#include "aio/text.h"
#include "engine/observe/log_parts.h"
#include "tools/report/text_lines.h"

namespace sluice::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostDepth = 16;
constexpr std::size_t kMostKeys = 2000;
constexpr std::size_t kMostValue = 400;  // characters

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

bool has_log(const std::string& path) { return !engine::log_parts(path).empty(); }

std::string shortened(std::string text) {
  if (text.size() <= kMostValue) return text;
  text.resize(kMostValue);
  return text + "...";
}

void flatten(const Json& json, const std::string& path, int depth, RunRecord& record) {
  if (record.config.size() >= kMostKeys) return;
  if (json.is_object() && !json.empty() && depth < kMostDepth) {
    const std::string prefix = path.empty() ? path : path + ".";
    std::string inner;
    for (const auto& [key, value] : json.items())
      flatten(value, inner.assign(prefix).append(key), depth + 1, record);
    return;
  }
  record.config.emplace_back(
      path,
      shortened(json.is_string() ? json.get<std::string>()
                                 : json.dump(-1, ' ', false, Json::error_handler_t::replace)));
}

}  // namespace

void read_config(const std::string& path, RunRecord& record) {
  if (!exists(path)) {
    record.notices.emplace_back("there is no config.json");
    return;
  }
  std::string text;
  const auto read = read_lines(path, [&](const TextLine& line) {
    if (text.size() <= kMostLineBytes) text.append(line.text).append("\n");
  });
  const Json json = read.ok() && text.size() <= kMostLineBytes ? json_or_discarded<Json>(text)
                                                               : Json(Json::value_t::discarded);
  if (json.is_object())
    flatten(json, "", 0, record);
  else
    record.notices.push_back("config.json cannot be read" +
                             (read.ok() ? "" : ": " + read.error().message()));
}

void note_metrics(const MetricsFile& metrics, std::vector<std::string>& notices) {
  if (metrics.lines == 0) notices.emplace_back("no step is in the metrics yet");
  if (metrics.bad_lines > 0)
    notices.push_back(counted(metrics.bad_lines, "line") + " of the metrics cannot be read");
  if (metrics.out_of_order > 0)
    notices.push_back(counted(metrics.out_of_order, "line") +
                      " of the metrics come after one of the same step or a later one, as if two "
                      "programs had written: where a step has several lines, their mean, least and "
                      "most are shown");
  if (metrics.gap_count > 0) {
    const StepGap& first = metrics.gaps.front();
    notices.push_back("the metrics lack steps, in " + counted(metrics.gap_count, "place") +
                      ": first " + std::to_string(first.first) +
                      (first.last > first.first ? " to " + std::to_string(first.last) : ""));
  }
  if (metrics.has_torn_end)
    notices.emplace_back("the last line of the metrics is torn, and left out");
}

void read_events(const std::string& path, RunRecord& record) {
  if (!has_log(path)) {
    record.notices.emplace_back(
        "there is no events.jsonl (Sluice did not write one before schema 2 of the metrics): what "
        "was planned, the machine and past checkpoints are not known");
    return;
  }
  auto events = read_events_file(path);
  if (!events.ok()) {
    record.notices.push_back("the events cannot be read: " + events.error().message());
    return;
  }
  record.events = *std::move(events);
  if (record.events.bad_lines > 0)
    record.notices.push_back(counted(record.events.bad_lines, "line") +
                             " of the events cannot be read");
  if (record.events.left_out > 0)
    record.notices.push_back(counted(record.events.left_out, "event") +
                             " beyond the first 500 of a kind are left out");
}

void read_trace(const std::string& path, RunRecord& record) {
  if (!exists(path)) return;
  auto trace = read_trace_file(path);
  if (trace.ok() && trace->window_s > 0)
    record.trace = *std::move(trace);
  else
    record.notices.push_back(trace.ok() ? "trace.json cannot be read, or holds no step"
                                        : "trace.json cannot be read: " + trace.error().message());
}

void read_cut(const std::string& path, RunRecord& record) {
  auto cut = read_metrics_file(path, 1);
  if (cut.ok())
    record.cut = *std::move(cut);
  else
    record.notices.push_back("metrics of steps that were run again cannot be read: " +
                             cut.error().message());
}

std::string run_name(const std::string& path) {
  const std::filesystem::path clean = std::filesystem::path(path).lexically_normal();
  const std::string name = (clean.has_filename() ? clean : clean.parent_path()).filename().string();
  return name.empty() || name == "." || name == ".." ? path : name;
}

Result<RunRecord> read_run(const std::string& path, std::size_t most_buckets) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  if (!is_folder && !exists(path)) return Error(ErrorCode::kNotFound, "there is no " + path);
  // The user names a file, so a link may lead anywhere.
  const std::filesystem::path named = std::filesystem::canonical(path, ignored);
  const std::string metrics_path =
      is_folder ? path + "/metrics.jsonl" : (ignored ? path : named.string());
  if (is_folder && !has_log(metrics_path) && !exists(path + "/config.json"))
    return Error(ErrorCode::kNotFound, path +
                                           " is not a run's directory (sluice train --out): it has "
                                           "neither metrics.jsonl nor config.json");
  RunRecord record{.name = run_name(path),
                   .path = path,
                   .metrics = {.series = StepSeries(metric_columns().size(), most_buckets)}};
  if (has_log(metrics_path)) {
    SLUICE_ASSIGN_OR_RETURN(record.metrics, read_metrics_file(metrics_path, most_buckets));
  }
  if (!is_folder && record.metrics.lines == 0)
    return Error(ErrorCode::kInvalidArgument,
                 path + " has no line that is a step's metrics (metrics.jsonl)");
  note_metrics(record.metrics, record.notices);
  if (!is_folder) return record;
  const std::string cut_path = path + "/metrics-cut.jsonl";
  if (exists(cut_path)) read_cut(cut_path, record);
  read_config(path + "/config.json", record);
  read_events(path + "/events.jsonl", record);
  read_trace(path + "/trace.json", record);
  return record;
}

}  // namespace sluice::report
