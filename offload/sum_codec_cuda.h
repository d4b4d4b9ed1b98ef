// SumCodec on a GPU, with the same bits as on the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aio/result.h"
#include "offload/sum_codec.h"

namespace sluice::offload {

// Pieces of equal length, at equal distances, whose encoded bytes are contiguous. All memory is on
// the GPU.
struct CudaSumPieces {
  SumCodec codec = SumCodec::kInt8;
  std::uint64_t pieces = 1;
  std::uint64_t elements = 0;  // of a piece: whole blocks
  std::uint64_t stride = 0;    // elements between the starts of neighbours
};

// These enqueue the work on `stream` (a cudaStream_t) of the current device and return. They
// allocate nothing and wait for nothing. kInternal: the launch failed, with CUDA's message.
Status encode_sums_cuda(const CudaSumPieces& pieces, const float* values, std::byte* to,
                        void* stream);
Status decode_sums_cuda(const CudaSumPieces& pieces, const std::byte* from, float* values,
                        void* stream);

}  // namespace sluice::offload
