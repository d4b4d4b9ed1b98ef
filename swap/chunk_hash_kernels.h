// XXH3 compiled for two instruction sets; chunk_hash.cc chooses.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::swap {

using HashKernel = std::uint64_t(const void* data, std::size_t size_bytes, std::uint64_t seed);

HashKernel hash_sse2;
HashKernel hash_avx2;

}  // namespace sluice::swap
