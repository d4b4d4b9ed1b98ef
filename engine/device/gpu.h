// The GPU that a run computes on, without any code of a step: its presence, its memory and the cap
// on it, pinned host memory, and memory for optimizer state. A build without CUDA has no GPU
// (gpu_stub.cc).
//
// Threads: the training thread; the counters from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "aio/pinned_pool.h"
#include "aio/result.h"
#include "engine/config/config.h"
#include "engine/device/host_pinning.h"
#include "offload/state/device_tier.h"

namespace sluice::engine {

// has_cuda_code(): this build has CUDA code. gpu_is_there(): LibTorch also finds a GPU that it can
// use.
bool has_cuda_code();
bool gpu_is_there();
// Whether a run of this configuration computes on this machine's GPU. False if the build has no
// CUDA code, so that no plan is made for a GPU that the run could not use.
bool uses_cuda(const config::Config& config);
// kInvalidArgument: the configuration asks for a GPU, but there is none, or no code for it.
Status check_device(const config::Config& config);

struct GpuMemory {
  std::uint64_t free_bytes = 0;  // with this process's context
  std::uint64_t total_bytes = 0;
};
// The current GPU's memory; nothing if there is no GPU.
std::optional<GpuMemory> cuda_memory();

// Limits LibTorch to this much of the current GPU from now on.
Status limit_cuda_memory(std::uint64_t bytes);
// Makes LibTorch's blocks of GPU memory grow in place from now on ("expandable segments"), which
// avoids fragmentation by blocks of many sizes. It is for runs whose passes need nearly all the
// memory that the plan leaves them. It overrides PYTORCH_CUDA_ALLOC_CONF.
void grow_cuda_segments();
// The peak of LibTorch's GPU memory.
std::uint64_t cuda_peak_bytes();

// The only place that pins host memory for the GPU. kPinLimitVariable limits it, for tests. Without
// CUDA code it refuses all memory.
HostPinning& cuda_host_pinning();
// Pins the memory of pools with it; empty without CUDA code.
aio::PinHook cuda_pin_hook();
// The host memory of this process that it has pinned at present.
std::uint64_t cuda_pinned_bytes();

// GPU memory for the optimizer state of tier gpu. Its steps run on `stream` (a cudaStream_t); null:
// the stream that is current now.
Result<std::unique_ptr<offload::DeviceTier>> make_cuda_state_tier(std::uint64_t bytes,
                                                                  void* stream = nullptr);

int gpu_count();  // GPUs visible to this process
// The PCI bus id of the current GPU, as its driver formats it; empty without a GPU.
std::string cuda_bus_id();

// "this build of Sluice has no CUDA code: ...".
Error no_cuda();

}  // namespace sluice::engine
