#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "engine/model/counter_random.h"
#include "engine/model/cuda_launch.h"

namespace sluice::engine {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 65536;
constexpr int kRowThreads = 512;
constexpr int kWarp = 32;

template <typename Scalar>
__device__ float widen(Scalar value) {
  return static_cast<float>(value);
}

template <typename Scalar>
__device__ Scalar narrow(float value);
template <>
__device__ float narrow<float>(float value) {
  return value;
}
template <>
__device__ __nv_bfloat16 narrow<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ __half narrow<__half>(float value) {
  return __float2half_rn(value);
}

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

// A running maximum and the sum of exp(x - maximum).
struct Softmax {
  float largest;
  float sum;
};

__device__ Softmax joined(Softmax a, Softmax b) {
  const float largest = fmaxf(a.largest, b.largest);
  if (largest == -INFINITY) return {largest, 0.0F};
  return {largest, a.sum * expf(a.largest - largest) + b.sum * expf(b.largest - largest)};
}

// Joined over the block in a fixed order, for every thread.
__device__ Softmax joined_over_block(Softmax mine) {
  __shared__ Softmax of_warp[kRowThreads / kWarp];
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const Softmax other = {__shfl_xor_sync(0xFFFFFFFFU, mine.largest, distance),
                           __shfl_xor_sync(0xFFFFFFFFU, mine.sum, distance)};
    // Both partners join in the same order, so that both get the same bits.
    const bool lower = (threadIdx.x & static_cast<unsigned>(distance)) == 0;
    mine = lower ? joined(mine, other) : joined(other, mine);
  }
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = mine;
  __syncthreads();
  Softmax all = of_warp[0];
  for (int warp = 1; warp < kRowThreads / kWarp; ++warp) all = joined(all, of_warp[warp]);
  return all;
}

template <typename Scalar>
__global__ void cross_entropy_kernel(Scalar* logits, CrossEntropyLaunch launch) {
  Scalar* const row = logits + static_cast<std::int64_t>(blockIdx.x) * launch.columns;
  Softmax mine = {-INFINITY, 0.0F};
  bool nan = false;
  for (std::int64_t c = threadIdx.x; c < launch.vocab; c += kRowThreads) {
    const float x = widen(row[c]);
    nan = nan || x != x;
    if (x > mine.largest) {
      mine.sum = mine.sum * expf(mine.largest - x) + 1.0F;
      mine.largest = x;
    } else if (x != -INFINITY) {
      mine.sum += expf(x - mine.largest);
    }
  }
  if (nan) mine.sum = NAN;  // a maximum loses it
  const Softmax all = joined_over_block(mine);
  const std::int64_t target = launch.targets[blockIdx.x];
  const bool known = target >= 0 && target < launch.vocab;
  if (threadIdx.x == 0) {
    const float x = known ? widen(row[target]) : NAN;
    launch.losses[blockIdx.x] = logf(all.sum) + all.largest - x;
  }
  if (!launch.gradient) return;
  __syncthreads();  // the target's logit is read before it is overwritten
  for (std::int64_t c = threadIdx.x; c < launch.columns; c += kRowThreads) {
    float gradient = 0.0F;
    if (c < launch.vocab) {
      gradient = expf(widen(row[c]) - all.largest) / all.sum;
      if (c == target) gradient -= 1.0F;
      gradient *= launch.grad_scale;
    }
    row[c] = narrow<Scalar>(gradient);
  }
}

// Calls with a null pointer of the dtype's type.
template <typename Visit>
void with_type(CudaDtype dtype, Visit visit) {
  switch (dtype) {
    case CudaDtype::kFloat:
      return visit(static_cast<float*>(nullptr));
    case CudaDtype::kBfloat16:
      return visit(static_cast<__nv_bfloat16*>(nullptr));
    case CudaDtype::kHalf:
      return visit(static_cast<__half*>(nullptr));
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

cudaError_t launch_cross_entropy(const CrossEntropyLaunch& launch, cudaStream_t stream) {
  if (launch.rows == 0) return cudaSuccess;
  with_type(launch.dtype, [&](auto* type) {
    using Scalar = std::remove_pointer_t<decltype(type)>;
    cross_entropy_kernel<Scalar><<<static_cast<unsigned>(launch.rows), kRowThreads, 0, stream>>>(
        static_cast<Scalar*>(launch.logits), launch);
  });
  return cudaGetLastError();
}

}  // namespace sluice::engine
