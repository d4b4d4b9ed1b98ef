// What time it is, for what outlives a process: files that another one reads.
#pragma once

#include <chrono>
#include <cstdint>

namespace sluice {

// Whole seconds since 1970, by the system's clock.
inline std::int64_t unix_s_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace sluice
