// SentUnit on a GPU: the pieces of encode_groups() and the values of decode_groups(), with the
// same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aio/result.h"
#include "offload/element_types.h"

namespace sluice::offload {

// What the kernels need of a SentUnit.
struct CudaSentUnit {
  std::uint64_t elements = 0;
  std::uint64_t encoded = 0;
  std::uint64_t piece_elements = 0;
  std::uint64_t piece_bytes = 0;
  ParamForm form = ParamForm::kSplit;
};

// Both enqueue the work on `stream` (a cudaStream_t) of the current device and return. They
// allocate nothing and wait for nothing. All memory is on the GPU, and aligned to 16 bytes.
// kInternal: the launch failed, with CUDA's message.
//
// Rank `rank`'s shard, in the compute type, as its piece.
Status encode_sent_cuda(const CudaSentUnit& unit, int rank, const void* shard, std::byte* piece,
                        void* stream);
// All pieces, as the whole unit in the compute type.
Status decode_sent_cuda(const CudaSentUnit& unit, const std::byte* pieces, void* to, void* stream);

}  // namespace sluice::offload
