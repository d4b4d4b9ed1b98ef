// EventLog: events.jsonl, what happened to a run between its steps: where each of its lives begins,
// with the plan, the machine and the configuration it began with; checkpoints; warnings; its end.
//
// The plan is kept here rather than in a file of its own or in the first line of the metrics: each
// life of a run may have another machine and another plan, and what earlier lives had is not to be
// lost; and every line of the metrics stays a step's, as all their readers expect.
//
// Events are for people who look at the run later. So none of them refuses a run or ends it: what
// cannot be written waits in memory, at most kMostWaitingBytes of it; beyond that it is lost, and
// counted. Lines are only added, never cut. One that a kill tore is ended by the next life. There
// may be several parts (log_parts.h).
//
// Threads: note() from any, and never blocks on the disk, but on a listener that does; the rest
//          from one.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "aio/result.h"

namespace sluice::engine {

inline constexpr std::int64_t kEventsSchema = 1;

class EventLog {
 public:
  EventLog() = default;
  ~EventLog();  // tries once more to write what waits
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  // Events wait until then. Nothing but the file's end is touched. `part_bytes`: no part is larger,
  // unless what is written at once is; 0: there is one.
  Status open(const std::string& path, std::uint64_t part_bytes = 0);

  // `members`: what the event has besides its kind, the time and the step: `"a":1,"b":2`, or
  // nothing. JSON, which is not checked.
  void note(std::string_view kind, std::int64_t step, std::string_view members);
  // A text as a member: `"text":"..."`.
  static std::string member(std::string_view key, std::string_view text);

  // Writes what waits, if anything does. Not ok: it goes on waiting.
  Status flush();
  // From here on gets each line as well, with its end, as it is noted: from the thread that
  // notes it, under whatever locks it holds. While it blocks, as a pipe can, so does note(), and
  // who waits for those locks; it must not note anything itself.
  void set_listener(std::function<void(std::string_view line)> listener) {
    listener_ = std::move(listener);
  }

  static constexpr std::size_t kMostWaitingBytes = std::size_t{1} << 20;
  std::int64_t lost_events() const;

 private:
  int descriptor_ = -1;
  std::string path_;
  std::uint64_t part_bytes_ = 0;
  std::uint64_t size_bytes_ = 0;  // of the file
  bool in_line_ = false;          // the file ends with a part of a line, whose rest waits
  std::function<void(std::string_view)> listener_;

  void begin_part();

  mutable std::mutex mutex_;
  std::string waiting_;           // guarded by mutex_
  std::int64_t lost_events_ = 0;  // guarded by mutex_
};

// Now, by the system's clock, in whole milliseconds.
double unix_seconds();

}  // namespace sluice::engine
