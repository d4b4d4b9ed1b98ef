// IoTarget: a range of bytes that requests address, and its mapping to files.
//
// DirectFile is one file; StripedFile spreads one range over several. IoQueue calls locate() block
// by block, so requests do not depend on stripes, nor stripes on requests.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "aio/file_system.h"

namespace sluice::aio {

// A run of bytes that is contiguous in one file.
struct Extent {
  File* file = nullptr;
  std::uint64_t offset_bytes = 0;  // in `file`
  std::uint64_t length_bytes = 0;
  std::uint64_t file_end_bytes = 0;  // logical end of `file`: everything after it is padding
};

class IoTarget {
 public:
  virtual ~IoTarget() = default;

  virtual const std::string& path() const = 0;  // for messages
  virtual std::uint64_t size_bytes() const = 0;

  // The first extent of [offset, offset + max_length), which is inside size_bytes(). Any thread.
  virtual Extent locate(std::uint64_t offset_bytes, std::uint64_t max_length_bytes) const = 0;

  // All files of the target; a sync covers all of them.
  virtual std::span<File* const> files() const = 0;
};

}  // namespace sluice::aio
