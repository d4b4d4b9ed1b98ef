// LibTorch's part for CUDA (libtorch_cuda.so). Every program that links sluice::torch loads it
// before main, where there is a driver for a GPU.
#pragma once

namespace sluice::engine {

// Gives the memory that cuBLAS keeps for products back to LibTorch's allocator. Nothing where there
// is no GPU.
void clear_cublas_workspaces();

}  // namespace sluice::engine
