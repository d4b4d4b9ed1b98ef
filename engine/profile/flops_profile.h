// FlopsProfile: the operations and times of one rank's step, by phase and by unit, and their
// tables. The tables are those of DeepSpeed's flops_profiler, with its terms if they mean the same.
//
// A head computes forward and backward in one pass ("loss"). To divide its latency, forward gets
// its fraction of the operations.
//
// Threads: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/observe/pass_span.h"
#include "engine/profile/step_flops.h"

namespace sluice::engine {

// PassTotals: the time of each phase of each unit, added up over steps.
class PassTotals {
 public:
  explicit PassTotals(int units) : units_(static_cast<std::size_t>(units)) {}

  void add_step(std::span<const PassSpan> spans);
  int steps() const { return steps_; }

  // The mean per step; 0 without steps.
  double seconds(int unit, PassPhase phase) const;
  double seconds(PassPhase phase) const;  // over all units

 private:
  int steps_ = 0;
  std::vector<std::array<double, kPassPhases>> units_;
};

struct FlopsProfile {
  // For one rank.
  std::int64_t step = 0;  // 0: the mean of several steps
  std::int64_t micro_batch = 1;
  std::int64_t micro_batches = 1;  // per step
  std::int64_t sequence_tokens = 1;
  int ranks = 1;
  std::vector<UnitFlops> units;
  std::vector<bool> keeps;  // by unit: saved for backward instead of recomputed; empty: none
  PassTotals passes{0};
  double step_s = 0;
  double update_s = 0;  // overlapping with compute or not
  double update_exposed_s = 0;
  double limit_flops_per_s = 0;  // measured for large products on this device; 0: unknown

  double tokens() const {  // in the rank's step
    return static_cast<double>(micro_batch * micro_batches * sequence_tokens);
  }
};

// The operations of a rank's step in one phase; the head's are in kLoss.
double phase_flops(const FlopsProfile& profile, PassPhase phase);
double unit_phase_flops(const FlopsProfile& profile, int unit, PassPhase phase);

// Time, operations, rate and fraction of the limit for each phase.
std::string phase_table(const FlopsProfile& profile);

// Rows for each kind of unit, or for each unit.
enum class UnitRows : std::uint8_t { kKinds, kUnits };
std::string unit_table(const FlopsProfile& profile, UnitRows rows);

struct FlopsTables {
  std::int64_t module_depth = -1;  // 0: the model, 1: kinds, 2 and -1: units
  std::int64_t top_modules = 1;
  bool detailed = true;
};
// All tables as text with a heading.
std::string format_flops_profile(const FlopsProfile& profile, const FlopsTables& tables);

// One JSON object: the step, its phases, units and limit; in seconds, and operations per step.
std::string flops_profile_json(const FlopsProfile& profile);

}  // namespace sluice::engine
