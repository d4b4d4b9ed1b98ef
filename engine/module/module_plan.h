// ModulePlan: where the parameters and the state of a described module are stored, determined
// before any memory is allocated. The configuration is obeyed. If it leaves a choice ("auto", with
// a GPU or drives to choose from), the planner decides as for `sluice train`. It uses the probe's
// measurements, and assumptions about properties that only the module's code determines. The
// assumptions are kept as sentences:
//
//   tokens in a row         data.sequence_length
//   operations              each parameter is multiplied once for each token
//   saved by autograd       as by transformer blocks of that size, with or without checkpointing
//
// With several ranks it is the plan of the first rank, made from a whole host's resources, and all
// ranks use its places.
//
// Threads: one; the probe takes seconds the first time. A collective if there is a link.
// Errors:  those of the configuration, of the probe and of the link. kOutOfMemory: it does not fit
//          on any tier, with advice. With several ranks kOutOfMemory is only the first rank's
//          error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/budget/memory_plan.h"
#include "engine/comm/communicator.h"
#include "engine/config/config.h"
#include "engine/module/module_layout.h"
#include "engine/plan/run_plan.h"
#include "engine/plan/shared_placement.h"

namespace sluice::engine {

// Parameters have the module's own names everywhere.
inline constexpr ParameterNames kModuleNames = {};
inline constexpr std::int64_t kAssumedTokens = 1024;  // in a row, if not configured

// An earlier result of the planner.
struct ModulePlacement {
  std::optional<SharedPlacement> places;   // unset: the planner had nothing to choose
  std::optional<double> predicted_step_s;  // of the first rank, like the next two
  std::string prediction;                  // prediction_json()
  std::vector<std::string> assumptions;
};

struct ModulePlanOptions {
  ModulePlacement places = {};  // for a family's model
  Communicator* link = &single_process();
  double checkpointed = 0;  // fraction of blocks recomputed in backward
  // Options for the planner; plan_module() sets the ranks and the machine to the actual ones.
  PlanRunOptions asked = {};
};

struct ModulePlan {
  MemoryPlan trained;                // with lines for frozen parameters, and for copies
  std::optional<MemoryPlan> frozen;  // unset: nothing is frozen
  ModulePlacement said;              // the planner's result if it was asked, without places
};

// Whether the configuration leaves something to the planner, and there is a choice other than RAM.
bool has_choice(const config::Config& config, bool on_gpu);

// `config`: of a host; its ranks have equal parts of the budget.
Result<ModulePlan> plan_module(const config::Config& config, const ModuleLayout& layout,
                               const ModulePlanOptions& options);

// Bytes that a save in the background copies on one rank; 0: none is configured.
std::uint64_t checkpoint_copy_bytes(const config::Config& config, const ModelLayout& model,
                                    int ranks);
// The copy's line in a plan's table.
MemoryLine checkpoint_copy_line(std::uint64_t bytes);

// Advice to append to an error about a module that does not fit: a clause about smaller units;
// empty if they would not help.
std::string smaller_units_hint(const ModuleLayout& layout);

// The planner's complete result, for people to read, even if nothing is left to it. The planner's
// assumptions are stored in `assumptions`.
Result<RunPlan> plan_run_of_module(const config::Config& config, const ModuleLayout& layout,
                                   const ModulePlanOptions& options,
                                   std::vector<std::string>& assumptions);

}  // namespace sluice::engine
