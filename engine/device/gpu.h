// The GPU that a run computes on, as far as nothing of a step is in it: whether there is one, its
// memory and the cap on it, pinned host memory, and memory for optimizer state. Without CUDA in the
// build there is none: gpu_stub.cc.
//
// Threads: the one that trains; the counters from any.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "aio/pinned_pool.h"
#include "aio/result.h"
#include "engine/config/config.h"
#include "offload/state/device_tier.h"

namespace sluice::engine {

// Whether this build has CUDA code, and LibTorch finds a GPU that it can use.
bool has_cuda_code();
bool gpu_is_there();
// Whether a run of this configuration computes on the GPU of this machine: never where the build
// has no CUDA code, so that nothing is planned for a GPU that the run then could not use.
bool uses_cuda(const config::Config& config);
// kInvalidArgument: the configuration asks for a GPU, and there is none, or no code for it.
Status check_device(const config::Config& config);

struct GpuMemory {
  std::uint64_t free_bytes = 0;  // once this process has its context
  std::uint64_t total_bytes = 0;
};
// Of the current GPU; nothing where there is none.
std::optional<GpuMemory> cuda_memory();

// From now on LibTorch takes no more of the current GPU than this, whatever the GPU has.
Status limit_cuda_memory(std::uint64_t bytes);
// From now on LibTorch's blocks of the GPU's memory grow in place ("expandable segments"), instead
// of leaving holes between blocks of many sizes: for runs whose passes fill what the plan leaves
// them to the last percent. Whatever PYTORCH_CUDA_ALLOC_CONF says of that is overruled.
void grow_cuda_segments();
// The most that LibTorch has had of the GPU at once.
std::uint64_t cuda_peak_bytes();

// cudaHostRegister for the memory of pools.
aio::PinHook cuda_pin_hook();
// Host memory that cuda_pin_hook() has pinned, in this process and now.
std::uint64_t cuda_pinned_bytes();

// GPU memory for the optimizer state of tier gpu, whose steps go on `stream` (a cudaStream_t), or
// on the one that is current now.
Result<std::unique_ptr<offload::DeviceTier>> make_cuda_state_tier(std::uint64_t bytes,
                                                                  void* stream = nullptr);

int gpu_count();  // that this process may see
// Where the current GPU is, as its driver names it; empty where there is none.
std::string cuda_bus_id();

// "this build of Sluice has no CUDA code: ...".
Error no_cuda();

}  // namespace sluice::engine
