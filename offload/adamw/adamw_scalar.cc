// The oracle: one element at a time, exactly as in the definition. std::fma is libm's, which is
// correctly rounded with and without the instruction.
#include <bit>
#include <cfloat>
#include <cmath>

#include "offload/adamw/adamw_kernels.h"
#include "offload/adamw/half.h"
#include "offload/adamw/moment_rounding.h"
#include "offload/adamw/split_master.h"

namespace sluice::offload {
namespace {

float canonical_nan(float x) {
  return std::bit_cast<float>(canonical_nan_bits(std::bit_cast<std::uint32_t>(x)));
}

float as_stored(float x) { return std::fabs(x) < FLT_MIN ? 0.0F : canonical_nan(x); }

// A NaN is neither, and stays.
float limited(float x, float limit) { return x > limit ? limit : x < -limit ? -limit : x; }

float load_grad(const AdamwArrays& arrays, std::size_t i) {
  switch (arrays.grad_type) {
    case GradType::kBf16:
      return float_from_bf16(static_cast<const std::uint16_t*>(arrays.grad)[i]);
    case GradType::kFp16:
      return float_from_fp16(static_cast<const std::uint16_t*>(arrays.grad)[i]);
    case GradType::kFp32:
      break;
  }
  return static_cast<const float*>(arrays.grad)[i];
}

struct Moments {
  float m;
  float v;
};

Moments load_moments(const AdamwArrays& arrays, std::size_t i) {
  if (arrays.moment_type == ElementType::kFp32) return {arrays.m[i], arrays.v[i]};
  return {float_from_bf16(arrays.m16[i]), float_from_bf16(arrays.v16[i])};
}

void store_moments(const AdamwArrays& arrays, std::size_t i, const Moments& moments) {
  if (arrays.moment_type == ElementType::kFp32) {
    arrays.m[i] = moments.m;
    arrays.v[i] = moments.v;
    return;
  }
  const std::uint32_t random = moment_bits(arrays.moment_keys, arrays.first_element + i);
  arrays.m16[i] = round_moment(moments.m, random & 0xFFFF);
  arrays.v16[i] = round_moment(moments.v, random >> 16);
}

float load_param(const AdamwArrays& arrays, std::size_t i) {
  if (arrays.param_form == ParamForm::kSplit)
    return join_master({.hi = arrays.param16[i], .lo = arrays.lo[i]});
  return arrays.master[i];
}

void store_param(const AdamwArrays& arrays, std::size_t i, float p) {
  if (arrays.param_form == ParamForm::kSplit) {
    const SplitMaster halves = split_master(p);
    arrays.param16[i] = halves.hi;
    arrays.lo[i] = halves.lo;
    return;
  }
  if (arrays.param_form == ParamForm::kFp32AndFp16) arrays.param16[i] = fp16_from_float(p);
  arrays.master[i] = p;
}

}  // namespace

void adamw_scalar(const AdamwScalars& s, const AdamwArrays& arrays, std::size_t begin,
                  std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    const float p = load_param(arrays, i);
    float g = limited(load_grad(arrays, i) * s.grad_scale, s.grad_limit);
    if (s.use_l2) g = std::fma(s.l2, p, g);
    const auto [m0, v0] = load_moments(arrays, i);
    const float m = as_stored(std::fma(s.one_minus_beta1, g - m0, m0));
    const float v = as_stored(std::fma(s.one_minus_beta2, std::fma(g, g, -v0), v0));
    const float d = std::fma(std::sqrt(v), s.inv_sqrt_c2, s.eps);
    const float step = std::fma(s.decay, p, s.step_size * (m / d));
    store_param(arrays, i, canonical_nan(p - step));
    store_moments(arrays, i, {.m = m, .v = v});
  }
}

}  // namespace sluice::offload
