#include <cuda_runtime.h>

#include <string>

#include "offload/sum_codec_cuda.h"

namespace sluice::offload {
namespace {

constexpr int kWarp = 32;
constexpr int kOfAThread = static_cast<int>(kSumCodecBlock) / kWarp;  // consecutive numbers
constexpr int kWarps = 8;                                             // of a thread block
static_assert(kOfAThread == 4);

struct Work {
  std::uint64_t blocks_of_piece;
  std::uint64_t blocks;  // of all pieces
  std::uint64_t stride;
};

__device__ std::uint64_t first_of(const Work& work, std::uint64_t block) {
  return block / work.blocks_of_piece * work.stride + block % work.blocks_of_piece * kSumCodecBlock;
}

template <SumCodec kCodec>
constexpr std::uint64_t kBlockBytes = encoded_sum_bytes(kCodec, kSumCodecBlock);
template <SumCodec kCodec>
constexpr float kMost = most_code(kCodec);
template <SumCodec kCodec>
constexpr int kBits = static_cast<int>(code_bits(kCodec));

__device__ int code_of(float value, float scale, float most) {
  if (!(scale > 0)) return 0;
  return static_cast<int>(fminf(fmaxf(rintf(__fdiv_rn(value, scale)), -most), most));
}

// A warp encodes a block.
template <SumCodec kCodec>
__global__ void encode(Work work, const float* values, std::byte* to) {
  const std::uint64_t block = static_cast<std::uint64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (block >= work.blocks) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float* const own = values + first_of(work, block) + lane * kOfAThread;
  float numbers[kOfAThread];
  std::uint32_t largest = 0;
  for (int i = 0; i < kOfAThread; ++i) {
    numbers[i] = own[i];
    largest = max(largest, __float_as_uint(numbers[i]) & 0x7FFFFFFF);
  }
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    largest = max(largest, __shfl_xor_sync(0xFFFFFFFF, largest, distance));
  constexpr std::uint32_t kInfinity = 0x7F800000;
  const float scale = largest < kInfinity ? __fdiv_rn(__uint_as_float(largest), kMost<kCodec>)
                                          : __uint_as_float(0x7FC00000);
  std::byte* const out = to + block * kBlockBytes<kCodec>;
  if (lane == 0) *reinterpret_cast<float*>(out) = scale;
  std::uint32_t codes = 0;
  constexpr std::uint32_t kMask = (1U << kBits<kCodec>)-1;
  for (int i = 0; i < kOfAThread; ++i)
    codes |= (static_cast<std::uint32_t>(code_of(numbers[i], scale, kMost<kCodec>)) & kMask)
             << kBits<kCodec> * i;
  std::byte* const place = out + sizeof(float) + lane * kOfAThread * kBits<kCodec> / 8;
  if constexpr (kCodec == SumCodec::kInt8)
    *reinterpret_cast<std::uint32_t*>(place) = codes;
  else
    *reinterpret_cast<std::uint16_t*>(place) = static_cast<std::uint16_t>(codes);
}

template <SumCodec kCodec>
__global__ void decode(Work work, const std::byte* from, float* values) {
  const std::uint64_t block = static_cast<std::uint64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (block >= work.blocks) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::byte* const in = from + block * kBlockBytes<kCodec>;
  const float scale = *reinterpret_cast<const float*>(in);
  const std::byte* const place = in + sizeof(float) + lane * kOfAThread * kBits<kCodec> / 8;
  std::uint32_t codes = 0;
  if constexpr (kCodec == SumCodec::kInt8)
    codes = *reinterpret_cast<const std::uint32_t*>(place);
  else
    codes = *reinterpret_cast<const std::uint16_t*>(place);
  float* const own = values + first_of(work, block) + lane * kOfAThread;
  for (int i = 0; i < kOfAThread; ++i) {
    const auto code =
        static_cast<std::int32_t>(codes << (32 - kBits<kCodec> * (i + 1))) >> (32 - kBits<kCodec>);
    own[i] = __fmul_rn(static_cast<float>(code), scale);
  }
}

// Calls launch(work, thread blocks) for pieces that are not empty.
template <typename Launch>
Status launched(const CudaSumPieces& pieces, const Launch& launch) {
  const std::uint64_t of_piece = pieces.elements / kSumCodecBlock;
  const Work work{of_piece, of_piece * pieces.pieces, pieces.stride};
  if (work.blocks == 0) return {};
  launch(work, static_cast<unsigned>((work.blocks + kWarps - 1) / kWarps));
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return {};
  return Error(ErrorCode::kInternal,
               std::string("quantising gradients: ") + cudaGetErrorString(error));
}

}  // namespace

Status encode_sums_cuda(const CudaSumPieces& pieces, const float* values, std::byte* to,
                        void* stream) {
  return launched(pieces, [&](const Work& work, unsigned blocks) {
    auto* const queue = static_cast<cudaStream_t>(stream);
    if (pieces.codec == SumCodec::kInt8)
      encode<SumCodec::kInt8><<<blocks, kWarps * kWarp, 0, queue>>>(work, values, to);
    else
      encode<SumCodec::kInt4><<<blocks, kWarps * kWarp, 0, queue>>>(work, values, to);
  });
}

Status decode_sums_cuda(const CudaSumPieces& pieces, const std::byte* from, float* values,
                        void* stream) {
  return launched(pieces, [&](const Work& work, unsigned blocks) {
    auto* const queue = static_cast<cudaStream_t>(stream);
    if (pieces.codec == SumCodec::kInt8)
      decode<SumCodec::kInt8><<<blocks, kWarps * kWarp, 0, queue>>>(work, from, values);
    else
      decode<SumCodec::kInt4><<<blocks, kWarps * kWarp, 0, queue>>>(work, from, values);
  });
}

}  // namespace sluice::offload
