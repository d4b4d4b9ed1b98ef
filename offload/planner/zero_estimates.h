// The memory that DeepSpeed's own estimators give for parameters, gradients and Adam's state with
// ZeRO-2 and ZeRO-3 (estimate_zero2_model_states_mem_needs and estimate_zero3_..., as of 0.19), for
// comparison with a plan. These numbers do not contain activations, but do contain their rule of
// thumb for buffers in host memory (half as much again).
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice::offload {

struct ZeroModel {
  std::uint64_t parameters = 0;
  std::uint64_t largest_layer_parameters = 0;  // one module without its children; for ZeRO-3
};

struct ZeroMachines {
  std::uint64_t gpus_per_node = 1;
  std::uint64_t nodes = 1;
};

struct ZeroEstimate {
  bool offload_optimizer = false;  // to host memory
  bool offload_params = false;     // to host memory; ZeRO-3 only
  bool zero_init = false;          // partitioned at creation; ZeRO-3 only
  std::uint64_t cpu_bytes = 0;     // per node
  std::uint64_t gpu_bytes = 0;     // per GPU
};

// First with the optimizer offloaded, then without.
std::vector<ZeroEstimate> zero2_estimates(const ZeroModel& model, const ZeroMachines& machines);
// Both offloaded, then only the optimizer, then nothing; each with zero_init, then without.
std::vector<ZeroEstimate> zero3_estimates(const ZeroModel& model, const ZeroMachines& machines);

}  // namespace sluice::offload
