#include <mma.h>

#include <type_traits>

#include "engine/model/kernels/delta_launch.h"

namespace sluice::engine {
namespace {

// Products are of tiles on tensor cores: factors in TF32, sums in fp32. A warp has one row of tiles
// of a chunk, and every fourth one of a state.
constexpr int kTile = 16;
constexpr int kWarp = 32;
constexpr int kChunk = static_cast<int>(kScanChunk);
constexpr int kColumns = static_cast<int>(kScanColumns);
constexpr int kWarps = kChunk / kTile;
constexpr int kThreads = kWarps * kWarp;

static_assert(kColumns == kTile);

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

namespace wmma = nvcuda::wmma;

constexpr int kStep = 8;               // of a product's inner dimension
constexpr int kStride = kColumns + 4;  // of rows in shared memory; fewer bank conflicts

using Sum = wmma::fragment<wmma::accumulator, kTile, kTile, kStep, float>;

template <typename Fragment>
__device__ void round_factors(Fragment& factors, float sign) {
#pragma unroll
  for (int i = 0; i < factors.num_elements; ++i)
    factors.x[i] = wmma::__float_to_tf32(sign * factors.x[i]);
}

// A matrix [rows, inner] in global memory, or with kTransposed [inner, rows].
struct Left {
  const float* numbers;
  std::int64_t stride;
};
struct Right {
  const float* numbers;  // [inner, kColumns]
  std::int64_t stride;
};

// Adds the tile at `row` of left @ right, or of its negative.
template <int kInner, bool kTransposed>
__device__ void add_product(Sum& sum, const Left& left, int row, const Right& right,
                            float sign = 1) {
  using Layout = std::conditional_t<kTransposed, wmma::col_major, wmma::row_major>;
#pragma unroll 8
  for (int k = 0; k < kInner; k += kStep) {
    wmma::fragment<wmma::matrix_a, kTile, kTile, kStep, wmma::precision::tf32, Layout> a;
    wmma::fragment<wmma::matrix_b, kTile, kTile, kStep, wmma::precision::tf32, wmma::row_major> b;
    wmma::load_matrix_sync(
        a, left.numbers + (kTransposed ? k * left.stride + row : row * left.stride + k),
        static_cast<unsigned>(left.stride));
    wmma::load_matrix_sync(b, right.numbers + k * right.stride,
                           static_cast<unsigned>(right.stride));
    round_factors(a, sign);
    round_factors(b, 1);
    wmma::mma_sync(sum, a, b, sum);
  }
}

__device__ void put(const Sum& from, float* to, std::int64_t stride) {
  wmma::store_matrix_sync(to, from, static_cast<unsigned>(stride), wmma::mem_row_major);
}
__device__ void get(Sum& to, const float* from, std::int64_t stride) {
  wmma::load_matrix_sync(to, from, static_cast<unsigned>(stride), wmma::mem_row_major);
}
__device__ void scale(Sum& sum, float by) {
#pragma unroll
  for (int i = 0; i < sum.num_elements; ++i) sum.x[i] *= by;
}

template <int kKeyDim>
struct alignas(128) Shared {
  float state[kKeyDim * kStride];
  float written[kChunk * kStride];
};

// A warp's tiles of a state.
template <int kKeyDim>
struct State {
  static constexpr int kTiles = kKeyDim / kTile / kWarps;
  Sum tiles[kTiles];

  __device__ static int row(int tile) {
    return (static_cast<int>(threadIdx.x) / kWarp + tile * kWarps) * kTile;
  }
  __device__ void put(float* to, std::int64_t stride) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      engine::put(tiles[tile], to + row(tile) * stride, stride);
  }
  // Adds the transpose of left [kChunk, kKeyDim], times right.
  __device__ void add(const Left& left, const Right& right, float sign = 1) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      add_product<kChunk, true>(tiles[tile], left, row(tile), right, sign);
  }
};

// One chunk's matrices of this block's head, and this block's columns of the rest.
template <int kKeyDim>
struct Chunk {
  Left reads;
  Left asks;
  Left leaves;
  Left scores;
  const float* new_values;
  std::int64_t values;
  std::int64_t states;
  float through;

  __device__ Chunk(const DeltaScanLaunch& launch, std::int64_t chunk) {
    const std::int64_t index = chunk * launch.heads + blockIdx.y;
    const std::int64_t rows = index * kChunk;
    const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumns;
    reads = {launch.reads + rows * launch.solved_stride, launch.solved_stride};
    asks = {launch.asks + rows * kKeyDim, kKeyDim};
    leaves = {launch.leaves + rows * kKeyDim, kKeyDim};
    scores = {launch.scores + rows * kChunk, kChunk};
    new_values = launch.new_values + rows * launch.solved_stride + column;
    values = rows * launch.value_dim + column;
    states = index * kKeyDim * launch.value_dim + column;
    through = launch.through[index];
  }
};

__device__ int first_row() { return static_cast<int>(threadIdx.x) / kWarp * kTile; }

template <int kKeyDim>
__global__ void __launch_bounds__(kThreads) scan_kernel(DeltaScanLaunch launch) {
  __shared__ Shared<kKeyDim> shared;
  const std::int64_t width = launch.value_dim;
  const Right known = {shared.state, kStride};
  const Right written = {shared.written, kStride};
  const int row = first_row();
  float* const stored = launch.state + blockIdx.y * kKeyDim * width +
                        static_cast<std::int64_t>(blockIdx.x) * kColumns;
  State<kKeyDim> state;
  for (int tile = 0; tile < State<kKeyDim>::kTiles; ++tile)
    get(state.tiles[tile], stored + State<kKeyDim>::row(tile) * width, width);
  for (std::int64_t n = 0; n < launch.chunks; ++n) {
    const Chunk<kKeyDim> at(launch, n);
    if (launch.states != nullptr) state.put(launch.states + at.states, width);
    state.put(shared.state, kStride);
    __syncthreads();
    Sum values;
    get(values, at.new_values + row * launch.solved_stride, launch.solved_stride);
    add_product<kKeyDim, false>(values, at.reads, row, known, -1);
    put(values, shared.written + row * kStride, kStride);
    if (launch.written != nullptr) put(values, launch.written + at.values + row * width, width);
    __syncthreads();
    Sum output;
    wmma::fill_fragment(output, 0.0F);
    add_product<kKeyDim, false>(output, at.asks, row, known);
    add_product<kChunk, false>(output, at.scores, row, written);
    put(output, launch.output + at.values + row * width, width);
    for (Sum& tile : state.tiles) scale(tile, at.through);
    state.add(at.leaves, written);
    __syncthreads();
  }
  state.put(stored, width);
}

template <int kKeyDim>
__global__ void __launch_bounds__(kThreads) scan_back_kernel(DeltaScanLaunch launch) {
  __shared__ Shared<kKeyDim> shared;
  const std::int64_t width = launch.value_dim;
  const Right after = {shared.state, kStride};
  const Right written = {shared.written, kStride};
  const int row = first_row();
  State<kKeyDim> state;
  for (Sum& tile : state.tiles) wmma::fill_fragment(tile, 0.0F);
  for (std::int64_t n = launch.chunks - 1; n >= 0; --n) {
    const Chunk<kKeyDim> at(launch, n);
    const Right gradient = {launch.gradient + at.values, width};
    state.put(launch.states + at.states, width);
    state.put(shared.state, kStride);
    __syncthreads();
    Sum values;
    wmma::fill_fragment(values, 0.0F);
    add_product<kKeyDim, false>(values, at.leaves, row, after);
    add_product<kChunk, true>(values, at.scores, row, gradient);
    put(values, shared.written + row * kStride, kStride);
    put(values, launch.written + at.values + row * width, width);
    for (Sum& tile : state.tiles) scale(tile, at.through);
    state.add(at.asks, gradient);
    __syncthreads();
    state.add(at.reads, written, -1);
  }
}

#else  // no TF32 before Ampere; cuda_scans() is false there

template <int kKeyDim>
__global__ void scan_kernel(DeltaScanLaunch /*launch*/) {}
template <int kKeyDim>
__global__ void scan_back_kernel(DeltaScanLaunch /*launch*/) {}

#endif

// A thread has a column of the inverse, which it computes from the top down.
__global__ void __launch_bounds__(kChunk) unit_inverse_kernel(const float* lower, float* inverse) {
  __shared__ float rows[kChunk * kChunk];
  __shared__ float made[kChunk * kChunk];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kChunk * kChunk;
  const int column = static_cast<int>(threadIdx.x);
  for (int i = column; i < kChunk * kChunk; i += kChunk) rows[i] = lower[first + i];
  __syncthreads();
  for (int row = 0; row < kChunk; ++row) {
    float sum = row == column ? 1.0F : 0.0F;
#pragma unroll 8
    for (int k = 0; k < row; ++k)
      sum = __fmaf_rn(-rows[row * kChunk + k], made[k * kChunk + column], sum);
    made[row * kChunk + column] = sum;
    inverse[first + row * kChunk + column] = sum;
  }
}

template <int kKeyDim>
cudaError_t launch_with(const DeltaScanLaunch& launch, bool back, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(launch.value_dim / kScanColumns),
                  static_cast<unsigned>(launch.heads));
  if (back)
    scan_back_kernel<kKeyDim><<<grid, kThreads, 0, stream>>>(launch);
  else
    scan_kernel<kKeyDim><<<grid, kThreads, 0, stream>>>(launch);
  return cudaGetLastError();
}

cudaError_t launch_scan(const DeltaScanLaunch& launch, bool back, cudaStream_t stream) {
  constexpr std::int64_t kNarrow = 64;
  constexpr std::int64_t kWide = 128;
  if (launch.key_dim == kNarrow) return launch_with<kNarrow>(launch, back, stream);
  return launch_with<kWide>(launch, back, stream);
}

}  // namespace

cudaError_t launch_delta_scan(const DeltaScanLaunch& launch, cudaStream_t stream) {
  return launch_scan(launch, /*back=*/false, stream);
}

cudaError_t launch_delta_scan_back(const DeltaScanLaunch& launch, cudaStream_t stream) {
  return launch_scan(launch, /*back=*/true, stream);
}

cudaError_t launch_unit_inverse(const float* lower, float* inverse, std::int64_t matrices,
                                cudaStream_t stream) {
  if (matrices == 0) return cudaSuccess;
  unit_inverse_kernel<<<static_cast<unsigned>(matrices), kChunk, 0, stream>>>(lower, inverse);
  return cudaGetLastError();
}

}  // namespace sluice::engine
