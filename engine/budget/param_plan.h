// ParamPlan: the parameters as the host of a run keeps them: which units are on NVMe, through how
// many buffers they pass, and how far ahead they are read. What the configuration sets too small is
// raised, with a note.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/budget/run_spec.h"
#include "offload/params/param_offloader.h"
#include "offload/planner/step_model.h"

namespace sluice::engine {

struct ParamPlan {
  offload::ParamOffloader::Options options;
  std::vector<std::string> notes;

  bool uses_nvme() const;
};

// `places`: as settled, by unit. `prefetch_units`: fetched ahead of their use. `nvme_weights`:
// stripe_weights().
ParamPlan plan_params(const RunSpec& spec, std::span<const offload::UnitPlacement> places,
                      int prefetch_units, std::vector<int> nvme_weights);

// Likewise of the base of a model that has_frozen(): its parameters as they are computed with, of
// units that are not resident. In that model plan_params() is about what is trained beside it,
// which is little and stays in RAM.
ParamPlan plan_base_params(const RunSpec& spec, std::span<const offload::UnitPlacement> places,
                           int prefetch_units, std::vector<int> nvme_weights);

// Where the host has a unit's parameters that are trained. kGpu: nowhere, for the GPU updates all
// of the unit.
offload::Tier param_tier(bool has_frozen, const offload::UnitPlacement& place);
// And those that are frozen. kGpu: nowhere, for the unit is resident.
offload::Tier base_tier(const offload::UnitPlacement& place);

// Of each size class, for units on NVMe of which the largest has this many elements. Buffers are as
// large as the units that they hold: a buffer_size beyond that would be memory that nothing uses.
int param_cache_buffers(const config::OffloadParam& asked, std::uint64_t largest_elements);

}  // namespace sluice::engine
