#include <cuda_fp8.h>

#include <algorithm>

#include "engine/model/kernels/fp8_launch.h"
#include "engine/model/kernels/packed_numbers.cuh"

namespace sluice::engine {
namespace {

constexpr int kThreads = 256;
constexpr int kMostBlocks = 2048;  // of the search for the largest
constexpr int kTile = 64;          // rows and columns of a block
constexpr int kTilePacks = kTile / kPack;
constexpr int kTurnedBytes = 16;  // of a thread's store
constexpr int kPadded = kTile + 4;
constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffU;
constexpr std::uint32_t kMagnitude = 0x7fffffffU;

template <typename Scalar>
__global__ void __launch_bounds__(kThreads) largest_kernel(Fp8CastLaunch launch) {
  const std::int64_t packs = launch.rows * launch.columns / kPack;
  std::uint32_t largest = 0;
  for (std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       pack < packs; pack += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    Floats x;
    load(static_cast<const Scalar*>(launch.from), pack, x);
#pragma unroll
    for (int i = 0; i < kPack; ++i) largest = max(largest, __float_as_uint(x[i]) & kMagnitude);
  }
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2)
    largest = max(largest, __shfl_xor_sync(kAllLanes, largest, lanes));
  if (threadIdx.x % kWarp == 0) atomicMax(launch.largest, largest);
}

// The factor of a cast, and its inverse. Where all are 0, or the largest is too small for the
// factor to be finite, both are 1.
struct CastScale {
  float factor = 1;
  float inverse = 1;

  __device__ CastScale(std::uint32_t largest, bool is_e5m2) {
    const float most = is_e5m2 ? 57344.0F : 448.0F;
    const float bound = __uint_as_float(largest);
    const float wanted = most / bound;
    if (bound == 0.0F || isinf(wanted)) return;
    factor = wanted;
    inverse = bound / most;
  }
};

__device__ std::uint8_t cast(float x, __nv_fp8_interpretation_t format) {
  return static_cast<std::uint8_t>(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, format));
}

template <typename Scalar>
__global__ void __launch_bounds__(kThreads) cast_kernel(Fp8CastLaunch launch) {
  __shared__ std::uint8_t tile[kTile][kPadded];
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const CastScale scale(*launch.largest, launch.is_e5m2);
  const auto format = launch.is_e5m2 ? __NV_E5M2 : __NV_E4M3;
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *launch.scale = scale.inverse;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kTilePacks; i += kThreads) {
    const int row = i / kTilePacks;
    const int column = i % kTilePacks * kPack;
    alignas(kPack) std::uint8_t bytes[kPack] = {};
    const std::int64_t at =
        (first_row + row) * launch.columns + first_column + column;  // of the matrix
    if (first_row + row < launch.rows && first_column + column < launch.columns) {
      Floats x;
      load(static_cast<const Scalar*>(launch.from), at / kPack, x);
#pragma unroll
      for (int j = 0; j < kPack; ++j) bytes[j] = cast(x[j] * scale.factor, format);
      if (launch.to != nullptr)
        *reinterpret_cast<uint2*>(launch.to + at) = *reinterpret_cast<const uint2*>(bytes);
    }
    if (launch.turned != nullptr)
#pragma unroll
      for (int j = 0; j < kPack; j += 4)
        *reinterpret_cast<std::uint32_t*>(&tile[row][column + j]) =
            *reinterpret_cast<const std::uint32_t*>(bytes + j);
  }
  if (launch.turned == nullptr) return;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kTile / kTurnedBytes; i += kThreads) {
    const int column = i / (kTile / kTurnedBytes);
    const int row = i % (kTile / kTurnedBytes) * kTurnedBytes;
    if (first_column + column >= launch.columns || first_row + row >= launch.padded_rows) continue;
    alignas(kTurnedBytes) std::uint8_t bytes[kTurnedBytes];
#pragma unroll
    for (int j = 0; j < kTurnedBytes; ++j) bytes[j] = tile[row + j][column];
    *reinterpret_cast<uint4*>(launch.turned + (first_column + column) * launch.padded_rows +
                              first_row + row) = *reinterpret_cast<const uint4*>(bytes);
  }
}

}  // namespace

cudaError_t launch_fp8_largest(const Fp8CastLaunch& launch, cudaStream_t stream) {
  if (launch.columns % kPack != 0) return cudaErrorInvalidValue;
  const cudaError_t cleared = cudaMemsetAsync(launch.largest, 0, sizeof(*launch.largest), stream);
  const std::int64_t packs = launch.rows * launch.columns / kPack;
  if (cleared != cudaSuccess || packs == 0) return cleared;
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>((packs + kThreads - 1) / kThreads, kMostBlocks));
  with_packed_type(launch.dtype, [&](auto* type) {
    using Scalar = std::remove_pointer_t<decltype(type)>;
    largest_kernel<Scalar><<<blocks, kThreads, 0, stream>>>(launch);
  });
  return cudaGetLastError();
}

cudaError_t launch_fp8_cast(const Fp8CastLaunch& launch, cudaStream_t stream) {
  if (launch.columns % kPack != 0 || launch.padded_rows % kTurnedBytes != 0)
    return cudaErrorInvalidValue;
  const std::int64_t rows = std::max(launch.rows, launch.padded_rows);
  if (rows == 0 || launch.columns == 0) return cudaSuccess;
  const dim3 blocks(static_cast<unsigned>((launch.columns + kTile - 1) / kTile),
                    static_cast<unsigned>((rows + kTile - 1) / kTile));
  with_packed_type(launch.dtype, [&](auto* type) {
    using Scalar = std::remove_pointer_t<decltype(type)>;
    cast_kernel<Scalar><<<blocks, kThreads, 0, stream>>>(launch);
  });
  return cudaGetLastError();
}

}  // namespace sluice::engine
