#include <cuda_runtime.h>

#include "tests/cuda/two_roundings.h"

namespace sluice {
namespace {

__global__ void multiply_add(const float* __restrict__ a, const float* __restrict__ b,
                             const float* __restrict__ c, float* __restrict__ out,
                             std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) out[i] = a[i] * b[i] + c[i];
}

const char* text_of(cudaError_t status) {
  return status == cudaSuccess ? "" : cudaGetErrorString(status);
}

}  // namespace

const char* why_no_gpu() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaSuccess && devices == 0) return "no CUDA-capable device is present";
  return text_of(status);
}

const char* multiply_add_on_gpu(const float* a, const float* b, const float* c, float* out,
                                std::size_t count) {
  const std::size_t bytes = count * sizeof(float);
  float* device = nullptr;  // a, b, c, out
  cudaError_t status = cudaMalloc(&device, 4 * bytes);
  if (status != cudaSuccess) return text_of(status);
  const float* const sources[] = {a, b, c};
  for (std::size_t i = 0; i < 3 && status == cudaSuccess; ++i) {
    status = cudaMemcpy(device + i * count, sources[i], bytes, cudaMemcpyHostToDevice);
  }
  if (status == cudaSuccess) {
    constexpr unsigned kThreads = 256;
    const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
    multiply_add<<<blocks, kThreads>>>(device, device + count, device + 2 * count,
                                       device + 3 * count, count);
    status = cudaGetLastError();
  }
  if (status == cudaSuccess) {
    status = cudaMemcpy(out, device + 3 * count, bytes, cudaMemcpyDeviceToHost);
  }
  const cudaError_t freed = cudaFree(device);
  return text_of(status != cudaSuccess ? status : freed);
}

}  // namespace sluice
