// BounceBuffers: the few aligned buffers that carry whatever O_DIRECT will not take.
//
// A write of part of a sector reads the sector, changes it and writes it back, and holds the sector
// exclusively throughout: a second one must not read it before the first has written it.
//
// Memory:  kCount * kBytes, taken in create().
// Threads: none of its own; IoQueue calls it under its lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "aio/file_system.h"
#include "aio/page_memory.h"
#include "aio/result.h"

namespace sluice::aio {

class BounceBuffers {
 public:
  static constexpr int kCount = 8;
  static constexpr std::uint64_t kBytes = 128 << 10;

  static Result<BounceBuffers> create();

  // What passes through a buffer: whole sectors [begin, end) of a file.
  struct Use {
    const File* file = nullptr;
    std::uint64_t begin_bytes = 0;
    std::uint64_t end_bytes = 0;
    bool exclusive = false;  // will be written back changed
  };
  // The buffer's number; -1 while none is free, or while a wanted sector is held exclusively.
  int take(const Use& use);
  void give_back(int number);
  std::byte* data(int number) const;

 private:
  explicit BounceBuffers(PageMemory memory) : memory_(std::move(memory)) {}

  PageMemory memory_;
  std::array<Use, kCount> uses_{};  // without a file: free
};

}  // namespace sluice::aio
