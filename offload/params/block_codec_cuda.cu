#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "offload/params/block_codec_cuda.h"

namespace sluice::offload {
namespace {

constexpr int kThreads = 256;
constexpr std::uint64_t kMostThreadBlocks = 8192;
constexpr int kPack = 8;  // numbers per thread and pass

template <BlockCodec kCodec>
constexpr std::uint64_t kPacksOfABlock = row_of(kCodec).block / kPack;
template <BlockCodec kCodec>
constexpr std::uint64_t kBlocksOfAGroup = row_of(kCodec).group;

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

// The tables are an argument, so that they are in constant memory.
struct Work {
  const std::byte* codes;
  const std::byte* scales;
  const ScaleGroup* groups;
  std::uint64_t packs;
  Nf4Tables tables;
};

template <BlockCodec kCodec>
__device__ float scale_of(const Work& work, std::uint64_t block) {
  if constexpr (kCodec == BlockCodec::kNf4Double) {
    const auto code = reinterpret_cast<const std::uint8_t*>(work.scales)[block];
    const ScaleGroup group = work.groups[block / kBlocksOfAGroup<kCodec>];
    return __fadd_rn(__fmul_rn(work.tables.dynamic8[code], group.scale), group.offset);
  } else {
    return reinterpret_cast<const float*>(work.scales)[block];
  }
}

template <BlockCodec kCodec, ParamForm kForm>
__global__ void decode(const Work work, Pack<kForm>* out) {
  __shared__ float nf4[16];
  if (kCodec != BlockCodec::kInt8) {
    if (threadIdx.x < 16) nf4[threadIdx.x] = work.tables.nf4[threadIdx.x];
    __syncthreads();
  }
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * kThreads;
  for (std::uint64_t i = static_cast<std::uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
       i < work.packs; i += stride) {
    const float scale = scale_of<kCodec>(work, i / kPacksOfABlock<kCodec>);
    Pack<kForm> pack;
    if constexpr (kCodec == BlockCodec::kInt8) {
      const int2 bytes = reinterpret_cast<const int2*>(work.codes)[i];
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        const int word = k < kPack / 2 ? bytes.x : bytes.y;
        const auto number = static_cast<std::int8_t>(word >> (8 * (k % (kPack / 2))));
        pack.numbers[k] = number_of<kForm>(static_cast<float>(number) * scale);
      }
    } else {
      const std::uint32_t codes = reinterpret_cast<const std::uint32_t*>(work.codes)[i];
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        const int code = (codes >> (8 * (k / 2) + (k % 2 == 0 ? 4 : 0))) & 15;
        pack.numbers[k] = number_of<kForm>(nf4[code] * scale);
      }
    }
    out[i] = pack;
  }
}

template <BlockCodec kCodec, ParamForm kForm>
void launch(const CudaDecoding& it, cudaStream_t stream) {
  const std::uint64_t packs = it.elements / kPack;
  const std::uint64_t blocks = std::min((packs + kThreads - 1) / kThreads, kMostThreadBlocks);
  decode<kCodec, kForm><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      {it.codes, it.scales, it.groups, packs, kNf4Tables}, static_cast<Pack<kForm>*>(it.out));
}

template <BlockCodec kCodec>
void launch_form(const CudaDecoding& it, cudaStream_t stream) {
  switch (it.form) {
    case ParamForm::kSplit:
      return launch<kCodec, ParamForm::kSplit>(it, stream);
    case ParamForm::kFp32:
      return launch<kCodec, ParamForm::kFp32>(it, stream);
    case ParamForm::kFp32AndFp16:
      return launch<kCodec, ParamForm::kFp32AndFp16>(it, stream);
  }
}

}  // namespace

Status decode_cuda(const CudaDecoding& decoding, void* stream) {
  if (decoding.elements == 0) return {};
  const auto on = static_cast<cudaStream_t>(stream);
  switch (decoding.codec) {
    case BlockCodec::kNone:
      return {};
    case BlockCodec::kInt8:
      launch_form<BlockCodec::kInt8>(decoding, on);
      break;
    case BlockCodec::kNf4:
      launch_form<BlockCodec::kNf4>(decoding, on);
      break;
    case BlockCodec::kNf4Double:
      launch_form<BlockCodec::kNf4Double>(decoding, on);
      break;
  }
  const cudaError_t result = cudaGetLastError();
  if (result == cudaSuccess) return {};
  return Error(ErrorCode::kInternal, std::string("expanding the parameters of a base failed: ") +
                                         cudaGetErrorString(result));
}

}  // namespace sluice::offload
