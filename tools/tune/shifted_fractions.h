// Divides the optimizer state among tiers differently, close to the division that the plan chose.
#pragma once

#include <optional>

#include "engine/config/config.h"
#include "tools/tune/search_space.h"

namespace sluice::tools {

// Moves `share` of all state to the tier, or away from it if negative. The other tier is the next
// lower one that has or may have state: RAM, else the drives. nullopt if no state can move.
std::optional<config::TierFractions> shifted(const config::TierFractions& from, Shift shifts,
                                             double share, bool has_drives);

// In the form of placement.optimizer_fractions: shares that add up to 1.
KeyValue fractions_key(const config::TierFractions& fractions);

}  // namespace sluice::tools
