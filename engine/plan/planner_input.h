// PlannerInput of a configuration: what its model costs by the measured times of its units, what
// its settings leave open, and the ledger that counts bytes as the memory plan does.
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

struct PlannerQuestion {
  const config::Config& config;
  const ModelLayout& model;
  const ProbeReport& machine;
  bool on_gpu = false;
  offload::TierBytes budget;
  std::int64_t wave_micro_batches = 0;  // as PlanOptions::wave_micro_batches
  // Of a run over several ranks the input is the first one's, whose shards are the largest; budget
  // is a rank's, and `machine` says what a whole host does.
  offload::RankGroup ranks = {};
  // As RunSpec has them.
  const ParameterNames* names = nullptr;
  bool keeps_sums = false;
};

Result<offload::PlannerInput> planner_input(const PlannerQuestion& question);

}  // namespace sluice::engine
