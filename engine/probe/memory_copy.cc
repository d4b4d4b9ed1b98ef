#include "engine/probe/memory_copy.h"

#include <immintrin.h>

#include <algorithm>
#include <functional>

#include "aio/check.h"
#include "aio/units.h"

namespace sluice::engine {
namespace {

constexpr std::uint64_t kLine = 64;
constexpr std::uint64_t kPrefetchBytes = kKiB;

void copy_lines(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  for (std::uint64_t at = 0; at < bytes; at += kLine) {
    // An integer, because it may be past the memory's end, where prefetching has no effect.
    const auto ahead = reinterpret_cast<std::uintptr_t>(from + at) + kPrefetchBytes;
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_load_si128(source);
    const __m128i b = _mm_load_si128(source + 1);
    const __m128i c = _mm_load_si128(source + 2);
    const __m128i d = _mm_load_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  _mm_sfence();
}

}  // namespace

void copy_past_caches(aio::Executor& executor, std::byte* to, const std::byte* from,
                      std::uint64_t bytes) {
  SLUICE_CHECK(bytes % kLine == 0, "whole cache lines");
  const auto pieces = static_cast<std::uint64_t>(executor.threads());
  const std::uint64_t piece_bytes = align_up((bytes + pieces - 1) / pieces, 4 * kKiB);
  const auto work = [&](int piece) {
    const std::uint64_t begin = std::min(bytes, static_cast<std::uint64_t>(piece) * piece_bytes);
    copy_lines(to + begin, from + begin, std::min(bytes - begin, piece_bytes));
  };
  executor.run(static_cast<int>(pieces), std::cref(work));
}

}  // namespace sluice::engine
