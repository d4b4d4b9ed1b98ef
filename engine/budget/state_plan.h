// StatePlan: the optimizer's state as a run keeps it: its sub-groups and their tiers, what is
// resident on the GPU because of them, and how the tiers store theirs.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/budget/run_spec.h"
#include "engine/config/parameter_groups.h"
#include "offload/planner/step_model.h"
#include "offload/state/optimizer_offloader.h"
#include "offload/unit_residency.h"

namespace sluice::engine {

struct StatePlan {
  offload::OptimizerOffloader::Options optimizer;  // of a run that does not train: empty
  offload::UnitResidency residency;                // on the GPU
  std::uint64_t gpu_bytes = 0;                     // of the state there
  // What a step's scalars are made from, in their order.
  std::vector<config::ParameterSetting> settings;
  std::vector<std::string> notes;  // sentences: what is not as it was asked for

  bool uses(offload::Tier tier) const;
};

// `places`: as settled, by unit. `nvme_weights`: stripe_weights(). kInvalidArgument where units
// cannot be cut so.
Result<StatePlan> plan_state(const RunSpec& spec, std::span<const offload::UnitPlacement> places,
                             std::vector<int> nvme_weights);

// Elements of state that ranks send each other at once where one of them writes a file of weights.
inline constexpr std::uint64_t kGatheredElements = std::uint64_t{1} << 20;
// What saving takes of a rank: to write its part of a checkpoint, or such a message.
std::uint64_t save_buffer_bytes(const RunSpec& spec);

// Of a record on NVMe, at most.
std::uint64_t record_elements(const config::Config& config);
// As many as the configuration asks for, within what swapping takes.
int swap_buffers(const config::Config& config);

}  // namespace sluice::engine
