#include "swap/chunk_hash.h"

#include "swap/chunk_hash_kernels.h"

namespace sluice::swap {
namespace {

HashKernel* best_kernel() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") ? hash_avx2 : hash_sse2;
}

HashKernel* kernel() {
  static HashKernel* const chosen = best_kernel();
  return chosen;
}

}  // namespace

std::uint64_t chunk_hash(std::span<const std::byte> chunk, const ChunkPlace& place) {
  static_assert(sizeof(ChunkPlace) == 4 * sizeof(std::uint64_t), "no padding to hash");
  const std::uint64_t seed = hash_sse2(&place, sizeof(place), 0);
  return kernel()(chunk.data(), chunk.size(), seed);
}

std::uint64_t plain_hash(std::span<const std::byte> data) {
  return kernel()(data.data(), data.size(), 0);
}

}  // namespace sluice::swap
