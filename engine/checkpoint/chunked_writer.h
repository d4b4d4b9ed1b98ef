// ChunkedWriter: writes bytes in order to one file of known size, with a checksum for every chunk.
//
// A chunk is collected in a piece of the staging memory, hashed when full, and written while the
// next pieces fill.
//
// Memory:  `staging`: page-aligned, at least two whole chunks; must outlive the writer.
// Threads: one at a time.
// Errors:  the first error is kept: every later call returns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aio/direct_file.h"
#include "aio/io_queue.h"
#include "aio/io_request.h"

namespace sluice::engine {

class ChunkedWriter {
 public:
  struct Target {
    std::string path;  // its space was allocated by reserve()
    std::uint64_t bytes = 0;
    std::uint64_t file_number = 0;  // in the manifest
    std::uint64_t chunk_bytes = 0;
  };
  // Creates a file of that size, and allocates its space. kAlreadyExists if the file exists.
  static Status reserve(aio::IoQueue& queue, const std::string& path, std::uint64_t bytes);
  static Result<std::unique_ptr<ChunkedWriter>> open(aio::IoQueue& queue, const Target& target,
                                                     std::span<std::byte> staging);
  ~ChunkedWriter();
  ChunkedWriter(const ChunkedWriter&) = delete;
  ChunkedWriter& operator=(const ChunkedWriter&) = delete;

  Status write(std::span<const std::byte> bytes);
  // Once the file is full: waits for all writes, and makes the file durable.
  Status finish();
  // Checksums of the chunks written so far.
  const std::vector<std::uint64_t>& checksums() const { return checksums_; }

 private:
  struct Piece {
    aio::IoRequest request;
    std::span<std::byte> memory;
    bool in_flight = false;
  };

  ChunkedWriter(aio::IoQueue& queue, const Target& target, std::unique_ptr<aio::DirectFile> file,
                std::span<std::byte> staging);
  Status wait(Piece& piece);
  void submit(Piece& piece, std::uint64_t length_bytes);

  aio::IoQueue& queue_;
  const Target target_;
  std::unique_ptr<aio::DirectFile> file_;
  const std::size_t piece_count_;
  std::unique_ptr<Piece[]> pieces_;    // NOLINT(modernize-avoid-c-arrays): requests do not move
  std::size_t filling_ = 0;            // index of the piece
  std::uint64_t filled_bytes_ = 0;     // in that piece
  std::uint64_t submitted_bytes_ = 0;  // in the file
  std::vector<std::uint64_t> checksums_;
  Status status_;
};

}  // namespace sluice::engine
