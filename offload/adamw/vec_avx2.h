// VecAvx2: eight floats, with the operations that the kernels need, in AVX2, FMA and F16C.
//
// Only for files that are compiled with these instructions. Everything is in an unnamed namespace:
// the linker could keep a function with external linkage as the copy for the whole program. That
// copy would fail on a CPU without these instructions.
#pragma once

#include <immintrin.h>

#include <cfloat>
#include <cstddef>
#include <cstdint>

namespace sluice::offload {
namespace {

struct VecAvx2 {
  using F = __m256;
  using I = __m256i;
  static constexpr std::size_t kLanes = 8;

  static F set(float x) { return _mm256_set1_ps(x); }
  static F load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, F x) { _mm256_storeu_ps(to, x); }

  static I set_bits(std::uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static I lane_numbers() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
  static I add_bits(I a, I b) { return _mm256_add_epi32(a, b); }
  static I mul_bits(I a, I b) { return _mm256_mullo_epi32(a, b); }  // the lower 32 bits
  template <int kShift>
  static I xor_shifted(I x) {
    return _mm256_xor_si256(x, _mm256_srli_epi32(x, kShift));
  }
  static I lower_halves(I x) { return _mm256_and_si256(x, _mm256_set1_epi32(0xFFFF)); }
  static I upper_halves(I x) { return _mm256_srli_epi32(x, 16); }

  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  // a if it is the smaller (larger) one, else b, also if one of them is NaN.
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F sqrt(F a) { return _mm256_sqrt_ps(a); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F fms(F a, F b, F c) { return _mm256_fmsub_ps(a, b, c); }  // fma(a, b, -c)

  static F canonical_nan(F x) {
    const F nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
    return _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  }
  static F tiny_to_zero(F x) {
    const F magnitude = _mm256_andnot_ps(set(-0.0F), x);
    return _mm256_andnot_ps(_mm256_cmp_ps(magnitude, set(FLT_MIN), _CMP_LT_OQ), x);
  }

  static F load_bf16(const std::uint16_t* from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(from)), 16));
  }
  static F load_fp16(const std::uint16_t* from) { return _mm256_cvtph_ps(load16(from)); }
  static F load_split(const std::uint16_t* hi, const std::uint16_t* lo) {
    const I upper = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(hi)), 16);
    return _mm256_castsi256_ps(_mm256_add_epi32(upper, _mm256_cvtepi16_epi32(load16(lo))));
  }

  // The upper half of each number, rounded with ties away from zero; x has no NaN but the canonical
  // one.
  static void store_hi(std::uint16_t* to, F x) {
    const I bits = _mm256_add_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(0x8000));
    store16(to, _mm256_srli_epi32(bits, 16));
  }
  static void store_lo(std::uint16_t* to, F x) {
    store16(to, _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0xFFFF)));
  }
  static void store_fp16(std::uint16_t* to, F x) { store128(to, to_fp16(x)); }

  // Rounds as moment_rounding.h does, with random numbers below 2^16; x must have gone through
  // store().
  static void store_bf16(std::uint16_t* to, F x, I random) {
    const I bits = _mm256_castps_si256(x);
    const I magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
    const I keeps = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7F7EFFFF));
    const I rounded = _mm256_add_epi32(bits, _mm256_andnot_si256(keeps, random));
    store16(to, _mm256_srli_epi32(rounded, 16));
  }

  // Rounds to nearest even, stores, and returns the rounded values; same requirement on x as
  // store_hi().
  static F cast_bf16(std::uint16_t* to, F x) {
    const I bits = _mm256_castps_si256(x);
    const I odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const I rounded = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
    store16(to, rounded);
    return _mm256_castsi256_ps(_mm256_slli_epi32(rounded, 16));
  }
  static F cast_fp16(std::uint16_t* to, F x) {
    const __m128i half = to_fp16(x);
    store128(to, half);
    return _mm256_cvtph_ps(half);
  }

 private:
  static __m128i load16(const std::uint16_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  static void store128(std::uint16_t* to, __m128i x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), x);
  }
  static void store16(std::uint16_t* to, I below_2_16) {
    store128(to, _mm_packus_epi32(_mm256_castsi256_si128(below_2_16),
                                  _mm256_extracti128_si256(below_2_16, 1)));
  }
  static __m128i to_fp16(F x) {
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
};

}  // namespace
}  // namespace sluice::offload
