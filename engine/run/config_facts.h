// Looks up what a configuration leaves to the machine and the data (config::ResolverFacts).
//
// Threads: one; blocking, for milliseconds.
// Errors:  samples_per_epoch() has the errors of RunData::check().
#pragma once

#include <cstdint>

#include "aio/result.h"
#include "engine/config/config.h"
#include "engine/config/resolve.h"

namespace sluice::engine {

// The GPU that the configuration computes on. Creates its CUDA context.
config::GpuKind gpu_kind(const config::Config& config);

// Sequences in one pass over the training data.
Result<std::uint64_t> samples_per_epoch(const config::Config& config);

}  // namespace sluice::engine
