#include "engine/model/kernels/delta_launch.h"

namespace sluice::engine {
namespace {

constexpr int kThreads = 256;
constexpr int kChunk = static_cast<int>(kScanChunk);
constexpr int kColumns = static_cast<int>(kScanColumns);
constexpr int kPairs = kColumns / 2;          // of columns; a thread has one
constexpr int kGroups = kThreads / kPairs;    // of rows
constexpr int kChunkRows = kChunk / kGroups;  // a thread's, of a chunk
constexpr int kInner = 16;                    // of a matrix in shared memory at a time
constexpr int kPadding = 4;                   // keeps rows aligned to 16 bytes

template <int kKeyDim>
struct Shared {
  float state[kKeyDim * kColumns];
  float written[kChunk * kColumns];
  float gradient[kChunk * kColumns];
  float tile[kInner * (kKeyDim + kPadding)];
};

// A thread's place in a tile of `rows` per thread.
struct Place {
  __device__ explicit Place(int rows)
      : first_row(static_cast<int>(threadIdx.x) / kPairs * rows),
        column(static_cast<int>(threadIdx.x) % kPairs * 2) {}
  int first_row;
  int column;
};

// Adds matrix @ x, or with kTransposed its transpose @ x, to the thread's rows of the product. x:
// [inner, kColumns] in shared memory.
template <int kRows, bool kTransposed>
__device__ void multiply(float (&sum)[kRows][2], const float* matrix, std::int64_t stride,
                         int inner, const float* x, float* tile) {
  constexpr int kAll = kRows * kGroups;
  constexpr int kStride = kAll + kPadding;
  const Place place(kRows);
  for (int first = 0; first < inner; first += kInner) {
    for (int i = static_cast<int>(threadIdx.x); i < kInner * kAll; i += kThreads) {
      const int k = kTransposed ? i / kAll : i % kInner;
      const int row = kTransposed ? i % kAll : i / kInner;
      tile[k * kStride + row] =
          kTransposed ? matrix[(first + k) * stride + row] : matrix[row * stride + first + k];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kInner; ++k) {
      const float left = x[(first + k) * kColumns + place.column];
      const float right = x[(first + k) * kColumns + place.column + 1];
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const float factor = tile[k * kStride + place.first_row + row];
        sum[row][0] += factor * left;
        sum[row][1] += factor * right;
      }
    }
    __syncthreads();
  }
}

// Copies a thread's rows to shared memory, or to global memory with rows of `stride` numbers.
template <int kRows>
__device__ void put(const float (&from)[kRows][2], float* to, std::int64_t stride) {
  const Place place(kRows);
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    float* const at = to + (place.first_row + row) * stride + place.column;
    at[0] = from[row][0];
    at[1] = from[row][1];
  }
}
template <int kRows>
__device__ void get(float (&to)[kRows][2], const float* from, std::int64_t stride) {
  const Place place(kRows);
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const float* const at = from + (place.first_row + row) * stride + place.column;
    to[row][0] = at[0];
    to[row][1] = at[1];
  }
}
template <int kRows>
__device__ void scale(float (&rows)[kRows][2], float by) {
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    rows[row][0] *= by;
    rows[row][1] *= by;
  }
}

// One chunk's matrices of this block's head, and this block's columns of the rest.
template <int kKeyDim>
struct Chunk {
  __device__ Chunk(const DeltaScanLaunch& launch, std::int64_t chunk) {
    const std::int64_t index = chunk * launch.heads + blockIdx.y;
    const std::int64_t rows = index * kChunk;
    const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumns;
    solved = rows * launch.solved_stride;
    keys = rows * kKeyDim;
    scores = rows * kChunk;
    values = rows * launch.value_dim + column;
    states = index * kKeyDim * launch.value_dim + column;
    through = launch.through[index];
    first_column = column;
  }
  std::int64_t solved;
  std::int64_t keys;
  std::int64_t scores;
  std::int64_t values;
  std::int64_t states;
  std::int64_t first_column;
  float through;
};

template <int kKeyDim>
__global__ void __launch_bounds__(kThreads) scan_kernel(DeltaScanLaunch launch) {
  constexpr int kKeyRows = kKeyDim / kGroups;
  __shared__ Shared<kKeyDim> shared;
  const std::int64_t width = launch.value_dim;
  float* const stored = launch.state + blockIdx.y * kKeyDim * width +
                        static_cast<std::int64_t>(blockIdx.x) * kColumns;
  float state[kKeyRows][2];
  get(state, stored, width);
  put(state, shared.state, kColumns);
  __syncthreads();
  for (std::int64_t n = 0; n < launch.chunks; ++n) {
    const Chunk<kKeyDim> at(launch, n);
    if (launch.states != nullptr) put(state, launch.states + at.states, width);
    float written[kChunkRows][2];
    float known[kChunkRows][2] = {};
    multiply<kChunkRows, false>(known, launch.reads + at.solved, launch.solved_stride, kKeyDim,
                                shared.state, shared.tile);
    get(written, launch.new_values + at.solved + at.first_column, launch.solved_stride);
#pragma unroll
    for (int row = 0; row < kChunkRows; ++row) {
      written[row][0] -= known[row][0];
      written[row][1] -= known[row][1];
    }
    put(written, shared.written, kColumns);
    if (launch.written != nullptr) put(written, launch.written + at.values, width);
    float output[kChunkRows][2] = {};
    multiply<kChunkRows, false>(output, launch.asks + at.keys, kKeyDim, kKeyDim, shared.state,
                                shared.tile);
    multiply<kChunkRows, false>(output, launch.scores + at.scores, kChunk, kChunk, shared.written,
                                shared.tile);
    put(output, launch.output + at.values, width);
    scale(state, at.through);
    multiply<kKeyRows, true>(state, launch.leaves + at.keys, kKeyDim, kChunk, shared.written,
                             shared.tile);
    put(state, shared.state, kColumns);
    __syncthreads();
  }
  put(state, stored, width);
}

template <int kKeyDim>
__global__ void __launch_bounds__(kThreads) scan_back_kernel(DeltaScanLaunch launch) {
  constexpr int kKeyRows = kKeyDim / kGroups;
  __shared__ Shared<kKeyDim> shared;
  const std::int64_t width = launch.value_dim;
  float state[kKeyRows][2] = {};
  put(state, shared.state, kColumns);
  __syncthreads();
  for (std::int64_t n = launch.chunks - 1; n >= 0; --n) {
    const Chunk<kKeyDim> at(launch, n);
    put(state, launch.states + at.states, width);
    float gradient[kChunkRows][2];
    get(gradient, launch.gradient + at.values, width);
    put(gradient, shared.gradient, kColumns);
    float written[kChunkRows][2] = {};
    multiply<kChunkRows, false>(written, launch.leaves + at.keys, kKeyDim, kKeyDim, shared.state,
                                shared.tile);
    multiply<kChunkRows, true>(written, launch.scores + at.scores, kChunk, kChunk, shared.gradient,
                               shared.tile);
    put(written, shared.written, kColumns);
    put(written, launch.written + at.values, width);
    // The state becomes through * state + asks' gradient - reads' written.
    scale(state, -at.through);
    multiply<kKeyRows, true>(state, launch.reads + at.solved, launch.solved_stride, kChunk,
                             shared.written, shared.tile);
    scale(state, -1);
    multiply<kKeyRows, true>(state, launch.asks + at.keys, kKeyDim, kChunk, shared.gradient,
                             shared.tile);
    put(state, shared.state, kColumns);
    __syncthreads();
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

}  // namespace sluice::engine
