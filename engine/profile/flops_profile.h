// FlopsProfile: what a step of one rank computed and how long that took, phase by phase and unit by
// unit, and its tables: those that users of DeepSpeed's flops_profiler know, with its words where
// they mean the same.
//
// A head makes forward and backward in one pass ("loss"). Where its latency is to be divided,
// forward has the part of it that it has of the operations.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/profile/pass_totals.h"
#include "engine/profile/step_flops.h"

namespace sluice::engine {

struct FlopsProfile {
  // Of one rank.
  std::int64_t step = 0;  // 0: of several, in the mean
  std::int64_t micro_batch = 1;
  std::int64_t micro_batches = 1;  // of a step
  std::int64_t sequence_tokens = 1;
  int ranks = 1;
  std::vector<UnitFlops> units;
  std::vector<bool> keeps;  // by unit: what backward needs is kept, and not recomputed; empty: none
  PassTotals passes{0};
  double step_s = 0;
  double update_s = 0;  // under compute or not
  double update_exposed_s = 0;
  double limit_flops_per_s = 0;  // of large products on this device, as measured; 0: unknown

  double tokens() const {  // of the rank's step
    return static_cast<double>(micro_batch * micro_batches * sequence_tokens);
  }
};

// Operations of a rank's step in one phase; those of the head are of kLoss.
double phase_flops(const FlopsProfile& profile, PassPhase phase);
double unit_phase_flops(const FlopsProfile& profile, int unit, PassPhase phase);

// Where the step went: time, operations, their speed and its share of the limit.
std::string phase_table(const FlopsProfile& profile);

// By kind of unit, or by unit.
enum class UnitRows : std::uint8_t { kKinds, kUnits };
std::string unit_table(const FlopsProfile& profile, UnitRows rows);

struct FlopsTables {
  std::int64_t module_depth = -1;  // 0: the model, 1: kinds, 2 and -1: units
  std::int64_t top_modules = 1;
  bool detailed = true;
};
// All of it, as text with a heading.
std::string format_flops_profile(const FlopsProfile& profile, const FlopsTables& tables);

// One JSON object: the step, its phases, units and limit; seconds, and operations a step.
std::string flops_profile_json(const FlopsProfile& profile);

}  // namespace sluice::engine
