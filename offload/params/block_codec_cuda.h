// BlockCodec on a GPU: the values of decode() in the compute type, with the same bits as the host
// makes (pack_parameters()).
#pragma once

#include <cstddef>
#include <cstdint>

#include "aio/result.h"
#include "offload/codec_tables.h"
#include "offload/element_types.h"

namespace sluice::offload {

// A run of a unit (EncodedRun). All memory is on the GPU.
struct CudaDecoding {
  BlockCodec codec = BlockCodec::kInt8;
  const std::byte* codes = nullptr;   // aligned to 8 bytes
  const std::byte* scales = nullptr;  // one for each block; aligned to 4 bytes, unless 8-bit codes
  const ScaleGroup* groups = nullptr;
  std::uint64_t elements = 0;  // whole blocks
  ParamForm form = ParamForm::kSplit;
  void* out = nullptr;  // aligned to 16 bytes
};

// Enqueues the work on `stream` (a cudaStream_t) of the current device and returns. Allocates
// nothing, waits for nothing. kInternal: the launch failed, with CUDA's message.
Status decode_cuda(const CudaDecoding& decoding, void* stream);

}  // namespace sluice::offload
