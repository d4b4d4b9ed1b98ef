// ChunkedReader: reads one file of a checkpoint by chunks, and checks each before returning it.
//
// For consecutive chunks it reads ahead, as far as the staging memory allows. For any other chunk
// it reads only that chunk.
//
// Memory:  `staging`: page-aligned, at least one whole chunk; must outlive the reader.
// Threads: one at a time.
// Errors:  kCorrupt names the file and the bytes: it is missing, has another length, or does not
//          match its checksum. After an error any chunk can be tried again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "aio/direct_file.h"
#include "aio/io_queue.h"
#include "aio/io_request.h"
#include "engine/checkpoint/checkpoint_manifest.h"

namespace sluice::engine {

class ChunkedReader {
 public:
  struct Source {
    const CheckpointManifest* manifest = nullptr;  // outlives the reader
    std::string folder;
    std::uint64_t file_number = 0;  // in the manifest
  };
  static Result<std::unique_ptr<ChunkedReader>> open(aio::IoQueue& queue, const Source& source,
                                                     std::span<std::byte> staging);
  ~ChunkedReader();
  ChunkedReader(const ChunkedReader&) = delete;
  ChunkedReader& operator=(const ChunkedReader&) = delete;

  const std::string& path() const { return file_->path(); }
  std::uint64_t size_bytes() const { return stored_.bytes; }
  std::uint64_t chunks() const { return stored_.chunks.size(); }

  // Valid until the next call.
  Result<std::span<const std::byte>> chunk(std::uint64_t index);
  // The range must be in the file.
  Status read(std::uint64_t offset_bytes, std::span<std::byte> to);

 private:
  struct Piece {
    aio::IoRequest request;
    std::span<std::byte> memory;
    bool in_flight = false;
  };

  ChunkedReader(aio::IoQueue& queue, const Source& source, std::unique_ptr<aio::DirectFile> file,
                std::span<std::byte> staging);
  Piece& piece_of(std::uint64_t index) { return pieces_[index % piece_count_]; }
  std::span<std::byte> bytes_of(std::uint64_t index);
  Status wait(Piece& piece);
  void start(std::uint64_t index);
  void forget_all();
  void read_ahead(std::uint64_t index);
  Status check(std::uint64_t index);

  aio::IoQueue& queue_;
  const Source source_;
  const StoredFile& stored_;
  const std::uint64_t chunk_bytes_;
  std::unique_ptr<aio::DirectFile> file_;
  const std::size_t piece_count_;
  std::unique_ptr<Piece[]> pieces_;  // NOLINT(modernize-avoid-c-arrays): requests do not move

  // Chunks [begin_, end_) are in their pieces, or being read.
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
  std::uint64_t window_ = 1;               // chunks to read ahead; grows with sequential reads
  std::optional<std::uint64_t> asked_;     // last requested
  std::optional<std::uint64_t> verified_;  // may be returned
};

}  // namespace sluice::engine
