#include "engine/model/ops/fused_kernels.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "engine/model/kernels/fused_launch.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kPackNumbers = 8;
constexpr std::uintptr_t kPackBytes = 16;

CudaDtype dtype_of(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf ? CudaDtype::kHalf : CudaDtype::kBfloat16;
}

MaskLaunch mask_launch(const Dropout& dropout) {
  if (!dropout.active()) return {};
  TORCH_INTERNAL_ASSERT(dropout.first_position == 0);  // these kernels count from 0
  const DropoutMask mask = dropout_mask(dropout);
  return {.seed = mask.seed, .threshold = mask.threshold, .scale = static_cast<float>(mask.scale)};
}

ColumnShape column_shape(const at::Tensor& rows) {
  return {.rows = rows.numel() / rows.size(-1), .columns = rows.size(-1), .dtype = dtype_of(rows)};
}

at::Tensor fp32_like(const at::Tensor& tensor, at::IntArrayRef sizes) {
  return at::empty(sizes, tensor.options().dtype(at::kFloat));
}

at::Tensor partials_for(const at::Tensor& rows) {
  const ColumnShape shape = column_shape(rows);
  return fp32_like(rows, {column_partial_rows(shape.rows), shape.columns});
}

void add_partials(const at::Tensor& partials, const at::Tensor& gradient) {
  C10_CUDA_CHECK(launch_add_partials({.partials = partials.const_data_ptr<float>(),
                                      .rows = partials.size(0),
                                      .columns = partials.size(1),
                                      .gradient = gradient.mutable_data_ptr<float>()},
                                     c10::cuda::getCurrentCUDAStream()));
}

bool is_fp32(const at::Tensor& weight) { return weight.scalar_type() == at::kFloat; }

// Null `residual`: the norm of `sum` alone.
FusedNorm norm_forward(const at::Tensor& sum, const at::Tensor* residual, const Dropout& dropout,
                       const NormParameters& parameters) {
  const c10::cuda::CUDAGuard guard(sum.device());
  std::vector<std::int64_t> column = sum.sizes().vec();
  column.back() = 1;
  const bool centred = parameters.bias.defined();
  FusedNorm norm = {at::empty_like(sum), centred ? fp32_like(sum, column) : at::Tensor(),
                    fp32_like(sum, column)};
  const ColumnShape shape = column_shape(sum);
  C10_CUDA_CHECK(
      launch_norm_forward({.input = sum.const_data_ptr(),
                           .residual = residual == nullptr ? nullptr : residual->const_data_ptr(),
                           .mask = mask_launch(dropout),
                           .sum = residual == nullptr ? nullptr : sum.mutable_data_ptr(),
                           .output = norm.output.mutable_data_ptr(),
                           .mean = centred ? norm.mean.mutable_data_ptr<float>() : nullptr,
                           .rstd = norm.rstd.mutable_data_ptr<float>(),
                           .weight = parameters.weight.const_data_ptr(),
                           .bias = centred ? parameters.bias.const_data_ptr() : nullptr,
                           .weight_is_fp32 = is_fp32(parameters.weight),
                           .rows = shape.rows,
                           .columns = shape.columns,
                           .epsilon = static_cast<float>(parameters.epsilon),
                           .dtype = shape.dtype},
                          c10::cuda::getCurrentCUDAStream()));
  return norm;
}

constexpr std::int64_t kRotaryMultiple = 16;

std::int64_t pairs_of(const Rotary& rotary) {
  return static_cast<std::int64_t>(rotary.frequencies.of_pair.size());
}

bool fits_rotary(const at::Tensor& packed, const Rotary& rotary) {
  const HeadShape& heads = rotary.heads;
  return packed.is_cuda() && c10::isReducedFloatingType(packed.scalar_type()) &&
         packed.is_contiguous() && heads.head_dim % kRotaryMultiple == 0 && pairs_of(rotary) > 0 &&
         pairs_of(rotary) % kPackNumbers == 0 && heads.head_dim <= 2 * kMostRotaryPairs &&
         reinterpret_cast<std::uintptr_t>(packed.const_data_ptr()) % kPackBytes == 0;
}

RotaryShape rotary_shape(const at::Tensor& packed, const Rotary& rotary) {
  const HeadShape& heads = rotary.heads;
  return {.rows = packed.numel() / packed.size(-1),
          .heads = heads.heads,
          .kv_heads = heads.kv_heads,
          .head_dim = heads.head_dim,
          .pairs = pairs_of(rotary),
          .dtype = dtype_of(packed)};
}

RotaryTurns rotary_turns(const at::Tensor& packed, const Rotary& rotary) {
  const RotaryStart& place = rotary.place;
  RotaryTurns turns = {
      .scale = rotary.frequencies.scale,
      .positions = place.documents == nullptr
                       ? nullptr
                       : place.documents->positions.const_data_ptr<std::int64_t>(),
      .first = place.first,
      .tokens = packed.size(1),
      .of_rows = rotary.of_rows.defined() ? rotary.of_rows.const_data_ptr<float>() : nullptr};
  std::copy(rotary.frequencies.of_pair.begin(), rotary.frequencies.of_pair.end(),
            std::begin(turns.frequencies));
  return turns;
}

RotaryNorms rotary_norms(const HeadNorms* norms) {
  if (norms == nullptr) return {};
  return {.query = norms->weights.query.const_data_ptr(),
          .key = norms->weights.key.const_data_ptr(),
          .are_fp32 = is_fp32(norms->weights.query),
          .epsilon = static_cast<float>(norms->epsilon)};
}

}  // namespace

bool cuda_fuses(const at::Tensor& rows) {
  return rows.is_cuda() && c10::isReducedFloatingType(rows.scalar_type()) && rows.is_contiguous() &&
         rows.size(-1) % kPackNumbers == 0 && rows.size(-1) <= kWidestNorm &&
         reinterpret_cast<std::uintptr_t>(rows.const_data_ptr()) % kPackBytes == 0;
}

FusedNorm fused_norm(const at::Tensor& input, const NormParameters& parameters) {
  return norm_forward(input, nullptr, {}, parameters);
}

FusedNorm fused_add_and_norm(at::Tensor& sum, const at::Tensor& residual, const Dropout& dropout,
                             const NormParameters& parameters) {
  return norm_forward(sum, &residual, dropout, parameters);
}

void fused_norm_backward(at::Tensor& gradient, const FusedNormBackward& norm,
                         const FusedNormGradients& gradients) {
  const c10::cuda::CUDAGuard guard(gradient.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const ColumnShape shape = column_shape(gradient);
  const bool centred = norm.mean.defined();
  const at::Tensor partials =
      fp32_like(gradient, {norm_partial_rows(shape.rows), (centred ? 2 : 1) * shape.columns});
  C10_CUDA_CHECK(launch_norm_backward(
      {.grad_output = gradient.const_data_ptr(),
       .input = norm.input.const_data_ptr(),
       .residual = norm.residual.defined() ? norm.residual.const_data_ptr() : nullptr,
       .grad_input = gradient.mutable_data_ptr(),
       .mean = centred ? norm.mean.const_data_ptr<float>() : nullptr,
       .rstd = norm.rstd.const_data_ptr<float>(),
       .weight = norm.weight.const_data_ptr(),
       .weight_is_fp32 = is_fp32(norm.weight),
       .partials = partials.mutable_data_ptr<float>(),
       .rows = shape.rows,
       .columns = shape.columns,
       .dtype = shape.dtype},
      stream));
  C10_CUDA_CHECK(launch_add_partials(
      {.partials = partials.const_data_ptr<float>(),
       .rows = partials.size(0),
       .columns = partials.size(1),
       .gradient = gradients.weight.mutable_data_ptr<float>(),
       .second_gradient = centred ? gradients.bias.mutable_data_ptr<float>() : nullptr},
      stream));
}

at::Tensor fused_activation(const at::Tensor& input, Activation activation) {
  const c10::cuda::CUDAGuard guard(input.device());
  at::Tensor output = at::empty_like(input);
  C10_CUDA_CHECK(launch_activation({.from = input.const_data_ptr(),
                                    .to = output.mutable_data_ptr(),
                                    .elements = input.numel(),
                                    .activation = activation,
                                    .dtype = dtype_of(input)},
                                   c10::cuda::getCurrentCUDAStream()));
  return output;
}

void fused_activation_backward(at::Tensor& input, at::Tensor& gradient, Activation activation,
                               const at::Tensor& bias_gradient) {
  const c10::cuda::CUDAGuard guard(input.device());
  const at::Tensor partials = partials_for(input);
  C10_CUDA_CHECK(launch_activation_backward({.input = input.mutable_data_ptr(),
                                             .gradient = gradient.mutable_data_ptr(),
                                             .partials = partials.mutable_data_ptr<float>(),
                                             .activation = activation},
                                            column_shape(input),
                                            c10::cuda::getCurrentCUDAStream()));
  if (bias_gradient.defined()) add_partials(partials, bias_gradient);
}

bool cuda_fuses_halves(const at::Tensor& rows) {
  constexpr std::int64_t kTwo = 2;
  return rows.is_cuda() && c10::isReducedFloatingType(rows.scalar_type()) && rows.is_contiguous() &&
         rows.size(-1) % (kTwo * kPackNumbers) == 0 &&
         reinterpret_cast<std::uintptr_t>(rows.const_data_ptr()) % kPackBytes == 0;
}

at::Tensor fused_gated(const at::Tensor& gate_and_up, const GateRule& rule) {
  const c10::cuda::CUDAGuard guard(gate_and_up.device());
  std::vector<std::int64_t> sizes = gate_and_up.sizes().vec();
  sizes.back() /= 2;
  at::Tensor product = at::empty(sizes, gate_and_up.options());
  C10_CUDA_CHECK(launch_gated({.gate_and_up = gate_and_up.const_data_ptr(),
                               .product = product.mutable_data_ptr(),
                               .rows = product.numel() / product.size(-1),
                               .columns = product.size(-1),
                               .activation = rule.activation,
                               .clamped = rule.clamped,
                               .dtype = dtype_of(product)},
                              c10::cuda::getCurrentCUDAStream()));
  return product;
}

void fused_gated_backward(at::Tensor& gate_and_up, at::Tensor& gradient, const GateRule& rule) {
  const c10::cuda::CUDAGuard guard(gradient.device());
  C10_CUDA_CHECK(launch_gated_backward({.gate_and_up = gate_and_up.mutable_data_ptr(),
                                        .gradient = gradient.mutable_data_ptr(),
                                        .rows = gradient.numel() / gradient.size(-1),
                                        .columns = gradient.size(-1),
                                        .activation = rule.activation,
                                        .clamped = rule.clamped,
                                        .dtype = dtype_of(gradient)},
                                       c10::cuda::getCurrentCUDAStream()));
}

at::Tensor fused_sum_of_rows(const at::Tensor& rows, const at::Tensor& places,
                             const at::Tensor& weights) {
  const c10::cuda::CUDAGuard guard(rows.device());
  TORCH_INTERNAL_ASSERT(places.is_contiguous() && (!weights.defined() || weights.is_contiguous()));
  at::Tensor sums = at::empty({places.size(1), rows.size(1)}, rows.options());
  C10_CUDA_CHECK(
      launch_sum_rows({.from = rows.const_data_ptr(),
                       .places = places.const_data_ptr<std::int64_t>(),
                       .weights = weights.defined() ? weights.const_data_ptr<float>() : nullptr,
                       .to = sums.mutable_data_ptr(),
                       .terms = places.size(0),
                       .rows = sums.size(0),
                       .columns = sums.size(1),
                       .dtype = dtype_of(rows)},
                      c10::cuda::getCurrentCUDAStream()));
  return sums;
}

bool cuda_rotates(const at::Tensor& packed, const Rotary& rotary) {
  return fits_rotary(packed, rotary);
}

bool cuda_rotates_normed(const at::Tensor& packed, const Rotary& rotary) {
  const std::int64_t lanes = rotary.heads.head_dim / kRotaryMultiple;
  return fits_rotary(packed, rotary) && (lanes & (lanes - 1)) == 0;
}

void fused_rotate(const at::Tensor& from, at::Tensor& to, const HeadNorms* norms,
                  const Rotary& rotary) {
  const c10::cuda::CUDAGuard guard(from.device());
  C10_CUDA_CHECK(launch_rotary({.from = from.const_data_ptr(),
                                .to = to.mutable_data_ptr(),
                                .from_columns = from.size(-1),
                                .to_columns = to.size(-1),
                                .shape = rotary_shape(from, rotary),
                                .turns = rotary_turns(from, rotary),
                                .norms = rotary_norms(norms)},
                               c10::cuda::getCurrentCUDAStream()));
}

void fused_rotate_backward(at::Tensor& gradient, const at::Tensor* from, const HeadNorms* norms,
                           const HeadNormWeights* gradients, const Rotary& rotary) {
  const c10::cuda::CUDAGuard guard(gradient.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  RotaryBackwardLaunch launch = {.gradient = gradient.mutable_data_ptr(),
                                 .from = from == nullptr ? nullptr : from->const_data_ptr(),
                                 .columns = gradient.size(-1),
                                 .shape = rotary_shape(gradient, rotary),
                                 .turns = rotary_turns(gradient, rotary),
                                 .norms = rotary_norms(norms)};
  if (norms == nullptr) {
    C10_CUDA_CHECK(launch_rotary_backward(launch, stream));
    return;
  }
  const at::Tensor partials =
      fp32_like(gradient, {rotary_partial_rows(launch.shape.rows), 2 * rotary.heads.head_dim});
  launch.partials = partials.mutable_data_ptr<float>();
  C10_CUDA_CHECK(launch_rotary_backward(launch, stream));
  C10_CUDA_CHECK(launch_add_partials({.partials = launch.partials,
                                      .rows = partials.size(0),
                                      .columns = partials.size(1),
                                      .gradient = gradients->query.mutable_data_ptr<float>(),
                                      .second_gradient = gradients->key.mutable_data_ptr<float>()},
                                     stream));
}

void fused_add_residual(at::Tensor& sum, const at::Tensor& residual, const Dropout& dropout) {
  const c10::cuda::CUDAGuard guard(sum.device());
  C10_CUDA_CHECK(launch_add_residual({.sum = sum.mutable_data_ptr(),
                                      .residual = residual.const_data_ptr(),
                                      .mask = mask_launch(dropout),
                                      .elements = sum.numel(),
                                      .dtype = dtype_of(sum)},
                                     c10::cuda::getCurrentCUDAStream()));
}

at::Tensor fused_dropout_and_sum(const at::Tensor& rows, const Dropout& dropout,
                                 const at::Tensor& bias_gradient) {
  const c10::cuda::CUDAGuard guard(rows.device());
  at::Tensor dropped = dropout.active() ? at::empty_like(rows) : rows;
  const at::Tensor partials = partials_for(rows);
  C10_CUDA_CHECK(launch_masked_sum({.from = rows.const_data_ptr(),
                                    .to = dropout.active() ? dropped.mutable_data_ptr() : nullptr,
                                    .mask = mask_launch(dropout),
                                    .partials = partials.mutable_data_ptr<float>()},
                                   column_shape(rows), c10::cuda::getCurrentCUDAStream()));
  if (bias_gradient.defined()) add_partials(partials, bias_gradient);
  return dropped;
}

void fused_gather(const QkvGradients& parts, at::Tensor& gathered,
                  const at::Tensor& bias_gradient) {
  const c10::cuda::CUDAGuard guard(gathered.device());
  const at::Tensor partials = partials_for(gathered);
  C10_CUDA_CHECK(launch_gather({.first = parts.first.const_data_ptr(),
                                .second = parts.second.const_data_ptr(),
                                .third = parts.third.const_data_ptr(),
                                .first_columns = parts.first.size(-1),
                                .to = gathered.mutable_data_ptr(),
                                .partials = partials.mutable_data_ptr<float>()},
                               column_shape(gathered), c10::cuda::getCurrentCUDAStream()));
  if (bias_gradient.defined()) add_partials(partials, bias_gradient);
}

}  // namespace sluice::engine
