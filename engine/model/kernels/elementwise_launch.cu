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

// A rule makes a product of a gate and an up. backward() replaces both by their gradients, and the
// product's gradient by the product, rounded like product()'s.

template <typename Function>
struct PlainGate {
  __device__ explicit PlainGate(const ClampedGate& /*clamped*/) {}
  __device__ float product(float gate, float up) const { return Function::value(gate) * up; }
  __device__ void backward(float& gate, float& up, float& gradient) const {
    float opened = gate;
    gate = gradient * up;
    Function::backward(opened, gate);
    const float product = opened * up;
    up = gradient * opened;
    gradient = product;
  }
};

// A NaN stays one.
struct ClampedPair {
  float alpha;
  float limit;

  __device__ explicit ClampedPair(const ClampedGate& clamped)
      : alpha(static_cast<float>(clamped.alpha)), limit(static_cast<float>(clamped.limit)) {}
  __device__ float more(float up) const {
    return (fabsf(up) > limit ? copysignf(limit, up) : up) + 1.0F;
  }
  __device__ float product(float gate, float up) const {
    const float g = gate > limit ? limit : gate;
    return g * logistic(alpha * g) * more(up);
  }
  __device__ void backward(float& gate, float& up, float& gradient) const {
    const bool is_high = gate > limit;
    const float g = is_high ? limit : gate;
    const float open = logistic(alpha * g);
    const float opened = g * open;
    const float plus = more(up);
    const float slope = is_high ? 0.0F : open * (1.0F + alpha * g * (1.0F - open));
    gate = gradient * plus * slope;
    up = gradient * (fabsf(up) > limit ? 0.0F : opened);
    gradient = opened * plus;
  }
};

template <typename Rule, typename Scalar>
__global__ void __launch_bounds__(kThreads) gated_kernel(GatedLaunch launch) {
  const GatedPacks at(launch.rows, launch.columns);
  if (!at.exists) return;
  const Rule rule(launch.clamped);
  Floats gate;
  Floats up;
  load(static_cast<const Scalar*>(launch.gate_and_up), at.gate, gate);
  load(static_cast<const Scalar*>(launch.gate_and_up), at.up, up);
#pragma unroll
  for (int i = 0; i < kPack; ++i) gate[i] = rule.product(gate[i], up[i]);
  store(static_cast<Scalar*>(launch.product), at.product, gate);
}

template <typename Rule, typename Scalar>
__global__ void __launch_bounds__(kThreads) gated_backward_kernel(GatedBackwardLaunch launch) {
  const GatedPacks at(launch.rows, launch.columns);
  if (!at.exists) return;
  const Rule rule(launch.clamped);
  auto* const gate_and_up = static_cast<Scalar*>(launch.gate_and_up);
  auto* const gradients = static_cast<Scalar*>(launch.gradient);
  Floats gate;
  Floats up;
  Floats gradient;
  load(gate_and_up, at.gate, gate);
  load(gate_and_up, at.up, up);
  load(gradients, at.product, gradient);
#pragma unroll
  for (int i = 0; i < kPack; ++i) rule.backward(gate[i], up[i], gradient[i]);
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

// Calls `start` with null pointers of the rule's and the dtype's types, and a number of blocks.
template <typename Launch, typename Start>
cudaError_t launch_rule(const Launch& launch, Start start) {
  if (launch.columns % kPack != 0) return cudaErrorInvalidValue;
  const std::int64_t elements = launch.rows * launch.columns;
  if (elements == 0) return cudaSuccess;
  const auto with_rule = [&](auto* rule) {
    with_packed_type(launch.dtype, [&](auto* type) { start(rule, type, blocks_of(elements)); });
    return cudaGetLastError();
  };
  if (launch.clamped.exists()) return with_rule(static_cast<ClampedPair*>(nullptr));
  return with_activation(launch.activation, [&](auto function) {
    return with_rule(static_cast<PlainGate<decltype(function)>*>(nullptr));
  });
}

}  // namespace

cudaError_t launch_activation(const ActivationLaunch& launch, cudaStream_t stream) {
  if (launch.elements % kPack != 0) return cudaErrorInvalidValue;
  if (launch.elements == 0) return cudaSuccess;
  return with_activation(launch.activation, [&](auto function) {
    return launch_function<decltype(function)>(launch, stream);
  });
}

cudaError_t launch_gated(const GatedLaunch& launch, cudaStream_t stream) {
  return launch_rule(launch, [&](auto* rule, auto* type, unsigned blocks) {
    using Rule = std::remove_pointer_t<decltype(rule)>;
    using Scalar = std::remove_pointer_t<decltype(type)>;
    gated_kernel<Rule, Scalar><<<blocks, kThreads, 0, stream>>>(launch);
  });
}

cudaError_t launch_gated_backward(const GatedBackwardLaunch& launch, cudaStream_t stream) {
  return launch_rule(launch, [&](auto* rule, auto* type, unsigned blocks) {
    using Rule = std::remove_pointer_t<decltype(rule)>;
    using Scalar = std::remove_pointer_t<decltype(type)>;
    gated_backward_kernel<Rule, Scalar><<<blocks, kThreads, 0, stream>>>(launch);
  });
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
