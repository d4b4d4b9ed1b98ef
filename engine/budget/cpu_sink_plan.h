// What the gradients of a run on the CPU take of its memory, from sizes alone: the sink
// (engine/step/gradient_sink.h) is made of just these.
//
// Threads: pure functions.
#pragma once

#include <cstdint>

#include "engine/model/model_layout.h"
#include "offload/element_types.h"
#include "offload/sum_order.h"
#include "offload/unit_shards.h"

namespace sluice::engine {

inline constexpr std::uint64_t kCpuSinkAlignment = 4096;  // of each gradient and each accumulator

// What the optimizer reads: every unit's gradient.
std::uint64_t cpu_sink_gradient_bytes(const ModelLayout& model, offload::GradType type,
                                      const offload::RankPart& ranks = {});

// fp32: accumulators that the units take turns in, or some for each of them where sums are kept
// from wave to wave, as many as there are sums of a unit at a time; fp32 gradients need one less,
// as the first of them is accumulated where the optimizer wants it, unless that wants a shard.
// Behind them the sums of each unit that borrows parameters.
int cpu_sink_accumulators(offload::GradType type, const offload::HeldSums& sums,
                          const offload::RankPart& ranks = {});
// Of one; with several ranks padded to what they exchange.
std::uint64_t cpu_sink_sum_bytes(const UnitLayout& unit, const offload::RankPart& ranks = {});
// Of one that units take turns in.
std::uint64_t cpu_sink_shared_bytes(const ModelLayout& model, const offload::RankPart& ranks = {});
std::uint64_t cpu_sink_unit_sum_bytes(const ModelLayout& model, offload::GradType type,
                                      const offload::HeldSums& sums,
                                      const offload::RankPart& ranks = {});
std::uint64_t cpu_sink_borrowed_bytes(const ModelLayout& model, int unit);  // of one
std::uint64_t cpu_sink_accumulator_bytes(const ModelLayout& model, offload::GradType type,
                                         const offload::HeldSums& sums,
                                         const offload::RankPart& ranks = {});

// What ranks send each other of a unit, and what they have added up of it.
std::uint64_t cpu_sink_exchange_bytes(const ModelLayout& model, const offload::HeldSums& sums,
                                      const offload::RankPart& ranks);

std::uint64_t planned_cpu_sink_bytes(const ModelLayout& model, offload::GradType type,
                                     const offload::HeldSums& sums,
                                     const offload::RankPart& ranks = {});

// Of gradients on NVMe (gradient_plan.h) the sink has only what is borrowed, and a place in which a
// unit's sums become 16-bit numbers.
std::uint64_t cpu_sink_cast_bytes(const ModelLayout& model, offload::GradType type);
std::uint64_t planned_cpu_sink_bytes_beside_nvme(const ModelLayout& model, offload::GradType type,
                                                 const offload::HeldSums& sums);

}  // namespace sluice::engine
