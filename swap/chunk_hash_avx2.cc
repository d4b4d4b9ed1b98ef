// Compiled with AVX2 and called only if the CPU has it. All of xxHash is static here, so no other
// code in the program can end up running these instructions.
#define XXH_INLINE_ALL
#define XXH_VECTOR 2  // XXH_AVX2
#include <xxhash.h>

#include "swap/chunk_hash_kernels.h"

namespace sluice::swap {

std::uint64_t hash_avx2(const void* data, std::size_t size_bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(data, size_bytes, seed);
}

}  // namespace sluice::swap
