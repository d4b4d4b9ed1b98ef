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

}  // namespace sluice::offload
