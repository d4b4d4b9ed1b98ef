#include "engine/model/kernels/delta_launch.h"
#include "engine/model/kernels/delta_parts_launch.h"
#include "engine/model/kernels/packed_numbers.cuh"

namespace sluice::engine {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int kStepNumbers = 2 * kWarp;  // a lane has two neighbours of each step
constexpr std::int64_t kNarrow = kStepNumbers;
constexpr std::int64_t kWide = 2 * kStepNumbers;
constexpr float kLengthEpsilon = 1e-6F;

// A warp has a row of a key head. The same bits in each lane.
__device__ float warp_sum(float value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xFFFFFFFFU, value, distance);
  return value;
}

__device__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }

// Where a warp's row of a key head is.
struct RowPlace {
  std::int64_t key_head;
  std::int64_t row;  // in its chunk
  std::int64_t batch;
  std::int64_t chunk;
  std::int64_t token;  // of all sequences
  bool exists;
  bool has_token;

  __device__ explicit RowPlace(const DeltaRowsShape& shape) {
    std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
    key_head = item % shape.key_heads;
    item /= shape.key_heads;
    row = item % kScanChunk;
    item /= kScanChunk;
    batch = item % shape.batch;
    chunk = item / shape.batch;
    exists = chunk < shape.chunks;
    const std::int64_t of_sequence = chunk * kScanChunk + row;
    has_token = exists && of_sequence < shape.tokens;
    token = batch * shape.tokens + of_sequence;
  }
  // Among all chunked rows.
  __device__ std::int64_t chunked(const DeltaRowsShape& shape, std::int64_t group) const {
    const std::int64_t heads = shape.key_heads * shape.groups;
    const std::int64_t head = key_head * shape.groups + group;
    return ((chunk * shape.batch + batch) * heads + head) * kScanChunk + row;
  }
};

template <typename Scalar>
__device__ float2 read(const void* rows, std::int64_t at) {
  return widen_pair(
      *reinterpret_cast<const PairOf<Scalar>*>(static_cast<const Scalar*>(rows) + at));
}
template <typename Scalar>
__device__ void write(void* rows, std::int64_t at, float2 value) {
  *reinterpret_cast<PairOf<Scalar>*>(static_cast<Scalar*>(rows) + at) =
      narrow_pair(value.x, value.y, PairOf<Scalar>());
}
__device__ float2 read(const float* rows, std::int64_t at) {
  return *reinterpret_cast<const float2*>(rows + at);
}
__device__ void write(float* rows, std::int64_t at, float2 value, float by) {
  *reinterpret_cast<float2*>(rows + at) = {value.x * by, value.y * by};
}
__device__ void add(float2& sum, float2 value, float by) {
  sum.x = __fmaf_rn(value.x, by, sum.x);
  sum.y = __fmaf_rn(value.y, by, sum.y);
}
__device__ float dot(float2 a, float2 b, float sum) {
  return __fmaf_rn(a.y, b.y, __fmaf_rn(a.x, b.x, sum));
}

// A lane's part of a row of a key head.
template <int kSteps>
struct KeyRow {
  float2 of[kSteps] = {};

  __device__ static std::int64_t column(int step) { return step * kStepNumbers + 2 * lane(); }
};

// A row divided by its length.
template <typename Scalar, int kSteps>
struct UnitRow : KeyRow<kSteps> {
  float inverse;  // of the length

  __device__ UnitRow(const void* rows, std::int64_t first, bool exists) {
    float squares = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (exists) this->of[step] = read<Scalar>(rows, first + this->column(step));
      squares = dot(this->of[step], this->of[step], squares);
    }
    inverse = 1.0F / sqrtf(warp_sum(squares) + kLengthEpsilon);
#pragma unroll
    for (float2& pair : this->of) pair = {pair.x * inverse, pair.y * inverse};
  }

  // Writes the row's gradient, from that of the result.
  __device__ void write_gradient(const KeyRow<kSteps>& gradient, void* rows,
                                 std::int64_t first) const {
    float along = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) along = dot(this->of[step], gradient.of[step], along);
    along = warp_sum(along);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      float2 made = gradient.of[step];
      add(made, this->of[step], -along);
      write<Scalar>(rows, first + this->column(step), {made.x * inverse, made.y * inverse});
    }
  }
};

__device__ float scale_of(const DeltaRowsShape& shape) {
  return 1.0F / sqrtf(static_cast<float>(shape.key_dim));
}

template <typename Scalar, int kSteps>
__global__ void __launch_bounds__(kThreads)
    prepare_kernel(DeltaPrepareLaunch launch, DeltaRowsShape shape) {
  const RowPlace place(shape);
  if (!place.exists) return;
  const std::int64_t keys = shape.key_dim;
  const std::int64_t values = shape.value_dim;
  const std::int64_t first = place.token * launch.rows.stride;
  const std::int64_t first_key = first + place.key_head * keys;
  const UnitRow<Scalar, kSteps> query(launch.rows.query, first_key, place.has_token);
  const UnitRow<Scalar, kSteps> key(launch.rows.key, first_key, place.has_token);
  const float scale = scale_of(shape);
  for (std::int64_t group = 0; group < shape.groups; ++group) {
    const std::int64_t row = place.chunked(shape, group);
    const float rate = launch.factors.rate[row];
    const float from_begin = launch.factors.from_begin[row];
    const float to_end = launch.factors.to_end[row];
    float* const wanted = launch.wanted + row * (values + keys);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const std::int64_t at = row * keys + query.column(step);
      write(launch.query, at, query.of[step], scale);
      write(launch.asks, at, query.of[step], scale * from_begin);
      write(launch.key, at, key.of[step], 1);
      write(launch.leaves, at, key.of[step], to_end);
      write(wanted, values + key.column(step), key.of[step], rate * from_begin);
    }
    const std::int64_t head = place.key_head * shape.groups + group;
    for (std::int64_t column = 2 * lane(); column < values; column += kStepNumbers) {
      float2 value = {0, 0};
      if (place.has_token) value = read<Scalar>(launch.rows.value, first + head * values + column);
      write(launch.value, row * values + column, value, 1);
      write(wanted, column, value, rate);
    }
  }
}

template <typename Scalar, int kSteps>
__global__ void __launch_bounds__(kThreads)
    finish_kernel(DeltaFinishLaunch launch, DeltaRowsShape shape) {
  const RowPlace place(shape);
  if (!place.exists) return;
  const std::int64_t keys = shape.key_dim;
  const std::int64_t values = shape.value_dim;
  const float scale = scale_of(shape);
  KeyRow<kSteps> of_query;
  KeyRow<kSteps> of_key;
  for (std::int64_t group = 0; group < shape.groups; ++group) {
    const std::int64_t row = place.chunked(shape, group);
    const float rate = launch.factors.rate[row];
    const float from_begin = launch.factors.from_begin[row];
    const float to_end = launch.factors.to_end[row];
    const float* const wanted = launch.wanted + row * (values + keys);
    float along_keys = 0;
    float along_asks = 0;
    float along_leaves = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const std::int64_t at = row * keys + of_key.column(step);
      const float2 key = read(launch.key, at);
      const float2 of_wanted = read(wanted, values + of_key.column(step));
      const float2 of_asks = read(launch.asks, at);
      const float2 of_leaves = read(launch.leaves, at);
      along_keys = dot(of_wanted, key, along_keys);
      along_asks = dot(of_asks, read(launch.query, at), along_asks);
      along_leaves = dot(of_leaves, key, along_leaves);
      add(of_query.of[step], read(launch.of_query, at), scale);
      add(of_query.of[step], of_asks, scale * from_begin);
      add(of_key.of[step], read(launch.of_key, at), 1);
      add(of_key.of[step], of_wanted, rate * from_begin);
      add(of_key.of[step], of_leaves, to_end);
    }
    float along_values = 0;
    const std::int64_t first =
        place.token * launch.gradients.stride + (place.key_head * shape.groups + group) * values;
    for (std::int64_t column = 2 * lane(); column < values; column += kStepNumbers) {
      const float2 of_wanted = read(wanted, column);
      along_values = dot(of_wanted, read(launch.value, row * values + column), along_values);
      if (place.has_token)
        write<Scalar>(launch.gradients.value, first + column,
                      {of_wanted.x * rate, of_wanted.y * rate});
    }
    along_values = warp_sum(along_values);
    along_keys = warp_sum(along_keys);
    along_asks = warp_sum(along_asks);
    along_leaves = warp_sum(along_leaves);
    if (lane() != 0) continue;
    launch.along_values[row] = along_values;
    launch.along_keys[row] = along_keys;
    launch.along_asks[row] = along_asks;
    launch.along_leaves[row] = along_leaves;
  }
  if (!place.has_token) return;
  const std::int64_t from = place.token * launch.rows.stride + place.key_head * keys;
  const std::int64_t to = place.token * launch.gradients.stride + place.key_head * keys;
  const UnitRow<Scalar, kSteps> query(launch.rows.query, from, true);
  query.write_gradient(of_query, launch.gradients.query, to);
  const UnitRow<Scalar, kSteps> key(launch.rows.key, from, true);
  key.write_gradient(of_key, launch.gradients.key, to);
}

// Calls `start` with a null pointer of the dtype's type, a key's steps, and a number of blocks.
template <typename Start>
cudaError_t launch_over_rows(const DeltaRowsShape& shape, Start start) {
  if ((shape.key_dim != kNarrow && shape.key_dim != kWide) || shape.value_dim % 2 != 0)
    return cudaErrorInvalidValue;
  const std::int64_t rows = shape.chunks * shape.batch * kScanChunk * shape.key_heads;
  if (rows == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((rows * kWarp + kThreads - 1) / kThreads);
  with_packed_type(shape.dtype, [&](auto* type) {
    if (shape.key_dim == kNarrow)
      start(type, std::integral_constant<int, 1>(), blocks);
    else
      start(type, std::integral_constant<int, 2>(), blocks);
  });
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_delta_prepare(const DeltaPrepareLaunch& launch, const DeltaRowsShape& shape,
                                 cudaStream_t stream) {
  return launch_over_rows(shape, [&](auto* type, auto steps, unsigned blocks) {
    using Scalar = std::remove_pointer_t<decltype(type)>;
    prepare_kernel<Scalar, decltype(steps)::value><<<blocks, kThreads, 0, stream>>>(launch, shape);
  });
}

cudaError_t launch_delta_finish(const DeltaFinishLaunch& launch, const DeltaRowsShape& shape,
                                cudaStream_t stream) {
  return launch_over_rows(shape, [&](auto* type, auto steps, unsigned blocks) {
    using Scalar = std::remove_pointer_t<decltype(type)>;
    finish_kernel<Scalar, decltype(steps)::value><<<blocks, kThreads, 0, stream>>>(launch, shape);
  });
}

}  // namespace sluice::engine
