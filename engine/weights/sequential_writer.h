// SequentialWriter: bytes in order into one new file of known size, through two halves of staging
// memory: one is filled while the other is written.
//
// Space is taken when it is created, so that a full disk is an error then.
//
// Memory:  `staging`, of whole pages and page-aligned, which must outlive the writer.
// Threads: one at a time.
// Errors:  the first one stays: every later call returns it. A file that was not finished is left
//          to its owner to remove.
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
  // Replaces what is at `path`.
  static Result<std::unique_ptr<SequentialWriter>> create(aio::IoQueue& queue,
                                                          const std::string& path,
                                                          std::uint64_t size_bytes,
                                                          std::span<std::byte> staging);
  ~SequentialWriter();
  SequentialWriter(const SequentialWriter&) = delete;
  SequentialWriter& operator=(const SequentialWriter&) = delete;

  // Where the next bytes are put: at least one until the file is full, then none.
  Result<std::span<std::byte>> room();
  // The first `count` bytes of room() are there.
  Status commit(std::uint64_t count_bytes);
  Status write(std::span<const std::byte> bytes);

  // Once the file is full: waits for the last byte and makes it durable.
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
  std::size_t filling_ = 0;            // which half
  std::uint64_t filled_bytes_ = 0;     // of it
  std::uint64_t submitted_bytes_ = 0;  // of the file
  Status status_;
};

}  // namespace sluice::engine
