// VecAvx512: sixteen floats, with the operations that the kernels need, in AVX-512 F, BW, DQ and
// VL. vec_avx2.h explains the functions.
#pragma once

#include <immintrin.h>

#include <cfloat>
#include <cstddef>
#include <cstdint>

namespace sluice::offload {
namespace {

struct VecAvx512 {
  using F = __m512;
  using I = __m512i;
  static constexpr std::size_t kLanes = 16;

  static F set(float x) { return _mm512_set1_ps(x); }
  static F load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, F x) { _mm512_storeu_ps(to, x); }

  static I set_bits(std::uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static I lane_numbers() {
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }
  static I add_bits(I a, I b) { return _mm512_add_epi32(a, b); }
  static I mul_bits(I a, I b) { return _mm512_mullo_epi32(a, b); }
  template <int kShift>
  static I xor_shifted(I x) {
    return _mm512_xor_si512(x, _mm512_srli_epi32(x, kShift));
  }
  static I lower_halves(I x) { return _mm512_and_si512(x, _mm512_set1_epi32(0xFFFF)); }
  static I upper_halves(I x) { return _mm512_srli_epi32(x, 16); }

  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  // a if it is the smaller (larger) one, else b, also if one of them is NaN.
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F sqrt(F a) { return _mm512_sqrt_ps(a); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F fms(F a, F b, F c) { return _mm512_fmsub_ps(a, b, c); }

  static F canonical_nan(F x) {
    const F nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000));
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
  }
  static F tiny_to_zero(F x) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(_mm512_abs_ps(x), set(FLT_MIN), _CMP_NLT_UQ), x);
  }

  static F load_bf16(const std::uint16_t* from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load16(from)), 16));
  }
  static F load_fp16(const std::uint16_t* from) { return _mm512_cvtph_ps(load16(from)); }
  static F load_split(const std::uint16_t* hi, const std::uint16_t* lo) {
    const I upper = _mm512_slli_epi32(_mm512_cvtepu16_epi32(load16(hi)), 16);
    return _mm512_castsi512_ps(_mm512_add_epi32(upper, _mm512_cvtepi16_epi32(load16(lo))));
  }

  static void store_hi(std::uint16_t* to, F x) {
    const I bits = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
    store256(to, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
  }
  static void store_lo(std::uint16_t* to, F x) {
    store256(to, _mm512_cvtepi32_epi16(_mm512_castps_si512(x)));
  }
  static void store_fp16(std::uint16_t* to, F x) { store256(to, to_fp16(x)); }

  static void store_bf16(std::uint16_t* to, F x, I random) {
    const I bits = _mm512_castps_si512(x);
    const I magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
    const __mmask16 rounds = _mm512_cmple_epi32_mask(magnitude, _mm512_set1_epi32(0x7F7EFFFF));
    const I rounded = _mm512_mask_add_epi32(bits, rounds, bits, random);
    store256(to, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
  }

  static F cast_bf16(std::uint16_t* to, F x) {
    const I bits = _mm512_castps_si512(x);
    const I odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const I rounded = _mm512_srli_epi32(
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd), 16);
    store256(to, _mm512_cvtepi32_epi16(rounded));
    return _mm512_castsi512_ps(_mm512_slli_epi32(rounded, 16));
  }
  static F cast_fp16(std::uint16_t* to, F x) {
    const __m256i half = to_fp16(x);
    store256(to, half);
    return _mm512_cvtph_ps(half);
  }

 private:
  static __m256i load16(const std::uint16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static void store256(std::uint16_t* to, __m256i x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x);
  }
  static __m256i to_fp16(F x) {
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
};

}  // namespace
}  // namespace sluice::offload
