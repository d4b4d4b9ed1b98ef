// Inlined, because the distribution's library has no AVX2 and is a third as fast; this is the same
// code at the baseline's width.
#define XXH_INLINE_ALL
#define XXH_VECTOR 1  // XXH_SSE2
#include <xxhash.h>

#include "swap/chunk_hash_kernels.h"

namespace sluice::swap {

std::uint64_t hash_sse2(const void* data, std::size_t size_bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(data, size_bytes, seed);
}

}  // namespace sluice::swap
