#include "offload/params/int8_blocks.h"

#include <algorithm>
#include <cmath>

#include "aio/check.h"

namespace sluice::offload {
namespace {

constexpr float kMost = 127;

}  // namespace

bool quantise_int8(std::span<const float> values, std::int8_t* quantised, float* scales) {
  SLUICE_CHECK(values.size() % kInt8Block == 0, "whole blocks");
  for (std::size_t first = 0; first < values.size(); first += kInt8Block) {
    const auto block = values.subspan(first, kInt8Block);
    float most = 0;
    bool finite = true;
    for (const float value : block) {
      finite = finite && std::isfinite(value);
      most = std::max(most, std::abs(value));
    }
    if (!finite) return false;
    const float scale = most / kMost;
    if (!std::isfinite(scale * kMost)) return false;
    scales[first / kInt8Block] = scale;
    for (std::size_t i = 0; i < kInt8Block; ++i) {
      // For extremely small numbers the scale may be 0, or coarse.
      const float steps = scale > 0 ? std::nearbyint(block[i] / scale) : 0;
      quantised[first + i] = static_cast<std::int8_t>(std::clamp(steps, -kMost, kMost));
    }
  }
  return true;
}

void dequantise_int8(const std::int8_t* quantised, const float* scales, std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(quantised[i]) * scales[i / kInt8Block];
}

}  // namespace sluice::offload
