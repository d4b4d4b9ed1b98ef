// A unit's parameters, and what ranks make of them when they gather it in 8 bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "aio/split_mix.h"
#include "offload/adamw/half.h"
#include "offload/params/sent_weights.h"
#include "offload/state/state_tiles.h"

namespace sluice::offload {

// Groups of all sizes, and one each of zeros, of denormals, with one large number, with infinities,
// with a NaN, and of the largest numbers.
inline std::vector<float> hostile_values(std::uint64_t elements) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  aio::SplitMix random(7);
  std::vector<float> values(elements);
  for (std::uint64_t i = 0; i < elements; ++i) {
    const auto exponent = static_cast<int>(i / kSentGroup % 40) - 30;
    const auto number = static_cast<float>(random.below(1U << 20)) / (1U << 19) - 1;
    values[i] = std::ldexp(number, exponent);
  }
  const auto group = [&](std::uint64_t number) { return values.data() + number * kSentGroup; };
  std::fill_n(group(1), kSentGroup, 0.0F);
  std::fill_n(group(2), kSentGroup, std::numeric_limits<float>::denorm_min());
  group(3)[5] = 3e4F;
  group(4)[7] = -kInf;
  group(5)[127] = std::numeric_limits<float>::quiet_NaN();
  std::fill_n(group(6), kSentGroup, std::numeric_limits<float>::max());
  return values;
}

inline std::vector<std::byte> packed(ParamForm form, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * element_bytes(compute_type(form)));
  pack_parameters(form, values, bytes.data());
  return bytes;
}

inline std::vector<float> unpacked(ParamForm form, const std::vector<std::byte>& bytes) {
  const std::uint64_t width = element_bytes(compute_type(form));
  std::vector<float> values(bytes.size() / width);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (form == ParamForm::kFp32) {
      std::memcpy(&values[i], bytes.data() + i * width, width);
      continue;
    }
    std::uint16_t half = 0;
    std::memcpy(&half, bytes.data() + i * width, width);
    values[i] = form == ParamForm::kSplit ? float_from_bf16(half) : float_from_fp16(half);
  }
  return values;
}

inline std::vector<std::byte> pieces_of(const SentUnit& unit, const std::vector<std::byte>& whole) {
  std::vector<std::byte> pieces(unit.bytes(), std::byte{0xAB});
  for (int rank = 0; rank < unit.world; ++rank) {
    const UnitShard shard = shard_of(unit.elements, {.rank = rank, .world = unit.world});
    const auto own =
        std::span(whole).subspan(shard.first_element * unit.width(), shard.elements * unit.width());
    encode_groups(unit, rank, own, 0, shard.elements / kSentGroup,
                  pieces.data() + static_cast<std::uint64_t>(rank) * unit.piece_bytes());
  }
  return pieces;
}

inline std::vector<std::byte> gathered(const SentUnit& unit, const std::vector<std::byte>& whole) {
  const std::vector<std::byte> pieces = pieces_of(unit, whole);
  std::vector<std::byte> made(whole.size(), std::byte{0xCD});
  decode_groups(unit, pieces.data(), 0, unit.groups(), made.data());
  return made;
}

}  // namespace sluice::offload
