#include "bench/plain_pass.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "aio/check.h"
#include "aio/units.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kLine = 64;
// Prefetches as far ahead as the kernels do, so that the yardstick has no disadvantage.
constexpr std::uint64_t kPrefetchBytes = kKiB;

using RangePass = void(std::byte* to, const std::byte* from, std::uint64_t bytes);

struct Line {
  __m128i a, b, c, d;
};

Line load_line(const std::byte* from) {
  // A number, since it may be beyond the memory's end, where prefetching does nothing.
  const auto ahead = reinterpret_cast<std::uintptr_t>(from) + kPrefetchBytes;
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
  const auto* source = reinterpret_cast<const __m128i*>(from);
  return {.a = _mm_load_si128(source),
          .b = _mm_load_si128(source + 1),
          .c = _mm_load_si128(source + 2),
          .d = _mm_load_si128(source + 3)};
}

template <Stores kStores>
void store_line(std::byte* to, const Line& line) {
  auto* target = reinterpret_cast<__m128i*>(to);
  const auto store = [](__m128i* at, __m128i value) {
    if constexpr (kStores == Stores::kRegular)
      _mm_store_si128(at, value);
    else
      _mm_stream_si128(at, value);
  };
  store(target, line.a);
  store(target + 1, line.b);
  store(target + 2, line.c);
  store(target + 3, line.d);
}

// Cheaper than any wait for memory, and depends on both lines.
Line either(const Line& x, const Line& y) {
  return {.a = _mm_or_si128(x.a, y.a),
          .b = _mm_or_si128(x.b, y.b),
          .c = _mm_or_si128(x.c, y.c),
          .d = _mm_or_si128(x.d, y.d)};
}

// memcpy uses non-temporal stores for long copies; short ones prevent that.
void copy_regular(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  for (std::uint64_t at = 0; at < bytes; at += 64 * kKiB)
    std::memcpy(to + at, from + at, std::min(64 * kKiB, bytes - at));
}

void copy_non_temporal(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  for (std::uint64_t at = 0; at < bytes; at += kLine)
    store_line<Stores::kNonTemporal>(to + at, load_line(from + at));
  _mm_sfence();
}

template <Stores kStores>
void halve(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  for (std::uint64_t at = 0; at < bytes; at += 2 * kLine)
    store_line<kStores>(to + at / 2, either(load_line(from + at), load_line(from + at + kLine)));
  _mm_sfence();
}

void read_only(std::byte* /*to*/, const std::byte* from, std::uint64_t bytes) {
  Line seen{};
  for (std::uint64_t at = 0; at < bytes; at += kLine) seen = either(seen, load_line(from + at));
  const __m128i all = _mm_or_si128(_mm_or_si128(seen.a, seen.b), _mm_or_si128(seen.c, seen.d));
  asm volatile("" ::"x"(all));  // unused data would not be read
}

RangePass* range_pass(PlainPass pass) {
  const bool regular = pass.stores == Stores::kRegular;
  switch (pass.traffic) {
    case Traffic::kCopy:
      return regular ? copy_regular : copy_non_temporal;
    case Traffic::kHalve:
      return regular ? halve<Stores::kRegular> : halve<Stores::kNonTemporal>;
    case Traffic::kRead:
      break;
  }
  return read_only;
}

std::uint64_t written_bytes(Traffic traffic, std::uint64_t bytes_read) {
  if (traffic == Traffic::kRead) return 0;
  return traffic == Traffic::kCopy ? bytes_read : bytes_read / 2;
}

}  // namespace

std::string_view to_string(Traffic traffic) {
  if (traffic == Traffic::kRead) return "read";
  return traffic == Traffic::kCopy ? "copy" : "halve";
}

std::string_view to_string(Stores stores) {
  return stores == Stores::kRegular ? "regular" : "non-temporal";
}

std::uint64_t PlainPass::moved_bytes(std::uint64_t bytes) const {
  return bytes + written_bytes(traffic, bytes);
}

void run_plain_pass(aio::Executor& executor, PlainPass pass, std::byte* to, const std::byte* from,
                    std::uint64_t bytes) {
  SLUICE_CHECK(bytes % (2 * kLine) == 0, "whole pairs of cache lines");
  const auto pieces = static_cast<std::uint64_t>(executor.threads());
  const std::uint64_t piece_bytes = align_up((bytes + pieces - 1) / pieces, 4 * kKiB);
  RangePass* const over_range = range_pass(pass);
  const auto work = [&](int piece) {
    const std::uint64_t begin = std::min(bytes, static_cast<std::uint64_t>(piece) * piece_bytes);
    const std::uint64_t length = std::min(bytes - begin, piece_bytes);
    over_range(to + written_bytes(pass.traffic, begin), from + begin, length);
  };
  executor.run(static_cast<int>(pieces), std::cref(work));
}

}  // namespace sluice::bench
