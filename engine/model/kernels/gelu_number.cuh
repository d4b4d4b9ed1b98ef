// The tanh GELU of one number and its derivative. With u = sqrt(2 / pi) (x + 0.044715 x^3),
// (1 + tanh u) / 2 is the logistic function of 2 u: one exponential and one division.
#pragma once

namespace sluice::engine {

constexpr float kGeluCubic = 0.044715F;
constexpr float kTwiceRootTwoOverPi = 1.5957691216057308F;

__device__ inline float gelu_logistic(float x) {
  const float twice_u = kTwiceRootTwoOverPi * x * __fmaf_rn(kGeluCubic * x, x, 1.0F);
  return __fdividef(1.0F, 1.0F + __expf(-twice_u));
}

__device__ inline float gelu(float x) { return x * gelu_logistic(x); }

// d gelu / dx, from gelu_logistic(x).
__device__ inline float gelu_slope(float x, float logistic) {
  const float slope_of_twice_u = kTwiceRootTwoOverPi * __fmaf_rn(3.0F * kGeluCubic * x, x, 1.0F);
  return logistic * __fmaf_rn(x * (1.0F - logistic), slope_of_twice_u, 1.0F);
}

}  // namespace sluice::engine
