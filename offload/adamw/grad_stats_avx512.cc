#include "offload/adamw/grad_stats_kernels.h"
#include "offload/adamw/grad_stats_vector.h"
#include "offload/adamw/vec_avx512.h"

namespace sluice::offload {
namespace {

struct LeafAvx512 {
  // Adds neighbours: pairs of numbers in a and in b, with results interleaved by pairs.
  static __m512d add_neighbours(__m512d a, __m512d b) {
    return _mm512_add_pd(_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
  }
  // Adds neighbouring pairs of a, then of b.
  static __m512d add_pairs(__m512d a, __m512d b) {
    return _mm512_add_pd(_mm512_shuffle_f64x2(a, b, 0x88), _mm512_shuffle_f64x2(a, b, 0xDD));
  }
  static __m512d square(__m256 x) {
    const __m512d wide = _mm512_cvtps_pd(x);
    return _mm512_mul_pd(wide, wide);
  }
  static __m512d low(__m512 x) { return square(_mm512_castps512_ps256(x)); }
  static __m512d high(__m512 x) { return square(_mm512_extractf32x8_ps(x, 1)); }

  static double sum(const __m512 (&x)[4]) {
    const __m512d a = add_neighbours(low(x[0]), high(x[0]));  // pair sums of 16 elements
    const __m512d b = add_neighbours(low(x[1]), high(x[1]));
    const __m512d c = add_neighbours(low(x[2]), high(x[2]));
    const __m512d d = add_neighbours(low(x[3]), high(x[3]));
    const __m512d of8 = add_pairs(add_pairs(a, b), add_pairs(c, d));  // eight, in order
    const __m512d of16 = _mm512_add_pd(of8, _mm512_permute_pd(of8, 0x55));
    const __m512d of32 = _mm512_add_pd(of16, _mm512_shuffle_f64x2(of16, of16, 0xB1));
    const __m512d of64 = _mm512_add_pd(of32, _mm512_shuffle_f64x2(of32, of32, 0x4E));
    return _mm512_cvtsd_f64(of64);
  }
};

}  // namespace

void leaf_sums_avx512(const float* grad, GradType to, std::uint16_t* out, std::size_t leaves,
                      double* sums) {
  vector_leaf_sums<VecAvx512, LeafAvx512>(grad, to, out, leaves, sums);
}

}  // namespace sluice::offload
