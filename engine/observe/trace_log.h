// TraceLog: what ran when on each resource, for a few steps, as a file for ui.perfetto.dev
// (Chrome's trace-event JSON).
//
// Spans are kept in memory taken by start(), and written by write_json() at the end. What no longer
// fits is counted and left out. A span belongs to the trace when it overlaps the time of the
// requested steps, even when it ends after them.
//
// A trace of several ranks has a process for each: the others' events() are written with those of
// the one that writes.
//
// Threads: add() and active() from any, at once, without locks; the rest from one, events() and
//          write_json() when no thread adds any longer.
// Memory:  capacity_spans, in start(); a TraceLog that was never started has none, and its add() is
//          one load and one comparison.
// Time:    of one clock, in nanoseconds, whatever its origin.
#pragma once

#include <array>
#include <atomic>
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
  kWaits,  // what compute waits for
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

// Names and keys are strings that live as long as the program: nothing is copied. With a phase the
// file has "PHASE NAME" as the name, and both as arguments, "phase" and "unit".
struct TraceSpan {
  TraceTrack track = TraceTrack::kCompute;
  const char* name = "";
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::array<TraceArg, 3> args{};
  const char* phase = nullptr;
};

// One rank of a trace, as its file has it.
struct TraceProcess {
  int number = 0;
  std::string name = "sluice";
  bool of_several = false;     // then each of its spans has its number, as "rank"
  std::int64_t origin_ns = 0;  // of the file's times, by this rank's clock
};

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

  // "FIRST:LAST", or one number for both; kInvalidArgument says what is wrong.
  static Result<Options> parse_steps(const std::string& text);

  // Once, before the first step.
  void start(const Options& options);
  // At the beginning of each step.
  void begin_step(std::int64_t step, std::int64_t now_ns);
  // After the last step of the run.
  void end_steps(std::int64_t now_ns);

  // Whether a span that begins now would be kept: for callers to which reading the clock is a cost.
  bool active() const { return active_.load(std::memory_order_relaxed); }
  void add(const TraceSpan& span) noexcept {
    if (span.end_ns > window_begin_ns_.load(std::memory_order_relaxed) &&
        span.begin_ns < window_end_ns_.load(std::memory_order_relaxed))
      keep(span);
  }

  std::size_t spans() const;
  std::size_t dropped_spans() const;

  // When its first span begins; kNever: it has none.
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  std::int64_t first_ns() const;
  // Its spans, as a part of a file.
  std::string events(const TraceProcess& process) const;

  // Of several processes: all but this log's own.
  struct Others {
    std::vector<std::string> events;
    std::size_t dropped_spans = 0;
  };
  // Replaces what is at `path`.
  Status write_json(const std::string& path, const TraceProcess& process,
                    const Others& others) const;
  Status write_json(const std::string& path) const;  // of one process

 private:
  struct Slot {
    TraceSpan span;
    std::atomic<bool> filled = false;
  };

  void keep(const TraceSpan& span) noexcept;

  Options options_;
  std::vector<Slot> slots_;
  std::atomic<std::size_t> taken_ = 0;  // may exceed the slots: the rest was dropped
  std::atomic<std::int64_t> window_begin_ns_ = kNever;
  std::atomic<std::int64_t> window_end_ns_ = kNever;
  std::atomic<bool> active_ = false;
};

// A span from here to the end of the block.
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
