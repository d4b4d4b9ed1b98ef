// Asks for cache lines ahead of a kernel's streams.
//
// Measured to help (bench/README.md). A likely reason: a hardware prefetcher follows each stream
// only within a page, and a kernel of many streams enters new pages all the time.
//
// In an unnamed namespace, because every instruction set compiles its own: see vec_avx2.h.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace sluice::offload {
namespace {

// Far enough for a line to arrive in time, near enough for it to be still in the first cache.
constexpr std::size_t kPrefetchElements = 256;

// The lines that `count` elements from `first` on lie in. They may lie beyond the array's end,
// where prefetching does nothing: hence addresses as numbers.
template <std::size_t kElementBytes>
[[gnu::always_inline]] inline void prefetch(const void* array, std::size_t first,
                                            std::size_t count) {
  constexpr std::size_t kLineBytes = 64;
  const auto begin = reinterpret_cast<std::uintptr_t>(array) + first * kElementBytes;
  for (std::size_t at = 0; at < count * kElementBytes; at += kLineBytes)
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    _mm_prefetch(reinterpret_cast<const char*>(begin + at), _MM_HINT_T0);
}

}  // namespace
}  // namespace sluice::offload
