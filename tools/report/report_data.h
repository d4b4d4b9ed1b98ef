// The data of a report as JSON, which the page has embedded and shows: `sluice-report`, schema 1.
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
// "first" and "lines" are there only where points are of several steps; a column that is the same
// number at all points has "all" instead of "v"; "lo" and "hi" are there where they differ from
// "v"; "trace" only of a run that has one.
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
  std::optional<double> drive_tbw;  // TB that the drives are rated for, all together
};

// So that a page of so many runs stays below 2 MB.
std::size_t buckets_for(std::size_t runs);

// script_safe().
std::string report_json(const std::vector<RunRecord>& runs, const ReportOptions& options);

// What a page lacks that has an earlier state of the run: "keep_points" and "keep_events" say how
// many of those it has still hold, and "series" and "events" have what follows them. Name, path,
// trace, configuration and checkpoints only `with_facts`. script_safe().
struct Increment {
  std::size_t points = 0;  // at most as many as there are, like the next
  std::size_t events = 0;
  bool with_facts = true;
};
std::string increment_json(const RunRecord& run, const Increment& from);

}  // namespace sluice::report
