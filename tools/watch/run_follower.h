// RunFollower: follows a run's folder while the run continues, or before it exists. Reads files and
// does nothing else, so the run is not affected; RunView has the conclusions.
//
// Files that are links out of the folder are not read, since a view may be served to other users.
//
// Memory:  as a report::RunRecord.
// Threads: one at a time.
// Errors:  none: files that cannot be read are among the view's notices, and the next poll tries
//          again.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "aio/result.h"
#include "tools/report/report_data.h"
#include "tools/report/run_record.h"
#include "tools/report/text_lines.h"
#include "tools/watch/run_view.h"

namespace sluice::watch {

// FileFollower: follows a file of lines that another program appends to, and delivers each line
// when it is complete.
//
// The file may be missing at first, and its last line may be half-written. It may be renamed to
// FILE.1 and begun anew (the previous FILE.1 becomes FILE.2, and so on). If it is cut, overwritten
// or replaced, restart() is called and all lines are delivered again.
//
// Each poll opens the file briefly for reading and does nothing else to it.
//
// Memory:  one line, at most report::kMostLineBytes, and a block.
// Threads: one.
// Errors:  name the file. Lines read before an error stay, and the next poll tries again.
class FileFollower {
 public:
  struct Sink {
    std::function<void()> restart;  // everything read so far is invalid
    std::function<void(const report::TextLine&)> line;
  };
  FileFollower(std::string path, Sink sink);

  Status poll();

  // Whether the last poll found a line that is not complete.
  bool has_torn_end() const { return lines_.has_begun(); }
  std::int64_t too_long_lines() const { return lines_.too_long(); }  // since the last restart

 private:
  struct Identity {
    dev_t device = 0;
    ino_t inode = 0;
    friend bool operator==(const Identity&, const Identity&) = default;
  };
  class OpenFile;

  bool continues(const OpenFile& file) const;
  Status read_rest(const OpenFile& file);
  Status read_part(const std::string& part);
  void begin_anew();

  std::string path_;
  Sink sink_;
  report::LineSplitter lines_;
  std::optional<Identity> identity_;  // the file that was read last
  std::int64_t offset_bytes_ = 0;     // position of the next unread byte
  std::string before_;                // the last bytes before that position
  bool has_read_ = false;             // whether anything was read since the last restart
};

class RunFollower {
 public:
  struct Options {
    std::string path;  // the run's folder
    std::string name;  // empty: the folder's name
    std::size_t most_buckets = 1200;
    std::function<double()> now_unix_s;
    std::function<double()> steady_s = steady_seconds;  // reads a clock that is never set
    std::function<RunLock(const std::string&)> lock = run_lock;
  };
  explicit RunFollower(Options options);
  static double steady_seconds();

  void poll();

  // Results of the last poll.
  const report::RunRecord& record() const { return record_; }
  const RunView& view() const { return view_; }

  // What a client has of the run after an increment: opaque text of digits and dots; "0" is
  // nothing. increment() returns the rest, or null if there is none.
  std::string cursor() const;
  std::string increment(const std::string& cursor) const;

 private:
  // Identifies a version of a file that is read as a whole whenever it has changed.
  struct Stamp {
    std::int64_t inode = 0, size = 0, changed_ns = 0;
    friend bool operator==(const Stamp&, const Stamp&) = default;
  };
  // Changes whenever the run writes anything.
  struct Progress {
    double newest_unix_s = 0;
    std::int64_t lines = 0, events = 0;
    friend bool operator==(const Progress&, const Progress&) = default;
  };
  bool changed(const std::string& name, Stamp& stamp);
  void read_facts();
  void follow_metrics();
  void take_step(const report::MetricsReader::Step& step);
  RunObservation observation() const;
  void show();
  void show_totals(RunView& view) const;
  void collect_notices(RunPhase phase);

  Options options_;
  report::RunRecord record_;
  report::MetricsReader metrics_;
  FileFollower file_;
  std::int64_t too_long_lines_ = 0;  // lines of file_ already reported to metrics_
  std::deque<StepLine> recent_;
  RunFacts facts_;
  std::array<Stamp, 4> stamps_;  // events, config, trace, metrics-cut
  std::vector<std::string> file_notices_;
  std::string metrics_error_;
  double newest_unix_s_ = 0;
  Progress progress_;
  double changed_s_ = 0;  // when progress_ last changed, by the steady clock
  bool is_there_ = false;

  std::int64_t series_epoch_ = 1;  // increases when earlier points have changed
  std::int64_t events_epoch_ = 1;
  std::int64_t facts_version_ = 1;
  RunView view_;
};

}  // namespace sluice::watch
