// RunRecord: the readable contents of a run's folder.
//
// Errors: kNotFound and kInvalidArgument if there is no run. Damage is a notice.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aio/result.h"
#include "tools/report/events_file.h"
#include "tools/report/metrics_file.h"
#include "tools/report/trace_file.h"

namespace sluice::report {

struct CheckpointFact {
  std::int64_t step = 0;
  std::uint64_t bytes = 0;
  std::string state;  // as `sluice ls` prints it
};

struct RunRecord {
  std::string name;  // the folder's
  std::string path;  // as given by the caller
  MetricsFile metrics;
  std::optional<MetricsFile> cut;  // steps that were run again after a resume
  EventsFile events;
  std::optional<TraceFile> trace;                           // covers some steps, with --trace
  std::vector<std::pair<std::string, std::string>> config;  // key and value, in the file's order
  std::vector<CheckpointFact> checkpoints;
  std::vector<std::string> notices;  // sentences: what is missing or damaged
};

// The name of the run in folder `path`.
std::string run_name(const std::string& path);

// The parts of read_run(), for followers of a run: configuration, events and trace of its folder,
// where they exist, and notices about the metrics.
void read_config(const std::string& path, RunRecord& record);
void read_events(const std::string& path, RunRecord& record);
void read_cut(const std::string& path, RunRecord& record);
void read_trace(const std::string& path, RunRecord& record);
void note_metrics(const MetricsFile& metrics, std::vector<std::string>& notices);

// `path`: a run's folder, or a metrics.jsonl. The caller reads checkpoints.
Result<RunRecord> read_run(const std::string& path, std::size_t most_buckets);

}  // namespace sluice::report
