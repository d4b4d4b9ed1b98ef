// Sanitized code is slow: tests that try every position use a sample there.
#pragma once

#include <cstdint>

namespace sluice {

// The distance between positions: 1 normally, `with_asan` with AddressSanitizer, and three times as
// many with ThreadSanitizer. That one is even slower, and other positions of the same threads show
// it nothing new.
constexpr std::uint64_t sweep_stride([[maybe_unused]] std::uint64_t with_asan) {
#if defined(__SANITIZE_THREAD__)
  return 3 * with_asan;
#elif defined(__SANITIZE_ADDRESS__)
  return with_asan;
#else
  return 1;
#endif
}

}  // namespace sluice
