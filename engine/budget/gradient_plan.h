// Gradients on NVMe between backward and update: of each unit its fp32 sums, over which a 16-bit
// gradient is written when they are complete. They are kept as units of parameters are
// (ParamOffloader), in a store of their own.
//
// For who trains a described model in one process without a GPU, and adds up one sum of a unit at a
// time.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "aio/result.h"
#include "engine/budget/run_spec.h"
#include "offload/params/param_offloader.h"

namespace sluice::engine {

// kUnsupported where the run cannot keep them there, though it is asked to.
Status check_gradients_on_nvme(const RunSpec& spec);

offload::ParamOffloader::Options plan_gradients(const RunSpec& spec, std::vector<int> nvme_weights);

// Of both tiers, as ParamOffloader takes them.
struct GradientBytes {
  std::uint64_t buffers = 0;
  std::uint64_t nvme = 0;
};
GradientBytes gradient_bytes_on_nvme(const ModelLayout& model);

}  // namespace sluice::engine
