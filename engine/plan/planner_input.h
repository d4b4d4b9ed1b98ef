// The PlannerInput of a configuration: the model's costs by its units' measured times, the open
// choices, and the ledger that counts bytes as the memory plan does.
//
// Threads: one.
// Errors:  kInvalidArgument of plan_memory().
#pragma once

#include "aio/result.h"
#include "engine/budget/memory_plan.h"
#include "engine/config/config.h"
#include "engine/probe/probe_report.h"
#include "offload/planner/placement.h"

namespace sluice::engine {

inline constexpr double kSecondsOfADay = 86400;
// A rate of 1 TB per day.
inline constexpr double kTbPerDay = 1e12 / kSecondsOfADay;

struct PlannerQuestion {
  const config::Config& config;
  const ModelLayout& model;
  const ProbeReport& machine;
  bool on_gpu = false;
  offload::TierBytes budget;
  std::int64_t wave_micro_batches = 0;  // as PlanOptions::wave_micro_batches
  // With several ranks the input is the first one's, whose shards are the largest. The budget is
  // one rank's, and `machine` has a whole host's rates.
  offload::Topology ranks = {};
  // See RunSpec.
  const ParameterNames* names = nullptr;
  bool keeps_sums = false;
  bool moves_gradients = false;
};

Result<offload::PlannerInput> planner_input(const PlannerQuestion& question);

}  // namespace sluice::engine
