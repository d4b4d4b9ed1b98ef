// The functions of activation.h for one number in fp32, each with its derivative. Like ATen's, they
// propagate NaN, and ReLU has the derivative 0 at 0.
#pragma once

#include <cuda_runtime.h>

#include "engine/model/activation.h"

namespace sluice::engine {

__device__ inline float logistic(float x) { return 1.0F / (1.0F + expf(-x)); }

// With u = sqrt(2 / pi) (x + 0.044715 x^3), (1 + tanh u) / 2 is the logistic function of 2 u: one
// exponential and one division.
struct GeluTanh {
  static constexpr float kCubic = 0.044715F;
  static constexpr float kTwiceRootTwoOverPi = 1.5957691216057308F;

  static __device__ float share(float x) {
    const float twice_u = kTwiceRootTwoOverPi * x * __fmaf_rn(kCubic * x, x, 1.0F);
    return __fdividef(1.0F, 1.0F + __expf(-twice_u));
  }
  static __device__ float slope(float x, float share) {
    const float slope_of_twice_u = kTwiceRootTwoOverPi * __fmaf_rn(3.0F * kCubic * x, x, 1.0F);
    return share * __fmaf_rn(x * (1.0F - share), slope_of_twice_u, 1.0F);
  }
  static __device__ float value(float x) { return x * share(x); }
  // Replaces x by the function's value, and the gradient by that with respect to x.
  static __device__ void backward(float& x, float& gradient) {
    const float of_x = share(x);
    gradient *= slope(x, of_x);
    x *= of_x;
  }
};

// x times the normal distribution's CDF, (1 + erf(x / sqrt(2))) / 2.
struct GeluErf {
  static constexpr float kRootHalf = 0.70710678118654752F;
  static constexpr float kRootOneOverTwoPi = 0.39894228040143268F;

  static __device__ float share(float x) { return 0.5F * (1.0F + erff(x * kRootHalf)); }
  static __device__ float value(float x) { return x * share(x); }
  static __device__ void backward(float& x, float& gradient) {
    const float of_x = share(x);
    const float density = kRootOneOverTwoPi * __expf(-0.5F * x * x);
    gradient *= __fmaf_rn(x, density, of_x);
    x *= of_x;
  }
};

struct Relu {
  static __device__ float value(float x) { return x <= 0.0F ? 0.0F : x; }
  static __device__ void backward(float& x, float& gradient) {
    gradient = x <= 0.0F ? 0.0F : gradient;
    x = value(x);
  }
};

struct Silu {
  static __device__ float value(float x) { return x * logistic(x); }
  static __device__ void backward(float& x, float& gradient) {
    const float of_x = logistic(x);
    gradient *= of_x * (1.0F + x * (1.0F - of_x));
    x *= of_x;
  }
};

// Calls `visit` with one of the functions.
template <typename Visit>
cudaError_t with_activation(Activation activation, Visit visit) {
  switch (activation) {
    case Activation::kGeluTanh:
      return visit(GeluTanh());
    case Activation::kGelu:
      return visit(GeluErf());
    case Activation::kRelu:
      return visit(Relu());
    case Activation::kSilu:
      return visit(Silu());
  }
  return cudaErrorInvalidValue;
}

}  // namespace sluice::engine
