// The GPU's side of a step: slots that units' parameters are copied into ahead of their use, and
// the way of the gradients back to the host; each on a stream of its own beside the one that
// computes. Copies are told to a trace where one is given, and cost
// nothing more while it is not active.
//
// With several ranks a unit's shards are gathered in its slot, and its sum of gradients is reduced
// to the shard, over a CudaRankLink; null where there is one rank.
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

// Host memory by `host`, which must outlive it, and memory of the current GPU by NCCL: for all
// ranks to call.
Result<std::unique_ptr<Communicator>> make_gpu_communicator(Communicator& host);

class CudaRankLink;  // cuda_rank_link.h
// `ranks.link` moves memory of the current GPU.
std::shared_ptr<CudaRankLink> make_cuda_rank_link(const RankLink& ranks);
// A cudaStream_t: where state on the GPU is updated. Null: the one that computes.
void* stream_of(const CudaRankLink* link);

// A unit that is still in a slot, and has not changed since, is not copied again: with as many
// slots as blocks, a step copies each unit once. The slot whose unit was used or prefetched least
// recently goes to the next unit. A resident unit has a place of its own, into which a step copies,
// once, what the host has updated. Everything passed in must outlive it.
Result<std::unique_ptr<UnitParameters>> make_cuda_unit_parameters(const ModelLayout& model,
                                                                  const CudaSlotOptions& options,
                                                                  offload::ParamOffloader& params,
                                                                  CudaRankLink* link = nullptr,
                                                                  TraceLog* trace = nullptr);

// The gradient of a unit with state on the GPU stays there until its update; only what the host
// updates goes to the host.
Result<std::unique_ptr<GradientSink>> make_cuda_gradient_sink(const ModelLayout& model,
                                                              const CudaSinkOptions& options,
                                                              CudaRankLink* link = nullptr,
                                                              TraceLog* trace = nullptr);

// Units' inputs on the host; it takes what the UnitInputPlan of these options says, less the places
// in host memory of those that are spilled.
Result<std::unique_ptr<UnitInputStore>> make_cuda_unit_input_store(const ModelLayout& model,
                                                                   const UnitInputOptions& options,
                                                                   SpilledInputs spilled,
                                                                   TraceLog* trace = nullptr);

}  // namespace sluice::engine
