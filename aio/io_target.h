// IoTarget: a range of bytes that requests address, and where each of them lies in files.
//
// DirectFile is one file; StripedFile spreads one range over several. IoQueue asks locate() block
// by block, so requests know nothing of stripes, and stripes nothing of requests.
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
  std::uint64_t file_end_bytes = 0;  // logical end of `file`: anything beyond it is padding
};

class IoTarget {
 public:
  virtual ~IoTarget() = default;

  virtual const std::string& path() const = 0;  // for messages
  virtual std::uint64_t size_bytes() const = 0;

  // The first extent of [offset, offset + max_length); both lie inside size_bytes(). Any thread.
  virtual Extent locate(std::uint64_t offset_bytes, std::uint64_t max_length_bytes) const = 0;

  // Every file of the target: a sync reaches all of them.
  virtual std::span<File* const> files() const = 0;
};

}  // namespace sluice::aio
