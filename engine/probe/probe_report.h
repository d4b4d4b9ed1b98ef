// ProbeReport: what a probe found out about a machine, and its presentation.
//
// Without LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/probe/measurement.h"
#include "engine/probe/unit_times.h"
#include "offload/planner/machine_speeds.h"
#include "swap/stripe_weights.h"

namespace sluice::engine {

// Where a number comes from.
struct ProbedWhen {
  std::int64_t unix_s = 0;
  bool cached = false;     // from the file, not measured now
  bool estimated = false;  // not measured at all
  bool disturbed = false;  // measured while something else was using the machine
};

struct ProbedPath {
  std::string path;
  offload::DuplexRates rates;
  ProbedWhen when;
  int sharers = 1;  // paths on its drive, itself included
  int weight = 1;   // of its stripes, when all were measured together
};

struct MeasuredLink {
  offload::LinkSpeeds speeds;
  ProbedWhen when;
  MeasuredKey key;  // what it is kept as
};

// What a plan takes of a rate that a data sheet gives, and where that is from.
struct RateShare {
  std::string_view what;
  double share = 0;
  std::string_view from;
};

struct ProbeReport {
  std::string cpu;  // "AMD EPYC 9654, 64 threads"
  std::string gpu;  // empty: none is used
  offload::MachineSpeeds speeds;
  ProbedWhen host_when;
  ProbedWhen gpu_when;
  std::vector<ProbedPath> paths;  // each alone; speeds.drives are all together
  ProbedWhen drives_when;
  UnitTimes units;
  std::string units_of;  // "hidden 1600, micro-batch 4 x 1024 tokens, bf16"
  ProbedWhen units_when;
  std::string cache_path;                     // empty: nothing is kept
  std::vector<std::string> disturbances;      // of what was measured just now, a clause each
  std::vector<std::string> disturbed_before;  // what the file has from when the machine was busy
  bool of_a_series = false;                   // for which disturbed measurements are kept
  std::vector<MeasuredKey> measured;          // what all of it is kept as
  ProbedWhen link_when;                       // of several ranks
  std::vector<RateShare> shares;              // of a GPU that is described
  std::vector<std::string> assumed;           // of a machine that is described: what was not given
  std::vector<std::string> from_here;         // likewise, and is this machine's
};

// What weights are made of.
std::vector<swap::PathSpeed> path_speeds(const ProbeReport& report);

// That the machine was busy, by what, and what follows: a sentence; empty where it was not.
std::string busy_warning(const ProbeReport& report);

// Aligned text, for standard output; `now_unix_s` gives the ages.
std::string format_report(const ProbeReport& report, std::int64_t now_unix_s);
// One JSON object with everything.
std::string to_json(const ProbeReport& report);

}  // namespace sluice::engine
