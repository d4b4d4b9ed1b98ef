#include "offload/adamw/adamw_kernels.h"
#include "offload/adamw/adamw_vector.h"
#include "offload/adamw/vec_avx512.h"

namespace sluice::offload {

void adamw_avx512(const AdamwScalars& scalars, const AdamwArrays& arrays, std::size_t begin,
                  std::size_t end) {
  vector_adamw<VecAvx512>(scalars, arrays, begin, end);
}

}  // namespace sluice::offload
