#include "offload/params/block_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "aio/check.h"

namespace sluice::offload {
namespace {

constexpr float kMostInt8 = 127;
constexpr std::size_t kNf4Block = row_of(BlockCodec::kNf4).block;
constexpr float kLeastNf4Scale = 1e-38F;  // its inverse is finite

static_assert(kNf4Block == row_of(BlockCodec::kNf4Double).block);

// The largest magnitude; not finite if a number is not. Magnitudes are in the order of their bits.
float absmax_of(std::span<const float> values) {
  std::uint32_t most = 0;
  for (const float value : values)
    most = std::max(most, std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFF);
  return std::bit_cast<float>(most);
}

bool encode_int8(std::span<const float> block, std::byte* codes, float* scale) {
  const float most = absmax_of(block);
  *scale = most / kMostInt8;
  if (!std::isfinite(*scale * kMostInt8)) return false;
  for (std::size_t i = 0; i < block.size(); ++i) {
    // For extremely small numbers the scale may be 0, or coarse.
    const float steps = *scale > 0 ? std::nearbyint(block[i] / *scale) : 0;
    codes[i] =
        static_cast<std::byte>(static_cast<std::int8_t>(std::clamp(steps, -kMostInt8, kMostInt8)));
  }
  return true;
}

bool encode_nf4(std::span<const float> block, std::byte* codes, float* absmax) {
  *absmax = absmax_of(block);
  if (!std::isfinite(*absmax)) return false;
  const float inverse = 1.0F / std::max(*absmax, kLeastNf4Scale);
  std::array<float, kNf4Block> scaled;
  for (std::size_t i = 0; i < kNf4Block; ++i) scaled[i] = block[i] * inverse;
  // How many of the midpoints are below: a loop that vectorises.
  std::array<std::int32_t, kNf4Block> below{};
  for (std::size_t code = 0; code + 1 < std::size(kNf4Tables.nf4); ++code) {
    const float midpoint = (kNf4Tables.nf4[code] + kNf4Tables.nf4[code + 1]) / 2;
    for (std::size_t i = 0; i < kNf4Block; ++i) below[i] += scaled[i] > midpoint ? 1 : 0;
  }
  for (std::size_t i = 0; i < kNf4Block; i += 2)
    codes[i / 2] = static_cast<std::byte>(below[i] << 4 | below[i + 1]);
  return true;
}

// The nearest code. Midpoints ascend with the codes, and one belongs to its even neighbour.
std::byte dynamic8_of(float value) {
  const auto& codes = kNf4Tables.dynamic8;
  std::size_t low = 0;
  std::size_t high = std::size(codes) - 1;
  while (low < high) {
    const std::size_t code = (low + high) / 2;
    const float midpoint = (codes[code] + codes[code + 1]) * 0.5F;
    const bool is_above = code % 2 == 0 ? value > midpoint : value >= midpoint;
    if (is_above)
      low = code + 1;
    else
      high = code;
  }
  return static_cast<std::byte>(low);
}

// `absmax` of one group's blocks. From `present` on they are in the gap after the parameter, and
// count as the mean.
void encode_scales(std::span<float> absmax, std::size_t present, float offset, std::byte* codes,
                   ScaleGroup* group) {
  float most = 0;
  for (std::size_t i = 0; i < absmax.size(); ++i) {
    absmax[i] = i < present ? absmax[i] - offset : 0;
    most = std::max(most, std::abs(absmax[i]));
  }
  *group = {most, offset};
  const float inverse = most > 0 ? 1.0F / std::max(most, kLeastNf4Scale) : 0;
  for (std::size_t i = 0; i < absmax.size(); ++i) codes[i] = dynamic8_of(absmax[i] * inverse);
}

bool encode_nf4_double(std::span<const float> values, const ScaleMean& mean, const EncodedOut& to) {
  constexpr std::size_t kGroup = row_of(BlockCodec::kNf4Double).group;
  const std::size_t present = (mean.elements + kNf4Block - 1) / kNf4Block;
  const std::size_t blocks = values.size() / kNf4Block;
  std::array<float, kGroup> absmax;
  for (std::size_t first = 0; first < blocks; first += kGroup) {
    const std::size_t count = std::min(kGroup, blocks - first);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t block = first + i;
      if (!encode_nf4(values.subspan(block * kNf4Block, kNf4Block),
                      to.codes + block * kNf4Block / 2, &absmax[i]))
        return false;
    }
    encode_scales(std::span(absmax).first(count), present - std::min(present, first), mean.offset,
                  to.scales + first, to.groups + first / kGroup);
    const ScaleGroup& group = to.groups[first / kGroup];
    if (!std::isfinite(group.scale + group.offset)) return false;  // the largest scale
  }
  return true;
}

float scale_of(const CodecRow& row, const EncodedIn& from, std::uint64_t block) {
  if (row.group == 0) {
    float scale = 0;
    std::memcpy(&scale, from.scales + block * sizeof(scale), sizeof(scale));
    return scale;
  }
  const ScaleGroup& group = from.groups[block / row.group];
  const float part =
      kNf4Tables.dynamic8[std::to_integer<std::size_t>(from.scales[block])] * group.scale;
  return part + group.offset;
}

}  // namespace

bool encode(BlockCodec codec, std::span<const float> values, const ScaleMean& mean,
            const EncodedOut& to) {
  const CodecRow& row = row_of(codec);
  SLUICE_CHECK(values.size() % row.block == 0, "whole blocks");
  if (row.group > 0) return encode_nf4_double(values, mean, to);
  const auto encode_block = codec == BlockCodec::kInt8 ? &encode_int8 : &encode_nf4;
  for (std::size_t block = 0; block < values.size() / row.block; ++block) {
    float scale = 0;
    if (!encode_block(values.subspan(block * row.block, row.block),
                      to.codes + block * row.block * row.bits / 8, &scale))
      return false;
    std::memcpy(to.scales + block * sizeof(scale), &scale, sizeof(scale));
  }
  return true;
}

double sum_of_absmax(BlockCodec codec, std::span<const float> values) {
  double sum = 0;
  for (std::size_t first = 0; first < values.size(); first += row_of(codec).block)
    sum += absmax_of(
        values.subspan(first, std::min<std::size_t>(row_of(codec).block, values.size() - first)));
  return sum;
}

void decode(BlockCodec codec, const EncodedIn& from, std::uint64_t first_block,
            std::span<float> values) {
  const CodecRow& row = row_of(codec);
  for (std::size_t first = 0; first < values.size(); first += row.block) {
    const std::uint64_t block = first_block + first / row.block;
    const float scale = scale_of(row, from, block);
    const std::byte* const codes = from.codes + block * row.block * row.bits / 8;
    float* const out = values.data() + first;
    if (codec == BlockCodec::kInt8) {
      for (std::size_t i = 0; i < row.block; ++i)
        out[i] = static_cast<float>(static_cast<std::int8_t>(codes[i])) * scale;
      continue;
    }
    for (std::size_t i = 0; i < row.block; i += 2) {
      const auto pair = std::to_integer<std::size_t>(codes[i / 2]);
      out[i] = kNf4Tables.nf4[pair >> 4] * scale;
      out[i + 1] = kNf4Tables.nf4[pair & 15] * scale;
    }
  }
}

}  // namespace sluice::offload
