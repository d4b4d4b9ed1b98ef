// ModulePlan: where the parameters and the state of a described module lie, before anything of it
// is taken. What the configuration states is obeyed; where it leaves a choice ("auto", and a GPU or
// drives to choose), the planner decides as for `sluice train`, from the probe's measurements and
// from assumptions about what only the module's code knows. Those are kept as sentences:
//
//   the tokens of a row    data.sequence_length
//   operations             each parameter is multiplied once for each token
//   what autograd keeps    as a transformer's blocks of that size would, with or without
//                          checkpointing
//
// With several ranks it is the plan of the first of them, made of what a whole host has, and all of
// them take its places.
//
// Threads: one; the probe takes seconds the first time. A collective where there is a link. Errors:
// those of the configuration, of the probe and of the link. kOutOfMemory: it fits nowhere, with
// what would help; of several ranks that is the first one's error alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/budget/memory_plan.h"
#include "engine/comm/communicator.h"
#include "engine/config/config.h"
#include "engine/module/module_layout.h"
#include "engine/plan/rank_places.h"
#include "engine/plan/run_plan.h"

namespace sluice::engine {

// Names are the module's own, everywhere.
inline constexpr ParameterNames kModuleNames = {};
inline constexpr std::int64_t kAssumedTokens = 1024;  // in a row, where nothing is said

// What a planner has said before.
struct ModulePlaces {
  std::optional<RankPlaces> places;        // unset: nothing is left to it
  std::optional<double> predicted_step_s;  // of the first rank, like the next two
  std::string prediction;                  // prediction_json()
  std::vector<std::string> assumptions;
};

struct ModulePlanOptions {
  ModulePlaces places = {};      // of a family's model
  Communicator* link = nullptr;  // of several ranks
  double checkpointed = 0;       // the share of blocks that are computed again in backward
  // How the planner is asked; of plan_module() the ranks and the machine are those that are there.
  PlanRunOptions asked = {};
};

struct ModulePlan {
  MemoryPlan trained;                // with lines for what is frozen, and for copies
  std::optional<MemoryPlan> frozen;  // nothing is
  ModulePlaces said;                 // where the planner was asked; without places
};

// Whether the configuration leaves something to the planner, and there is more than RAM to choose.
bool has_choice(const config::Config& config, bool on_gpu);

// `config`: of a host, each of whose ranks takes as large a part of its budget.
Result<ModulePlan> plan_module(const config::Config& config, const ModuleLayout& layout,
                               const ModulePlanOptions& options);

// What a save in the background copies, of one rank; 0: none is asked for.
std::uint64_t checkpoint_copy_bytes(const config::Config& config, const ModelLayout& model,
                                    int ranks);
// Its line of a plan's table.
MemoryLine checkpoint_copy_line(std::uint64_t bytes);

// Asks a planner; where nothing fits and gradients may go to NVMe, once more with those there.
using AskPlanner = std::function<Result<RunPlan>(const config::Config& config)>;
Result<RunPlan> ask_with_gradients_moved(const config::Config& config, bool on_gpu, int ranks,
                                         const AskPlanner& ask);

// Behind what says why a module does not fit: a clause about units that are smaller; empty where
// that would not help.
std::string smaller_units_hint(const ModuleLayout& layout);

// The planner's whole answer, for people to read; also where nothing is left to it. `assumptions`
// gets what it takes for granted.
Result<RunPlan> plan_run_of_module(const config::Config& config, const ModuleLayout& layout,
                                   const ModulePlanOptions& options,
                                   std::vector<std::string>& assumptions);

}  // namespace sluice::engine
