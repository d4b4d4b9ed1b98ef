// What a configuration leaves to the machine and the data (config::Answers), looked up.
//
// Threads: one; blocking, for milliseconds.
// Errors:  of the data as RunData::check() has them.
#pragma once

#include <cstdint>

#include "aio/result.h"
#include "engine/config/config.h"
#include "engine/config/resolve.h"

namespace sluice::engine {

// Of the GPU that the configuration computes on. Makes its context.
config::GpuKind gpu_kind(const config::Config& config);

// Sequences in one pass over the training data.
Result<std::uint64_t> samples_per_epoch(const config::Config& config);

}  // namespace sluice::engine
