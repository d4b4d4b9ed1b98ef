// A different division of the optimizer's state among tiers, near the one that the plan chose.
#pragma once

#include <optional>

#include "engine/config/config.h"
#include "tools/tune/search_space.h"

namespace sluice::tools {

// `share` of all state more on the tier (less, where it is negative), from or to the next tier
// below that has or may have some: RAM, else the drives. Nothing where no state can move so.
std::optional<config::TierFractions> shifted(const config::TierFractions& from, Shift shifts,
                                             double share, bool has_drives);

// As placement.optimizer_fractions has them: shares that add up to 1.
KeyValue fractions_key(const config::TierFractions& fractions);

}  // namespace sluice::tools
