#include "swap/stream_hash.h"

#define XXH_INLINE_ALL  // NOLINT(readability-identifier-naming): named by xxHash
#include <xxhash.h>

namespace sluice::swap {

struct StreamHash::State {
  XXH3_state_t xxh3;
};

StreamHash::StreamHash() : state_(std::make_unique<State>()) {
  static_cast<void>(XXH3_64bits_reset(&state_->xxh3));
}
StreamHash::~StreamHash() = default;
StreamHash::StreamHash(StreamHash&& other) noexcept = default;
StreamHash& StreamHash::operator=(StreamHash&& other) noexcept = default;

void StreamHash::add(std::span<const std::byte> bytes) {
  static_cast<void>(XXH3_64bits_update(&state_->xxh3, bytes.data(), bytes.size()));
}

std::uint64_t StreamHash::value() const { return XXH3_64bits_digest(&state_->xxh3); }

}  // namespace sluice::swap
