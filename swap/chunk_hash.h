// chunk_hash: XXH3-64 (Yann Collet, xxHash 0.8), seeded with the chunk's identity.
//
// The seed ties a chunk to its store, record, generation and offset. So intact bytes from another
// time or place (a lost or misdirected write, another store) do not match. Every instruction set
// gives the same value; AVX2 is used if the CPU has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::swap {

struct ChunkPlace {
  std::uint64_t store_id;
  std::uint64_t record;
  std::uint64_t generation;
  std::uint64_t offset_bytes;  // the chunk's, in its record's image
};

std::uint64_t chunk_hash(std::span<const std::byte> chunk, const ChunkPlace& place);

// Unseeded and independent of the place: for manifests.
std::uint64_t plain_hash(std::span<const std::byte> data);

}  // namespace sluice::swap
