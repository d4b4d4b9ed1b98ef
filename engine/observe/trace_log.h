// TraceLog: what ran when on each resource, for a few steps, as a file for ui.perfetto.dev
// (Chrome's trace-event JSON).
//
// Spans are kept in memory that start() allocates, and written by write_json() at the end. Spans
// beyond the capacity are counted and dropped. A span belongs to the trace if it overlaps the time
// of the requested steps, even if it ends after them.
//
// A trace of several ranks has a process for each. One rank writes the events() of the others
// together with its own.
//
// Threads: add() and active() from any, at once, without locks; the rest from one, events() and
//          write_json() after the last add().
// Memory:  capacity_spans, in start(); a TraceLog that was never started has none, and its add() is
//          one load and one comparison.
// Time:    of one clock, in nanoseconds, with any origin.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "aio/clock.h"
#include "aio/result.h"

namespace sluice::engine {

enum class TraceTrack : std::uint8_t {
  kRun,  // steps, validation, checkpoints
  kCompute,
  kWaits,  // waits of compute
  kH2d,
  kD2h,
  kAdamw,
  kNvmeRead,
  kNvmeWrite,
  kLink,
};
inline constexpr std::size_t kTraceTracks = 9;

struct TraceArg {
  const char* key = nullptr;  // nullptr: none
  std::int64_t value = 0;
};

// Names and keys must be static strings, because nothing is copied. With a phase, the file has
// "PHASE NAME" as the name, and both as arguments, "phase" and "unit".
struct TraceSpan {
  TraceTrack track = TraceTrack::kCompute;
  const char* name = "";
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::array<TraceArg, 3> args{};
  const char* phase = nullptr;
};

// One rank of a trace, as a process of the file.
struct TraceProcess {
  int number = 0;
  std::string name = "sluice";
  bool of_several = false;     // each of its spans has its number, as "rank"
  std::int64_t origin_ns = 0;  // of the file's times, on this rank's clock
};

// The lanes of a trace's track. Spans of one lane are disjoint or nested, as trace viewers require;
// spans that overlap otherwise (two reads at once) get separate lanes.
struct PlacedSpan {
  TraceSpan span;
  std::size_t lane = 0;
};

// `spans`: of one track, ordered by beginning, the longer one first. `nested`: spans of a lane may
// be nested; otherwise they are disjoint.
std::vector<PlacedSpan> place_in_lanes(std::vector<TraceSpan> spans, bool nested);

class TraceLog {
 public:
  struct Options {
    std::int64_t first_step = 0;
    std::int64_t last_step = 0;
    std::size_t capacity_spans = 1 << 18;
  };

  TraceLog() = default;
  TraceLog(const TraceLog&) = delete;
  TraceLog& operator=(const TraceLog&) = delete;

  // "FIRST:LAST", or one number for both; kInvalidArgument describes the error.
  static Result<Options> parse_steps(const std::string& text);

  // Call it once, before the first step.
  void start(const Options& options);
  // Call it at the beginning of each step.
  void begin_step(std::int64_t step, std::int64_t now_ns);
  // Call it after the last step of the run.
  void end_steps(std::int64_t now_ns);

  // Whether a span that begins now would be kept, for callers to which reading the clock is a cost.
  bool active() const { return active_.load(std::memory_order_relaxed); }
  void add(const TraceSpan& span) noexcept {
    if (span.end_ns > window_begin_ns_.load(std::memory_order_relaxed) &&
        span.begin_ns < window_end_ns_.load(std::memory_order_relaxed))
      keep(span);
  }

  std::size_t spans() const;
  std::size_t dropped_spans() const;

  // The beginning of the first span; kNever: there is none.
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  std::int64_t first_ns() const;
  // The spans as a part of a file.
  std::string events(const TraceProcess& process) const;

  // The events of all other processes of the trace.
  struct Others {
    std::vector<std::string> events;
    std::size_t dropped_spans = 0;
  };
  // Replaces the file at `path`.
  Status write_json(const std::string& path, const TraceProcess& process,
                    const Others& others) const;
  Status write_json(const std::string& path) const;  // of a single process

 private:
  struct Slot {
    TraceSpan span;
    std::atomic<bool> filled = false;
  };

  void keep(const TraceSpan& span) noexcept;

  Options options_;
  std::vector<Slot> slots_;
  std::atomic<std::size_t> taken_ = 0;  // may exceed the slots; the excess was dropped
  std::atomic<std::int64_t> window_begin_ns_ = kNever;
  std::atomic<std::int64_t> window_end_ns_ = kNever;
  std::atomic<bool> active_ = false;
};

// Adds a span from here to the end of the block.
class TraceScope {
 public:
  TraceScope(TraceLog& log, const Clock& clock, TraceTrack track, const char* name,
             const TraceArg& arg = {})
      : log_(log.active() ? &log : nullptr), clock_(clock) {
    if (log_ == nullptr) return;
    span_.track = track;
    span_.name = name;
    span_.args[0] = arg;
    span_.begin_ns = clock_.now_ns();
  }
  ~TraceScope() {
    if (log_ == nullptr) return;
    span_.end_ns = clock_.now_ns();
    log_->add(span_);
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  TraceLog* log_;
  const Clock& clock_;
  TraceSpan span_;
};

}  // namespace sluice::engine
