// LibTorch's CUDA library (libtorch_cuda.so). Every program that links sluice::torch loads it
// before main if there is a GPU driver.
#pragma once

namespace sluice::engine {

// Returns the workspaces of cuBLAS to LibTorch's allocator. No effect without a GPU.
void clear_cublas_workspaces();

}  // namespace sluice::engine
