#include "engine/model/kernels/activation_number.cuh"
#include "engine/model/kernels/fused_launch.h"
#include "engine/model/kernels/packed_numbers.cuh"

namespace sluice::engine {
namespace {

constexpr int kSlabPacks = 32;  // columns of a block, adjacent in memory
constexpr int kRowLanes = 8;
constexpr int kRowsPerBlock = 64;
constexpr int kSlabColumns = kSlabPacks * kPack;
constexpr int kFewestBlocks = 4;  // per multiprocessor: bounds the registers

// Each op loads a pack of a row, writes its result, and leaves in `value` the numbers to be summed.
// Op::kRows packs are loaded before the first is written.

template <typename Scalar>
struct MaskedSum {
  static constexpr int kRows = 4;
  using Loaded = Pack<Scalar>;
  MaskedSumLaunch launch;
  std::int64_t packs;

  __device__ Loaded load(std::int64_t row, std::int64_t pack) const {
    return load_pack(static_cast<const Scalar*>(launch.from), row * packs + pack);
  }
  __device__ void finish(std::int64_t row, std::int64_t pack, const Loaded& loaded,
                         Floats& value) const {
    const std::int64_t at = row * packs + pack;
    widen(loaded, value);
    apply_mask(launch.mask, at, value);
    if (launch.to != nullptr) store(static_cast<Scalar*>(launch.to), at, value);
  }
};

template <typename Function>
struct ActivationBackward {
  template <typename Scalar>
  struct Op {
    static constexpr int kRows = 2;
    struct Loaded {
      Pack<Scalar> input;
      Pack<Scalar> gradient;
    };
    ActivationBackwardLaunch launch;
    std::int64_t packs;

    __device__ Loaded load(std::int64_t row, std::int64_t pack) const {
      const std::int64_t at = row * packs + pack;
      return {load_pack(static_cast<const Scalar*>(launch.input), at),
              load_pack(static_cast<const Scalar*>(launch.gradient), at)};
    }
    __device__ void finish(std::int64_t row, std::int64_t pack, const Loaded& loaded,
                           Floats& value) const {
      Floats x;
      widen(loaded.input, x);
      widen(loaded.gradient, value);
#pragma unroll
      for (int i = 0; i < kPack; ++i) Function::backward(x[i], value[i]);
      store(static_cast<Scalar*>(launch.input), row * packs + pack, x);
      store(static_cast<Scalar*>(launch.gradient), row * packs + pack, value);
    }
  };
};

template <typename Scalar>
struct Gather {
  static constexpr int kRows = 4;
  using Loaded = Pack<Scalar>;
  GatherLaunch launch;
  std::int64_t packs;

  __device__ Loaded load(std::int64_t row, std::int64_t pack) const {
    const std::int64_t first_packs = launch.first_columns / kPack;
    if (pack < first_packs)
      return load_pack(static_cast<const Scalar*>(launch.first), row * first_packs + pack);
    const std::int64_t other_packs = (packs - first_packs) / 2;
    const bool is_second = pack < first_packs + other_packs;
    const void* const part = is_second ? launch.second : launch.third;
    const std::int64_t skipped = first_packs + (is_second ? 0 : other_packs);
    return load_pack(static_cast<const Scalar*>(part), row * other_packs + pack - skipped);
  }
  __device__ void finish(std::int64_t row, std::int64_t pack, const Loaded& loaded,
                         Floats& value) const {
    static_cast<Loaded*>(launch.to)[row * packs + pack] = loaded;
    widen(loaded, value);
  }
};

template <typename Op>
__global__ void __launch_bounds__(kSlabPacks* kRowLanes, kFewestBlocks)
    column_pass_kernel(Op op, std::int64_t rows, float* partials) {
  __shared__ float of_lane[kRowLanes][kSlabColumns];
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * kSlabPacks + threadIdx.x;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * kRowsPerBlock + threadIdx.y;
  Floats sum = {};
  for (int i = 0; i < kRowsPerBlock; i += kRowLanes * Op::kRows) {
    typename Op::Loaded loaded[Op::kRows];
#pragma unroll
    for (int j = 0; j < Op::kRows; ++j) {
      const std::int64_t row = first + i + j * kRowLanes;
      if (row < rows && pack < op.packs) loaded[j] = op.load(row, pack);
    }
#pragma unroll
    for (int j = 0; j < Op::kRows; ++j) {
      const std::int64_t row = first + i + j * kRowLanes;
      if (row >= rows || pack >= op.packs) continue;
      Floats value;
      op.finish(row, pack, loaded[j], value);
#pragma unroll
      for (int k = 0; k < kPack; ++k) sum[k] += value[k];
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

cudaError_t launch_activation_backward(const ActivationBackwardLaunch& launch,
                                       const ColumnShape& shape, cudaStream_t stream) {
  return with_activation(launch.activation, [&](auto function) {
    return launch_pass<ActivationBackward<decltype(function)>::template Op>(launch, shape, stream);
  });
}

cudaError_t launch_gather(const GatherLaunch& launch, const ColumnShape& shape,
                          cudaStream_t stream) {
  const std::int64_t others = shape.columns - launch.first_columns;
  if (launch.first_columns % kPack != 0 || others < 0 || others % (2 * kPack) != 0)
    return cudaErrorInvalidValue;
  return launch_pass<Gather>(launch, shape, stream);
}

cudaError_t launch_add_partials(const AddPartialsLaunch& launch, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((launch.columns + kSumColumns - 1) / kSumColumns);
  if (blocks == 0 || launch.rows == 0) return cudaSuccess;
  add_partials_kernel<<<blocks, dim3(kSumColumns, kSumLanes), 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace sluice::engine
