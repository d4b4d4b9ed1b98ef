// The current time, for files that another process reads later.
#pragma once

#include <chrono>
#include <cstdint>

namespace sluice {

// Whole seconds since 1970, from the system's clock.
inline std::int64_t unix_s_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace sluice
