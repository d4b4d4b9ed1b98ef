// StreamHash: XXH3-64 of bytes that come in pieces; the same however they are cut, and as
// plain_hash() of all of them.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace sluice::swap {

class StreamHash {
 public:
  StreamHash();
  ~StreamHash();
  StreamHash(StreamHash&& other) noexcept;
  StreamHash& operator=(StreamHash&& other) noexcept;

  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const;  // of all so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::swap
