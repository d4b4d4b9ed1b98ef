// The rates of the current GPU and its bus. The bus is measured with copies between pinned host
// memory and the GPU, in one direction and in both at once. The GPU is measured with copies within
// its memory, a large matrix product, and the AdamW step.
//
// First a trial pins host memory. A machine that refuses part of it (WSL2) refuses more to a run,
// so its bus is measured with pageable memory.
//
// Memory:  at most memory_limit_bytes of the GPU in addition to its context; on the host,
//          pin_trial_bytes or two buffers. All of it is freed before the return, including
//          LibTorch's cache and workspaces.
// Threads: one; blocking, about options.seconds once the context exists.
// Errors:  kUnsupported in a build without CUDA; kOutOfMemory; kInternal with CUDA's message.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "aio/result.h"
#include "aio/units.h"
#include "engine/probe/gpu_speeds.h"
#include "engine/probe/probe_subjects.h"
#include "engine/probe/timed_passes.h"
#include "offload/adamw/adamw_arrays.h"

namespace sluice::engine {

struct GpuProbeOptions {
  offload::StateForm form;
  offload::GradType grad_type = offload::GradType::kBf16;
  offload::ElementType type = offload::ElementType::kBf16;  // of the matrix product
  std::uint64_t memory_limit_bytes = kGiB;
  std::uint64_t bus_buffer_bytes = 64 * kMiB;  // one for each direction, host and GPU
  std::uint64_t pin_trial_bytes = 2 * kGiB;
  double seconds = 1.0;
  PassSpread* spread = nullptr;  // over its passes and copies; may be null
};

// nullopt: there is no GPU, or the build has no CUDA.
std::optional<GpuIdentity> gpu_identity();

Result<GpuSpeeds> probe_gpu(const GpuProbeOptions& options,
                            const std::function<void(double)>& on_progress = {});

// Copies between pinned host memory and the GPU, for about `seconds`. The memory is pageable if a
// short trial of pinning is refused.
Result<offload::DuplexRates> probe_bus(double seconds);

// Frees the GPU memory that LibTorch caches and reserves for cuBLAS, and resets its peak. Does
// nothing without CUDA.
void return_gpu_memory();

}  // namespace sluice::engine
