// The GPU's side of a step: slots that units' parameters are copied into ahead of their use, and
// the path of the gradients back to the host, each on a stream of its own beside the one that
// computes; and the clock of that stream. Copies are reported to a trace where one is given, and
// cost nothing extra while it is not active.
//
// Without CUDA none of this is built; make_*() then return kUnsupported.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "aio/pinned_pool.h"
#include "aio/result.h"
#include "engine/observe/trace_log.h"
#include "engine/train/boundary_plan.h"
#include "engine/train/boundary_store.h"
#include "engine/train/gpu_plan.h"
#include "engine/train/gradient_sink.h"
#include "engine/train/phase_clock.h"
#include "engine/train/unit_parameters.h"
#include "offload/device_tier.h"

namespace sluice::engine {

// A unit that is still in a slot, and has not changed since, is not copied again: with as many
// slots as blocks, a step copies each unit once. The slot whose unit was used or prefetched least
// recently goes to the next unit. A resident unit has a place of its own, into which a step copies,
// once, what the host has updated. Everything passed in must outlive it.
Result<std::unique_ptr<UnitParameters>> make_cuda_unit_parameters(const ModelLayout& model,
                                                                  const CudaSlotOptions& options,
                                                                  offload::ParamOffloader& params,
                                                                  TraceLog* trace = nullptr);

// The gradient of a unit with state on the GPU stays there until its update; only what the host
// updates goes to the host.
Result<std::unique_ptr<GradientSink>> make_cuda_gradient_sink(const ModelLayout& model,
                                                              const CudaSinkOptions& options,
                                                              TraceLog* trace = nullptr);

// GPU memory for the optimizer state of tier gpu, whose steps run on the stream that is current
// now.
Result<std::unique_ptr<offload::DeviceTier>> make_cuda_state_tier(std::uint64_t bytes);

// From now on LibTorch takes no more of the current GPU than this, however much the GPU has.
Status limit_cuda_memory(std::uint64_t bytes);

// Boundaries on the host; it takes what the BoundaryPlan of these options says.
Result<std::unique_ptr<BoundaryStore>> make_cuda_boundary_store(const ModelLayout& model,
                                                                const BoundaryOptions& options,
                                                                TraceLog* trace = nullptr);

std::unique_ptr<PhaseClock> make_cuda_phase_clock();

// The most GPU memory that LibTorch has held at once.
std::uint64_t cuda_peak_bytes();
// Host memory that cuda_pin_hook() has pinned, in this process and now.
std::uint64_t cuda_pinned_bytes();

struct GpuMemory {
  std::uint64_t free_bytes = 0;  // once this process has its context
  std::uint64_t total_bytes = 0;
};
// Of the current GPU; nothing where there is none.
std::optional<GpuMemory> cuda_memory();

// cudaHostRegister for the memory of pools.
aio::PinHook cuda_pin_hook();

}  // namespace sluice::engine
