// SequentialWriter: writes bytes in order to one new file of known size. Staging memory has two
// halves: one is filled while the other is written.
//
// create() reserves the space, so that a full disk is detected early.
//
// Memory:  `staging`: page-aligned whole pages, which must outlive the writer.
// Threads: one at a time.
// Errors:  the first error is kept: every later call returns it. The caller removes an unfinished
//          file.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "aio/direct_file.h"
#include "aio/io_queue.h"

namespace sluice::engine {

class SequentialWriter {
 public:
  // Replaces the file at `path`.
  static Result<std::unique_ptr<SequentialWriter>> create(aio::IoQueue& queue,
                                                          const std::string& path,
                                                          std::uint64_t size_bytes,
                                                          std::span<std::byte> staging);
  ~SequentialWriter();
  SequentialWriter(const SequentialWriter&) = delete;
  SequentialWriter& operator=(const SequentialWriter&) = delete;

  // Space for the next bytes: at least one byte until the file is full, then none.
  Result<std::span<std::byte>> room();
  // Accepts the first `count_bytes` of room().
  Status commit(std::uint64_t count_bytes);
  Status write(std::span<const std::byte> bytes);

  // Once the file is full: waits for all writes, and makes the file durable.
  Status finish();

 private:
  struct Half {
    aio::IoRequest request;
    std::span<std::byte> memory;
    bool in_flight = false;
  };

  SequentialWriter(aio::IoQueue& queue, std::unique_ptr<aio::DirectFile> file,
                   std::span<std::byte> staging);
  Status wait(Half& half);

  aio::IoQueue& queue_;
  std::unique_ptr<aio::DirectFile> file_;
  std::array<Half, 2> halves_;
  std::size_t filling_ = 0;            // index of the half
  std::uint64_t filled_bytes_ = 0;     // in that half
  std::uint64_t submitted_bytes_ = 0;  // in the file
  Status status_;
};

}  // namespace sluice::engine
