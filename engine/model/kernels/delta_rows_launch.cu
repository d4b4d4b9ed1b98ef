#include "engine/model/kernels/activation_number.cuh"
#include "engine/model/kernels/delta_rows_launch.h"
#include "engine/model/kernels/packed_numbers.cuh"

namespace sluice::engine {
namespace {

// ---- convolution: a thread has two channels of a run of tokens

constexpr int kTaps = static_cast<int>(kConvTaps);
constexpr int kConvThreads = 128;

// Numbers of two channels: at(d) is that of d tokens before the current one.
struct Window {
  float2 of[kTaps] = {};

  __device__ float2& at(int distance) { return of[distance]; }
  __device__ void next() {
#pragma unroll
    for (int d = kTaps - 1; d > 0; --d) of[d] = of[d - 1];
    of[0] = {0, 0};
  }
};

// A thread's channels and its run of tokens.
template <typename Scalar>
struct ConvPlace {
  std::int64_t pair;
  std::int64_t first;
  std::int64_t end;
  const std::int64_t* positions;  // of the sequence, or null
  std::int64_t first_row;         // of the sequence
  Floats weight;

  __device__ ConvPlace(const ConvShape& shape, const void* weights, const std::int64_t* all) {
    pair = static_cast<std::int64_t>(blockIdx.x) * kConvThreads + threadIdx.x;
    first = blockIdx.y * kConvRun;
    end = min(first + kConvRun, shape.tokens);
    first_row = blockIdx.z * shape.tokens;
    positions = all == nullptr ? nullptr : all + first_row;
    if (pair < shape.channels / 2) load(static_cast<const Scalar*>(weights), pair, weight);
  }

  __device__ float2 tap(int distance) const {
    return {weight[kTaps - 1 - distance], weight[2 * kTaps - 1 - distance]};
  }
  // How many tokens before this one are in its document.
  __device__ std::int64_t reach(std::int64_t token) const {
    return positions == nullptr ? token : min(token, positions[token]);
  }
  __device__ float2 read(const void* rows, std::int64_t stride, std::int64_t token) const {
    const auto* const pairs = static_cast<const PairOf<Scalar>*>(rows);
    return widen_pair(__ldg(pairs + (first_row + token) * (stride / 2) + pair));
  }
  __device__ void write(void* rows, std::int64_t stride, std::int64_t token, float2 value) const {
    static_cast<PairOf<Scalar>*>(rows)[(first_row + token) * (stride / 2) + pair] =
        narrow_pair(value.x, value.y, PairOf<Scalar>());
  }
  // The numbers before the run.
  __device__ void begin(Window& x, const void* rows, std::int64_t stride) const {
#pragma unroll
    for (int d = 1; d < kTaps; ++d)
      if (first >= d) x.at(d) = read(rows, stride, first - d);
  }
  // The convolution at a token, rounded.
  __device__ float2 sum(Window& x, std::int64_t reach) const {
    float2 sum = {x.at(0).x * tap(0).x, x.at(0).y * tap(0).y};
#pragma unroll
    for (int d = 1; d < kTaps; ++d) {
      if (d > reach) continue;
      sum.x = __fmaf_rn(x.at(d).x, tap(d).x, sum.x);
      sum.y = __fmaf_rn(x.at(d).y, tap(d).y, sum.y);
    }
    return widen_pair(narrow_pair(sum.x, sum.y, PairOf<Scalar>()));
  }
};

template <typename Scalar>
__global__ void __launch_bounds__(kConvThreads) conv_kernel(ConvLaunch launch, ConvShape shape) {
  const ConvPlace<Scalar> place(shape, launch.weight, launch.positions);
  if (place.pair >= shape.channels / 2) return;
  Window x;
  place.begin(x, launch.input, launch.input_stride);
#pragma unroll 4
  for (std::int64_t token = place.first; token < place.end; ++token) {
    x.at(0) = place.read(launch.input, launch.input_stride, token);
    const float2 sum = place.sum(x, place.reach(token));
    place.write(launch.output, shape.channels, token, {Silu::value(sum.x), Silu::value(sum.y)});
    x.next();
  }
}

// A token's input gradient is complete three tokens later, perhaps in the next run.
template <typename Scalar>
__global__ void __launch_bounds__(kConvThreads)
    conv_backward_kernel(ConvBackwardLaunch launch, ConvShape shape) {
  const ConvPlace<Scalar> place(shape, launch.weight, launch.positions);
  if (place.pair >= shape.channels / 2) return;
  Window x;
  Window grad_input;
  Floats grad_weight = {};
  place.begin(x, launch.input, launch.input_stride);
#pragma unroll 2
  for (std::int64_t token = place.first; token < place.end + kTaps - 1; ++token) {
    if (token < shape.tokens) {
      x.at(0) = place.read(launch.input, launch.input_stride, token);
      const std::int64_t reach = place.reach(token);
      float2 sum = place.sum(x, reach);
      float2 gradient = place.read(launch.grad_output, launch.grad_output_stride, token);
      Silu::backward(sum.x, gradient.x);
      Silu::backward(sum.y, gradient.y);
#pragma unroll
      for (int d = 0; d < kTaps; ++d) {
        if (d > reach) continue;
        float2& earlier = grad_input.at(d);
        earlier.x = __fmaf_rn(gradient.x, place.tap(d).x, earlier.x);
        earlier.y = __fmaf_rn(gradient.y, place.tap(d).y, earlier.y);
        if (token >= place.end) continue;
        float& low = grad_weight[kTaps - 1 - d];
        float& high = grad_weight[2 * kTaps - 1 - d];
        low = __fmaf_rn(gradient.x, x.at(d).x, low);
        high = __fmaf_rn(gradient.y, x.at(d).y, high);
      }
    }
    const std::int64_t done = token - (kTaps - 1);
    if (done >= place.first)
      place.write(launch.grad_input, launch.grad_input_stride, done, grad_input.at(kTaps - 1));
    x.next();
    grad_input.next();
  }
  if (launch.partials == nullptr) return;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
  auto* const sums = reinterpret_cast<float4*>(launch.partials + row * shape.channels * kTaps);
  sums[2 * place.pair] = {grad_weight[0], grad_weight[1], grad_weight[2], grad_weight[3]};
  sums[2 * place.pair + 1] = {grad_weight[4], grad_weight[5], grad_weight[6], grad_weight[7]};
}

std::int64_t runs_of(const ConvShape& shape) { return (shape.tokens + kConvRun - 1) / kConvRun; }

template <typename Start>
cudaError_t launch_over_runs(const ConvShape& shape, Start start) {
  if (shape.channels % 2 != 0) return cudaErrorInvalidValue;
  if (shape.batch * shape.tokens * shape.channels == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((shape.channels / 2 + kConvThreads - 1) / kConvThreads),
                  static_cast<unsigned>(runs_of(shape)), static_cast<unsigned>(shape.batch));
  with_packed_type(shape.dtype, [&](auto* type) { start(type, grid); });
  return cudaGetLastError();
}

// ---- gated norm: a team of lanes has a head of a row, a pack per lane

constexpr int kNormThreads = 256;
constexpr std::int64_t kMostLanes = 32;
constexpr std::int64_t kMostNormBlocks = 1024;
constexpr std::int64_t kHeadsPerTeam = 4;  // in backward, if there are so many

// The sum over a team, a power of two of lanes: the same bits in each.
__device__ float team_sum(float value) {
  for (unsigned distance = blockDim.x / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xFFFFFFFFU, value, static_cast<int>(distance));
  return value;
}

__device__ float product_sum(const Floats& a, const Floats& b) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPack; ++i) sum = __fmaf_rn(a[i], b[i], sum);
  return sum;
}

// The packs of a head of a row.
struct HeadPlace {
  std::int64_t row;
  std::int64_t pack;  // in the row
  bool exists;

  __device__ HeadPlace(const GatedNormShape& shape, std::int64_t item)
      : row(item / shape.heads),
        pack(item % shape.heads * blockDim.x + threadIdx.x),
        exists(item < shape.rows * shape.heads) {}
  __device__ std::int64_t in(std::int64_t stride) const { return row * (stride / kPack) + pack; }
};

// Replaces x by its norm; returns the reciprocal deviation.
__device__ float normalize(Floats& x, const GatedNormShape& shape) {
  const float squares = team_sum(product_sum(x, x));
  const float rstd = 1.0F / sqrtf(squares / static_cast<float>(shape.head_dim) + shape.epsilon);
#pragma unroll
  for (int i = 0; i < kPack; ++i) x[i] *= rstd;
  return rstd;
}

template <typename Scalar>
__global__ void __launch_bounds__(kNormThreads)
    gated_norm_kernel(GatedNormLaunch launch, GatedNormShape shape) {
  const std::int64_t width = shape.heads * shape.head_dim;
  const HeadPlace place(shape, static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y);
  Floats x = {};
  Floats gate = {};
  if (place.exists) {
    load(static_cast<const Scalar*>(launch.input), place.in(width), x);
    load(static_cast<const Scalar*>(launch.gate), place.in(launch.gate_stride), gate);
  }
  normalize(x, shape);
  if (!place.exists) return;
  Floats weight;
  load(static_cast<const Scalar*>(launch.weight), threadIdx.x, weight);
#pragma unroll
  for (int i = 0; i < kPack; ++i) x[i] *= weight[i] * Silu::value(gate[i]);
  store(static_cast<Scalar*>(launch.output), place.in(width), x);
}

// The sums over a block's teams, in ascending order.
__device__ void write_partials(const Floats& sums, float* partials) {
  __shared__ float of_team[kNormThreads * kPack];
  const auto columns = static_cast<int>(blockDim.x) * kPack;
#pragma unroll
  for (int i = 0; i < kPack; ++i)
    of_team[static_cast<int>(threadIdx.y) * columns + static_cast<int>(threadIdx.x) * kPack + i] =
        sums[i];
  __syncthreads();
  const auto thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  for (int column = thread; column < columns; column += kNormThreads) {
    float total = 0;
    for (int team = 0; team < static_cast<int>(blockDim.y); ++team)
      total += of_team[team * columns + column];
    partials[static_cast<std::int64_t>(blockIdx.x) * columns + column] = total;
  }
}

template <typename Scalar>
__global__ void __launch_bounds__(kNormThreads)
    gated_norm_backward_kernel(GatedNormBackwardLaunch launch, GatedNormShape shape) {
  const std::int64_t width = shape.heads * shape.head_dim;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.y;
  Floats weight;
  load(static_cast<const Scalar*>(launch.weight), threadIdx.x, weight);
  Floats sums = {};
  // All teams make the same number of rounds, because their sums need whole warps.
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.y;
       first < shape.rows * shape.heads; first += step) {
    const HeadPlace place(shape, first + threadIdx.y);
    Floats x = {};
    Floats gate = {};
    Floats gradient = {};
    if (place.exists) {
      load(static_cast<const Scalar*>(launch.input), place.in(width), x);
      load(static_cast<const Scalar*>(launch.gate), place.in(launch.gate_stride), gate);
      load(static_cast<const Scalar*>(launch.gradient), place.in(width), gradient);
    }
    const float rstd = normalize(x, shape);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      float of_gate = gradient[i] * x[i] * weight[i];
      Silu::backward(gate[i], of_gate);  // the gate becomes its SiLU
      gradient[i] *= gate[i];
      gate[i] = of_gate;
      sums[i] = __fmaf_rn(gradient[i], x[i], sums[i]);
      gradient[i] *= weight[i];
    }
    const float along = team_sum(product_sum(gradient, x)) / static_cast<float>(shape.head_dim);
    if (!place.exists) continue;
#pragma unroll
    for (int i = 0; i < kPack; ++i) gradient[i] = __fmaf_rn(-x[i], along, gradient[i]) * rstd;
    store(static_cast<Scalar*>(launch.gradient), place.in(width), gradient);
    store(static_cast<Scalar*>(launch.grad_gate), place.in(launch.grad_gate_stride), gate);
  }
  if (launch.partials != nullptr) write_partials(sums, launch.partials);
}

std::int64_t teams_of(const GatedNormShape& shape) {
  return kNormThreads / (shape.head_dim / kPack);
}

std::int64_t norm_blocks(const GatedNormShape& shape, std::int64_t heads_per_team) {
  const std::int64_t of_block = teams_of(shape) * heads_per_team;
  return (shape.rows * shape.heads + of_block - 1) / of_block;
}

template <typename Start>
cudaError_t launch_over_heads(const GatedNormShape& shape, Start start) {
  const std::int64_t lanes = shape.head_dim / kPack;
  if (shape.head_dim % kPack != 0 || lanes < 1 || lanes > kMostLanes || (lanes & (lanes - 1)) != 0)
    return cudaErrorInvalidValue;
  if (shape.rows * shape.heads == 0) return cudaSuccess;
  const dim3 threads(static_cast<unsigned>(lanes), static_cast<unsigned>(teams_of(shape)));
  with_packed_type(shape.dtype, [&](auto* type) { start(type, threads); });
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_conv(const ConvLaunch& launch, const ConvShape& shape, cudaStream_t stream) {
  return launch_over_runs(shape, [&](auto* type, dim3 grid) {
    using Scalar = std::remove_pointer_t<decltype(type)>;
    conv_kernel<Scalar><<<grid, kConvThreads, 0, stream>>>(launch, shape);
  });
}

cudaError_t launch_conv_backward(const ConvBackwardLaunch& launch, const ConvShape& shape,
                                 cudaStream_t stream) {
  return launch_over_runs(shape, [&](auto* type, dim3 grid) {
    using Scalar = std::remove_pointer_t<decltype(type)>;
    conv_backward_kernel<Scalar><<<grid, kConvThreads, 0, stream>>>(launch, shape);
  });
}

std::int64_t conv_partial_rows(const ConvShape& shape) { return shape.batch * runs_of(shape); }

cudaError_t launch_gated_norm(const GatedNormLaunch& launch, const GatedNormShape& shape,
                              cudaStream_t stream) {
  return launch_over_heads(shape, [&](auto* type, dim3 threads) {
    using Scalar = std::remove_pointer_t<decltype(type)>;
    const auto blocks = static_cast<unsigned>(norm_blocks(shape, 1));
    gated_norm_kernel<Scalar><<<blocks, threads, 0, stream>>>(launch, shape);
  });
}

cudaError_t launch_gated_norm_backward(const GatedNormBackwardLaunch& launch,
                                       const GatedNormShape& shape, cudaStream_t stream) {
  return launch_over_heads(shape, [&](auto* type, dim3 threads) {
    using Scalar = std::remove_pointer_t<decltype(type)>;
    const auto blocks = static_cast<unsigned>(gated_norm_partial_rows(shape));
    gated_norm_backward_kernel<Scalar><<<blocks, threads, 0, stream>>>(launch, shape);
  });
}

std::int64_t gated_norm_partial_rows(const GatedNormShape& shape) {
  const std::int64_t wanted = norm_blocks(shape, kHeadsPerTeam);
  return wanted < kMostNormBlocks ? wanted : kMostNormBlocks;
}

}  // namespace sluice::engine
