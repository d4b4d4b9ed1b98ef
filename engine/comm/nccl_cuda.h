// The CUDA runtime calls that the NCCL communicator needs.
#pragma once

#include "aio/result.h"

namespace sluice::engine {

// Whether all work enqueued on a cudaStream_t is done, without waiting. kIo: the stream is in
// error.
Result<bool> cuda_stream_done(void* stream);

}  // namespace sluice::engine
