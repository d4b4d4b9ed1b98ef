#include "offload/adamw/grad_stats_kernels.h"
#include "offload/adamw/grad_stats_vector.h"
#include "offload/adamw/vec_avx2.h"

namespace sluice::offload {
namespace {

struct LeafAvx2 {
  // The sum of each vector's four numbers, as (0 + 1) + (2 + 3); result i belongs to vector i.
  static __m256d sum_each(__m256d a, __m256d b, __m256d c, __m256d d) {
    const __m256d ab = _mm256_hadd_pd(a, b);  // a0+a1 b0+b1 a2+a3 b2+b3
    const __m256d cd = _mm256_hadd_pd(c, d);
    return _mm256_add_pd(_mm256_permute2f128_pd(ab, cd, 0x20),
                         _mm256_permute2f128_pd(ab, cd, 0x31));
  }
  static __m256d square(__m128 x) {
    const __m256d wide = _mm256_cvtps_pd(x);
    return _mm256_mul_pd(wide, wide);
  }
  static __m256d low(__m256 x) { return square(_mm256_castps256_ps128(x)); }
  static __m256d high(__m256 x) { return square(_mm256_extractf128_ps(x, 1)); }

  static double sum(const __m256 (&x)[8]) {
    const __m256d a = sum_each(low(x[0]), high(x[0]), low(x[1]), high(x[1]));
    const __m256d b = sum_each(low(x[2]), high(x[2]), low(x[3]), high(x[3]));
    const __m256d c = sum_each(low(x[4]), high(x[4]), low(x[5]), high(x[5]));
    const __m256d d = sum_each(low(x[6]), high(x[6]), low(x[7]), high(x[7]));
    const __m256d of16 = sum_each(a, b, c, d);
    const __m256d of32 = _mm256_hadd_pd(of16, of16);
    return _mm256_cvtsd_f64(_mm256_add_pd(of32, _mm256_permute2f128_pd(of32, of32, 1)));
  }
};

}  // namespace

void leaf_sums_avx2(const float* grad, GradType to, std::uint16_t* out, std::size_t leaves,
                    double* sums) {
  vector_leaf_sums<VecAvx2, LeafAvx2>(grad, to, out, leaves, sums);
}

}  // namespace sluice::offload
