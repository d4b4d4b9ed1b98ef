#include "engine/model/column_launch.h"
#include "engine/model/gelu_number.cuh"
#include "engine/model/packed_numbers.cuh"

namespace sluice::engine {
namespace {

constexpr int kSlabPacks = 32;  // columns of a block, side by side in memory
constexpr int kRowLanes = 8;
constexpr int kRowsPerBlock = 64;
constexpr int kSlabColumns = kSlabPacks * kPack;

// Each op reads one pack, writes what it makes of it, and leaves in `value` what is summed.
template <typename Scalar>
struct MaskedSum {
  MaskedSumLaunch launch;
  std::int64_t packs;

  __device__ void operator()(std::int64_t row, std::int64_t pack, Floats& value) const {
    const std::int64_t at = row * packs + pack;
    load(static_cast<const Scalar*>(launch.from), at, value);
    apply_mask(launch.mask, at, value);
    if (launch.to != nullptr) store(static_cast<Scalar*>(launch.to), at, value);
  }
};

template <typename Scalar>
struct GeluBackward {
  GeluBackwardLaunch launch;
  std::int64_t packs;

  __device__ void operator()(std::int64_t row, std::int64_t pack, Floats& value) const {
    const std::int64_t at = row * packs + pack;
    Floats x;
    load(static_cast<const Scalar*>(launch.input), at, x);
    load(static_cast<const Scalar*>(launch.gradient), at, value);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const float logistic = gelu_logistic(x[i]);
      value[i] *= gelu_slope(x[i], logistic);
      x[i] *= logistic;
    }
    store(static_cast<Scalar*>(launch.input), at, x);
    store(static_cast<Scalar*>(launch.gradient), at, value);
  }
};

template <typename Scalar>
struct Gather {
  GatherLaunch launch;
  std::int64_t packs;

  __device__ void operator()(std::int64_t row, std::int64_t pack, Floats& value) const {
    const std::int64_t part_packs = packs / 3;
    const std::int64_t part = pack / part_packs;
    const Pack<Scalar> it = load_pack(static_cast<const Scalar*>(launch.parts[part]),
                                      row * part_packs + (pack - part * part_packs));
    reinterpret_cast<Pack<Scalar>*>(launch.to)[row * packs + pack] = it;
    widen(it, value);
  }
};

template <typename Op>
__global__ void __launch_bounds__(kSlabPacks* kRowLanes)
    column_pass_kernel(Op op, std::int64_t rows, float* partials) {
  __shared__ float of_lane[kRowLanes][kSlabColumns];
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * kSlabPacks + threadIdx.x;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * kRowsPerBlock + threadIdx.y;
  Floats sum = {};
  if (pack < op.packs) {
#pragma unroll 4
    for (int i = 0; i < kRowsPerBlock; i += kRowLanes) {
      if (first + i >= rows) break;
      Floats value;
      op(first + i, pack, value);
#pragma unroll
      for (int j = 0; j < kPack; ++j) sum[j] += value[j];
    }
  }
#pragma unroll
  for (int j = 0; j < kPack; ++j) of_lane[threadIdx.y][threadIdx.x * kPack + j] = sum[j];
  __syncthreads();
  const unsigned column = threadIdx.y * kSlabPacks + threadIdx.x;
  float total = 0;
  for (int lane = 0; lane < kRowLanes; ++lane) total += of_lane[lane][column];
  const std::int64_t columns = op.packs * kPack;
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kSlabColumns + column;
  if (at < columns) partials[blockIdx.y * columns + at] = total;
}
static_assert(kSlabColumns == kSlabPacks * kRowLanes, "each thread sums one column in the end");

template <template <typename> class Op, typename Launch>
cudaError_t launch_pass(const Launch& launch, const ColumnShape& shape, cudaStream_t stream) {
  if (shape.columns % kPack != 0) return cudaErrorInvalidValue;
  if (shape.rows == 0) return cudaSuccess;
  const std::int64_t packs = shape.columns / kPack;
  const dim3 blocks(static_cast<unsigned>((packs + kSlabPacks - 1) / kSlabPacks),
                    static_cast<unsigned>(column_partial_rows(shape.rows)));
  with_packed_type(shape.dtype, [&](auto* type) {
    using Scalar = std::remove_pointer_t<decltype(type)>;
    column_pass_kernel<<<blocks, dim3(kSlabPacks, kRowLanes), 0, stream>>>(
        Op<Scalar>{launch, packs}, shape.rows, launch.partials);
  });
  return cudaGetLastError();
}

constexpr int kSumColumns = 32;
constexpr int kSumLanes = 16;

__global__ void __launch_bounds__(kSumColumns* kSumLanes)
    add_partials_kernel(AddPartialsLaunch launch) {
  __shared__ float of_lane[kSumLanes][kSumColumns];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kSumColumns + threadIdx.x;
  float sum = 0;
  if (column < launch.columns) {
#pragma unroll 8
    for (std::int64_t row = threadIdx.y; row < launch.rows; row += kSumLanes) {
      sum += launch.partials[row * launch.columns + column];
    }
  }
  of_lane[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= launch.columns) return;
  float total = 0;
  for (int lane = 0; lane < kSumLanes; ++lane) total += of_lane[lane][threadIdx.x];
  const std::int64_t half = launch.columns / 2;
  if (launch.second_gradient != nullptr && column >= half) {
    launch.second_gradient[column - half] += total;
  } else {
    launch.gradient[column] += total;
  }
}

}  // namespace

std::int64_t column_partial_rows(std::int64_t rows) {
  return (rows + kRowsPerBlock - 1) / kRowsPerBlock;
}

cudaError_t launch_masked_sum(const MaskedSumLaunch& launch, const ColumnShape& shape,
                              cudaStream_t stream) {
  return launch_pass<MaskedSum>(launch, shape, stream);
}

cudaError_t launch_gelu_backward(const GeluBackwardLaunch& launch, const ColumnShape& shape,
                                 cudaStream_t stream) {
  return launch_pass<GeluBackward>(launch, shape, stream);
}

cudaError_t launch_gather(const GatherLaunch& launch, const ColumnShape& shape,
                          cudaStream_t stream) {
  if (shape.columns % (3 * kPack) != 0) return cudaErrorInvalidValue;
  return launch_pass<Gather>(launch, shape, stream);
}

cudaError_t launch_add_partials(const AddPartialsLaunch& launch, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((launch.columns + kSumColumns - 1) / kSumColumns);
  if (blocks == 0 || launch.rows == 0) return cudaSuccess;
  add_partials_kernel<<<blocks, dim3(kSumColumns, kSumLanes), 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace sluice::engine
