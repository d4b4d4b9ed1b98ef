// ParamPlan: how a run's host stores the parameters: which units are on NVMe, the number of buffers
// they pass through, and how far ahead they are read. Settings that are too small are raised, with
// a note.
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

// `places`: the settled placement per unit. `prefetch_units`: units fetched ahead of their use.
// `nvme_weights`: from stripe_weights().
ParamPlan plan_params(const RunSpec& spec, std::span<const offload::UnitPlacement> places,
                      int prefetch_units, std::vector<int> nvme_weights);

// The plan for the base of a model that has_frozen(): its parameters in the host's form, for units
// that are not resident. In such a model plan_params() covers only the trained adapters, which are
// small and stay in RAM.
ParamPlan plan_base_params(const RunSpec& spec, std::span<const offload::UnitPlacement> places,
                           int prefetch_units, std::vector<int> nvme_weights);

// The host's tier of a unit's trained parameters. kGpu: none, because the GPU updates all of the
// unit.
offload::Tier param_tier(bool has_frozen, const offload::UnitPlacement& place);
// The host's tier of a unit's frozen parameters. kGpu: none, because the unit is resident.
offload::Tier base_tier(const offload::UnitPlacement& place);

// Buffers of each size class, for NVMe units with at most `largest_elements`. Buffers are as large
// as the units that they hold; memory beyond that, by a larger buffer_size, would be unused.
int param_cache_buffers(const config::OffloadParam& asked, std::uint64_t largest_elements);

}  // namespace sluice::engine
