#include "engine/model/ops/delta_kernels.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "engine/model/kernels/delta_launch.h"
#include "engine/model/kernels/delta_parts_launch.h"
#include "engine/model/kernels/delta_rows_launch.h"
#include "engine/model/kernels/fused_launch.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kPackNumbers = 8;
constexpr std::int64_t kMostGrid = 65535;  // of a grid's second and third dimensions
constexpr std::uintptr_t kPackBytes = 16;

CudaDtype dtype_of(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf ? CudaDtype::kHalf : CudaDtype::kBfloat16;
}

bool is_aligned(const at::Tensor& tensor, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % bytes == 0;
}

// Whether [B, T, C] are rows with one stride, a multiple of `numbers`.
bool are_rows(const at::Tensor& of, std::int64_t numbers) {
  return of.is_cuda() && c10::isReducedFloatingType(of.scalar_type()) && of.stride(2) == 1 &&
         of.stride(1) % numbers == 0 && of.stride(0) == of.size(1) * of.stride(1) &&
         is_aligned(of, static_cast<std::uintptr_t>(numbers) * sizeof(std::uint16_t));
}

const std::int64_t* positions_of(const Documents* documents) {
  return documents == nullptr ? nullptr : documents->positions.const_data_ptr<std::int64_t>();
}

// Undefined if `gradient` is.
at::Tensor partials_for(const at::Tensor& gradient, std::int64_t rows) {
  if (!gradient.defined()) return {};
  return at::empty({rows, gradient.numel()}, gradient.options());
}
float* pointer_of(const at::Tensor& partials) {
  return partials.defined() ? partials.mutable_data_ptr<float>() : nullptr;
}
void add_partials(const at::Tensor& partials, const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  C10_CUDA_CHECK(launch_add_partials({.partials = partials.const_data_ptr<float>(),
                                      .rows = partials.size(0),
                                      .columns = partials.size(1),
                                      .gradient = gradient.mutable_data_ptr<float>()},
                                     c10::cuda::getCurrentCUDAStream()));
}

ConvShape conv_shape(const at::Tensor& input) {
  return {.batch = input.size(0),
          .tokens = input.size(1),
          .channels = input.size(2),
          .dtype = dtype_of(input)};
}

GatedNormShape norm_shape(const at::Tensor& input, const at::Tensor& weight, double epsilon) {
  return {.rows = input.size(0) * input.size(1),
          .heads = input.size(2) / weight.size(0),
          .head_dim = weight.size(0),
          .epsilon = static_cast<float>(epsilon),
          .dtype = dtype_of(input)};
}

}  // namespace

bool cuda_convolves(const at::Tensor& input, const at::Tensor& weight) {
  return are_rows(input, 2) && input.size(2) % 2 == 0 && input.size(0) <= kMostGrid &&
         input.size(1) <= kMostGrid * kConvRun && weight.scalar_type() == input.scalar_type() &&
         weight.is_contiguous() && weight.size(-1) == kConvTaps && is_aligned(weight, kPackBytes);
}

at::Tensor fused_conv_silu(const at::Tensor& input, const at::Tensor& weight,
                           const Documents* documents) {
  const c10::cuda::CUDAGuard guard(input.device());
  at::Tensor output = at::empty(input.sizes(), input.options());
  C10_CUDA_CHECK(launch_conv({.input = input.const_data_ptr(),
                              .input_stride = input.stride(1),
                              .weight = weight.const_data_ptr(),
                              .positions = positions_of(documents),
                              .output = output.mutable_data_ptr()},
                             conv_shape(input), c10::cuda::getCurrentCUDAStream()));
  return output;
}

void fused_conv_silu_backward(const at::Tensor& grad_output, const at::Tensor& input,
                              const at::Tensor& weight, const Documents* documents,
                              const ConvGradients& gradients) {
  const c10::cuda::CUDAGuard guard(input.device());
  const ConvShape shape = conv_shape(input);
  const at::Tensor partials = partials_for(gradients.weight, conv_partial_rows(shape));
  C10_CUDA_CHECK(launch_conv_backward({.input = input.const_data_ptr(),
                                       .input_stride = input.stride(1),
                                       .weight = weight.const_data_ptr(),
                                       .positions = positions_of(documents),
                                       .grad_output = grad_output.const_data_ptr(),
                                       .grad_output_stride = grad_output.stride(1),
                                       .grad_input = gradients.input.mutable_data_ptr(),
                                       .grad_input_stride = gradients.input.stride(1),
                                       .partials = pointer_of(partials)},
                                      shape, c10::cuda::getCurrentCUDAStream()));
  add_partials(partials, gradients.weight);
}

bool cuda_norms_gated(const at::Tensor& input, const at::Tensor& gate, const at::Tensor& weight) {
  constexpr std::int64_t kMostNumbers = 256;
  const std::int64_t lanes = weight.size(0) / kPackNumbers;
  return are_rows(input, kPackNumbers) && input.is_contiguous() && are_rows(gate, kPackNumbers) &&
         weight.scalar_type() == input.scalar_type() && is_aligned(weight, kPackBytes) &&
         weight.size(0) % kPackNumbers == 0 && weight.size(0) <= kMostNumbers &&
         (lanes & (lanes - 1)) == 0;
}

at::Tensor fused_gated_norm(const at::Tensor& input, const at::Tensor& gate,
                            const at::Tensor& weight, double epsilon) {
  const c10::cuda::CUDAGuard guard(input.device());
  at::Tensor output = at::empty_like(input);
  C10_CUDA_CHECK(launch_gated_norm({.input = input.const_data_ptr(),
                                    .gate = gate.const_data_ptr(),
                                    .gate_stride = gate.stride(1),
                                    .weight = weight.const_data_ptr(),
                                    .output = output.mutable_data_ptr()},
                                   norm_shape(input, weight, epsilon),
                                   c10::cuda::getCurrentCUDAStream()));
  return output;
}

void fused_gated_norm_backward(const at::Tensor& input, const at::Tensor& gate,
                               const at::Tensor& weight, double epsilon,
                               const GatedNormGradients& gradients) {
  const c10::cuda::CUDAGuard guard(input.device());
  const GatedNormShape shape = norm_shape(input, weight, epsilon);
  const at::Tensor partials = partials_for(gradients.weight, gated_norm_partial_rows(shape));
  C10_CUDA_CHECK(launch_gated_norm_backward({.input = input.const_data_ptr(),
                                             .gate = gate.const_data_ptr(),
                                             .gate_stride = gate.stride(1),
                                             .weight = weight.const_data_ptr(),
                                             .gradient = gradients.output.mutable_data_ptr(),
                                             .grad_gate = gradients.gate.mutable_data_ptr(),
                                             .grad_gate_stride = gradients.gate.stride(1),
                                             .partials = pointer_of(partials)},
                                            shape, c10::cuda::getCurrentCUDAStream()));
  add_partials(partials, gradients.weight);
}

namespace {

DeltaRowsShape rows_shape(const PartTensors& part) {
  const std::int64_t tokens = part.query.size(1);
  return {.batch = part.query.size(0),
          .tokens = tokens,
          .chunks = (tokens + kScanChunk - 1) / kScanChunk,
          .key_heads = part.key.size(2),
          .groups = part.value.size(2) / part.key.size(2),
          .key_dim = part.key.size(3),
          .value_dim = part.value.size(3),
          .dtype = dtype_of(part.query)};
}

RuleRows rows_of(const PartTensors& part) {
  return {.query = part.query.mutable_data_ptr(),
          .key = part.key.mutable_data_ptr(),
          .value = part.value.mutable_data_ptr(),
          .stride = part.query.stride(1)};
}

RowFactors factors_of(const DeltaFactors& factors) {
  return {.rate = factors.rate.const_data_ptr<float>(),
          .from_begin = factors.from_begin.const_data_ptr<float>(),
          .to_end = factors.to_end.const_data_ptr<float>()};
}

}  // namespace

bool cuda_prepares(const PartTensors& part) {
  constexpr std::int64_t kNarrowKeys = 64;
  constexpr std::int64_t kWideKeys = 128;
  const auto is_packed = [&](const at::Tensor& heads) {
    return heads.stride(3) == 1 && heads.stride(2) == heads.size(3) &&
           heads.stride(1) == part.query.stride(1) && heads.stride(1) % 2 == 0 &&
           heads.stride(0) == heads.size(1) * heads.stride(1) && heads.size(3) % 2 == 0 &&
           is_aligned(heads, 2 * sizeof(std::uint16_t));
  };
  const std::int64_t keys = part.key.size(3);
  return part.query.is_cuda() && c10::isReducedFloatingType(part.query.scalar_type()) &&
         part.query.size(1) >= kScanChunk && (keys == kNarrowKeys || keys == kWideKeys) &&
         is_packed(part.query) && is_packed(part.key) && is_packed(part.value);
}

PreparedRows cuda_prepare(const PartTensors& part, const DeltaFactors& factors) {
  const c10::cuda::CUDAGuard guard(part.query.device());
  const DeltaRowsShape shape = rows_shape(part);
  const auto rows = [&](std::int64_t width) {
    return at::empty({shape.chunks, shape.batch * part.value.size(2), kScanChunk, width},
                     part.query.options().dtype(at::kFloat));
  };
  PreparedRows made = {.query = rows(shape.key_dim),
                       .key = rows(shape.key_dim),
                       .value = rows(shape.value_dim),
                       .wanted = rows(shape.value_dim + shape.key_dim),
                       .asks = rows(shape.key_dim),
                       .leaves = rows(shape.key_dim)};
  C10_CUDA_CHECK(launch_delta_prepare({.rows = rows_of(part),
                                       .factors = factors_of(factors),
                                       .query = made.query.mutable_data_ptr<float>(),
                                       .key = made.key.mutable_data_ptr<float>(),
                                       .value = made.value.mutable_data_ptr<float>(),
                                       .wanted = made.wanted.mutable_data_ptr<float>(),
                                       .asks = made.asks.mutable_data_ptr<float>(),
                                       .leaves = made.leaves.mutable_data_ptr<float>()},
                                      shape, c10::cuda::getCurrentCUDAStream()));
  return made;
}

AlongRows cuda_finish(const PartTensors& part, const DeltaFactors& factors, const ChunkRows& rows,
                      const RowGradients& of, const PartTensors& gradients) {
  const c10::cuda::CUDAGuard guard(part.query.device());
  AlongRows along = {.values = at::empty_like(factors.rate),
                     .keys = at::empty_like(factors.rate),
                     .asks = at::empty_like(factors.rate),
                     .leaves = at::empty_like(factors.rate)};
  C10_CUDA_CHECK(launch_delta_finish({.rows = rows_of(part),
                                      .factors = factors_of(factors),
                                      .query = rows.query.const_data_ptr<float>(),
                                      .key = rows.key.const_data_ptr<float>(),
                                      .value = rows.value.const_data_ptr<float>(),
                                      .wanted = of.wanted.const_data_ptr<float>(),
                                      .asks = of.asks.const_data_ptr<float>(),
                                      .leaves = of.leaves.const_data_ptr<float>(),
                                      .of_query = of.query.const_data_ptr<float>(),
                                      .of_key = of.key.const_data_ptr<float>(),
                                      .along_values = along.values.mutable_data_ptr<float>(),
                                      .along_keys = along.keys.mutable_data_ptr<float>(),
                                      .along_asks = along.asks.mutable_data_ptr<float>(),
                                      .along_leaves = along.leaves.mutable_data_ptr<float>(),
                                      .gradients = rows_of(gradients)},
                                     rows_shape(part), c10::cuda::getCurrentCUDAStream()));
  return along;
}

}  // namespace sluice::engine
