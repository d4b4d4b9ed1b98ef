// What the NCCL communicator needs of CUDA's runtime.
#pragma once

#include "aio/result.h"

namespace sluice::engine {

// Whether all that was enqueued on a cudaStream_t is done, without waiting. kIo: the stream is in
// error.
Result<bool> cuda_stream_done(void* stream);

}  // namespace sluice::engine
