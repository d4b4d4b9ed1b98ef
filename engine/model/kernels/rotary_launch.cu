#include "engine/model/kernels/fused_launch.h"
#include "engine/model/kernels/packed_numbers.cuh"

namespace sluice::engine {
namespace {

constexpr int kPairPack = 2 * kPack;  // numbers per thread: a pack of each half of a head
constexpr int kThreads = 128;
constexpr int kMostThreads = 256;
constexpr int kMostHeadDim = 2 * kMostRotaryPairs;
constexpr std::int64_t kMostPartials = 512;
constexpr std::int64_t kRowsPerPartial = 4;

// A block uses threadIdx.x for the numbers of a head and threadIdx.y for heads. All threads make
// the same number of rounds, because the sums over a head's threads need them all.

// The threads of a head that have pairs, the first ones; the others have numbers that stay.
__host__ __device__ std::int64_t turning_threads(const RotaryShape& shape) {
  return shape.pairs / kPack;
}

// The rotations of a thread's pairs at one position.
struct ThreadTurns {
  Floats cosine;
  Floats sine;
  bool exist;

  __device__ ThreadTurns(const RotaryTurns& turns, const RotaryShape& shape, std::int64_t row)
      : exist(threadIdx.x < turning_threads(shape)) {
    if (!exist) return;
    const std::int64_t position =
        turns.positions != nullptr ? turns.positions[row] : turns.first + row % turns.tokens;
    const float* const frequencies =
        turns.of_rows != nullptr ? turns.of_rows + row * shape.pairs : turns.frequencies;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const float angle =
          __fmul_rn(static_cast<float>(position), frequencies[threadIdx.x * kPack + i]);
      sincosf(angle, &sine[i], &cosine[i]);
      sine[i] *= turns.scale;
      cosine[i] *= turns.scale;
    }
  }

  __device__ void forward(Floats& low, Floats& high) const {
    if (!exist) return;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const float x = low[i];
      const float y = high[i];
      low[i] = __fmaf_rn(x, cosine[i], -(y * sine[i]));
      high[i] = __fmaf_rn(y, cosine[i], x * sine[i]);
    }
  }
  __device__ void back(Floats& low, Floats& high) const {
    if (!exist) return;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const float x = low[i];
      const float y = high[i];
      low[i] = __fmaf_rn(x, cosine[i], y * sine[i]);
      high[i] = __fmaf_rn(y, cosine[i], -(x * sine[i]));
    }
  }
};

// The sum over a head's threads, a power of two of them: the same bits in each.
__device__ float head_sum(float value) {
  for (unsigned distance = blockDim.x / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xFFFFFFFFU, value, static_cast<int>(distance));
  return value;
}

__device__ float product_sum(const Floats& a, const Floats& b, float sum) {
#pragma unroll
  for (int i = 0; i < kPack; ++i) sum = __fmaf_rn(a[i], b[i], sum);
  return sum;
}

// For a head of which the thread has a part of the numbers.
__device__ float head_rstd(const Floats& low, const Floats& high, const RotaryShape& shape,
                           float epsilon) {
  const float squares = head_sum(product_sum(high, high, product_sum(low, low, 0.0F)));
  return 1.0F / sqrtf(squares / static_cast<float>(shape.head_dim) + epsilon);
}

// A thread's two packs of a head, among the head's: of its pairs' low and high numbers, or of
// numbers after all pairs, shared out in the same way.
struct HeadPacks {
  std::int64_t low;
  std::int64_t high;

  __device__ explicit HeadPacks(const RotaryShape& shape) {
    const std::int64_t turning = turning_threads(shape);
    const bool turns = threadIdx.x < turning;
    low = threadIdx.x + (turns ? 0 : turning);
    high = threadIdx.x + (turns ? turning : shape.head_dim / kPairPack);
  }
};

// The index of a head's first pack among a row's packs.
__device__ std::int64_t first_pack(const RotaryShape& shape, std::int64_t head) {
  return head * (shape.head_dim / kPack);
}

__device__ std::int64_t rounds_of(const RotaryShape& shape) {
  return (shape.heads + shape.kv_heads + blockDim.y - 1) / blockDim.y;
}

template <typename Scalar>
__device__ void load_weights(const RotaryNorms& norms, const HeadPacks& packs, bool of_query,
                             Floats& low, Floats& high) {
  const void* const weight = of_query ? norms.query : norms.key;
  load_weight<Scalar>(weight, norms.are_fp32, packs.low, low);
  load_weight<Scalar>(weight, norms.are_fp32, packs.high, high);
}

template <typename Scalar, bool kNorm>
__global__ void __launch_bounds__(kMostThreads)
    rotary_kernel(const __grid_constant__ RotaryLaunch launch) {
  const RotaryShape& shape = launch.shape;
  const HeadPacks packs(shape);
  const std::int64_t row = blockIdx.x;
  const ThreadTurns turns(launch.turns, shape, row);
  for (std::int64_t round = 0; round < rounds_of(shape); ++round) {
    const std::int64_t head = round * blockDim.y + threadIdx.y;
    const bool exists = head < shape.heads + shape.kv_heads;
    const std::int64_t first = first_pack(shape, head);
    Floats low = {};
    Floats high = {};
    if (exists) {
      const auto* const from = static_cast<const Scalar*>(launch.from) + row * launch.from_columns;
      load(from, first + packs.low, low);
      load(from, first + packs.high, high);
    }
    if constexpr (kNorm) {
      const float rstd = head_rstd(low, high, shape, launch.norms.epsilon);
      Floats low_weight;
      Floats high_weight;
      load_weights<Scalar>(launch.norms, packs, head < shape.heads, low_weight, high_weight);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        low[i] *= rstd * low_weight[i];
        high[i] *= rstd * high_weight[i];
      }
    }
    if (!exists) continue;
    turns.forward(low, high);
    auto* const to = static_cast<Scalar*>(launch.to) + row * launch.to_columns;
    store(to, first + packs.low, low);
    store(to, first + packs.high, high);
  }
}

template <typename Scalar>
__global__ void __launch_bounds__(kMostThreads)
    rotary_backward_kernel(const __grid_constant__ RotaryBackwardLaunch launch) {
  const RotaryShape& shape = launch.shape;
  const HeadPacks packs(shape);
  const std::int64_t row = blockIdx.x;
  const ThreadTurns turns(launch.turns, shape, row);
  auto* const gradient = static_cast<Scalar*>(launch.gradient) + row * launch.columns;
  for (std::int64_t head = threadIdx.y; head < shape.heads + shape.kv_heads; head += blockDim.y) {
    const std::int64_t first = first_pack(shape, head);
    Floats low;
    Floats high;
    load(gradient, first + packs.low, low);
    load(gradient, first + packs.high, high);
    turns.back(low, high);
    store(gradient, first + packs.low, low);
    store(gradient, first + packs.high, high);
  }
}

// A thread's columns of both weights, summed over the block's rows and the thread's heads.
struct WeightSums {
  Floats low[2];  // queries, keys
  Floats high[2];
};

// The sums over threadIdx.y, in ascending order.
__device__ void write_partials(const WeightSums& sums, const RotaryShape& shape, float* partials) {
  __shared__ float of_head[kMostThreads * kPairPack];
  const auto dim = static_cast<unsigned>(shape.head_dim);
  const HeadPacks packs(shape);
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    float* const mine = of_head + threadIdx.y * dim;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      mine[packs.low * kPack + i] = sums.low[which][i];
      mine[packs.high * kPack + i] = sums.high[which][i];
    }
    __syncthreads();
    const unsigned threads = blockDim.x * blockDim.y;
    for (unsigned column = threadIdx.y * blockDim.x + threadIdx.x; column < dim;
         column += threads) {
      float total = 0;
      for (unsigned y = 0; y < blockDim.y; ++y) total += of_head[y * dim + column];
      partials[static_cast<std::int64_t>(blockIdx.x) * 2 * dim + which * dim + column] = total;
    }
  }
}

template <typename Scalar>
__global__ void __launch_bounds__(kMostThreads)
    normed_rotary_backward_kernel(const __grid_constant__ RotaryBackwardLaunch launch) {
  const RotaryShape& shape = launch.shape;
  const HeadPacks packs(shape);
  WeightSums sums = {};
  for (std::int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const ThreadTurns turns(launch.turns, shape, row);
    auto* const gradient = static_cast<Scalar*>(launch.gradient) + row * launch.columns;
    const auto* const from = static_cast<const Scalar*>(launch.from) + row * launch.columns;
    for (std::int64_t round = 0; round < rounds_of(shape); ++round) {
      const std::int64_t head = round * blockDim.y + threadIdx.y;
      const bool exists = head < shape.heads + shape.kv_heads;
      const std::int64_t first = first_pack(shape, head);
      Floats low = {};
      Floats high = {};
      Floats x_low = {};
      Floats x_high = {};
      if (exists) {
        load(gradient, first + packs.low, low);
        load(gradient, first + packs.high, high);
        load(from, first + packs.low, x_low);
        load(from, first + packs.high, x_high);
      }
      turns.back(low, high);
      const bool of_query = head < shape.heads;
      const float rstd = head_rstd(x_low, x_high, shape, launch.norms.epsilon);
      Floats low_weight;
      Floats high_weight;
      load_weights<Scalar>(launch.norms, packs, of_query, low_weight, high_weight);
      const bool of_key = exists && !of_query;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        x_low[i] *= rstd;  // normed
        x_high[i] *= rstd;
        // Both sums get a value: an index would put the sums into local memory.
        sums.low[0][i] = __fmaf_rn(low[i], of_query ? x_low[i] : 0.0F, sums.low[0][i]);
        sums.high[0][i] = __fmaf_rn(high[i], of_query ? x_high[i] : 0.0F, sums.high[0][i]);
        sums.low[1][i] = __fmaf_rn(low[i], of_key ? x_low[i] : 0.0F, sums.low[1][i]);
        sums.high[1][i] = __fmaf_rn(high[i], of_key ? x_high[i] : 0.0F, sums.high[1][i]);
        low[i] *= low_weight[i];
        high[i] *= high_weight[i];
      }
      const float along = head_sum(product_sum(high, x_high, product_sum(low, x_low, 0.0F))) /
                          static_cast<float>(shape.head_dim);
      if (!exists) continue;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        low[i] = __fmaf_rn(-x_low[i], along, low[i]) * rstd;
        high[i] = __fmaf_rn(-x_high[i], along, high[i]) * rstd;
      }
      store(gradient, first + packs.low, low);
      store(gradient, first + packs.high, high);
    }
  }
  write_partials(sums, shape, launch.partials);
}

bool fits(const RotaryShape& shape, bool normed) {
  const std::int64_t lanes = shape.head_dim / kPairPack;
  if (shape.head_dim <= 0 || shape.head_dim % kPairPack != 0 || shape.head_dim > kMostHeadDim)
    return false;
  if (shape.pairs <= 0 || shape.pairs % kPack != 0 || 2 * shape.pairs > shape.head_dim)
    return false;
  return !normed || (lanes & (lanes - 1)) == 0;
}

// A whole number of warps, unless the threads of a head do not divide one.
dim3 threads_of(const RotaryShape& shape) {
  const auto lanes = static_cast<unsigned>(shape.head_dim / kPairPack);
  return {lanes, (kThreads + lanes - 1) / lanes, 1};
}

}  // namespace

cudaError_t launch_rotary(const RotaryLaunch& launch, cudaStream_t stream) {
  const bool normed = launch.norms.query != nullptr;
  if (!fits(launch.shape, normed)) return cudaErrorInvalidValue;
  if (launch.shape.rows == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(launch.shape.rows);
  with_packed_type(launch.shape.dtype, [&](auto* type) {
    using Scalar = std::remove_pointer_t<decltype(type)>;
    if (normed)
      rotary_kernel<Scalar, true><<<blocks, threads_of(launch.shape), 0, stream>>>(launch);
    else
      rotary_kernel<Scalar, false><<<blocks, threads_of(launch.shape), 0, stream>>>(launch);
  });
  return cudaGetLastError();
}

std::int64_t rotary_partial_rows(std::int64_t rows) {
  const std::int64_t wanted = (rows + kRowsPerPartial - 1) / kRowsPerPartial;
  return wanted < kMostPartials ? wanted : kMostPartials;
}

cudaError_t launch_rotary_backward(const RotaryBackwardLaunch& launch, cudaStream_t stream) {
  const bool normed = launch.norms.query != nullptr;
  if (!fits(launch.shape, normed)) return cudaErrorInvalidValue;
  if (launch.shape.rows == 0) return cudaSuccess;
  const std::int64_t blocks = normed ? rotary_partial_rows(launch.shape.rows) : launch.shape.rows;
  with_packed_type(launch.shape.dtype, [&](auto* type) {
    using Scalar = std::remove_pointer_t<decltype(type)>;
    if (normed)
      normed_rotary_backward_kernel<Scalar>
          <<<static_cast<unsigned>(blocks), threads_of(launch.shape), 0, stream>>>(launch);
    else
      rotary_backward_kernel<Scalar>
          <<<static_cast<unsigned>(blocks), threads_of(launch.shape), 0, stream>>>(launch);
  });
  return cudaGetLastError();
}

}  // namespace sluice::engine
