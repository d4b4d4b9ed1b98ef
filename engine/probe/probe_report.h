// ProbeReport: the results of a probe of a machine, and their presentation.
//
// Without LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/probe/gpu_speeds.h"
#include "engine/probe/measurement.h"
#include "engine/probe/unit_times.h"
#include "offload/planner/machine_speeds.h"
#include "swap/stripe_weights.h"

namespace sluice::engine {

// The origin of a number.
struct ProbedWhen {
  std::int64_t unix_s = 0;
  bool cached = false;     // from the file, not measured now
  bool estimated = false;  // not measured at all
  bool disturbed = false;  // measured while other work used the machine
};

struct ProbedPath {
  std::string path;
  offload::DuplexRates rates;
  ProbedWhen when;
  int sharers = 1;  // paths on its drive, itself included
  int weight = 1;   // of its stripes in the measurement of all paths
};

struct MeasuredLink {
  offload::LinkSpeeds speeds;
  ProbedWhen when;
  MeasuredKey key;  // in the cache
};

// The fraction of a data sheet's rate that a plan uses, and its source.
struct RateShare {
  std::string_view what;
  double share = 0;
  std::string_view from;
};

struct ProbeReport {
  std::string cpu;  // "AMD EPYC 9654, 64 threads"
  std::string gpu;  // empty: none is used
  offload::MachineSpeeds speeds;
  PinTrial pin;  // of host memory, for the GPU
  ProbedWhen host_when;
  ProbedWhen gpu_when;
  std::vector<ProbedPath> paths;  // each measured alone; speeds.drives is for all together
  ProbedWhen drives_when;
  UnitTimes units;
  std::string units_of;  // "hidden 1600, micro-batch 4 x 1024 tokens, bf16"
  ProbedWhen units_when;
  std::string cache_path;                     // empty: no cache
  std::vector<std::string> disturbances;      // clauses about the current measurements
  std::vector<std::string> disturbed_before;  // measurements in the file that were disturbed
  bool of_a_series = false;                   // a series, for which disturbed values are cached
  std::vector<MeasuredKey> measured;          // cache keys of all measurements
  ProbedWhen link_when;                       // for several ranks
  std::vector<RateShare> shares;              // for a described GPU
  std::vector<std::string> assumed;           // for a described machine: values that were not given
  std::vector<std::string> from_here;         // for a described machine: values of this machine
};

// The input for stripe weights.
std::vector<swap::PathSpeed> path_speeds(const ProbeReport& report);

// A sentence that says that the machine was busy, why, and with which consequence; empty if it was
// not.
std::string busy_warning(const ProbeReport& report);

// A sentence that says that little host memory can be pinned for the GPU, and what the plan counts
// with; empty if there is no limit.
std::string pinning_text(const ProbeReport& report);

// Aligned text for standard output; `now_unix_s` is needed for ages.
std::string format_report(const ProbeReport& report, std::int64_t now_unix_s);
// All values as one JSON object.
std::string to_json(const ProbeReport& report);

// Sets the sharers of each path, by its drive. A drive without a name has one path.
void count_sharers(const std::vector<std::string>& drives, std::vector<ProbedPath>& paths);

// Sets the weights of paths whose sharers are set: the configured weights (none: equal), or else by
// each path's own speed.
void weigh_paths(const std::optional<std::vector<int>>& named, ProbeReport& report);

}  // namespace sluice::engine
