// ModuleRecord: the files that a module's run keeps in its folder in addition to checkpoints:
// config.json, metrics.jsonl, events.jsonl and, if requested, trace.json, in the format of `sluice
// train`. `sluice report`, `diff` and `ls` read them.
//
// It begins with the next step: after step 0, or after the step of a loaded checkpoint. Metrics of
// later steps, which will be run again, are moved to metrics-cut.jsonl.
//
// Threads: one.
// Errors:  begin() returns them. Later, data that cannot be written waits in memory, with a
//          warning, and the run continues.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "aio/result.h"
#include "engine/config/resolve.h"
#include "engine/module/module_run.h"
#include "engine/observe/metrics_log.h"
#include "engine/observe/trace_log.h"
#include "tools/session/run_events.h"

namespace sluice::tools {

// A finished step as reported by Python.
struct ModuleStep {
  engine::StepOutcome outcome;
  std::int64_t step = 0;
  std::uint64_t tokens = 0;
  std::int64_t begin_ns = 0;  // on the monotonic clock
  std::int64_t end_ns = 0;
  double forward_s = 0;
  double backward_s = 0;
  double update_s = 0;  // the part that the script waited for
};

class ModuleRecord {
 public:
  // `directory`: already passed to run.own_directory(). `run` must outlive the record.
  // kAlreadyExists: the run begins at step 0, and the folder has another run's metrics.
  static Result<std::unique_ptr<ModuleRecord>> begin(engine::ModuleRun& run,
                                                     const config::Resolved& resolved,
                                                     const std::string& directory);

  void step(const ModuleStep& step);
  void checkpoint(const engine::SavedCheckpoint& saved) { events_.checkpoint(saved); }
  void end(const std::string& how, const std::string& reason);
  Status write_trace();

  // The last step's metrics.
  const engine::StepMetrics& last() const { return last_; }
  // Sentences about data that should be on the disk, and is not.
  std::vector<std::string> missing() const;

 private:
  ModuleRecord(engine::ModuleRun& run, std::string directory)
      : run_(run), directory_(std::move(directory)), before_(run.traffic()) {}

  engine::ModuleRun& run_;
  const std::string directory_;
  RunEvents events_;
  std::unique_ptr<engine::MetricsLog> log_;
  engine::Resources::Traffic before_;
  std::uint64_t tokens_seen_ = 0;
  engine::StepMetrics last_;
};

}  // namespace sluice::tools
