// Copies memory as fast as the machine can: what a kernel that reads and writes is measured by.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "aio/executor.h"

namespace sluice::bench {

enum class CopyKind : std::uint8_t {
  kRegular,      // through the caches: a line is read before it is overwritten
  kNonTemporal,  // around them
};
inline constexpr std::array kCopyKinds = {CopyKind::kRegular, CopyKind::kNonTemporal};
std::string_view to_string(CopyKind kind);

// With all threads, each a contiguous range. Both 64-byte aligned, bytes a multiple of 64.
void copy_memory(aio::Executor& executor, CopyKind kind, std::byte* to, const std::byte* from,
                 std::uint64_t bytes);

}  // namespace sluice::bench
