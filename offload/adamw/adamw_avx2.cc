#include "offload/adamw/adamw_kernels.h"
#include "offload/adamw/adamw_vector.h"
#include "offload/adamw/vec_avx2.h"

namespace sluice::offload {

void adamw_avx2(const AdamwScalars& scalars, const AdamwArrays& arrays, std::size_t begin,
                std::size_t end) {
  vector_adamw<VecAvx2>(scalars, arrays, begin, end);
}

}  // namespace sluice::offload
