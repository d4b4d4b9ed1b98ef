// Where the units of a run are. Places that the configuration names are obeyed literally. Places
// that it leaves open ("auto") are the planner's choice, or host memory if there is no planner. All
// other memory plans follow from this value.
//
// Threads: pure functions.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "aio/result.h"
#include "engine/budget/run_spec.h"
#include "offload/planner/step_model.h"
#include "offload/sub_groups.h"

namespace sluice::engine {

// `chosen`: by unit, or empty. A planner's choice within the rules of the configuration is returned
// unchanged. kInvalidArgument: the configured shares are impossible, or the shares in `chosen` do
// not add up to the units.
Result<std::vector<offload::UnitPlacement>> resolve_placement(
    const RunSpec& spec, std::span<const offload::UnitPlacement> chosen);

// The model's units as the optimizer divides them.
std::vector<offload::UnitSpec> unit_specs(const RunSpec& spec);
std::uint64_t sub_group_elements(const config::Config& config);

// The shares of the tiers that the configuration asks for; nullopt: the planner chooses. A CPU run
// puts the GPU's share into RAM.
std::optional<offload::TierFractions> asked_fractions(const config::Config& config, bool on_gpu);
// The sub-groups that follow from the asked shares; empty if there are none.
Result<std::vector<offload::SubGroup>> asked_sub_groups(const RunSpec& spec);
// The number of elements of each unit on each tier.
std::vector<offload::TierElements> tier_elements(int units,
                                                 std::span<const offload::SubGroup> sub_groups);

// Whether the host's copy of a unit's parameters stays in RAM while others go to NVMe, by
// DeepSpeed's persistence thresholds. They apply if the configuration names the device.
std::vector<bool> persistent_units(const RunSpec& spec);

}  // namespace sluice::engine
