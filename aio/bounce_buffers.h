// BounceBuffers: a few aligned buffers for data that O_DIRECT does not accept.
//
// A write of part of a sector reads the sector, changes it and writes it back. It holds the sector
// exclusively throughout, so that a second such write cannot read the sector before the first has
// written it.
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

  // The sectors that pass through a buffer: whole sectors [begin, end) of a file.
  struct Use {
    const File* file = nullptr;
    std::uint64_t begin_bytes = 0;
    std::uint64_t end_bytes = 0;
    bool exclusive = false;  // will be modified and written back
  };
  // The buffer's index; -1 while none is free, or while a needed sector is held exclusively.
  int take(const Use& use);
  void give_back(int number);
  std::byte* data(int number) const;

 private:
  explicit BounceBuffers(PageMemory memory) : memory_(std::move(memory)) {}

  PageMemory memory_;
  std::array<Use, kCount> uses_{};  // no file: free
};

}  // namespace sluice::aio
