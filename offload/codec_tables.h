// The codecs of a frozen base, as rows, and the code points of NF4.
//
// NF4 is that of QLoRA (Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", 2023,
// sections 3 and 4) as bitsandbytes 0.50 has it. Its code points are 16 quantiles of the normal
// distribution, its blocks 64 numbers. With double quantisation the scales of 256 blocks are stored
// in 8 bits each, as floats of bitsandbytes' dynamic type ("8-bit Optimizers via Block-wise
// Quantization", section 2).
//
// Plain data (CUDA code includes this file).
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace sluice::offload {

enum class BlockCodec : std::uint8_t { kNone, kInt8, kNf4, kNf4Double };

struct CodecRow {
  BlockCodec codec = BlockCodec::kNone;
  std::uint64_t bits = 0;         // of a number
  std::uint64_t block = 1;        // numbers that share a scale
  std::uint64_t scale_bytes = 0;  // of a block
  std::uint64_t group = 0;        // blocks that share a ScaleGroup; 0: scales are in fp32
};
inline constexpr CodecRow kCodecs[] = {
    {BlockCodec::kNone},
    {BlockCodec::kInt8, 8, 128, sizeof(float), 0},
    {BlockCodec::kNf4, 4, 64, sizeof(float), 0},
    {BlockCodec::kNf4Double, 4, 64, 1, 256},
};
constexpr const CodecRow& row_of(BlockCodec codec) {
  return kCodecs[static_cast<std::size_t>(codec)];
}

// A multiple of every codec's blocks and groups: what is encoded at a time.
inline constexpr std::uint64_t kCodecChunk = 64 * 256;

// With double quantisation a block's scale is dynamic8[code] * scale + offset, rounded twice.
struct ScaleGroup {
  float scale = 0;
  float offset = 0;  // the mean scale of the parameter
};

// The tables of NF4, ascending.
struct Nf4Tables {
  float nf4[16] = {-1.0F,
                   -0.6961928009986877F,
                   -0.5250730514526367F,
                   -0.39491748809814453F,
                   -0.28444138169288635F,
                   -0.18477343022823334F,
                   -0.09105003625154495F,
                   0.0F,
                   0.07958029955625534F,
                   0.16093020141124725F,
                   0.24611230194568634F,
                   0.33791524171829224F,
                   0.44070982933044434F,
                   0.5626170039176941F,
                   0.7229568362236023F,
                   1.0F};
  float dynamic8[256] = {};
};

// bitsandbytes' create_dynamic_map(). Decade i has the means of neighbours among 2^i + 1 numbers
// from 0.1 to 1, scaled, with both signs; torch.linspace computes them with fused products.
constexpr Nf4Tables nf4_tables() {
  constexpr float kDecades[] = {1e-6F, 1e-5F, 1e-4F, 1e-3F, 1e-2F, 1e-1F, 1.0F};
  constexpr float kBegin = 0.1F;
  Nf4Tables tables;
  auto& codes = tables.dynamic8;
  std::size_t at = 128;  // 127 is 0
  for (std::size_t decade = 0; decade < std::size(kDecades); ++decade) {
    const std::size_t count = std::size_t{1} << decade;
    const float step = (1.0F - kBegin) / static_cast<float>(count);
    const auto boundary = [&](std::size_t k) {
      const bool from_begin = k < (count + 1) / 2;
      const double whole = step;
      return static_cast<float>(from_begin ? kBegin + whole * static_cast<double>(k)
                                           : 1.0 - whole * static_cast<double>(count - k));
    };
    for (std::size_t k = 0; k < count; ++k, ++at) {
      codes[at] = kDecades[decade] * ((boundary(k) + boundary(k + 1)) / 2.0F);
      codes[254 - at] = -codes[at];
    }
  }
  codes[255] = 1.0F;
  return tables;
}

inline constexpr Nf4Tables kNf4Tables = nf4_tables();

}  // namespace sluice::offload
