#include "engine/model/kernels/fused_launch.h"
#include "engine/model/kernels/packed_numbers.cuh"

namespace sluice::engine {
namespace {

constexpr int kWarp = 32;
constexpr int kMostForwardThreads = 512;
constexpr int kMostTeams = 4;
constexpr int kMostWarps = 16;
// The number of backward blocks of up to kNarrowThreads that fit on a multiprocessor: as many as
// registers allow without spilling.
constexpr int kNarrowThreads = 256;
constexpr int kNarrowBlocks = 3;
constexpr int kWideThreads = 512;
// The rows per block in backward: enough blocks to fill a GPU, and few partial sums.
constexpr std::int64_t kRowsPerPartial = 8;
constexpr std::int64_t kMostPartials = 384;

// The column pack of this thread in one step.
__device__ std::int64_t pack_at(int step) {
  return threadIdx.x + step * static_cast<std::int64_t>(blockDim.x);
}

// The same bits in every lane: in each step both partners add the same two numbers.
__device__ float warp_sum(float value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFU, value, distance);
  }
  return value;
}

// Forward: a team of threads processes a row, and a block has several teams. Returns the sum over
// the caller's team, whose part of `shared` is not written again before the next barrier.
__device__ float team_sum(float value, float (&shared)[kMostTeams][kMostWarps]) {
  value = warp_sum(value);
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  if (warps == 1) return value;
  if (threadIdx.x % kWarp == 0) shared[threadIdx.y][threadIdx.x / kWarp] = value;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < warps; ++warp) sum += shared[threadIdx.y][warp];
  return sum;
}

// A thread's part of a row, in 16 bits to save registers, which limit how much is loaded at a time.
template <typename Scalar, int kSteps>
struct RowPart {
  Pack<Scalar> packs[kSteps];

  __device__ void load(const void* from, std::int64_t first, std::int64_t end) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (pack_at(step) < end) {
        packs[step] = load_pack(static_cast<const Scalar*>(from), first + pack_at(step));
      }
    }
  }

  __device__ void add(const RowPart& residual, const MaskLaunch& mask, std::int64_t first,
                      std::int64_t end) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (pack_at(step) >= end) continue;
      Floats sum;
      Floats other;
      widen(packs[step], sum);
      widen(residual.packs[step], other);
      apply_mask(mask, first + pack_at(step), sum);
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum[i] += other[i];
      packs[step] = narrow<Scalar>(sum);
    }
  }

  // The sum of visit(x) over the thread's numbers.
  template <typename Visit>
  __device__ float sum_of(std::int64_t end, Visit visit) const {
    float sum = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (pack_at(step) >= end) continue;
      Floats x;
      widen(packs[step], x);
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum = visit(x[i], sum);
    }
    return sum;
  }
};

// kCentred: a LayerNorm, with mean and bias; otherwise an RMSNorm, with neither.
template <typename Scalar, int kSteps, bool kCentred>
__global__ void __launch_bounds__(kMostForwardThreads)
    norm_forward_kernel(NormForwardLaunch launch) {
  __shared__ float of_sum[kMostTeams][kMostWarps];
  __shared__ float of_squares[kMostTeams][kMostWarps];
  const std::int64_t packs = launch.columns / kPack;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const std::int64_t end = row < launch.rows ? packs : 0;  // a team without a row has no packs
  const std::int64_t first = row * packs;
  RowPart<Scalar, kSteps> x;
  x.load(launch.input, first, end);
  if (launch.residual != nullptr) {
    RowPart<Scalar, kSteps> residual;
    residual.load(launch.residual, first, end);
    x.add(residual, launch.mask, first, end);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (pack_at(step) < end) {
        static_cast<Pack<Scalar>*>(launch.sum)[first + pack_at(step)] = x.packs[step];
      }
    }
  }
  const auto columns = static_cast<float>(launch.columns);
  float mean = 0;
  if constexpr (kCentred) {
    mean = team_sum(x.sum_of(end, [](float value, float sum) { return sum + value; }), of_sum) /
           columns;
  }
  const float squares = x.sum_of(
      end, [mean](float value, float sum) { return __fmaf_rn(value - mean, value - mean, sum); });
  const float rstd = 1.0F / sqrtf(team_sum(squares, of_squares) / columns + launch.epsilon);
  if (threadIdx.x == 0 && end > 0) {
    if constexpr (kCentred) launch.mean[row] = mean;
    launch.rstd[row] = rstd;
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (pack_at(step) >= end) continue;
    Floats value;
    Floats weight;
    Floats bias = {};
    widen(x.packs[step], value);
    load_weight<Scalar>(launch.weight, launch.weight_is_fp32, pack_at(step), weight);
    if constexpr (kCentred) load(static_cast<const Scalar*>(launch.bias), pack_at(step), bias);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      value[i] = __fmaf_rn((value[i] - mean) * rstd, weight[i], bias[i]);
    }
    store(static_cast<Scalar*>(launch.output), first + pack_at(step), value);
  }
}

// A thread's part of one row, loaded one row ahead: the loads run while the block waits for its
// sums.
template <typename Scalar, int kSteps, bool kCentred>
struct RowPacks {
  Pack<Scalar> gradient[kSteps];
  Pack<Scalar> input[kSteps];
  float mean;
  float rstd;

  __device__ void load(const NormBackwardLaunch& launch, std::int64_t row) {
    const std::int64_t packs = launch.columns / kPack;
    mean = 0;
    if constexpr (kCentred) mean = launch.mean[row];
    rstd = launch.rstd[row];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const std::int64_t pack = pack_at(step);
      if (pack >= packs) continue;
      gradient[step] =
          load_pack(static_cast<const Scalar*>(launch.grad_output), row * packs + pack);
      input[step] = load_pack(static_cast<const Scalar*>(launch.input), row * packs + pack);
    }
  }
};

// A thread's columns, summed over the block's rows. Weights are read from the cache again for each
// row, because registers limit how many blocks run at a time.
template <typename Scalar, int kSteps, bool kCentred>
struct ColumnSums {
  static constexpr int kBiasSteps = kCentred ? kSteps : 1;
  Floats of_weight[kSteps];
  Floats of_bias[kBiasSteps];

  // The sums of grad * weight and of grad * weight * normed over the thread's part of a row.
  __device__ float2 add_row(const NormBackwardLaunch& launch,
                            const RowPacks<Scalar, kSteps, kCentred>& row) {
    float2 sums = {0.0F, 0.0F};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (pack_at(step) >= launch.columns / kPack) continue;
      Floats gradient;
      Floats x;
      Floats weight;
      load_weight<Scalar>(launch.weight, launch.weight_is_fp32, pack_at(step), weight);
      widen(row.gradient[step], gradient);
      widen(row.input[step], x);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float normed = (x[i] - row.mean) * row.rstd;
        of_weight[step][i] = __fmaf_rn(gradient[i], normed, of_weight[step][i]);
        if constexpr (kCentred) of_bias[step][i] += gradient[i];
        const float weighted = gradient[i] * weight[i];
        sums.x += weighted;
        sums.y = __fmaf_rn(weighted, normed, sums.y);
      }
    }
    return sums;
  }

  __device__ void write(const NormBackwardLaunch& launch) const {
    float* const partials = launch.partials + blockIdx.x * (kCentred ? 2 : 1) * launch.columns;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const std::int64_t pack = pack_at(step);
      if (pack >= launch.columns / kPack) continue;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        partials[pack * kPack + i] = of_weight[step][i];
        if constexpr (kCentred) partials[launch.columns + pack * kPack + i] = of_bias[step][i];
      }
    }
  }
};

__device__ float2 block_sums(float2 values, float2* shared) {
  values.x = warp_sum(values.x);
  values.y = warp_sum(values.y);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = values;
  __syncthreads();
  float2 sums = {0.0F, 0.0F};
  for (int warp = 0; warp < static_cast<int>(blockDim.x) / kWarp; ++warp) {
    sums.x += shared[warp].x;
    sums.y += shared[warp].y;
  }
  return sums;
}

template <typename Scalar, int kSteps, bool kCentred>
__device__ void write_grad_input(const NormBackwardLaunch& launch, std::int64_t row,
                                 const RowPacks<Scalar, kSteps, kCentred>& of_row,
                                 const Pack<Scalar> (&residuals)[kSteps], float2 sums) {
  const std::int64_t packs = launch.columns / kPack;
  const float mean_gradient = kCentred ? sums.x / static_cast<float>(launch.columns) : 0.0F;
  const float mean_product = sums.y / static_cast<float>(launch.columns);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const std::int64_t pack = pack_at(step);
    if (pack >= packs) continue;
    Floats gradient;
    Floats x;
    Floats weight;
    Floats residual = {};
    load_weight<Scalar>(launch.weight, launch.weight_is_fp32, pack, weight);
    widen(of_row.gradient[step], gradient);
    widen(of_row.input[step], x);
    if (launch.residual != nullptr) widen(residuals[step], residual);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const float normed = (x[i] - of_row.mean) * of_row.rstd;
      const float centred =
          __fmaf_rn(-normed, mean_product, gradient[i] * weight[i] - mean_gradient);
      gradient[i] = __fmaf_rn(centred, of_row.rstd, residual[i]);
    }
    store(static_cast<Scalar*>(launch.grad_input), row * packs + pack, gradient);
  }
}

template <typename Scalar, int kSteps, int kThreads, bool kCentred>
__global__ void __launch_bounds__(kThreads, kThreads == kNarrowThreads ? kNarrowBlocks : 1)
    norm_backward_kernel(NormBackwardLaunch launch) {
  __shared__ float2 shared[2][kMostWarps];  // alternating, so that one barrier per row is enough
  const std::int64_t packs = launch.columns / kPack;
  ColumnSums<Scalar, kSteps, kCentred> columns = {};
  RowPacks<Scalar, kSteps, kCentred> now;
  now.load(launch, blockIdx.x);
  int turn = 0;
  for (std::int64_t row = blockIdx.x; row < launch.rows; row += gridDim.x) {
    RowPacks<Scalar, kSteps, kCentred> next;
    if (row + gridDim.x < launch.rows) next.load(launch, row + gridDim.x);
    Pack<Scalar> residuals[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (launch.residual == nullptr || pack_at(step) >= packs) continue;
      residuals[step] =
          load_pack(static_cast<const Scalar*>(launch.residual), row * packs + pack_at(step));
    }
    const float2 sums = block_sums(columns.add_row(launch, now), shared[turn]);
    write_grad_input(launch, row, now, residuals, sums);
    now = next;
    turn ^= 1;
  }
  columns.write(launch);
}

std::int64_t rounded_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

unsigned threads_of(std::int64_t columns, int steps) {
  const std::int64_t packs = columns / kPack;
  return static_cast<unsigned>(rounded_up((packs + steps - 1) / steps, kWarp));
}

// Forward: few threads per row with many packs each, so that many loads are in flight and few
// threads wait for each other. Calls `visit` with the packs per thread.
template <typename Visit>
void with_forward_steps(std::int64_t columns, Visit visit) {
  const std::int64_t packs = columns / kPack;
  if (packs <= 2 * kWarp) return visit(std::integral_constant<int, 2>());
  return visit(std::integral_constant<int, 4>());
}

// Backward: each thread keeps sums of its columns, so it has few of them. Calls `visit` with the
// packs per thread and the maximum number of threads.
template <typename Visit>
void with_backward_steps(std::int64_t columns, Visit visit) {
  const std::int64_t packs = columns / kPack;
  using One = std::integral_constant<int, 1>;
  using Wide = std::integral_constant<int, kWideThreads>;
  if (packs <= kNarrowThreads) return visit(One(), std::integral_constant<int, kNarrowThreads>());
  if (packs <= kWideThreads) return visit(One(), Wide());
  if (packs <= 2 * kWideThreads) return visit(std::integral_constant<int, 2>(), Wide());
  return visit(std::integral_constant<int, 4>(), Wide());
}

// Calls `visit` with whether the norm is a LayerNorm.
template <typename Visit>
void with_centred(const float* mean, Visit visit) {
  if (mean != nullptr) return visit(std::true_type());
  return visit(std::false_type());
}

bool fits(std::int64_t columns) {
  return columns > 0 && columns <= kWidestNorm && columns % kPack == 0;
}

}  // namespace

cudaError_t launch_norm_forward(const NormForwardLaunch& launch, cudaStream_t stream) {
  if (!fits(launch.columns)) return cudaErrorInvalidValue;
  if (launch.rows == 0) return cudaSuccess;
  with_packed_type(launch.dtype, [&](auto* type) {
    using Scalar = std::remove_pointer_t<decltype(type)>;
    with_forward_steps(launch.columns, [&](auto steps) {
      constexpr int kSteps = decltype(steps)::value;
      const unsigned threads = threads_of(launch.columns, kSteps);
      const unsigned teams = threads == kWarp ? kMostTeams : 1;
      const auto blocks = static_cast<unsigned>((launch.rows + teams - 1) / teams);
      with_centred(launch.mean, [&](auto centred) {
        norm_forward_kernel<Scalar, kSteps, decltype(centred)::value>
            <<<blocks, dim3(threads, teams), 0, stream>>>(launch);
      });
    });
  });
  return cudaGetLastError();
}

std::int64_t norm_partial_rows(std::int64_t rows) {
  const std::int64_t wanted = (rows + kRowsPerPartial - 1) / kRowsPerPartial;
  return wanted < kMostPartials ? wanted : kMostPartials;
}

cudaError_t launch_norm_backward(const NormBackwardLaunch& launch, cudaStream_t stream) {
  if (!fits(launch.columns)) return cudaErrorInvalidValue;
  if (launch.rows == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(norm_partial_rows(launch.rows));
  with_packed_type(launch.dtype, [&](auto* type) {
    using Scalar = std::remove_pointer_t<decltype(type)>;
    with_backward_steps(launch.columns, [&](auto steps, auto most_threads) {
      constexpr int kSteps = decltype(steps)::value;
      with_centred(launch.mean, [&](auto centred) {
        norm_backward_kernel<Scalar, kSteps, decltype(most_threads)::value,
                             decltype(centred)::value>
            <<<blocks, threads_of(launch.columns, kSteps), 0, stream>>>(launch);
      });
    });
  });
  return cudaGetLastError();
}

}  // namespace sluice::engine
