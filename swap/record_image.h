// RecordImage: one record as stored on disk and in a pinned buffer: a header of 4096 bytes, the
// payload, and zeros up to the next multiple of 4096. FORMAT.md specifies the bytes.
//
// The payload is checked in chunks, whose checksums are in the header; the header has its own
// checksum. A record is sealed (its checksums are computed) before it is written and checked after
// it is read. Both work chunk by chunk, so they can run while a chunk is in the cache for other
// reasons: see record_work.h.
//
// Memory:  a view; the buffer belongs to the caller and is aligned to at least 64 bytes.
// Threads: different chunks from different threads; begin_seal() before them, finish_seal() after
//          them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "aio/result.h"
#include "aio/units.h"

namespace sluice::swap {

inline constexpr std::uint64_t kRecordHeaderBytes = 4096;
inline constexpr std::uint64_t kRecordAlignmentBytes = 4096;
inline constexpr std::uint64_t kMaxChunks = 480;  // the capacity of the header

// Identity and size of a record; fixed when the store is created.
struct RecordShape {
  std::uint64_t store_id = 0;
  std::uint64_t record = 0;
  std::uint64_t first_element = 0;
  std::uint64_t elements = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t chunk_bytes = 0;

  std::uint64_t image_bytes() const {
    return kRecordHeaderBytes + align_up(payload_bytes, kRecordAlignmentBytes);
  }
  int chunk_count() const { return static_cast<int>((payload_bytes - 1) / chunk_bytes + 1); }
};

// The checks of RecordImage, for readers of a part of a record. `header`: its first
// kRecordHeaderBytes, aligned to 64 bytes.
Status check_record_header(const RecordShape& shape, std::span<const std::byte> header,
                           std::uint64_t generation);
// `data`: the chunk. The header must have been checked.
Status check_record_chunk(const RecordShape& shape, std::span<const std::byte> header, int index,
                          std::uint64_t generation, std::span<const std::byte> data);

class RecordImage {
 public:
  // `image` has shape.image_bytes() bytes.
  RecordImage(const RecordShape& shape, std::span<std::byte> image);

  const RecordShape& shape() const { return shape_; }
  std::span<std::byte> bytes() const { return image_; }
  std::span<std::byte> payload() const {
    return image_.subspan(kRecordHeaderBytes, shape_.payload_bytes);
  }
  int chunk_count() const { return shape_.chunk_count(); }
  std::span<std::byte> chunk(int index) const;

  // Checks that the header is intact and belongs to this record and generation. kCorrupt says which
  // of these fails: it is damaged, another store's, another record's, or stale.
  Status check_header(std::uint64_t generation) const;
  // kCorrupt names the byte range. The header must have been checked.
  Status check_chunk(int index, std::uint64_t generation) const;

  // Writes the header except for the checksums, and the zeros after the payload. The old checksums
  // stay, so that a chunk can still be checked before it is resealed.
  void begin_seal(std::uint64_t generation);
  void seal_chunk(int index, std::uint64_t generation);
  void finish_seal();

  // The generation that an intact header claims, or kCorrupt: for scrub, which may not have an
  // expected generation.
  Result<std::uint64_t> claimed_generation() const;

 private:
  RecordShape shape_;
  std::span<std::byte> image_;
};

}  // namespace sluice::swap
