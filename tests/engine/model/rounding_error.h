#pragma once

#include <ATen/core/Tensor.h>

namespace sluice::engine {

// |ours - expected|| / ||expected||. Its bound is the rounding of the dtype, or of fp32.
inline double error(const at::Tensor& ours, const at::Tensor& expected) {
  const at::Tensor host = ours.cpu().to(at::kDouble);
  return ((host - expected).norm() / expected.norm()).item<double>();
}

}  // namespace sluice::engine
