// The host memory that gradients of a CPU run need, computed from sizes alone. The sink
// (engine/step/gradient_sink.h) allocates exactly this.
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

// The gradients that the optimizer reads: one for each unit.
std::uint64_t cpu_sink_gradient_bytes(const ModelLayout& model, offload::GradType type,
                                      const offload::RankPart& ranks = {});

// Number of fp32 accumulators. Units share them, unless sums are kept from wave to wave: then each
// unit has one for each of its simultaneous sums. Gradients in fp32 need one less, because the
// first sum is accumulated in the optimizer's buffer, unless that buffer holds a shard. The sums of
// units that borrow parameters follow the accumulators.
int cpu_sink_accumulators(offload::GradType type, const offload::HeldSums& sums,
                          const offload::RankPart& ranks = {});
// Bytes of one accumulator; with several ranks it is padded to the exchanged size.
std::uint64_t cpu_sink_sum_bytes(const UnitLayout& unit, const offload::RankPart& ranks = {});
// Bytes of one shared accumulator.
std::uint64_t cpu_sink_shared_bytes(const ModelLayout& model, const offload::RankPart& ranks = {});
std::uint64_t cpu_sink_unit_sum_bytes(const ModelLayout& model, offload::GradType type,
                                      const offload::HeldSums& sums,
                                      const offload::RankPart& ranks = {});
std::uint64_t cpu_sink_borrowed_bytes(const ModelLayout& model, int unit);  // one sum of `unit`
std::uint64_t cpu_sink_accumulator_bytes(const ModelLayout& model, offload::GradType type,
                                         const offload::HeldSums& sums,
                                         const offload::RankPart& ranks = {});

// Buffers for a unit's sums that ranks exchange, and for their reduced values.
std::uint64_t cpu_sink_exchange_bytes(const ModelLayout& model, const offload::HeldSums& sums,
                                      const offload::RankPart& ranks);

std::uint64_t planned_cpu_sink_bytes(const ModelLayout& model, offload::GradType type,
                                     const offload::HeldSums& sums,
                                     const offload::RankPart& ranks = {});

// If gradients are on NVMe (gradient_plan.h), the sink has only borrowed sums, and a buffer in
// which a unit's sums are cast to 16 bits.
std::uint64_t cpu_sink_cast_bytes(const ModelLayout& model, offload::GradType type);
std::uint64_t planned_cpu_sink_bytes_with_nvme(const ModelLayout& model, offload::GradType type,
                                               const offload::HeldSums& sums);

}  // namespace sluice::engine
