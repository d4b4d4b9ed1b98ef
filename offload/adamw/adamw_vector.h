// The AdamW kernel over vectors of any width, for adamw_avx2.cc and adamw_avx512.cc; vec_avx2.h
// explains V and why everything is in an unnamed namespace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "offload/adamw/adamw_arrays.h"
#include "offload/adamw/adamw_kernels.h"
#include "offload/adamw/prefetch.h"

namespace sluice::offload {
namespace {

// Options that not every step uses, and that would slow down steps without them.
struct Extras {
  bool l2;
  bool limit;
};

template <class V, GradType kGrad, StateForm kForm, Extras kExtras>
class VectorAdamw {
 public:
  using F = typename V::F;
  using I = typename V::I;

  VectorAdamw(const AdamwScalars& s, const AdamwArrays& arrays)
      : arrays_(arrays),
        grad_scale_(V::set(s.grad_scale)),
        one_minus_beta1_(V::set(s.one_minus_beta1)),
        one_minus_beta2_(V::set(s.one_minus_beta2)),
        inv_sqrt_c2_(V::set(s.inv_sqrt_c2)),
        eps_(V::set(s.eps)),
        step_size_(V::set(s.step_size)),
        decay_(V::set(s.decay)),
        l2_(V::set(s.l2)),
        grad_limit_(V::set(s.grad_limit)),
        minus_grad_limit_(V::set(-s.grad_limit)),
        first_key_(V::set_bits(arrays.moment_keys.first)),
        second_key_(V::set_bits(arrays.moment_keys.second)) {}

  // Steps one vector of elements, from i on.
  [[gnu::always_inline]] void step(std::size_t i) const {
    const F p = load_param(i);
    F g = V::mul(load_grad(i), grad_scale_);
    if constexpr (kExtras.limit) g = limited(g);
    if constexpr (kExtras.l2) g = V::fma(l2_, p, g);
    const F m0 = load_moment(arrays_.m, arrays_.m16, i);
    const F v0 = load_moment(arrays_.v, arrays_.v16, i);
    const F m = as_stored(V::fma(one_minus_beta1_, V::sub(g, m0), m0));
    const F v = as_stored(V::fma(one_minus_beta2_, V::fms(g, g, v0), v0));
    const F d = V::fma(V::sqrt(v), inv_sqrt_c2_, eps_);
    const F change = V::fma(decay_, p, V::mul(step_size_, V::div(m, d)));
    store_param(i, V::canonical_nan(V::sub(p, change)));
    if constexpr (kForm.moments == ElementType::kFp32) {
      V::store(arrays_.m + i, m);
      V::store(arrays_.v + i, v);
    } else {
      const I random = moment_bits(i);
      V::store_bf16(arrays_.m16 + i, m, V::lower_halves(random));
      V::store_bf16(arrays_.v16 + i, v, V::upper_halves(random));
    }
  }

  // Prefetches the lines of two vectors of elements, from i on.
  [[gnu::always_inline]] void prefetch_lines(std::size_t i) const {
    constexpr std::size_t kCount = 2 * V::kLanes;
    prefetch<kGrad == GradType::kFp32 ? 4 : 2>(arrays_.grad, i, kCount);
    if constexpr (kForm.param != ParamForm::kFp32) prefetch<2>(arrays_.param16, i, kCount);
    if constexpr (kForm.param == ParamForm::kSplit)
      prefetch<2>(arrays_.lo, i, kCount);
    else
      prefetch<4>(arrays_.master, i, kCount);
    if constexpr (kForm.moments == ElementType::kFp32) {
      prefetch<4>(arrays_.m, i, kCount);
      prefetch<4>(arrays_.v, i, kCount);
    } else {
      prefetch<2>(arrays_.m16, i, kCount);
      prefetch<2>(arrays_.v16, i, kCount);
    }
  }

 private:
  [[gnu::always_inline]] static F as_stored(F x) { return V::canonical_nan(V::tiny_to_zero(x)); }

  [[gnu::always_inline]] static F load_moment(const float* fp32, const std::uint16_t* bf16,
                                              std::size_t i) {
    if constexpr (kForm.moments == ElementType::kFp32)
      return V::load(fp32 + i);
    else
      return V::load_bf16(bf16 + i);
  }

  // The random bits of moment_rounding.h for the elements from i on.
  [[gnu::always_inline]] I moment_bits(std::size_t i) const {
    const auto element = static_cast<std::uint32_t>(arrays_.first_element + i);
    I x = V::add_bits(V::lane_numbers(), V::add_bits(V::set_bits(element), first_key_));
    x = V::mul_bits(V::template xor_shifted<16>(x), V::set_bits(0x7FEB352DU));
    x = V::add_bits(V::template xor_shifted<15>(x), second_key_);
    return V::template xor_shifted<16>(V::mul_bits(x, V::set_bits(0x846CA68BU)));
  }

  // With this order of operands NaNs pass through: min and max return the second operand if the two
  // do not compare.
  [[gnu::always_inline]] F limited(F x) const {
    return V::max(minus_grad_limit_, V::min(grad_limit_, x));
  }

  [[gnu::always_inline]] F load_grad(std::size_t i) const {
    if constexpr (kGrad == GradType::kFp32)
      return V::load(static_cast<const float*>(arrays_.grad) + i);
    const auto* grad16 = static_cast<const std::uint16_t*>(arrays_.grad);
    if constexpr (kGrad == GradType::kBf16) return V::load_bf16(grad16 + i);
    if constexpr (kGrad == GradType::kFp16) return V::load_fp16(grad16 + i);
  }

  [[gnu::always_inline]] F load_param(std::size_t i) const {
    if constexpr (kForm.param == ParamForm::kSplit)
      return V::load_split(arrays_.param16 + i, arrays_.lo + i);
    else
      return V::load(arrays_.master + i);
  }

  [[gnu::always_inline]] void store_param(std::size_t i, F p) const {
    if constexpr (kForm.param == ParamForm::kSplit) {
      V::store_hi(arrays_.param16 + i, p);
      V::store_lo(arrays_.lo + i, p);
    } else {
      if constexpr (kForm.param == ParamForm::kFp32AndFp16) V::store_fp16(arrays_.param16 + i, p);
      V::store(arrays_.master + i, p);
    }
  }

  // A copy that nothing else can modify, so its pointers stay in registers.
  const AdamwArrays arrays_;
  const F grad_scale_, one_minus_beta1_, one_minus_beta2_, inv_sqrt_c2_, eps_, step_size_, decay_,
      l2_, grad_limit_, minus_grad_limit_;
  const I first_key_, second_key_;
};

template <class V, GradType kGrad, StateForm kForm, Extras kExtras>
void run_adamw(const AdamwScalars& scalars, const AdamwArrays& arrays, std::size_t begin,
               std::size_t end) {
  const VectorAdamw<V, kGrad, kForm, kExtras> adamw(scalars, arrays);
  std::size_t i = begin;
  for (; i + 2 * V::kLanes <= end; i += 2 * V::kLanes) {
    adamw.prefetch_lines(i + kPrefetchElements);
    adamw.step(i);
    adamw.step(i + V::kLanes);
  }
  if (i + V::kLanes <= end) {
    adamw.step(i);
    i += V::kLanes;
  }
  adamw_scalar(scalars, arrays, i, end);  // less than a vector is left
}

template <class V, GradType kGrad, StateForm kForm, bool kL2>
void choose_limit(const AdamwScalars& scalars, const AdamwArrays& arrays, std::size_t begin,
                  std::size_t end) {
  if (scalars.grad_limit < std::numeric_limits<float>::infinity())
    run_adamw<V, kGrad, kForm, {.l2 = kL2, .limit = true}>(scalars, arrays, begin, end);
  else
    run_adamw<V, kGrad, kForm, {.l2 = kL2, .limit = false}>(scalars, arrays, begin, end);
}

template <class V, GradType kGrad, StateForm kForm>
void choose_mode(const AdamwScalars& scalars, const AdamwArrays& arrays, std::size_t begin,
                 std::size_t end) {
  if (scalars.use_l2)
    choose_limit<V, kGrad, kForm, true>(scalars, arrays, begin, end);
  else
    choose_limit<V, kGrad, kForm, false>(scalars, arrays, begin, end);
}

template <class V, GradType kGrad, ParamForm kParam>
void choose_moments(const AdamwScalars& scalars, const AdamwArrays& arrays, std::size_t begin,
                    std::size_t end) {
  if (arrays.moment_type == ElementType::kFp32)
    choose_mode<V, kGrad, {kParam, ElementType::kFp32}>(scalars, arrays, begin, end);
  else
    choose_mode<V, kGrad, {kParam, ElementType::kBf16}>(scalars, arrays, begin, end);
}

template <class V, GradType kGrad>
void choose_form(const AdamwScalars& scalars, const AdamwArrays& arrays, std::size_t begin,
                 std::size_t end) {
  switch (arrays.param_form) {
    case ParamForm::kSplit:
      return choose_moments<V, kGrad, ParamForm::kSplit>(scalars, arrays, begin, end);
    case ParamForm::kFp32:
      return choose_moments<V, kGrad, ParamForm::kFp32>(scalars, arrays, begin, end);
    case ParamForm::kFp32AndFp16:
      return choose_moments<V, kGrad, ParamForm::kFp32AndFp16>(scalars, arrays, begin, end);
  }
}

template <class V>
void vector_adamw(const AdamwScalars& scalars, const AdamwArrays& arrays, std::size_t begin,
                  std::size_t end) {
  switch (arrays.grad_type) {
    case GradType::kFp32:
      return choose_form<V, GradType::kFp32>(scalars, arrays, begin, end);
    case GradType::kBf16:
      return choose_form<V, GradType::kBf16>(scalars, arrays, begin, end);
    case GradType::kFp16:
      return choose_form<V, GradType::kFp16>(scalars, arrays, begin, end);
  }
}

}  // namespace
}  // namespace sluice::offload
