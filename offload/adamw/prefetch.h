// Requests cache lines ahead of a kernel's streams.
//
// Measurements show that it helps (bench/history.md). A likely reason: a hardware prefetcher
// follows each stream only within a page, and a kernel with many streams enters new pages all the
// time.
//
// In an unnamed namespace, because every instruction set compiles its own: see vec_avx2.h.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace sluice::offload {
namespace {

// Far enough for a line to arrive in time, near enough for it to be still in the L1 cache.
constexpr std::size_t kPrefetchElements = 256;

// Prefetches the lines of `count` elements from `first` on. They may be past the array's end, where
// prefetching does nothing, so addresses are computed as integers.
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
