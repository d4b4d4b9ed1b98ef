#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "offload/adamw/adamw_cuda.h"
#include "offload/adamw/sum_nodes.h"

namespace sluice::offload {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kPerLane = 8;           // elements of a row that one lane adds
constexpr int kRowLevel = 8;          // a row is what a warp adds at once
constexpr int kRow = 1 << kRowLevel;  // = kWarp * kPerLane
constexpr int kMaxRows = static_cast<int>(kSumBlockElements) / kRow;

// The nodes of a range: small ones, whole blocks, small ones. One thread block computes each node.
struct Nodes {
  struct Small {
    std::uint64_t offset;  // from the range's first element
    int level;
  };
  Small small[kMaxSideNodes];
  int small_count = 0;
  int small_before_blocks = 0;
  std::uint64_t blocks_offset = 0;
  std::uint64_t blocks = 0;
};

Nodes nodes_of(std::uint64_t first, std::uint64_t elements) {
  Nodes nodes;
  const std::uint64_t end = first + elements;
  for (std::uint64_t at = first; at < end;) {
    const int level = sum_node_level(at, end);
    if (level == kSumBlockLevel) {
      nodes.small_before_blocks = nodes.small_count;
      nodes.blocks_offset = at - first;
      nodes.blocks = (end - at) / kSumBlockElements;
      at += nodes.blocks * kSumBlockElements;
    } else {
      nodes.small[nodes.small_count++] = {at - first, level};
      at += std::uint64_t{1} << level;
    }
  }
  if (nodes.blocks == 0) nodes.small_before_blocks = nodes.small_count;
  return nodes;
}

template <GradType kTo>
__device__ std::uint16_t cast_one(float x) {
  if (x != x) return kTo == GradType::kBf16 ? 0x7FC0 : 0x7E00;
  if (kTo == GradType::kFp16) return __half_as_ushort(__float2half_rn(x));
  const std::uint32_t bits = __float_as_uint(x);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

template <GradType kTo>
__device__ double square_of_cast(float x, std::uint16_t cast) {
  if (kTo == GradType::kBf16) x = __uint_as_float(std::uint32_t{cast} << 16);
  if (kTo == GradType::kFp16) x = __half2float(__ushort_as_half(cast));
  return __dmul_rn(static_cast<double>(x), static_cast<double>(x));
}

// Adds neighbours until one sum is left, in sums[0]. All threads of the block must call it.
__device__ void sum_tree_of(double* sums, int nodes) {
  for (__syncthreads(); nodes > 1; nodes /= 2) {
    const int i = static_cast<int>(threadIdx.x);
    double sum = 0;
    if (i < nodes / 2) sum = __dadd_rn(sums[2 * i], sums[2 * i + 1]);
    __syncthreads();
    if (i < nodes / 2) sums[i] = sum;
    __syncthreads();
  }
}

// The tree over one lane's elements, which the lane loads and casts.
template <GradType kTo, bool kAligned>
__device__ double sum_of_lane(const float* grad, std::uint16_t* out) {
  alignas(16) float x[kPerLane];
  alignas(16) std::uint16_t cast[kPerLane] = {};
  if constexpr (kAligned) {
    reinterpret_cast<float4*>(x)[0] = reinterpret_cast<const float4*>(grad)[0];
    reinterpret_cast<float4*>(x)[1] = reinterpret_cast<const float4*>(grad)[1];
  } else {
    for (int i = 0; i < kPerLane; ++i) x[i] = grad[i];
  }
  double sums[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if constexpr (kTo != GradType::kFp32) cast[i] = cast_one<kTo>(x[i]);
    sums[i] = square_of_cast<kTo>(x[i], cast[i]);
  }
  if constexpr (kTo != GradType::kFp32) {
    if constexpr (kAligned) {
      *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(cast);
    } else {
      for (int i = 0; i < kPerLane; ++i) out[i] = cast[i];
    }
  }
#pragma unroll
  for (int nodes = kPerLane; nodes > 1; nodes /= 2)
#pragma unroll
    for (int i = 0; i < nodes / 2; ++i) sums[i] = __dadd_rn(sums[2 * i], sums[2 * i + 1]);
  return sums[0];
}

template <GradType kTo, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    cast_and_sum_kernel(const float* grad, std::uint16_t* out, Nodes nodes, double* node_sums) {
  __shared__ double sums[kMaxRows];
  const auto before = static_cast<std::uint64_t>(nodes.small_before_blocks);
  std::uint64_t offset;
  int level = kSumBlockLevel;
  if (blockIdx.x >= before && blockIdx.x - before < nodes.blocks) {
    offset = nodes.blocks_offset + (blockIdx.x - before) * kSumBlockElements;
  } else {
    const std::uint64_t skip = blockIdx.x < before ? 0 : nodes.blocks;
    offset = nodes.small[blockIdx.x - skip].offset;
    level = nodes.small[blockIdx.x - skip].level;
  }

  const int thread = static_cast<int>(threadIdx.x);
  int tops = 1 << level;  // nodes left for the tree in shared memory
  if (level < kRowLevel) {
    if (thread < tops) {
      const std::uint64_t at = offset + static_cast<std::uint64_t>(thread);
      const float x = grad[at];
      std::uint16_t cast = 0;
      if constexpr (kTo != GradType::kFp32) out[at] = cast = cast_one<kTo>(x);
      sums[thread] = square_of_cast<kTo>(x, cast);
    }
  } else {
    tops = 1 << (level - kRowLevel);
    const int lane = thread % kWarp;
    for (int row = thread / kWarp; row < tops; row += kThreads / kWarp) {
      const std::uint64_t at = offset + static_cast<std::uint64_t>(row * kRow + lane * kPerLane);
      double sum =
          sum_of_lane<kTo, kAligned>(grad + at, kTo == GradType::kFp32 ? nullptr : out + at);
      // Two neighbours both add the same pair; the order of the operands does not matter.
      for (int distance = 1; distance < kWarp; distance *= 2)
        sum = __dadd_rn(sum, __shfl_xor_sync(0xFFFFFFFF, sum, distance));
      if (lane == 0) sums[row] = sum;
    }
  }
  sum_tree_of(sums, tops);
  if (thread == 0) node_sums[blockIdx.x] = sums[0];
}

template <GradType kTo>
void launch(const GradCastCuda& cast, const Nodes& nodes, cudaStream_t stream) {
  // Nodes of rows begin at multiples of 256 in the unit: if one is aligned in memory, all are.
  const std::uint64_t to_row = (kRow - cast.first % kRow) % kRow;
  const auto at_row = [to_row](const auto* array) {
    return reinterpret_cast<std::uintptr_t>(array) + to_row * sizeof(*array);
  };
  const bool aligned =
      at_row(cast.grad) % 16 == 0 && (kTo == GradType::kFp32 || at_row(cast.out) % 16 == 0);
  const auto grid =
      static_cast<unsigned>(static_cast<std::uint64_t>(nodes.small_count) + nodes.blocks);
  if (aligned)
    cast_and_sum_kernel<kTo, true>
        <<<grid, kThreads, 0, stream>>>(cast.grad, cast.out, nodes, cast.node_sums);
  else
    cast_and_sum_kernel<kTo, false>
        <<<grid, kThreads, 0, stream>>>(cast.grad, cast.out, nodes, cast.node_sums);
}

}  // namespace

Status cast_and_sum_cuda(const GradCastCuda& cast, void* stream) {
  if (cast.elements == 0) return {};
  const Nodes nodes = nodes_of(cast.first, cast.elements);
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  switch (cast.to) {
    case GradType::kFp32:
      launch<GradType::kFp32>(cast, nodes, cuda_stream);
      break;
    case GradType::kBf16:
      launch<GradType::kBf16>(cast, nodes, cuda_stream);
      break;
    case GradType::kFp16:
      launch<GradType::kFp16>(cast, nodes, cuda_stream);
      break;
  }
  const cudaError_t launched = cudaGetLastError();
  if (launched == cudaSuccess) return {};
  return Error(ErrorCode::kInternal,
               std::string("launching the gradient cast failed: ") + cudaGetErrorString(launched));
}

}  // namespace sluice::offload
