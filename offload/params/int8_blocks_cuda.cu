#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "offload/params/int8_blocks_cuda.h"

namespace sluice::offload {
namespace {

constexpr int kThreads = 256;
constexpr std::uint64_t kMostThreadBlocks = 8192;
constexpr int kPack = 8;                     // numbers per thread and pass
constexpr int kPacksOfABlock = 128 / kPack;  // kInt8Block

template <ParamForm kForm>
struct Number {
  using Type = std::uint16_t;
};
template <>
struct Number<ParamForm::kFp32> {
  using Type = float;
};

// The same as split_master().hi or fp16_from_float().
template <ParamForm kForm>
__device__ typename Number<kForm>::Type number_of(float value) {
  if constexpr (kForm == ParamForm::kFp32) {
    return value;
  } else if constexpr (kForm == ParamForm::kFp32AndFp16) {
    return __half_as_ushort(__float2half_rn(value));
  } else {
    const std::uint32_t bits = __float_as_uint(value);
    return static_cast<std::uint16_t>((bits >> 16) + ((bits >> 15) & 1));
  }
}

template <ParamForm kForm>
struct alignas(16) Pack {
  typename Number<kForm>::Type numbers[kPack];
};

template <ParamForm kForm>
__global__ void dequantise(const std::int8_t* quantised, const float* scales, std::uint64_t packs,
                           Pack<kForm>* out) {
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * kThreads;
  for (std::uint64_t i = static_cast<std::uint64_t>(blockIdx.x) * kThreads + threadIdx.x; i < packs;
       i += stride) {
    const int2 bytes = reinterpret_cast<const int2*>(quantised)[i];
    const float scale = scales[i / kPacksOfABlock];
    Pack<kForm> pack;
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      const int word = k < kPack / 2 ? bytes.x : bytes.y;
      const auto number = static_cast<std::int8_t>(word >> (8 * (k % (kPack / 2))));
      pack.numbers[k] = number_of<kForm>(static_cast<float>(number) * scale);
    }
    out[i] = pack;
  }
}

template <ParamForm kForm>
void launch(const Int8Unpacking& it, cudaStream_t stream) {
  const std::uint64_t packs = it.elements / kPack;
  const std::uint64_t blocks = std::min((packs + kThreads - 1) / kThreads, kMostThreadBlocks);
  dequantise<kForm><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      it.quantised, it.scales, packs, static_cast<Pack<kForm>*>(it.out));
}

}  // namespace

Status dequantise_int8_cuda(const Int8Unpacking& unpacking, void* stream) {
  if (unpacking.elements == 0) return {};
  const auto on = static_cast<cudaStream_t>(stream);
  switch (unpacking.form) {
    case ParamForm::kSplit:
      launch<ParamForm::kSplit>(unpacking, on);
      break;
    case ParamForm::kFp32:
      launch<ParamForm::kFp32>(unpacking, on);
      break;
    case ParamForm::kFp32AndFp16:
      launch<ParamForm::kFp32AndFp16>(unpacking, on);
      break;
  }
  const cudaError_t result = cudaGetLastError();
  if (result == cudaSuccess) return {};
  return Error(
      ErrorCode::kInternal,
      std::string("making 16-bit parameters of 8-bit ones failed: ") + cudaGetErrorString(result));
}

}  // namespace sluice::offload
