// The part of a MemoryPlan that is about the optimizer's state: the tier of each sub-group, which
// units live on the GPU, and which blocks keep their activations. A device that the configuration
// names is obeyed literally; what it leaves open is up to the planner, if there is one.
#pragma once

#include <optional>
#include <span>

#include "engine/budget/memory_plan.h"
#include "engine/config/config.h"
#include "offload/planner/step_model.h"

namespace sluice::engine {

// optimizer.units, optimizer.placement, residency and keeps_activations of the plan. `places`: by
// unit, or empty.
Status place_state(const config::Config& config, const ModelLayout& model,
                   std::span<const offload::UnitPlacement> places, MemoryPlan& plan);

// The shares of the tiers that the configuration asks for; nothing: the planner's. A run on the CPU
// has the GPU's share in RAM.
std::optional<offload::TierFractions> asked_fractions(const config::Config& config, bool on_gpu);

// Whether any of the state lies there.
bool is_used(const MemoryPlan& plan, offload::Tier tier);

// How many blocks' inputs stay on the GPU between forward and backward, where others go to the
// host; nothing: all stay. `ring_blocks`: as many as needed where the configuration sends away
// whatever can go.
std::optional<int> unit_inputs_on_gpu(const config::Placement& placement,
                                      std::span<const offload::UnitPlacement> places,
                                      int ring_blocks);

}  // namespace sluice::engine
