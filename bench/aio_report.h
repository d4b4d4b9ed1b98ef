// The output of aio_bench: a table for people, JSON for programs.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "aio/machine_info.h"
#include "bench/aio_options.h"
#include "bench/aio_workload.h"

namespace sluice::bench {

// The machine and what is measured: the lines above the table.
struct ReportHeader {
  aio::MachineInfo machine;
  struct Place {
    std::string path;
    aio::MountInfo mount;
  };
  std::vector<Place> places;
  std::string command;
};
ReportHeader make_header(const AioOptions& options, std::string command);

// The median run by GB/s among those that were not interrupted; of an even number the slower of the
// two in the middle. runs must not be empty.
const RunResult& median_run(const std::vector<RunResult>& runs);

std::string machine_text(const ReportHeader& header);
std::string shape_text(const AioOptions& options, const AioSession& session);
std::string table_heading();
// label: "1", "2", ... or "median".
std::string table_row(const RunResult& run, const std::string& label);

struct ModeRuns {
  Mode mode;
  std::vector<RunResult> runs;
};
// {version, machine, command, size_bytes, runs, median} or, for several modes, `medians` by mode.
std::string runs_json(const ReportHeader& header, const AioOptions& options,
                      const std::vector<ModeRuns>& results, bool interrupted);

struct SweepPoint {
  AioSession::Options shape;
  // One entry per try; nullopt: nothing completed.
  std::vector<std::optional<double>> gb_per_s;
  // A try in which nothing completed counts as 0; nullopt if nothing completed in any try.
  std::optional<double> mean() const;
};
std::string sweep_json(const ReportHeader& header, const AioOptions& options,
                       const std::vector<SweepPoint>& points, const SweepPoint& best);
// DeepSpeed's `aio` section.
std::string aio_section_json(const AioSession::Options& shape);

}  // namespace sluice::bench
