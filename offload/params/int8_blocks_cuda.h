// Int8Blocks on a GPU: the values of dequantise_int8() in the compute type, with the same bits as
// the host makes (pack_parameters()).
#pragma once

#include <cstdint>

#include "aio/result.h"
#include "offload/element_types.h"

namespace sluice::offload {

struct Int8Unpacking {
  const std::int8_t* quantised = nullptr;  // on the GPU, aligned to 16 bytes, like the next
  const float* scales = nullptr;           // one for each block
  std::uint64_t elements = 0;              // whole blocks
  ParamForm form = ParamForm::kSplit;
  void* out = nullptr;  // on the GPU, aligned to 16 bytes
};

// Enqueues the work on `stream` (a cudaStream_t) of the current device and returns. Allocates
// nothing, waits for nothing. kInternal: the launch failed, with CUDA's message.
Status dequantise_int8_cuda(const Int8Unpacking& unpacking, void* stream);

}  // namespace sluice::offload
