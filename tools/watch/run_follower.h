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

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>

#include "tools/report/report_data.h"
#include "tools/report/run_record.h"
#include "tools/watch/file_follower.h"
#include "tools/watch/run_view.h"

namespace sluice::watch {

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
  RunSigns signs() const;
  void show();

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
