// RunRecord: the readable contents of a run's folder.
//
// Errors: kNotFound and kInvalidArgument if there is no run. Damage is a notice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aio/result.h"
#include "tools/report/metrics_file.h"

namespace sluice::report {

// EventsFile: a run's events.jsonl as the report page shows it: known events of a bounded number
// and size, each as JSON. If the run has several attempts, only the last `begin` keeps its
// configuration and tiers; `changes` lists what changed from one attempt to the next.
//
// Memory: kMostOfAKind events of each kind, of at most kMostEventBytes each (a `begin`:
//         kMostBeginBytes), and the last kMostLatest events.
// Errors: only if the file cannot be read.
struct EventsFile {
  static constexpr std::size_t kMostOfAKind = 500;
  static constexpr std::size_t kMostSamples = 2000;  // sample texts instead
  static constexpr std::size_t kMostEventBytes = std::size_t{8} << 10;
  static constexpr std::size_t kMostBeginBytes = std::size_t{128} << 10;

  static constexpr std::size_t kMostLatest = 100;

  std::vector<std::string> events;  // JSON objects, in the order of the file
  std::vector<std::string> latest;  // the last events, including those that `events` leaves out
  std::int64_t left_out = 0;        // beyond kMostOfAKind
  std::int64_t bad_lines = 0;
  bool has_torn_end = false;
};

Result<EventsFile> read_events_file(const std::string& path);

// TraceFile: how busy each resource was during the steps of a run's trace.json, as far as the file
// can be read. Overlapping spans count once. With several ranks, only the first one's spans count.
//
// Memory: 16 bytes per span, at most kMostSpans.
// Errors: only if the file cannot be read.
struct TraceFile {
  static constexpr std::size_t kMostSpans = std::size_t{1} << 21;

  struct Track {
    std::string name;  // as in traces: "compute", "NVMe read"
    double busy_s = 0;
    double bytes = 0;
  };
  double window_s = 0;  // time covered by the steps; 0: the trace has no steps
  std::vector<Track> tracks;
};

// Reads the format that engine/observe/trace_log.h writes: one event per line.
Result<TraceFile> read_trace_file(const std::string& path);

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
