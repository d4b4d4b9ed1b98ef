// The part of a MemoryPlan that is about parameters: which units are on NVMe, through how many
// buffers they pass, how far ahead they are fetched, and how many the GPU holds. What the
// configuration sets too small is raised, with a note in the plan.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "engine/budget/memory_plan.h"
#include "engine/config/config.h"

namespace sluice::engine {

// Units and cache_buffers of plan.params. A named device is obeyed; what is left open goes by
// `places`, by unit, or to the host's memory where that is empty.
void place_params(const config::Zero& zero, const ModelLayout& model,
                  std::span<const offload::UnitPlacement> places, MemoryPlan& plan);

// prefetch_units, block_slots and params.read_ahead: with the slots that fit beside everything else
// that the plan already has on the GPU.
void plan_fetching(const config::Config& config, const ModelLayout& model,
                   std::optional<std::uint64_t> gpu_room_bytes, MemoryPlan& plan);

// "zero_optimization.<key> <given> is below <needed>: raised to <raised_to>".
void note_raised(MemoryPlan& plan, const std::string& key, std::int64_t given,
                 const std::string& needed, std::uint64_t raised_to);

}  // namespace sluice::engine
