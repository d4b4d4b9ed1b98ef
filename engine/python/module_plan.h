// ModulePlan: where the parameters and the state of a described module lie, before anything of it
// is taken. What the configuration states is obeyed; where it leaves a choice ("auto", and a GPU or
// drives to choose), the planner decides as for `sluice train`, from the probe's measurements and
// from assumptions about what only the module's code knows. Those are kept as sentences:
//
//   the tokens of a row    data.sequence_length
//   operations             each parameter is multiplied once for each token
//   what autograd keeps    as a transformer's blocks of that size would, without checkpointing
//
// Threads: one; the probe takes seconds the first time. Errors: those of the configuration and of
// the probe. kOutOfMemory: it fits nowhere, with what would help.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/budget/memory_plan.h"
#include "engine/config/config.h"
#include "engine/plan/run_plan.h"
#include "engine/python/module_layout.h"

namespace sluice::engine {

// What a planner chose for what a configuration leaves open, as PlanOptions has it.
struct ModulePlaces {
  std::vector<offload::UnitPlacement> places;  // by unit; empty: in memory
  int block_slots = 0;
  std::vector<int> nvme_weights;
};

struct ModulePlanOptions {
  // Of a family's model, whose planner is asked before. Of several ranks the planner is not asked.
  ModulePlaces places = {};
  offload::RankPart ranks = {};
  std::uint64_t beside_bytes = 0;  // that the run takes of RAM beside its plan
  std::string cache_path;          // PlanRunOptions has this and the next three
  bool refresh = false;
  std::int64_t unix_s = 0;
  std::function<void(const std::string& what, double fraction)> on_progress = {};
};

struct ModulePlan {
  MemoryPlan trained;                // with lines for what is frozen
  std::optional<MemoryPlan> frozen;  // nothing is
  // Where the planner was asked.
  std::optional<double> predicted_step_s;
  std::string prediction;  // prediction_json()
  std::vector<std::string> assumptions;
};

Result<ModulePlan> plan_module(const config::Config& config, const ModuleLayout& layout,
                               const ModulePlanOptions& options);

// The planner's whole answer, for people to read; also where nothing is left to it. `assumptions`
// gets what it takes for granted.
Result<RunPlan> plan_run_of_module(const config::Config& config, const ModuleLayout& layout,
                                   const ModulePlanOptions& options,
                                   std::vector<std::string>& assumptions);

}  // namespace sluice::engine
