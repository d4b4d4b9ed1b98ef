#include "engine/model/kernels/cuda_launch.h"
#include "engine/model/kernels/packed_numbers.cuh"
#include "engine/model/kernels/scalar_numbers.cuh"

namespace sluice::engine {
namespace {

constexpr int kRowThreads = 512;
constexpr int kPackedThreads = 1024;
constexpr int kWarp = 32;

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

// Joined over the block in a fixed order, with the result in every thread.
template <int kThreads>
__device__ Softmax joined_over_block(Softmax mine) {
  __shared__ Softmax of_warp[kThreads / kWarp];
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
  for (int warp = 1; warp < kThreads / kWarp; ++warp) all = joined(all, of_warp[warp]);
  return all;
}

struct FinishedRow {
  Softmax all;
  std::int64_t target;  // its column; -1: outside the vocabulary
  float grad_scale;     // 0: ignored
};

// Joins the partial results of the block's threads for its row, and writes the row's loss. When a
// thread returns, the target's logit has been read and may be overwritten.
template <int kThreads, typename Scalar>
__device__ FinishedRow finished_row(const Scalar* row, Softmax seen, bool saw_nan,
                                    const CrossEntropyLaunch& launch) {
  if (saw_nan) seen.sum = NAN;  // a maximum would drop it
  const Softmax all = joined_over_block<kThreads>(seen);
  const std::int64_t target = launch.targets[blockIdx.x];
  const bool known = target >= 0 && target < launch.vocab;
  const bool ignored = target == launch.ignored;
  if (threadIdx.x == 0) {
    const float x = known ? widen(row[target]) : NAN;
    launch.losses[blockIdx.x] = ignored ? 0.0F : logf(all.sum) + all.largest - x;
  }
  __syncthreads();
  return {all, known ? target : -1, ignored ? 0.0F : launch.grad_scale};
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
  const auto [all, target, grad_scale] = finished_row<kRowThreads>(row, mine, nan, launch);
  if (!launch.gradient) return;
  for (std::int64_t c = threadIdx.x; c < launch.columns; c += kRowThreads) {
    float gradient = 0.0F;
    if (c < launch.vocab) {
      gradient = expf(widen(row[c]) - all.largest) / all.sum;
      if (c == target) gradient -= 1.0F;
      gradient = grad_scale == 0.0F ? 0.0F : gradient * grad_scale;
    }
    row[c] = narrow<Scalar>(gradient);
  }
}

// Processes eight numbers at a time. It also processes few rows at a time, so that the second pass
// finds its row in the cache.
template <typename Scalar>
__global__ void __launch_bounds__(kPackedThreads)
    packed_cross_entropy_kernel(Scalar* logits, CrossEntropyLaunch launch) {
  Scalar* const row = logits + static_cast<std::int64_t>(blockIdx.x) * launch.columns;
  Softmax mine = {-INFINITY, 0.0F};
  bool nan = false;
  for (std::int64_t pack = threadIdx.x; pack * kPack < launch.vocab; pack += kPackedThreads) {
    Floats x;
    load(row, pack, x);
    float largest = mine.largest;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      if (pack * kPack + i >= launch.vocab) x[i] = -INFINITY;
      nan = nan || x[i] != x[i];
      largest = fmaxf(largest, x[i]);
    }
    if (largest == -INFINITY) continue;
    mine.sum *= __expf(mine.largest - largest);
    mine.largest = largest;
#pragma unroll
    for (int i = 0; i < kPack; ++i) mine.sum += __expf(x[i] - largest);
  }
  const auto [all, target, grad_scale] = finished_row<kPackedThreads>(row, mine, nan, launch);
  if (!launch.gradient) return;
  const float factor = grad_scale / all.sum;
  for (std::int64_t pack = threadIdx.x; pack * kPack < launch.columns; pack += kPackedThreads) {
    Floats x;
    load(row, pack, x);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const std::int64_t column = pack * kPack + i;
      const bool counts = column < launch.vocab && grad_scale != 0.0F;
      x[i] = counts ? __expf(x[i] - all.largest) * factor : 0.0F;
      if (column == target) x[i] -= grad_scale;
    }
    store(row, pack, x);
  }
}

bool packs(const CrossEntropyLaunch& launch) {
  constexpr std::uintptr_t kPackBytes = 16;
  return launch.dtype != CudaDtype::kFloat && launch.columns % kPack == 0 &&
         reinterpret_cast<std::uintptr_t>(launch.logits) % kPackBytes == 0;
}

}  // namespace

cudaError_t launch_cross_entropy(const CrossEntropyLaunch& launch, cudaStream_t stream) {
  if (launch.rows == 0) return cudaSuccess;
  const auto rows = static_cast<unsigned>(launch.rows);
  if (packs(launch)) {
    with_packed_type(launch.dtype, [&](auto* type) {
      using Scalar = std::remove_pointer_t<decltype(type)>;
      packed_cross_entropy_kernel<Scalar>
          <<<rows, kPackedThreads, 0, stream>>>(static_cast<Scalar*>(launch.logits), launch);
    });
    return cudaGetLastError();
  }
  with_type(launch.dtype, [&](auto* type) {
    using Scalar = std::remove_pointer_t<decltype(type)>;
    cross_entropy_kernel<Scalar>
        <<<rows, kRowThreads, 0, stream>>>(static_cast<Scalar*>(launch.logits), launch);
  });
  return cudaGetLastError();
}

}  // namespace sluice::engine
