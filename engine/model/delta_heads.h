// The shape of a gated delta rule's heads (ops/gated_delta_rule.h), and how it is computed. Without
// LibTorch.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sluice::engine {

struct DeltaHeads {
  std::int64_t key_heads = 0;    // of queries and keys
  std::int64_t value_heads = 0;  // a multiple: neighbours share a key head
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;

  constexpr std::int64_t key_width() const { return key_heads * key_dim; }
  constexpr std::int64_t value_width() const { return value_heads * value_dim; }
  constexpr std::int64_t qkv_width() const { return 2 * key_width() + value_width(); }
  constexpr std::int64_t groups() const { return value_heads / key_heads; }
};

inline constexpr std::int64_t kDeltaChunk = 64;  // tokens

// A part of the key heads, with their value heads, is computed at a time, so that fp32 copies are
// bounded. From shapes alone.
constexpr std::int64_t delta_part_heads(const DeltaHeads& heads, std::int64_t rows) {
  constexpr std::int64_t kNumbers = std::int64_t{1} << 24;  // of one copy: 64 MiB
  const std::int64_t of_head = rows * heads.groups() * std::max(heads.key_dim, heads.value_dim);
  return std::clamp<std::int64_t>(kNumbers / std::max<std::int64_t>(of_head, 1), 1,
                                  heads.key_heads);
}

}  // namespace sluice::engine
