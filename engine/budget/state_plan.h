// StatePlan: how a run stores the optimizer's state: its sub-groups and their tiers, what is
// resident on the GPU because of them, and how each tier stores its share.
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
  offload::OptimizerOffloader::Options optimizer;  // empty in a run that does not train
  offload::UnitResidency residency;                // on the GPU
  std::uint64_t gpu_bytes = 0;                     // the state there
  // The settings from which a step's scalars are made, in that order.
  std::vector<config::ParameterSetting> settings;
  std::vector<std::string> notes;  // where the plan differs from the configuration

  bool uses(offload::Tier tier) const;
};

// `places`: the resolved placement per unit. `nvme_weights`: from stripe_weights().
// kInvalidArgument if units cannot be divided like this.
Result<StatePlan> plan_state(const RunSpec& spec, std::span<const offload::UnitPlacement> places,
                             std::vector<int> nvme_weights);

// Elements of state in one message to the rank that writes a file of weights.
inline constexpr std::uint64_t kGatheredElements = std::uint64_t{1} << 20;
// Buffer that a rank needs to save: for its part of a checkpoint, or for such a message.
std::uint64_t save_buffer_bytes(const RunSpec& spec);

// The maximum of a record on NVMe.
std::uint64_t record_elements(const config::Config& config);
// The configured number, within the limits of swapping.
int swap_buffers(const config::Config& config);

}  // namespace sluice::engine
