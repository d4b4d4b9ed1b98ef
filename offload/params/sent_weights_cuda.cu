#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "offload/codec_tables.h"
#include "offload/params/sent_weights_cuda.h"

namespace sluice::offload {
namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 8;  // of a thread block; each has a group at a time
constexpr std::uint64_t kMostThreadBlocks = 8192;
constexpr std::uint64_t kGroup = row_of(BlockCodec::kInt8).block;
constexpr int kEach = static_cast<int>(kGroup) / kWarp;  // numbers of a thread
constexpr float kMostInt8 = 127;
constexpr unsigned kAllLanes = 0xFFFFFFFFU;
constexpr std::uint32_t kNan = 0x7FC00000;

template <ParamForm kForm>
struct Number {
  using Type = std::uint16_t;
};
template <>
struct Number<ParamForm::kFp32> {
  using Type = float;
};
template <ParamForm kForm>
struct alignas(sizeof(typename Number<kForm>::Type) * kEach) Pack {
  typename Number<kForm>::Type numbers[kEach];
};

template <ParamForm kForm>
__device__ float value_of(typename Number<kForm>::Type number) {
  if constexpr (kForm == ParamForm::kFp32) {
    return number;
  } else if constexpr (kForm == ParamForm::kFp32AndFp16) {
    return __half2float(__ushort_as_half(number));
  } else {
    return __uint_as_float(static_cast<std::uint32_t>(number) << 16);
  }
}

// The same as split_master().hi or fp16_from_float().
template <ParamForm kForm>
__device__ typename Number<kForm>::Type number_of(float value) {
  const bool is_nan = isnan(value);
  if constexpr (kForm == ParamForm::kFp32) {
    return is_nan ? __uint_as_float(kNan) : value;
  } else if constexpr (kForm == ParamForm::kFp32AndFp16) {
    return is_nan ? 0x7E00 : __half_as_ushort(__float2half_rn(value));
  } else {
    const std::uint32_t bits = is_nan ? kNan : __float_as_uint(value);
    return static_cast<std::uint16_t>((bits >> 16) + ((bits >> 15) & 1));
  }
}

// A piece's elements: those in 8 bits, and all.
struct Extent {
  std::uint64_t encoded;
  std::uint64_t elements;
};

__host__ __device__ Extent extent_of(const CudaSentUnit& unit, std::uint64_t rank) {
  const auto in_piece = [&](std::uint64_t until) {
    const std::uint64_t first = rank * unit.piece_elements;
    const std::uint64_t count = until > first ? until - first : 0;
    return count < unit.piece_elements ? count : unit.piece_elements;
  };
  return {in_piece(unit.encoded), in_piece(unit.elements)};
}

__device__ std::uint64_t first_group() {
  return static_cast<std::uint64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
}
__device__ std::uint64_t group_stride() { return static_cast<std::uint64_t>(gridDim.x) * kWarps; }
__device__ std::uint64_t plain_offset(const Extent& extent) {
  return (extent.encoded + extent.encoded / kGroup * sizeof(float) + 15) / 16 * 16;
}

template <ParamForm kForm>
__global__ void encode(Extent extent, const Pack<kForm>* shard, std::byte* piece) {
  const int lane = threadIdx.x % kWarp;
  auto* const scales = reinterpret_cast<float*>(piece + extent.encoded);
  auto* const plain = reinterpret_cast<Pack<kForm>*>(piece + plain_offset(extent));
  for (std::uint64_t group = first_group(); group < extent.elements / kGroup;
       group += group_stride()) {
    const Pack<kForm> pack = shard[group * kWarp + lane];
    if (group >= extent.encoded / kGroup) {
      plain[(group - extent.encoded / kGroup) * kWarp + lane] = pack;
      continue;
    }
    std::uint32_t most = 0;  // magnitudes are in the order of their bits
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      most = max(most, __float_as_uint(value_of<kForm>(pack.numbers[i])) & 0x7FFFFFFF);
    for (int other = kWarp / 2; other > 0; other /= 2)
      most = max(most, __shfl_xor_sync(kAllLanes, most, other));
    const float scale = __fdiv_rn(__uint_as_float(most), kMostInt8);
    const bool usable = isfinite(__fmul_rn(scale, kMostInt8));
    char4 codes = make_char4(0, 0, 0, 0);
    if (usable && scale > 0) {
      const auto code = [&](int i) {
        const float steps = rintf(__fdiv_rn(value_of<kForm>(pack.numbers[i]), scale));
        return static_cast<signed char>(fminf(fmaxf(steps, -kMostInt8), kMostInt8));
      };
      codes = make_char4(code(0), code(1), code(2), code(3));
    }
    reinterpret_cast<char4*>(piece)[group * kWarp + lane] = codes;
    if (lane == 0) scales[group] = usable ? scale : __uint_as_float(kNan);
  }
}

template <ParamForm kForm>
__global__ void decode(CudaSentUnit unit, const std::byte* pieces, Pack<kForm>* to) {
  const int lane = threadIdx.x % kWarp;
  const std::uint64_t of_piece = unit.piece_elements / kGroup;
  for (std::uint64_t group = first_group(); group < unit.elements / kGroup;
       group += group_stride()) {
    const std::uint64_t rank = group / of_piece;
    const std::uint64_t at = group - rank * of_piece;
    const Extent extent = extent_of(unit, rank);
    const std::byte* const piece = pieces + rank * unit.piece_bytes;
    if (at >= extent.encoded / kGroup) {
      const auto* const plain = reinterpret_cast<const Pack<kForm>*>(piece + plain_offset(extent));
      to[group * kWarp + lane] = plain[(at - extent.encoded / kGroup) * kWarp + lane];
      continue;
    }
    const float scale = reinterpret_cast<const float*>(piece + extent.encoded)[at];
    const char4 codes = reinterpret_cast<const char4*>(piece)[at * kWarp + lane];
    Pack<kForm> pack;
    pack.numbers[0] = number_of<kForm>(__fmul_rn(static_cast<float>(codes.x), scale));
    pack.numbers[1] = number_of<kForm>(__fmul_rn(static_cast<float>(codes.y), scale));
    pack.numbers[2] = number_of<kForm>(__fmul_rn(static_cast<float>(codes.z), scale));
    pack.numbers[3] = number_of<kForm>(__fmul_rn(static_cast<float>(codes.w), scale));
    to[group * kWarp + lane] = pack;
  }
}
static_assert(kEach == 4, "a thread's numbers are a char4");

unsigned blocks_for(std::uint64_t elements) {
  return static_cast<unsigned>(
      std::min((elements / kGroup + kWarps - 1) / kWarps, kMostThreadBlocks));
}

Status launched(const char* what) {
  const cudaError_t result = cudaGetLastError();
  if (result == cudaSuccess) return {};
  return Error(ErrorCode::kInternal, std::string(what) + " failed: " + cudaGetErrorString(result));
}

template <ParamForm kForm>
void launch_encode(const Extent& extent, const void* shard, std::byte* piece, cudaStream_t stream) {
  encode<kForm><<<blocks_for(extent.elements), kWarps * kWarp, 0, stream>>>(
      extent, static_cast<const Pack<kForm>*>(shard), piece);
}

template <ParamForm kForm>
void launch_decode(const CudaSentUnit& unit, const std::byte* pieces, void* to,
                   cudaStream_t stream) {
  decode<kForm><<<blocks_for(unit.elements), kWarps * kWarp, 0, stream>>>(
      unit, pieces, static_cast<Pack<kForm>*>(to));
}

}  // namespace

Status encode_sent_cuda(const CudaSentUnit& unit, int rank, const void* shard, std::byte* piece,
                        void* stream) {
  const Extent extent = extent_of(unit, static_cast<std::uint64_t>(rank));
  if (extent.elements == 0) return {};
  const auto on = static_cast<cudaStream_t>(stream);
  switch (unit.form) {
    case ParamForm::kSplit:
      launch_encode<ParamForm::kSplit>(extent, shard, piece, on);
      break;
    case ParamForm::kFp32:
      launch_encode<ParamForm::kFp32>(extent, shard, piece, on);
      break;
    case ParamForm::kFp32AndFp16:
      launch_encode<ParamForm::kFp32AndFp16>(extent, shard, piece, on);
      break;
  }
  return launched("encoding parameters to send");
}

Status decode_sent_cuda(const CudaSentUnit& unit, const std::byte* pieces, void* to, void* stream) {
  if (unit.elements == 0) return {};
  const auto on = static_cast<cudaStream_t>(stream);
  switch (unit.form) {
    case ParamForm::kSplit:
      launch_decode<ParamForm::kSplit>(unit, pieces, to, on);
      break;
    case ParamForm::kFp32:
      launch_decode<ParamForm::kFp32>(unit, pieces, to, on);
      break;
    case ParamForm::kFp32AndFp16:
      launch_decode<ParamForm::kFp32AndFp16>(unit, pieces, to, on);
      break;
  }
  return launched("expanding gathered parameters");
}

}  // namespace sluice::offload
