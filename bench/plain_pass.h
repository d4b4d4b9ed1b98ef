// Passes over memory that move bytes as fast as the machine can and compute nothing: the yardstick
// for a kernel with the same proportion of reads to writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "aio/executor.h"

namespace sluice::bench {

enum class Traffic : std::uint8_t {
  kCopy,   // a byte written for each one read
  kHalve,  // a byte written for every two read
  kRead,   // nothing written
};
std::string_view to_string(Traffic traffic);

enum class Stores : std::uint8_t {
  kRegular,      // through the caches: a line is read before it is overwritten
  kNonTemporal,  // bypass the caches
};
std::string_view to_string(Stores stores);

struct PlainPass {
  Traffic traffic = Traffic::kCopy;
  Stores stores = Stores::kRegular;  // kRead has none

  // Bytes read and written in total, for `bytes` read.
  std::uint64_t moved_bytes(std::uint64_t bytes) const;
};

// Reads `bytes` at `from` and writes the pass's output at `to`. Each thread handles a contiguous
// range. Both are 64-byte aligned; bytes is a multiple of 128.
void run_plain_pass(aio::Executor& executor, PlainPass pass, std::byte* to, const std::byte* from,
                    std::uint64_t bytes);

}  // namespace sluice::bench
