// Sanitized code is slow: where every position is tried, a sample of them is taken there.
#pragma once

#include <cstdint>

namespace sluice {

// From one position to the next: 1, and so many with AddressSanitizer; with ThreadSanitizer, which
// is slower still and has nothing to see in another position of the same threads, three times as
// many.
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
