#include "engine/comm/nccl_cuda.h"

#include <cuda_runtime.h>

#include <string>

namespace sluice::engine {

Result<bool> cuda_stream_done(void* stream) {
  const cudaError_t result = cudaStreamQuery(static_cast<cudaStream_t>(stream));
  if (result == cudaSuccess) return true;
  static_cast<void>(cudaGetLastError());  // reported here: the next launch must not report it again
  if (result == cudaErrorNotReady) return false;
  return Error(ErrorCode::kIo,
               std::string("the GPU's stream failed: ") + cudaGetErrorString(result));
}

}  // namespace sluice::engine
