#include "engine/model/counter_random.h"
#include "engine/model/kernels/cuda_launch.h"
#include "engine/model/kernels/scalar_numbers.cuh"

namespace sluice::engine {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 65536;

template <typename Scalar>
__global__ void dropout_kernel(const Scalar* from, Scalar* to, DropoutLaunch launch) {
  const std::int64_t pairs = (launch.elements + 1) / 2;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t pair = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       pair < pairs; pair += stride) {
    const std::uint64_t bits =
        counter_bits(launch.seed, launch.first_pair + static_cast<std::uint64_t>(pair));
    const std::int64_t even = 2 * pair;
    const bool keep_even = static_cast<std::uint32_t>(bits) >= launch.threshold;
    to[even] = keep_even ? narrow<Scalar>(widen(from[even]) * launch.scale) : narrow<Scalar>(0.0F);
    if (even + 1 == launch.elements) break;
    const bool keep_odd = static_cast<std::uint32_t>(bits >> 32) >= launch.threshold;
    to[even + 1] =
        keep_odd ? narrow<Scalar>(widen(from[even + 1]) * launch.scale) : narrow<Scalar>(0.0F);
  }
}

}  // namespace

cudaError_t launch_dropout(const DropoutLaunch& launch, cudaStream_t stream) {
  if (launch.elements == 0) return cudaSuccess;
  const std::int64_t pairs = (launch.elements + 1) / 2;
  const std::int64_t wanted = (pairs + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned>(wanted < kMostBlocks ? wanted : kMostBlocks);
  with_type(launch.dtype, [&](auto* type) {
    using Scalar = std::remove_pointer_t<decltype(type)>;
    dropout_kernel<Scalar><<<blocks, kThreads, 0, stream>>>(
        static_cast<const Scalar*>(launch.from), static_cast<Scalar*>(launch.to), launch);
  });
  return cudaGetLastError();
}

}  // namespace sluice::engine
