// What a user can do about memory that a run lacks: the settings that reduce its largest parts.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/budget/memory_plan.h"
#include "engine/config/config.h"

namespace sluice::engine {

std::uint64_t bytes_of(const std::vector<MemoryLine>& lines, MemoryUse use);

// The settings that reduce the largest part of `lines`, and the next part if all of the largest is
// not enough for the bytes that are missing. A clause.
std::string memory_remedy(const config::Config& config, const MemoryPlan& plan,
                          const std::vector<MemoryLine>& lines, std::uint64_t missing);

}  // namespace sluice::engine
