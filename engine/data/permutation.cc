#include "engine/data/permutation.h"

#include <algorithm>
#include <bit>

#include "aio/check.h"
#include "aio/split_mix.h"

namespace sluice::data {
namespace {

// Feistel networks with very narrow halves reach few permutations, so small sizes use a domain of
// 256.
constexpr int kMinHalfBits = 4;
constexpr std::uint64_t kMaxSize = std::uint64_t{1} << 62;

int half_bits_for(std::uint64_t size) {
  return std::max(kMinHalfBits, (static_cast<int>(std::bit_width(size - 1)) + 1) / 2);
}

}  // namespace

Permutation::Permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t stream)
    : size_(size), half_bits_(half_bits_for(size)) {
  SLUICE_CHECK(size >= 1 && size <= kMaxSize, "a permutation of 1 to 2^62 numbers");
  aio::SplitMix random(seed, stream);
  for (std::uint64_t& key : keys_) key = random.next();
}

std::uint64_t Permutation::at(std::uint64_t index) const {
  SLUICE_CHECK(index < size_, "an index of the permutation");
  // This terminates: the cycle of `index` leads back to it, and it is below size_.
  do {
    index = scrambled(index);
  } while (index >= size_);
  return index;
}

std::uint64_t Permutation::scrambled(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (const std::uint64_t key : keys_) {
    const std::uint64_t mixed = left ^ (aio::SplitMix(key ^ right).next() & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

}  // namespace sluice::data
