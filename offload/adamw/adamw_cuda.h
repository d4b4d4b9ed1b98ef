// The AdamW step of adamw.h on a GPU: same definition, same bits.
#pragma once

#include <cstdint>

#include "aio/result.h"
#include "offload/adamw/adamw_arrays.h"

namespace sluice::offload {

// Enqueues one step over `elements` elements on `stream` (a cudaStream_t) of the current device and
// returns. The arrays are in GPU memory; each must be aligned to its element type, and should be
// aligned to 16 bytes for speed. Allocates nothing, waits for nothing. kInternal: the launch
// failed, with CUDA's message.
Status adamw_step_cuda(const AdamwScalars& scalars, const AdamwArrays& arrays,
                       std::uint64_t elements, void* stream);

// The cast and sum of squares of grad_stats.h on a GPU: same definition, same bits.
struct GradCastCuda {
  const float* grad = nullptr;    // the range's first element, on the GPU
  GradType to = GradType::kFp32;  // kFp32: no cast, only the sum
  std::uint16_t* out = nullptr;   // on the GPU, same length, unless `to` is kFp32
  std::uint64_t first = 0;        // the range's first element, as an index in the unit
  std::uint64_t elements = 0;
  double* node_sums = nullptr;  // sum_node_count(first, elements) sums, for append_sums()
                                // (square_sum.h); on the GPU
};

// Enqueues the work on `stream` (a cudaStream_t) of the current device and returns. Allocates
// nothing, waits for nothing. kInternal: the launch failed, with CUDA's message.
Status cast_and_sum_cuda(const GradCastCuda& cast, void* stream);

}  // namespace sluice::offload
