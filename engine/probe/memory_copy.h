// A memory copy that bypasses the caches, with all threads of an executor: measures DRAM's rate.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aio/executor.h"

namespace sluice::engine {

// Reads `bytes` at `from` and writes them at `to` with non-temporal stores; each thread copies a
// contiguous range. Both are 64-byte aligned, and `bytes` is a multiple of 64.
void copy_past_caches(aio::Executor& executor, std::byte* to, const std::byte* from,
                      std::uint64_t bytes);

}  // namespace sluice::engine
