// SparsePages: a file's bytes in memory; bytes that were never written cost nothing.
//
// Copies share their pages until one of them is written. So a simulated drive can hold the present
// and the durable content of a file for little more than the cost of one. Holes read as zeros, and
// zeros written into a hole do not fill it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

namespace sluice::aio {

class SparsePages {
 public:
  static constexpr std::uint64_t kPageBytes = 64 << 10;

  void write(std::uint64_t offset_bytes, std::span<const std::byte> data);
  void read(std::uint64_t offset_bytes, std::span<std::byte> out) const;
  // Makes everything from `offset_bytes` on a hole.
  void erase_from(std::uint64_t offset_bytes);

 private:
  using Page = std::array<std::byte, kPageBytes>;
  Page& writable_page(std::uint64_t number);

  std::map<std::uint64_t, std::shared_ptr<Page>> pages_;
};

}  // namespace sluice::aio
