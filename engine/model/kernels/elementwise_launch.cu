#include "engine/model/kernels/activation_number.cuh"
#include "engine/model/kernels/fused_launch.h"
#include "engine/model/kernels/packed_numbers.cuh"

namespace sluice::engine {
namespace {

constexpr int kThreads = 256;

template <typename Function, typename Scalar>
__global__ void __launch_bounds__(kThreads) activation_kernel(ActivationLaunch launch) {
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (pack >= launch.elements / kPack) return;
  Floats x;
  load(static_cast<const Scalar*>(launch.from), pack, x);
#pragma unroll
  for (int i = 0; i < kPack; ++i) x[i] = Function::value(x[i]);
  store(static_cast<Scalar*>(launch.to), pack, x);
}

template <typename Scalar>
__global__ void __launch_bounds__(kThreads) add_residual_kernel(AddResidualLaunch launch) {
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (pack >= launch.elements / kPack) return;
  Floats x;
  Floats residual;
  load(static_cast<const Scalar*>(launch.sum), pack, x);
  load(static_cast<const Scalar*>(launch.residual), pack, residual);
  apply_mask(launch.mask, pack, x);
#pragma unroll
  for (int i = 0; i < kPack; ++i) x[i] += residual[i];
  store(static_cast<Scalar*>(launch.sum), pack, x);
}

// A thread's packs: of both halves of a row, and of their product.
struct GatedPacks {
  std::int64_t gate;
  std::int64_t up;
  std::int64_t product;
  bool exists;

  __device__ GatedPacks(std::int64_t rows, std::int64_t columns) {
    const std::int64_t packs = columns / kPack;
    product = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    exists = product < rows * packs;
    gate = product + product / packs * packs;
    up = gate + packs;
  }
};

// ClampedGate's function of a gate and an up, and its slopes. A NaN stays one.
struct ClampedPair {
  float opened;  // g sigmoid(alpha g)
  float more;    // u + 1
  float gate_slope;
  float up_slope;

  __device__ ClampedPair(float gate, float up, float alpha, float limit) {
    const bool is_high = gate > limit;
    const bool is_far = fabsf(up) > limit;
    const float g = is_high ? limit : gate;
    const float open = logistic(alpha * g);
    opened = g * open;
    more = (is_far ? copysignf(limit, up) : up) + 1.0F;
    gate_slope = is_high ? 0.0F : open * (1.0F + alpha * g * (1.0F - open));
    up_slope = is_far ? 0.0F : opened;
  }
};

template <typename Scalar>
__global__ void __launch_bounds__(kThreads) clamped_gated_kernel(SiluGatedLaunch launch) {
  const GatedPacks at(launch.rows, launch.columns);
  if (!at.exists) return;
  Floats gate;
  Floats up;
  load(static_cast<const Scalar*>(launch.gate_and_up), at.gate, gate);
  load(static_cast<const Scalar*>(launch.gate_and_up), at.up, up);
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const ClampedPair pair(gate[i], up[i], static_cast<float>(launch.clamped.alpha),
                           static_cast<float>(launch.clamped.limit));
    gate[i] = pair.opened * pair.more;
  }
  store(static_cast<Scalar*>(launch.product), at.product, gate);
}

template <typename Scalar>
__global__ void __launch_bounds__(kThreads)
    clamped_gated_backward_kernel(SiluGatedBackwardLaunch launch) {
  const GatedPacks at(launch.rows, launch.columns);
  if (!at.exists) return;
  auto* const gate_and_up = static_cast<Scalar*>(launch.gate_and_up);
  auto* const gradients = static_cast<Scalar*>(launch.gradient);
  Floats gate;
  Floats up;
  Floats gradient;
  load(gate_and_up, at.gate, gate);
  load(gate_and_up, at.up, up);
  load(gradients, at.product, gradient);
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const ClampedPair pair(gate[i], up[i], static_cast<float>(launch.clamped.alpha),
                           static_cast<float>(launch.clamped.limit));
    gate[i] = gradient[i] * pair.more * pair.gate_slope;
    up[i] = gradient[i] * pair.up_slope;
    gradient[i] = pair.opened * pair.more;
  }
  store(gate_and_up, at.gate, gate);
  store(gate_and_up, at.up, up);
  store(gradients, at.product, gradient);
}

template <typename Scalar>
__global__ void __launch_bounds__(kThreads) silu_gated_kernel(SiluGatedLaunch launch) {
  const GatedPacks at(launch.rows, launch.columns);
  if (!at.exists) return;
  Floats gate;
  Floats up;
  load(static_cast<const Scalar*>(launch.gate_and_up), at.gate, gate);
  load(static_cast<const Scalar*>(launch.gate_and_up), at.up, up);
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const float silu = gate[i] * logistic(gate[i]);
    gate[i] = silu * up[i];  // rounded like the backward pass's product
  }
  store(static_cast<Scalar*>(launch.product), at.product, gate);
}

template <typename Scalar>
__global__ void __launch_bounds__(kThreads)
    silu_gated_backward_kernel(SiluGatedBackwardLaunch launch) {
  const GatedPacks at(launch.rows, launch.columns);
  if (!at.exists) return;
  auto* const gate_and_up = static_cast<Scalar*>(launch.gate_and_up);
  auto* const gradients = static_cast<Scalar*>(launch.gradient);
  Floats gate;
  Floats up;
  Floats gradient;
  load(gate_and_up, at.gate, gate);
  load(gate_and_up, at.up, up);
  load(gradients, at.product, gradient);
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const float open = logistic(gate[i]);
    const float silu = gate[i] * open;
    const float slope = open * (1.0F + gate[i] * (1.0F - open));
    gate[i] = gradient[i] * up[i] * slope;
    const float product = silu * up[i];
    up[i] = gradient[i] * silu;
    gradient[i] = product;
  }
  store(gate_and_up, at.gate, gate);
  store(gate_and_up, at.up, up);
  store(gradients, at.product, gradient);
}

template <typename Scalar>
__global__ void __launch_bounds__(kThreads) sum_rows_kernel(SumRowsLaunch launch) {
  const std::int64_t packs = launch.columns / kPack;
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t row = pack / packs;
  if (row >= launch.rows) return;
  Floats sum = {};
  for (std::int64_t term = 0; term < launch.terms; ++term) {
    const std::int64_t place = launch.places[term * launch.rows + row];
    const float weight =
        launch.weights == nullptr ? 1.0F : launch.weights[row * launch.terms + term];
    Floats x;
    load(static_cast<const Scalar*>(launch.from), place * packs + pack % packs, x);
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum[i] += weight * x[i];
  }
  store(static_cast<Scalar*>(launch.to), pack, sum);
}

// The number of blocks for all elements; 0 if there are none.
unsigned blocks_of(std::int64_t elements) {
  return static_cast<unsigned>((elements / kPack + kThreads - 1) / kThreads);
}

template <typename Function>
cudaError_t launch_function(const ActivationLaunch& launch, cudaStream_t stream) {
  with_packed_type(launch.dtype, [&](auto* type) {
    using Scalar = std::remove_pointer_t<decltype(type)>;
    activation_kernel<Function, Scalar>
        <<<blocks_of(launch.elements), kThreads, 0, stream>>>(launch);
  });
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_activation(const ActivationLaunch& launch, cudaStream_t stream) {
  if (launch.elements % kPack != 0) return cudaErrorInvalidValue;
  if (launch.elements == 0) return cudaSuccess;
  return with_activation(launch.activation, [&](auto function) {
    return launch_function<decltype(function)>(launch, stream);
  });
}

cudaError_t launch_silu_gated(const SiluGatedLaunch& launch, cudaStream_t stream) {
  if (launch.columns % kPack != 0) return cudaErrorInvalidValue;
  const std::int64_t elements = launch.rows * launch.columns;
  if (elements == 0) return cudaSuccess;
  with_packed_type(launch.dtype, [&](auto* type) {
    using Scalar = std::remove_pointer_t<decltype(type)>;
    const auto kernel =
        launch.clamped.exists() ? &clamped_gated_kernel<Scalar> : &silu_gated_kernel<Scalar>;
    kernel<<<blocks_of(elements), kThreads, 0, stream>>>(launch);
  });
  return cudaGetLastError();
}

cudaError_t launch_silu_gated_backward(const SiluGatedBackwardLaunch& launch, cudaStream_t stream) {
  if (launch.columns % kPack != 0) return cudaErrorInvalidValue;
  const std::int64_t elements = launch.rows * launch.columns;
  if (elements == 0) return cudaSuccess;
  with_packed_type(launch.dtype, [&](auto* type) {
    using Scalar = std::remove_pointer_t<decltype(type)>;
    const auto kernel = launch.clamped.exists() ? &clamped_gated_backward_kernel<Scalar>
                                                : &silu_gated_backward_kernel<Scalar>;
    kernel<<<blocks_of(elements), kThreads, 0, stream>>>(launch);
  });
  return cudaGetLastError();
}

cudaError_t launch_sum_rows(const SumRowsLaunch& launch, cudaStream_t stream) {
  if (launch.columns % kPack != 0) return cudaErrorInvalidValue;
  const std::int64_t elements = launch.rows * launch.columns;
  if (elements == 0) return cudaSuccess;
  with_packed_type(launch.dtype, [&](auto* type) {
    using Scalar = std::remove_pointer_t<decltype(type)>;
    sum_rows_kernel<Scalar><<<blocks_of(elements), kThreads, 0, stream>>>(launch);
  });
  return cudaGetLastError();
}

cudaError_t launch_add_residual(const AddResidualLaunch& launch, cudaStream_t stream) {
  if (launch.elements % kPack != 0) return cudaErrorInvalidValue;
  if (launch.elements == 0) return cudaSuccess;
  with_packed_type(launch.dtype, [&](auto* type) {
    using Scalar = std::remove_pointer_t<decltype(type)>;
    add_residual_kernel<Scalar><<<blocks_of(launch.elements), kThreads, 0, stream>>>(launch);
  });
  return cudaGetLastError();
}

}  // namespace sluice::engine
