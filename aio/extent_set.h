// ExtentSet: the bytes of a file that have disk space, as disjoint ranges of whole 4096-byte
// blocks.
//
// Adjacent ranges merge, so a file that was allocated in one piece is one entry, however large.
#pragma once

#include <cstdint>
#include <map>

namespace sluice::aio {

class ExtentSet {
 public:
  static constexpr std::uint64_t kBlockBytes = 4096;

  // The bytes that add() of the same range would add.
  std::uint64_t missing_bytes(std::uint64_t begin_bytes, std::uint64_t end_bytes) const;
  void add(std::uint64_t begin_bytes, std::uint64_t end_bytes);
  // Removes every block that is entirely beyond `end_bytes`.
  void cut(std::uint64_t end_bytes);
  std::uint64_t total_bytes() const { return total_bytes_; }

 private:
  std::map<std::uint64_t, std::uint64_t> ends_;  // begin -> end
  std::uint64_t total_bytes_ = 0;
};

}  // namespace sluice::aio
