#include "tools/report/trace_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "aio/bounded_json.h"
#include "tools/report/text_lines.h"

namespace sluice::report {
namespace {

using Json = nlohmann::json;

constexpr std::array kTracks = {"compute",   "H2D",        "D2H", "AdamW",
                                "NVMe read", "NVMe write", "link"};

struct Spans {
  std::vector<std::pair<double, double>> of_time;  // begin and end of each span in microseconds
  double bytes = 0;
};

double number_in(const Json& json, const char* name) {
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

class Reader {
 public:
  void take(const TextLine& line) {
    std::string_view text = line.text;
    if (text.ends_with(',')) text.remove_suffix(1);
    if (text.ends_with("\"traceEvents\":[")) {
      take_window(json_or_discarded<Json>(std::string(text) + "]}"));
      return;
    }
    const Json event = json_or_discarded<Json>(text);
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
  void take_window(const Json& head) {
    const Json window =
        head.is_object() ? head.value("/otherData/window_us"_json_pointer, Json()) : Json();
    if (!window.is_array() || window.size() != 2 || !window[0].is_number() ||
        !window[1].is_number())
      return;
    begin_us_ = window[0];
    end_us_ = window[1];
  }

  // Spans that extend beyond the steps are cut, and their bytes reduced in proportion.
  void take_span(const Json& event) {
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
  Reader reader;
  const auto read = read_lines(path, [&](const TextLine& line) { reader.take(line); });
  if (!read.ok()) return read.error();
  return reader.finish();
}

}  // namespace sluice::report
