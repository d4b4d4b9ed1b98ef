#include "engine/observe/trace_log.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "aio/regular_file.h"

namespace sluice::engine {
namespace {

// The ends of a lane's open spans, outermost first.
using OpenEnds = std::vector<std::int64_t>;

bool fits(OpenEnds& lane, const TraceSpan& span, bool nested) {
  while (!lane.empty() && lane.back() <= span.begin_ns) lane.pop_back();
  return lane.empty() || (nested && span.end_ns <= lane.back());
}

}  // namespace

std::vector<PlacedSpan> place_in_lanes(std::vector<TraceSpan> spans, bool nested) {
  std::stable_sort(spans.begin(), spans.end(), [](const TraceSpan& a, const TraceSpan& b) {
    return std::pair(a.begin_ns, b.end_ns) < std::pair(b.begin_ns, a.end_ns);
  });
  std::vector<OpenEnds> lanes;
  std::vector<PlacedSpan> placed;
  placed.reserve(spans.size());
  for (const TraceSpan& span : spans) {
    std::size_t lane = 0;
    while (lane < lanes.size() && !fits(lanes[lane], span, nested)) ++lane;
    if (lane == lanes.size()) lanes.emplace_back();
    lanes[lane].push_back(span.end_ns);
    placed.push_back({span, lane});
  }
  return placed;
}

namespace {

constexpr int kLanesOfTrack = 10'000;  // thread numbers per track; above any IO depth
constexpr std::array<const char*, kTraceTracks> kTrackNames = {
    "run", "compute", "waits", "H2D", "D2H", "AdamW", "NVMe read", "NVMe write", "link"};

// Whether a run may lack the track.
constexpr bool is_optional(TraceTrack track) {
  return track == TraceTrack::kRun || track == TraceTrack::kWaits || track == TraceTrack::kLink;
}

std::string json_text(const char* text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

int thread_of(std::size_t track, std::size_t lane) {
  return static_cast<int>(track + 1) * kLanesOfTrack +
         static_cast<int>(std::min<std::size_t>(lane, kLanesOfTrack - 1));
}

// Comma-separated events for one process of a file.
class Events {
 public:
  explicit Events(int process) : process_(std::to_string(process + 1)) {}

  // `rest`: the event's members after the process.
  void add(const char* phase, const std::string& rest) {
    if (!text_.empty()) text_ += ",\n";
    text_ += R"({"ph":")";
    text_ += phase;
    text_ += R"(","pid":)" + process_ + rest + "}";
  }
  void name(const char* what, int thread, const std::string& args) {
    add("M", ",\"tid\":" + std::to_string(thread) + R"(,"name":")" + what + R"(","args":{)" + args +
                 "}");
  }
  std::string take() { return std::move(text_); }

 private:
  const std::string process_;
  std::string text_;
};

void write_track(Events& events, std::size_t track, std::size_t lanes) {
  for (std::size_t lane = 0; lane < std::max<std::size_t>(lanes, 1); ++lane) {
    const int thread = thread_of(track, lane);
    const std::string name =
        kTrackNames[track] + (lane > 0 ? " " + std::to_string(lane + 1) : std::string());
    events.name("thread_name", thread, "\"name\":" + json_text(name.c_str()));
    events.name("thread_sort_index", thread, "\"sort_index\":" + std::to_string(thread));
  }
}

// Microseconds with three decimals, counted from the trace's beginning.
std::string microseconds(std::int64_t ns) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%" PRId64 ".%03d", ns / 1000,
                static_cast<int>(ns % 1000));
  return text.data();
}

void write_span(Events& events, const PlacedSpan& placed, const TraceProcess& process) {
  const TraceSpan& span = placed.span;
  std::string args;
  const auto add = [&args](const char* key, const std::string& value) {
    args += (args.empty() ? "" : ",") + json_text(key) + ":" + value;
  };
  if (span.phase != nullptr) {
    add("phase", json_text(span.phase));
    add("unit", json_text(span.name));
  }
  for (const TraceArg& arg : span.args)
    if (arg.key != nullptr) add(arg.key, std::to_string(arg.value));
  if (process.of_several) add("rank", std::to_string(process.number));
  const std::string name =
      span.phase != nullptr ? span.phase + std::string(" ") + span.name : span.name;
  const std::int64_t origin_ns = process.origin_ns;
  const auto track = static_cast<std::size_t>(span.track);
  events.add("X", ",\"tid\":" + std::to_string(thread_of(track, placed.lane)) + ",\"name\":" +
                      json_text(name.c_str()) + ",\"cat\":" + json_text(kTrackNames[track]) +
                      ",\"ts\":" + microseconds(span.begin_ns - origin_ns) + ",\"dur\":" +
                      microseconds(span.end_ns - span.begin_ns) + ",\"args\":{" + args + "}");
}

// The time of the requested steps, for tools; spans may extend beyond it at both ends.
std::string window_text(std::int64_t begin_ns, std::int64_t end_ns, std::int64_t origin_ns) {
  const auto us = [&](std::int64_t ns) {
    return std::to_string(static_cast<double>(ns - origin_ns) * 1e-3);
  };
  return R"(,"window_us":[)" + us(begin_ns) + "," + us(end_ns) + "]";
}

}  // namespace

Result<TraceLog::Options> TraceLog::parse_steps(const std::string& text) {
  const auto colon = text.find(':');
  const auto number = [](std::string_view digits, std::int64_t& value) {
    const char* const end = digits.data() + digits.size();
    const auto [rest, error] = std::from_chars(digits.data(), end, value);
    return error == std::errc() && rest == end && !digits.empty() && value >= 0;
  };
  Options options;
  const std::string_view first = std::string_view(text).substr(0, colon);
  const std::string_view last =
      colon == std::string::npos ? first : std::string_view(text).substr(colon + 1);
  if (!number(first, options.first_step) || !number(last, options.last_step) ||
      options.last_step < options.first_step)
    return Error(ErrorCode::kInvalidArgument,
                 "'" + text + "' is not a range of steps; write FIRST:LAST, such as 10:12");
  return options;
}

void TraceLog::start(const Options& options) {
  options_ = options;
  slots_ = std::vector<Slot>(options.capacity_spans);
}

void TraceLog::begin_step(std::int64_t step, std::int64_t now_ns) {
  if (slots_.empty()) return;
  const bool wanted = step >= options_.first_step && step <= options_.last_step;
  if (wanted && window_begin_ns_.load(std::memory_order_relaxed) == kNever) {
    window_begin_ns_.store(now_ns, std::memory_order_relaxed);
    active_.store(true, std::memory_order_relaxed);
  }
  if (!wanted && active()) end_steps(now_ns);
}

void TraceLog::end_steps(std::int64_t now_ns) {
  if (!active()) return;
  window_end_ns_.store(now_ns, std::memory_order_relaxed);
  active_.store(false, std::memory_order_relaxed);
}

void TraceLog::keep(const TraceSpan& span) noexcept {
  const std::size_t index = taken_.fetch_add(1, std::memory_order_relaxed);
  if (index >= slots_.size()) return;
  slots_[index].span = span;
  slots_[index].filled.store(true, std::memory_order_release);
}

std::size_t TraceLog::spans() const {
  return std::min(taken_.load(std::memory_order_relaxed), slots_.size());
}

std::size_t TraceLog::dropped_spans() const {
  return taken_.load(std::memory_order_relaxed) - spans();
}

std::int64_t TraceLog::first_ns() const {
  std::int64_t first = kNever;
  for (std::size_t i = 0; i < spans(); ++i)
    if (slots_[i].filled.load(std::memory_order_acquire))
      first = std::min(first, slots_[i].span.begin_ns);
  return first;
}

std::string TraceLog::events(const TraceProcess& process) const {
  std::array<std::vector<TraceSpan>, kTraceTracks> tracks;
  for (std::size_t i = 0; i < spans(); ++i) {
    if (!slots_[i].filled.load(std::memory_order_acquire)) continue;
    tracks[static_cast<std::size_t>(slots_[i].span.track)].push_back(slots_[i].span);
  }
  Events events(process.number);
  events.name("process_name", 0, "\"name\":" + json_text(process.name.c_str()));
  events.name("process_sort_index", 0, "\"sort_index\":" + std::to_string(process.number));
  for (std::size_t track = 0; track < kTraceTracks; ++track) {
    const bool nested = static_cast<TraceTrack>(track) == TraceTrack::kCompute;
    const auto placed = place_in_lanes(std::move(tracks[track]), nested);
    std::size_t lanes = 0;
    for (const PlacedSpan& span : placed) lanes = std::max(lanes, span.lane + 1);
    if (placed.empty() && is_optional(static_cast<TraceTrack>(track))) continue;
    write_track(events, track, lanes);
    for (const PlacedSpan& span : placed) write_span(events, span, process);
  }
  return events.take();
}

Status TraceLog::write_json(const std::string& path) const {
  return write_json(path, {.origin_ns = first_ns()}, {});
}

Status TraceLog::write_json(const std::string& path, const TraceProcess& process,
                            const Others& others) const {
  const std::string fresh = path + ".new";
  const auto failed = [&fresh](const char* operation) {
    Error error = Error::from_errno(errno, {.operation = operation, .path = fresh});
    std::remove(fresh.c_str());
    return error;
  };
  SLUICE_ASSIGN_OR_RETURN(aio::OwnedDescriptor made, aio::make_fresh(fresh, O_WRONLY));
  std::FILE* const file = ::fdopen(made.get(), "w");
  if (file == nullptr) return failed("create");
  made.hand_on();
  const auto write = [&](const std::string& text) { std::fputs(text.c_str(), file); };
  write("{\"displayTimeUnit\":\"ms\",\"otherData\":{\"dropped_spans\":" +
        std::to_string(dropped_spans() + others.dropped_spans));
  if (window_end_ns_.load() != kNever && process.origin_ns != kNever)
    write(window_text(window_begin_ns_.load(), window_end_ns_.load(), process.origin_ns));
  write("},\"traceEvents\":[\n");
  write(events(process));
  for (const std::string& of_another : others.events) {
    write(",\n");
    write(of_another);
  }
  write("\n]}\n");
  const bool is_written = std::ferror(file) == 0;
  if (std::fclose(file) != 0 || !is_written) return failed("write");
  if (std::rename(fresh.c_str(), path.c_str()) != 0) return failed("rename");
  return {};
}

}  // namespace sluice::engine
