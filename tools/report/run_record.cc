#include "tools/report/run_record.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "aio/bounded_json.h"
#include "aio/text.h"
#include "engine/observe/log_parts.h"
#include "tools/report/text_lines.h"

namespace sluice::report {
namespace {

using Json = nlohmann::ordered_json;

bool is_event(const Json& json) {
  if (!json.is_object()) return false;
  const auto kind = json.find("event");
  const auto time = json.find("unix_s");
  const auto step = json.find("step");
  if (kind == json.end() || !kind->is_string() || time == json.end() || !time->is_number() ||
      step == json.end() || !step->is_number_integer())
    return false;
  const auto& name = kind->get_ref<const std::string&>();
  return name == "begin" || name == "checkpoint" || name == "warning" || name == "sample" ||
         name == "early_stop" || name == "end";
}

// The keys of a `begin`: path -> value.
std::map<std::string, std::string> keys_of(const Json& begin) {
  std::map<std::string, std::string> keys;
  const auto list = begin.find("config");
  if (list == begin.end() || !list->is_array()) return keys;
  for (const Json& key : *list) {
    // An overruled key appears twice.
    if (!key.is_object() || key.value("outcome", Json()) == "ignored") continue;
    const auto path = key.find("path");
    const auto value = key.find("value");
    if (path != key.end() && path->is_string() && value != key.end())
      keys[path->get<std::string>()] =
          value->is_string() ? value->get<std::string>() : json_line(*value);
  }
  return keys;
}

Json changes(const Json& before, const Json& after) {
  const auto old_keys = keys_of(before);
  const auto new_keys = keys_of(after);
  Json list = Json::array();
  const auto value_in = [](const auto& keys, const std::string& path) -> Json {
    const auto found = keys.find(path);
    return found == keys.end() ? Json() : Json(found->second);
  };
  auto all = old_keys;
  all.insert(new_keys.begin(), new_keys.end());
  for (const auto& [path, value] : all) {
    const Json was = value_in(old_keys, path);
    const Json is = value_in(new_keys, path);
    if (was != is) list.push_back({path, was, is});
  }
  for (const char* const name : {"build", "machine"})
    if (before.value(name, Json()) != after.value(name, Json()))
      list.push_back(
          {name, json_line(before.value(name, Json())), json_line(after.value(name, Json()))});
  return list;
}

class EventsReader {
 public:
  void take(const TextLine& line) {
    Json json = json_or_discarded<Json>(line.text);
    if (!is_event(json)) {
      ++(line.ended ? file_.bad_lines : torn_);
      return;
    }
    const bool begins = json["event"] == "begin";
    if (line.text.size() > (begins ? EventsFile::kMostBeginBytes : EventsFile::kMostEventBytes)) {
      ++file_.bad_lines;
      return;
    }
    latest_.push_back(json_line(json));
    if (latest_.size() > EventsFile::kMostLatest) latest_.pop_front();
    const bool is_sample = json["event"] == "sample";
    if (++of_kind_[json["event"].get<std::string>()] >
        (is_sample ? EventsFile::kMostSamples : EventsFile::kMostOfAKind)) {
      ++file_.left_out;
      return;
    }
    if (begins) follow(json);
    events_.push_back(std::move(json));
    if (begins) last_begin_ = events_.size() - 1;
  }

  EventsFile finish() {
    for (const Json& event : events_) file_.events.push_back(json_line(event));
    file_.latest.assign(latest_.begin(), latest_.end());
    file_.has_torn_end = torn_ > 0;
    return std::move(file_);
  }

 private:
  // `json` begins another attempt: reduces the previous `begin` to what the page shows of it.
  void follow(Json& json) {
    if (!last_begin_) return;
    Json& before = events_[*last_begin_];
    json["changes"] = changes(before, json);
    before.erase("config");
    before.erase("tiers");
  }

  EventsFile file_;
  std::vector<Json> events_;
  std::deque<std::string> latest_;
  std::optional<std::size_t> last_begin_;
  std::map<std::string, std::size_t> of_kind_;
  std::int64_t torn_ = 0;
};

}  // namespace

Result<EventsFile> read_events_file(const std::string& path) {
  EventsReader reader;
  std::int64_t too_long = 0;
  const auto begin = [&] {
    reader = {};
    too_long = 0;
  };
  SLUICE_RETURN_IF_ERROR(
      engine::visit_log_parts(path, begin, [&](const std::string& part) -> Status {
        SLUICE_ASSIGN_OR_RETURN(const std::int64_t lines,
                                read_lines(part, [&](const TextLine& line) { reader.take(line); }));
        too_long += lines;
        return {};
      }));
  EventsFile file = reader.finish();
  file.bad_lines += too_long;
  return file;
}

namespace {

using PlainJson = nlohmann::json;

constexpr std::array kTracks = {"compute",   "H2D",        "D2H", "AdamW",
                                "NVMe read", "NVMe write", "link"};

struct Spans {
  std::vector<std::pair<double, double>> of_time;  // begin and end of each span in microseconds
  double bytes = 0;
};

double number_in(const PlainJson& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_number() ? found->get<double>() : std::nan("");
}

// The time that the spans cover.
double covered_us(std::vector<std::pair<double, double>>& spans) {
  std::sort(spans.begin(), spans.end());
  double covered = 0;
  double end = -INFINITY;
  for (const auto& [from, to] : spans) {
    if (to > end) covered += to - std::max(from, end);
    end = std::max(end, to);
  }
  return covered;
}

class TraceReader {
 public:
  void take(const TextLine& line) {
    std::string_view text = line.text;
    if (text.ends_with(',')) text.remove_suffix(1);
    if (text.ends_with("\"traceEvents\":[")) {
      take_window(json_or_discarded<PlainJson>(std::string(text) + "]}"));
      return;
    }
    const PlainJson event = json_or_discarded<PlainJson>(text);
    if (event.is_object()) take_span(event);
  }

  TraceFile finish() {
    TraceFile file{.window_s = std::max(0.0, (end_us_ - begin_us_) / 1e6)};
    for (std::size_t i = 0; i < kTracks.size(); ++i) {
      if (spans_[i].of_time.empty()) continue;
      file.tracks.push_back({.name = kTracks[i],
                             .busy_s = covered_us(spans_[i].of_time) / 1e6,
                             .bytes = spans_[i].bytes});
    }
    return file;
  }

 private:
  void take_window(const PlainJson& head) {
    const PlainJson window = head.is_object()
                                 ? head.value("/otherData/window_us"_json_pointer, PlainJson())
                                 : PlainJson();
    if (!window.is_array() || window.size() != 2 || !window[0].is_number() ||
        !window[1].is_number())
      return;
    begin_us_ = window[0];
    end_us_ = window[1];
  }

  // Spans that extend beyond the steps are cut, and their bytes reduced in proportion.
  void take_span(const PlainJson& event) {
    const auto track = event.find("cat");
    if (number_in(event, "pid") != 1 || track == event.end() || !track->is_string()) return;
    const auto found =
        std::find(kTracks.begin(), kTracks.end(), track->get_ref<const std::string&>());
    const double from = number_in(event, "ts");
    const double length = number_in(event, "dur");
    const double begin = std::max(from, begin_us_);
    const double end = std::min(from + length, end_us_);
    if (found == kTracks.end() || !(length >= 0) || !(begin <= end) ||
        count_ >= TraceFile::kMostSpans)
      return;
    ++count_;
    Spans& spans = spans_[static_cast<std::size_t>(found - kTracks.begin())];
    spans.of_time.emplace_back(begin, end);
    const auto args = event.find("args");
    const double bytes = args != event.end() && args->is_object() ? number_in(*args, "bytes") : 0;
    if (bytes > 0) spans.bytes += length > 0 ? bytes * (end - begin) / length : bytes;
  }

  std::array<Spans, kTracks.size()> spans_;
  std::size_t count_ = 0;
  double begin_us_ = 0;
  double end_us_ = 0;
};

}  // namespace

Result<TraceFile> read_trace_file(const std::string& path) {
  TraceReader reader;
  const auto read = read_lines(path, [&](const TextLine& line) { reader.take(line); });
  if (!read.ok()) return read.error();
  return reader.finish();
}

namespace {

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
    notices.push_back(
        counted(metrics.out_of_order, "line") +
        " of the metrics follow a line of the same or a later step, as if two programs had "
        "written: for steps with several lines the mean, minimum and maximum are shown");
  if (metrics.gap_count > 0) {
    const StepGap& first = metrics.gaps.front();
    notices.push_back("steps are missing in the metrics, in " +
                      counted(metrics.gap_count, "place") + ": first " +
                      std::to_string(first.first) +
                      (first.last > first.first ? " to " + std::to_string(first.last) : ""));
  }
  if (metrics.has_torn_end)
    notices.emplace_back("the last line of the metrics is incomplete and left out");
}

void read_events(const std::string& path, RunRecord& record) {
  if (!has_log(path)) {
    record.notices.emplace_back(
        "there is no events.jsonl (Sluice did not write one before schema 2 of the metrics): the "
        "plan, the machine and past checkpoints are not known");
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
    record.notices.push_back(trace.ok() ? "trace.json cannot be read, or contains no step"
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
  if (!is_folder && !exists(path))
    return Error(ErrorCode::kNotFound,
                 "there is no " + path + ": name a run's folder (sluice train --out)");
  // The user names a file, so a link may lead anywhere.
  const std::filesystem::path named = std::filesystem::canonical(path, ignored);
  const std::string metrics_path =
      is_folder ? path + "/metrics.jsonl" : (ignored ? path : named.string());
  if (is_folder && !has_log(metrics_path) && !exists(path + "/config.json"))
    return Error(ErrorCode::kNotFound, path +
                                           " is not a run's folder (sluice train --out): it has "
                                           "neither metrics.jsonl nor config.json");
  RunRecord record{.name = run_name(path),
                   .path = path,
                   .metrics = {.series = StepSeries(metric_columns().size(), most_buckets)}};
  if (has_log(metrics_path)) {
    SLUICE_ASSIGN_OR_RETURN(record.metrics, read_metrics_file(metrics_path, most_buckets));
  }
  if (!is_folder && record.metrics.lines == 0)
    return Error(ErrorCode::kInvalidArgument,
                 path + " contains no line with the metrics of a step (metrics.jsonl)");
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
