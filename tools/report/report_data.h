// The data of a report as JSON, embedded in the page: `sluice-report`, schema 1.
//
//   {"format": "sluice-report", "schema": 1, "made_unix_s", "made_by",
//    "drive_tbw": null, or TB,
//    "runs": [{"name", "path", "notices": [...], "lines",
//              "series": {"width": steps a point, "last": [step, ...], "first": [...],
//                         "lines": [...],
//                         "columns": {"loss": {"v": [mean, ...], "lo": [...], "hi": [...]}}},
//              "skipped", "not_finite": {"count", "steps": [...]}, "gaps": [[first, last], ...],
//              "drives": {"read_bytes", "write_bytes", "again_lines", "again_read_bytes",
//                         "again_write_bytes"},
//              "trace": {"window_s", "tracks": [{"name", "busy_s", "bytes"}]},
//              "events": [...], "config": [[key, value], ...],
//              "checkpoints": [{"step", "bytes", "state"}]}]}
//
// "first" and "lines" are present only if points cover several steps. A column with equal numbers
// at all points has "all" instead of "v". The members "lo" and "hi" are present where they differ
// from "v". A run without a trace has no "trace".
//
// Threads: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/report/run_record.h"

namespace sluice::report {

struct ReportOptions {
  double made_unix_s = 0;
  std::string made_by;              // "sluice 0.1.0 (commit ...)"
  std::optional<double> drive_tbw;  // rated endurance of all drives together, in TB written
};

// The number of buckets per run that keeps a page of `runs` runs below 2 MB.
std::size_t buckets_for(std::size_t runs);

// The result is script_safe().
std::string report_json(const std::vector<RunRecord>& runs, const ReportOptions& options);

// What a page with an earlier state of the run lacks. "keep_points" and "keep_events" say how many
// of the page's points and events are still valid. The members "series" and "events" have
// what follows them. Name, path, trace, configuration and checkpoints are included only
// `with_facts`. The result is script_safe().
struct Increment {
  std::size_t points = 0;  // at most the current number, also for `events`
  std::size_t events = 0;
  bool with_facts = true;
};
std::string increment_json(const RunRecord& run, const Increment& from);

}  // namespace sluice::report
