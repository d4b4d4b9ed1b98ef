// The GPU's side of a step: slots into which units' parameters are copied ahead of their use, and
// the copies of gradients to the host. Each uses its own stream, separate from the one that
// computes. Copies are recorded if a trace is given, at no cost while the trace is inactive.
//
// With several ranks, a CudaRankLink gathers a unit's shards in its slot and reduces its gradient
// sum to the shard. The link is null if there is one rank.
//
// Without CUDA none of this is built; make_*() then return kUnsupported, or null.
#pragma once

#include <memory>

#include "aio/result.h"
#include "engine/budget/gpu_plan.h"
#include "engine/budget/unit_input_plan.h"
#include "engine/observe/trace_log.h"
#include "engine/step/gradient_sink.h"
#include "engine/step/spilled_inputs.h"
#include "engine/step/unit_input_store.h"
#include "engine/step/unit_parameters.h"

namespace sluice::engine {

// Moves host memory through `host`, which must outlive it, and memory of the current GPU through
// NCCL. Collective.
Result<std::unique_ptr<Communicator>> make_gpu_communicator(Communicator& host);

class CudaRankLink;  // cuda_rank_link.h
// `ranks.link` moves memory of the current GPU.
std::shared_ptr<CudaRankLink> make_cuda_rank_link(const RankLink& ranks);
// The cudaStream_t that updates state on the GPU. Null: the stream that computes.
void* stream_of(const CudaRankLink* link);

// A unit that is still in a slot, unchanged, is not copied again: with as many slots as blocks, a
// step copies each unit once. A new unit takes the slot whose unit was least recently used or
// prefetched. A resident unit has its own place, into which a step copies, once, what the host has
// updated. Everything passed in must outlive the result.
Result<std::unique_ptr<UnitParameters>> make_cuda_unit_parameters(const ModelLayout& model,
                                                                  const CudaSlotOptions& options,
                                                                  offload::ParamOffloader& params,
                                                                  CudaRankLink* link = nullptr,
                                                                  TraceLog* trace = nullptr);

struct CudaSinkParts {
  offload::ParamOffloader* places = nullptr;  // null: gradients on the host are in memory
  CudaRankLink* link = nullptr;               // null: there is one rank
  TraceLog* trace = nullptr;
};
// The gradient of a unit with state on the GPU stays there until its update; only the part that the
// host updates is copied to the host. `parts.places`: MemoryPlan::gradients, if the host's part is
// on NVMe; each unit is copied through one of its buffers, and is written while backward continues.
Result<std::unique_ptr<GradientSink>> make_cuda_gradient_sink(const ModelLayout& model,
                                                              const CudaSinkOptions& options,
                                                              const CudaSinkParts& parts = {});

// Keeps units' inputs on the host. It takes the memory of the UnitInputPlan of these options, less
// the host places of the units that are spilled.
Result<std::unique_ptr<UnitInputStore>> make_cuda_unit_input_store(const ModelLayout& model,
                                                                   const UnitInputOptions& options,
                                                                   SpilledInputs spilled,
                                                                   TraceLog* trace = nullptr);

}  // namespace sluice::engine
