// What the current GPU and the bus to it do: copies between registered host memory and the GPU, one
// way and both at once; copies within its memory; a large matrix product; the AdamW step.
//
// Memory:  at most memory_limit_bytes of the GPU besides its context, and two buffers on the host;
//          all given back before it returns, LibTorch's cache and workspaces included.
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
  double seconds = 1.0;
  PassSpread* spread = nullptr;  // of its passes and copies; may be null
};

// Nothing where there is no GPU, or no CUDA in the build.
std::optional<GpuIdentity> gpu_identity();

Result<GpuSpeeds> probe_gpu(const GpuProbeOptions& options,
                            const std::function<void(double)>& on_progress = {});

// Copies between registered host memory and the GPU, for about so long.
Result<offload::DuplexRates> probe_bus(double seconds);

// Returns to the GPU what LibTorch keeps of freed memory and for cuBLAS, and resets its peak. Does
// nothing without CUDA.
void return_gpu_memory();

}  // namespace sluice::engine
