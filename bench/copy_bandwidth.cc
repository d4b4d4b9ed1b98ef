#include "bench/copy_bandwidth.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "aio/check.h"
#include "aio/units.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kLine = 64;

// memcpy switches to non-temporal stores for long copies: short ones keep it from that.
void copy_regular(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  for (std::uint64_t at = 0; at < bytes; at += 64 * kKiB)
    std::memcpy(to + at, from + at, std::min(64 * kKiB, bytes - at));
}

void copy_non_temporal(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  for (std::uint64_t at = 0; at < bytes; at += kLine) {
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

std::string_view to_string(CopyKind kind) {
  return kind == CopyKind::kRegular ? "regular" : "non-temporal";
}

void copy_memory(aio::Executor& executor, CopyKind kind, std::byte* to, const std::byte* from,
                 std::uint64_t bytes) {
  SLUICE_CHECK(bytes % kLine == 0, "whole cache lines");
  const auto pieces = static_cast<std::uint64_t>(executor.threads());
  const std::uint64_t piece_bytes = align_up((bytes + pieces - 1) / pieces, 4 * kKiB);
  const auto work = [&](int piece) {
    const std::uint64_t begin = std::min(bytes, static_cast<std::uint64_t>(piece) * piece_bytes);
    const std::uint64_t length = std::min(bytes - begin, piece_bytes);
    const auto copy = kind == CopyKind::kRegular ? copy_regular : copy_non_temporal;
    copy(to + begin, from + begin, length);
  };
  executor.run(static_cast<int>(pieces), std::cref(work));
}

}  // namespace sluice::bench
