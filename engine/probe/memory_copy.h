// A copy of memory past the caches, with all threads of an executor: what DRAM can carry.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aio/executor.h"

namespace sluice::engine {

// Reads `bytes` at `from` and writes them at `to` with non-temporal stores, each thread a
// contiguous range. Both 64-byte aligned; bytes a multiple of 64.
void copy_past_caches(aio::Executor& executor, std::byte* to, const std::byte* from,
                      std::uint64_t bytes);

}  // namespace sluice::engine
