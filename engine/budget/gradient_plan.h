// Gradients on NVMe between backward and update: each unit's fp32 sums, which are overwritten with
// a 16-bit gradient once they are complete. They are stored as units of parameters are
// (ParamOffloader), in a store of their own.
//
// Supported for a described model that trains in one process without a GPU, and accumulates one sum
// of a unit at a time.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "aio/result.h"
#include "engine/budget/run_spec.h"
#include "offload/params/param_offloader.h"

namespace sluice::engine {

// kUnsupported if the configuration asks for it and the run cannot do it.
Status check_gradients_on_nvme(const RunSpec& spec);

offload::ParamOffloader::Options plan_gradients(const RunSpec& spec, std::vector<int> nvme_weights);

// Bytes in both tiers, as ParamOffloader uses them.
struct GradientBytes {
  std::uint64_t buffers = 0;
  std::uint64_t nvme = 0;
};
GradientBytes gradient_bytes_on_nvme(const ModelLayout& model);

}  // namespace sluice::engine
