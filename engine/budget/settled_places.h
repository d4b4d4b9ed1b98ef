// Where the units of a run are: what the configuration names, obeyed literally; what it leaves open
// ("auto") as the planner chose it, or in the host's memory where there is no planner. All other
// plans of memory follow from this one value.
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

// `chosen`: by unit, or empty. What the planner chose within the rules of the configuration comes
// back as it is. kInvalidArgument where the configuration's shares cannot be, and where those of
// `chosen` do not add up to the units.
Result<std::vector<offload::UnitPlacement>> settle_places(
    const RunSpec& spec, std::span<const offload::UnitPlacement> chosen);

// The model's units, as the optimizer cuts them.
std::vector<offload::UnitSpec> unit_specs(const RunSpec& spec);
std::uint64_t sub_group_elements(const config::Config& config);

// The shares of the tiers that the configuration asks for; nothing: the planner's. A run on the CPU
// has the GPU's share in RAM.
std::optional<offload::TierFractions> asked_fractions(const config::Config& config, bool on_gpu);
// The sub-groups that follow from them; empty where none are asked for.
Result<std::vector<offload::SubGroup>> asked_sub_groups(const RunSpec& spec);
// How many elements of each unit they have on each tier.
std::vector<offload::TierElements> tier_elements(int units,
                                                 std::span<const offload::SubGroup> sub_groups);

// Whether the host's copy of a unit's parameters stays in RAM where the others go to NVMe, by
// DeepSpeed's persistence thresholds. They apply where the configuration names the device.
std::vector<bool> persistent_units(const RunSpec& spec);

}  // namespace sluice::engine
