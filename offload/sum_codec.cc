#include "offload/sum_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "aio/check.h"

namespace sluice::offload {
namespace {

// The scale, NaN if a number is not finite. Magnitudes are in the order of their bits.
float scale_of(std::span<const float> block, float most) {
  std::uint32_t largest = 0;
  for (const float value : block)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFF);
  const auto absmax = std::bit_cast<float>(largest);
  return std::isfinite(absmax) ? absmax / most : std::numeric_limits<float>::quiet_NaN();
}

// For extremely small numbers the scale may be 0, or coarse.
int code_of(float value, float scale, float most) {
  if (!(scale > 0)) return 0;
  return static_cast<int>(std::clamp(std::nearbyint(value / scale), -most, most));
}

int low_half(std::byte codes) { return ((std::to_integer<int>(codes) & 15) ^ 8) - 8; }

}  // namespace

void encode_sum(SumCodec codec, const float* values, std::uint64_t elements, std::byte* to) {
  SLUICE_CHECK(codec != SumCodec::kFp32 && elements % kSumCodecBlock == 0, "blocks of a sum");
  const float most = most_code(codec);
  for (std::uint64_t first = 0; first < elements; first += kSumCodecBlock) {
    const std::span<const float> block(values + first, kSumCodecBlock);
    const float scale = scale_of(block, most);
    std::memcpy(to, &scale, sizeof(scale));
    to += sizeof(scale);
    if (codec == SumCodec::kInt8) {
      for (const float value : block) *to++ = static_cast<std::byte>(code_of(value, scale, most));
    } else {
      for (std::size_t i = 0; i < kSumCodecBlock; i += 2)
        *to++ = static_cast<std::byte>((code_of(block[i], scale, most) & 15) |
                                       (code_of(block[i + 1], scale, most) & 15) << 4);
    }
  }
}

void decode_sum(SumCodec codec, const std::byte* from, float* values, std::uint64_t elements) {
  SLUICE_CHECK(codec != SumCodec::kFp32 && elements % kSumCodecBlock == 0, "blocks of a sum");
  for (std::uint64_t first = 0; first < elements; first += kSumCodecBlock) {
    float* const block = values + first;
    float scale = 0;
    std::memcpy(&scale, from, sizeof(scale));
    from += sizeof(scale);
    if (codec == SumCodec::kInt8) {
      for (std::size_t i = 0; i < kSumCodecBlock; ++i, ++from)
        block[i] = static_cast<float>(static_cast<std::int8_t>(*from)) * scale;
    } else {
      for (std::size_t i = 0; i < kSumCodecBlock; i += 2, ++from) {
        block[i] = static_cast<float>(low_half(*from)) * scale;
        block[i + 1] = static_cast<float>(low_half(*from >> 4)) * scale;
      }
    }
  }
}

}  // namespace sluice::offload
