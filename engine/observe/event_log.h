// EventLog: events.jsonl, the events of a run outside of its steps: the start of each attempt, with
// the plan, the machine and the configuration; checkpoints; warnings; its end.
//
// The plan is stored here rather than in a file of its own or in the first line of the metrics.
// Each attempt of a run may have another machine and another plan, and the earlier ones must not be
// lost. Every line of the metrics remains a step's, as all their readers expect.
//
// Events are for people who look at the run later, so a failing write neither refuses a run nor
// ends it. Events that cannot be written wait in memory, up to kMostWaitingBytes; beyond that they
// are lost, and counted. Lines are only appended, never cut. A line torn by a kill is ended by the
// next attempt. There may be several parts (log_parts.h).
//
// Threads: note() from any. It never blocks on the disk, but may block on a listener. The rest from
//          one.
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
  ~EventLog();  // tries once more to write waiting events
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  // Until this call events wait in memory. Existing lines are not changed. `part_bytes`: the
  // maximum size of a part, unless one write is larger; 0: a single part.
  Status open(const std::string& path, std::uint64_t part_bytes = 0);

  // `members`: the event's members in addition to kind, time and step: `"a":1,"b":2`, or empty. It
  // must be valid JSON, which is not checked.
  void note(std::string_view kind, std::int64_t step, std::string_view members);
  // A text as a member: `"text":"..."`.
  static std::string member(std::string_view key, std::string_view text);

  // Writes the waiting events. Not ok: they keep waiting.
  Status flush();
  // From now on the listener gets each complete line when it is noted, in the noting thread and
  // under its locks. If the listener blocks, as a pipe can, note() and everything that waits for
  // those locks block, too. It must not note events itself.
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
  bool in_line_ = false;          // the file ends with a partial line, whose rest waits
  std::function<void(std::string_view)> listener_;

  void begin_part();

  mutable std::mutex mutex_;
  std::string waiting_;           // guarded by mutex_
  std::int64_t lost_events_ = 0;  // guarded by mutex_
};

// The system clock's time, in whole milliseconds.
double unix_seconds();

}  // namespace sluice::engine
