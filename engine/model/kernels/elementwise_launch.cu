#include "engine/model/kernels/elementwise_launch.h"
#include "engine/model/kernels/gelu_number.cuh"
#include "engine/model/kernels/packed_numbers.cuh"

namespace sluice::engine {
namespace {

constexpr int kThreads = 256;

template <typename Scalar>
__global__ void __launch_bounds__(kThreads) gelu_kernel(GeluLaunch launch) {
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (pack >= launch.elements / kPack) return;
  Floats x;
  load(static_cast<const Scalar*>(launch.from), pack, x);
#pragma unroll
  for (int i = 0; i < kPack; ++i) x[i] = gelu(x[i]);
  store(static_cast<Scalar*>(launch.to), pack, x);
}

template <typename Scalar>
__global__ void __launch_bounds__(kThreads) add_residual_kernel(AddResidualLaunch launch) {
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (pack >= launch.elements / kPack) return;
  Floats x;
  Floats residual;
  load(static_cast<const Scalar*>(launch.sum), pack, x);
  load(static_cast<const Scalar*>(launch.residual), pack, residual);
  apply_mask(launch.mask, pack, x);
#pragma unroll
  for (int i = 0; i < kPack; ++i) x[i] += residual[i];
  store(static_cast<Scalar*>(launch.sum), pack, x);
}

// Blocks of the whole, 0 where there is nothing to do.
unsigned blocks_of(std::int64_t elements) {
  return static_cast<unsigned>((elements / kPack + kThreads - 1) / kThreads);
}

}  // namespace

cudaError_t launch_gelu(const GeluLaunch& launch, cudaStream_t stream) {
  if (launch.elements % kPack != 0) return cudaErrorInvalidValue;
  if (launch.elements == 0) return cudaSuccess;
  with_packed_type(launch.dtype, [&](auto* type) {
    using Scalar = std::remove_pointer_t<decltype(type)>;
    gelu_kernel<Scalar><<<blocks_of(launch.elements), kThreads, 0, stream>>>(launch);
  });
  return cudaGetLastError();
}

cudaError_t launch_add_residual(const AddResidualLaunch& launch, cudaStream_t stream) {
  if (launch.elements % kPack != 0) return cudaErrorInvalidValue;
  if (launch.elements == 0) return cudaSuccess;
  with_packed_type(launch.dtype, [&](auto* type) {
    using Scalar = std::remove_pointer_t<decltype(type)>;
    add_residual_kernel<Scalar><<<blocks_of(launch.elements), kThreads, 0, stream>>>(launch);
  });
  return cudaGetLastError();
}

}  // namespace sluice::engine
