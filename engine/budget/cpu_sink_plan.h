// What the gradients of a run on the CPU take of its memory, from sizes alone: the sink
// (engine/step/gradient_sink.h) is made of just these.
//
// Threads: pure functions.
#pragma once

#include <cstdint>

#include "engine/model/model_layout.h"
#include "offload/element_types.h"

namespace sluice::engine {

inline constexpr std::uint64_t kCpuSinkAlignment = 4096;  // of each gradient and each accumulator

// What the optimizer reads: every unit's gradient.
std::uint64_t cpu_sink_gradient_bytes(const ModelLayout& model, offload::GradType type);

// fp32: a buffer that the units take turns in, or one for each of them where sums are kept from
// wave to wave; fp32 gradients need neither, as they are accumulated where the optimizer wants
// them. Behind it the sums of each unit that borrows parameters.
std::uint64_t cpu_sink_sum_bytes(const UnitLayout& unit);
std::uint64_t cpu_sink_unit_sum_bytes(const ModelLayout& model, offload::GradType type,
                                      bool keeps_sums);
std::uint64_t cpu_sink_borrowed_bytes(const ModelLayout& model, int unit);
std::uint64_t cpu_sink_accumulator_bytes(const ModelLayout& model, offload::GradType type,
                                         bool keeps_sums);

std::uint64_t planned_cpu_sink_bytes(const ModelLayout& model, offload::GradType type,
                                     bool keeps_sums);

}  // namespace sluice::engine
