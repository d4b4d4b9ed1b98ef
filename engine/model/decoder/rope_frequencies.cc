#include "engine/model/decoder/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace sluice::engine {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

// theta ^ (2 i / head_dim); only the last rounding is to fp32.
float power(float base, std::int64_t pair, std::int64_t head_dim) {
  const float exponent = static_cast<float>(2 * pair) / static_cast<float>(head_dim);
  return static_cast<float>(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
}

std::vector<float> plain(float base, std::int64_t head_dim) {
  std::vector<float> frequencies;
  frequencies.reserve(static_cast<std::size_t>(head_dim / 2));
  for (std::int64_t pair = 0; pair < head_dim / 2; ++pair)
    frequencies.push_back(1.0F / power(base, pair, head_dim));
  return frequencies;
}

float dynamic_base(const Rope& rope, std::int64_t head_dim, std::int64_t tokens) {
  const auto theta = static_cast<float>(rope.theta);
  if (tokens <= rope.original_context) return theta;
  const auto factor = static_cast<float>(rope.factor);
  const float stretch =
      factor * static_cast<float>(tokens) / static_cast<float>(rope.original_context) -
      static_cast<float>(rope.factor - 1);
  const double exponent = static_cast<double>(head_dim) / static_cast<double>(head_dim - 2);
  return theta * static_cast<float>(std::pow(static_cast<double>(stretch),
                                             static_cast<double>(static_cast<float>(exponent))));
}

float llama3_frequency(const Rope& rope, float frequency) {
  const auto context = static_cast<double>(rope.original_context);
  const auto low = static_cast<float>(rope.low_frequency_factor);
  const auto high = static_cast<float>(rope.high_frequency_factor);
  const auto factor = static_cast<float>(rope.factor);
  const float wave = static_cast<float>(kTwoPi) / frequency;
  if (wave > static_cast<float>(context / rope.low_frequency_factor)) return frequency / factor;
  if (wave < static_cast<float>(context / rope.high_frequency_factor)) return frequency;
  const float smooth = (static_cast<float>(context) / wave - low) / (high - low);
  return (1.0F - smooth) * frequency / factor + smooth * frequency;
}

// The dimension that makes this many turns in the original training context.
double turning_dimension(const Rope& rope, double turns, std::int64_t head_dim) {
  return static_cast<double>(head_dim) *
         std::log(static_cast<double>(rope.original_context) / (turns * kTwoPi)) /
         (2 * std::log(rope.theta));
}

std::vector<float> yarn(const Rope& rope, std::int64_t head_dim) {
  double low = turning_dimension(rope, rope.beta_fast, head_dim);
  double high = turning_dimension(rope, rope.beta_slow, head_dim);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  constexpr double kAgainstNothing = 0.001;
  if (low == high) high += kAgainstNothing;
  const auto base = static_cast<float>(rope.theta);
  std::vector<float> frequencies;
  for (std::int64_t pair = 0; pair < head_dim / 2; ++pair) {
    const float turned = power(base, pair, head_dim);
    const float ramp = std::clamp(
        (static_cast<float>(pair) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0F,
        1.0F);
    const float kept = 1.0F - ramp;  // share of the unscaled frequency
    frequencies.push_back(1.0F / (static_cast<float>(rope.factor) * turned) * (1.0F - kept) +
                          1.0F / turned * kept);
  }
  return frequencies;
}

double mscale(double factor, double weight) {
  constexpr double kSlope = 0.1;
  return factor <= 1 ? 1.0 : kSlope * weight * std::log(factor) + 1.0;
}

float yarn_scale(const Rope& rope) {
  if (rope.attention_factor != 0) return static_cast<float>(rope.attention_factor);
  if (rope.mscale != 0 && rope.mscale_all_dim != 0)
    return static_cast<float>(mscale(rope.factor, rope.mscale) /
                              mscale(rope.factor, rope.mscale_all_dim));
  return static_cast<float>(mscale(rope.factor, 1));
}

std::vector<float> longrope(const Rope& rope, std::int64_t head_dim, std::int64_t tokens) {
  const std::vector<double>& factors =
      tokens > rope.original_context ? rope.long_factors : rope.short_factors;
  const auto base = static_cast<float>(rope.theta);
  std::vector<float> frequencies;
  frequencies.reserve(static_cast<std::size_t>(head_dim / 2));
  for (std::int64_t pair = 0; pair < head_dim / 2; ++pair)
    frequencies.push_back(1.0F / (static_cast<float>(factors.at(static_cast<std::size_t>(pair))) *
                                  power(base, pair, head_dim)));
  return frequencies;
}

float longrope_scale(const Rope& rope) {
  if (rope.attention_factor != 0) return static_cast<float>(rope.attention_factor);
  if (rope.factor <= 1) return 1;
  return static_cast<float>(
      std::sqrt(1 + std::log(rope.factor) / std::log(static_cast<double>(rope.original_context))));
}

}  // namespace

RotaryFrequencies rope_frequencies(const Rope& rope, std::int64_t head_dim, std::int64_t tokens) {
  const auto theta = static_cast<float>(rope.theta);
  switch (rope.scaling) {
    case RopeScaling::kNone:
      break;
    case RopeScaling::kDynamic:
      return {.of_pair = plain(dynamic_base(rope, head_dim, tokens), head_dim)};
    case RopeScaling::kYarn:
      return {.of_pair = yarn(rope, head_dim), .scale = yarn_scale(rope)};
    case RopeScaling::kLongRope:
      return {.of_pair = longrope(rope, head_dim, tokens), .scale = longrope_scale(rope)};
    case RopeScaling::kLinear: {
      RotaryFrequencies scaled = {.of_pair = plain(theta, head_dim)};
      for (float& frequency : scaled.of_pair) frequency /= static_cast<float>(rope.factor);
      return scaled;
    }
    case RopeScaling::kLlama3: {
      RotaryFrequencies scaled = {.of_pair = plain(theta, head_dim)};
      for (float& frequency : scaled.of_pair) frequency = llama3_frequency(rope, frequency);
      return scaled;
    }
  }
  return {.of_pair = plain(theta, head_dim)};
}

}  // namespace sluice::engine
