// Eight 16-bit numbers as one 16-byte load or store; the arithmetic is in fp32. Pointers are
// aligned to 16 bytes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "engine/model/counter_random.h"
#include "engine/model/kernels/cuda_launch.h"

namespace sluice::engine {

constexpr int kPack = 8;

using Floats = float[kPack];

__device__ inline float2 widen_pair(__nv_bfloat162 pair) { return __bfloat1622float2(pair); }
__device__ inline float2 widen_pair(__half2 pair) { return __half22float2(pair); }
__device__ inline __nv_bfloat162 narrow_pair(float low, float high, __nv_bfloat162 /*type*/) {
  return __floats2bfloat162_rn(low, high);
}
__device__ inline __half2 narrow_pair(float low, float high, __half2 /*type*/) {
  return __floats2half2_rn(low, high);
}

template <typename Scalar>
using PairOf =
    std::conditional_t<std::is_same<Scalar, __nv_bfloat16>::value, __nv_bfloat162, __half2>;

template <typename Scalar>
struct alignas(16) Pack {
  PairOf<Scalar> pairs[kPack / 2];
};

template <typename Scalar>
__device__ Pack<Scalar> load_pack(const Scalar* from, std::int64_t pack) {
  return reinterpret_cast<const Pack<Scalar>*>(from)[pack];
}

template <typename Scalar>
__device__ void widen(const Pack<Scalar>& from, Floats& to) {
#pragma unroll
  for (int i = 0; i < kPack / 2; ++i) {
    const float2 pair = widen_pair(from.pairs[i]);
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}

template <typename Scalar>
__device__ void load(const Scalar* from, std::int64_t pack, Floats& to) {
  widen(load_pack(from, pack), to);
}

// Weights in the rows' dtype, or in fp32.
template <typename Scalar>
__device__ void load_weight(const void* from, bool is_fp32, std::int64_t pack, Floats& to) {
  if (!is_fp32) return load(static_cast<const Scalar*>(from), pack, to);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 four = static_cast<const float4*>(from)[2 * pack + i];
    to[4 * i] = four.x;
    to[4 * i + 1] = four.y;
    to[4 * i + 2] = four.z;
    to[4 * i + 3] = four.w;
  }
}

template <typename Scalar>
__device__ Pack<Scalar> narrow(const Floats& from) {
  Pack<Scalar> packed;
#pragma unroll
  for (int i = 0; i < kPack / 2; ++i) {
    packed.pairs[i] = narrow_pair(from[2 * i], from[2 * i + 1], PairOf<Scalar>());
  }
  return packed;
}

template <typename Scalar>
__device__ void store(Scalar* to, std::int64_t pack, const Floats& from) {
  reinterpret_cast<Pack<Scalar>*>(to)[pack] = narrow<Scalar>(from);
}

// Applies dropout.h's mask to a tensor's eight elements from 8 * pack on.
__device__ inline void apply_mask(const MaskLaunch& mask, std::int64_t pack, Floats& values) {
  if (mask.threshold == 0) return;
#pragma unroll
  for (int i = 0; i < kPack / 2; ++i) {
    const std::uint64_t bits =
        counter_bits(mask.seed, static_cast<std::uint64_t>(pack * (kPack / 2) + i));
    const bool keep_even = static_cast<std::uint32_t>(bits) >= mask.threshold;
    const bool keep_odd = static_cast<std::uint32_t>(bits >> 32) >= mask.threshold;
    values[2 * i] = keep_even ? values[2 * i] * mask.scale : 0.0F;
    values[2 * i + 1] = keep_odd ? values[2 * i + 1] * mask.scale : 0.0F;
  }
}

// Calls `visit` with a null pointer of a 16-bit dtype's type.
template <typename Visit>
void with_packed_type(CudaDtype dtype, Visit visit) {
  if (dtype == CudaDtype::kHalf) return visit(static_cast<__half*>(nullptr));
  return visit(static_cast<__nv_bfloat16*>(nullptr));
}

}  // namespace sluice::engine
