// StreamHash: XXH3-64 of bytes that arrive in pieces. The result does not depend on the pieces and
// equals plain_hash() of all bytes.
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
  std::uint64_t value() const;  // hash of all bytes so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::swap
