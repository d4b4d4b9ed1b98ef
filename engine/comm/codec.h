// Codec: a smaller form for what a collective sends (quantised weights or gradients).
//
// Every rank receives what decode() makes of the bytes that encode() made, its own piece included,
// so that all ranks hold the same bits, and a run on one rank shows what the codec costs in
// quality. A piece is encoded by itself: its encoding depends only on its bytes.
//
// Threads: any, for different pieces. Nothing allocates. `stream` as in CollectiveOptions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "aio/result.h"

namespace sluice::engine {

class Codec {
 public:
  virtual ~Codec() = default;
  Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;

  // Pieces are whole elements of this many bytes; collectives check it.
  virtual std::uint64_t element_bytes() const = 0;
  // The size that value_bytes of a piece encode to, whatever the content.
  virtual std::uint64_t encoded_bytes(std::uint64_t value_bytes) const = 0;

  virtual Status encode(std::span<const std::byte> values, std::span<std::byte> encoded,
                        void* stream) const = 0;
  virtual Status decode(std::span<const std::byte> encoded, std::span<std::byte> values,
                        void* stream) const = 0;
};

}  // namespace sluice::engine
