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

// fp32: a buffer for each unit that lends, and before them one that the others take turns in. With
// fp32 gradients there is none: they are accumulated where the optimizer wants them.
std::uint64_t cpu_sink_shared_bytes(const ModelLayout& model, offload::GradType type);
std::uint64_t cpu_sink_own_bytes(const ModelLayout& model, offload::GradType type, int unit);
std::uint64_t cpu_sink_accumulator_bytes(const ModelLayout& model, offload::GradType type);

std::uint64_t planned_cpu_sink_bytes(const ModelLayout& model, offload::GradType type);

}  // namespace sluice::engine
