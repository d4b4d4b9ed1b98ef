// Permutation: a shuffle of 0 .. size - 1 that stores no order.
//
// A Feistel network over the next power of four, with cycle walking until a value is below `size`.
// It is a bijection by construction, for any key, with random access in some tens of nanoseconds.
// It depends only on (size, seed, stream), on every machine. Checkpoints rely on the order, so it
// never changes (the tests pin it).
//
// Not cryptographically secure.
#pragma once

#include <array>
#include <cstdint>

namespace sluice::data {

class Permutation {
 public:
  // 1 <= size <= 2^62.
  Permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t stream);

  std::uint64_t size() const { return size_; }
  std::uint64_t at(std::uint64_t index) const;  // index < size()

 private:
  static constexpr int kRounds = 8;
  std::uint64_t scrambled(std::uint64_t value) const;

  std::uint64_t size_;
  int half_bits_;
  std::array<std::uint64_t, kRounds> keys_;
};

}  // namespace sluice::data
