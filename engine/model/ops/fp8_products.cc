#include "engine/model/ops/fp8_products.h"

#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "engine/model/fp8_recipe.h"
#include "engine/model/ops/cuda_kernels.h"

namespace sluice::engine {
namespace {

at::ScalarType type_of(Fp8Format format) {
  return format == Fp8Format::kE4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
}

at::Tensor as_rows(const at::Tensor& tensor) {
  return tensor.reshape({-1, tensor.size(-1)}).contiguous();
}

at::Tensor with_rows_of(const at::Tensor& rows, c10::IntArrayRef like) {
  std::vector<std::int64_t> shape = like.vec();
  shape.back() = rows.size(-1);
  return rows.view(shape);
}

// The largest absolute value on the CPU; NaN if there is one.
float largest_of(const at::Tensor& numbers) {
  if (numbers.numel() == 0) return 0;
  const auto [least, most] = at::aminmax(numbers);
  return at::maximum(least.neg(), most).to(at::kFloat).item<float>();
}

std::int64_t padded(std::int64_t rows) {
  return (rows + kFp8Multiple - 1) / kFp8Multiple * kFp8Multiple;
}

// left @ right^T: [m, k] and [n, k].
struct Factor {
  const at::Tensor& numbers;
  const at::Tensor& scale;
};

at::Tensor wide(const Factor& factor) { return factor.numbers.to(at::kFloat).mul_(factor.scale); }

// On the CPU; `right` is wide(). The result is fp32.
at::Tensor wide_product(const Factor& left, const at::Tensor& right) {
  return at::mm(wide(left), right.t());
}

enum class Sums : std::uint8_t { kFast, kExact };

at::Tensor multiply(const Factor& left, const Factor& right, const at::Tensor& bias,
                    at::ScalarType type, Sums sums) {
  if (left.numbers.is_cuda())
    return at::_scaled_mm(left.numbers, right.numbers.t(), left.scale, right.scale,
                          bias.defined() ? std::optional(bias) : std::nullopt, {}, type,
                          /*use_fast_accum=*/sums == Sums::kFast);
  at::Tensor product = wide_product(left, wide(right));
  if (bias.defined()) product.add_(bias);
  return product.to(type);
}

// sum (fp32) += left @ right^T, or overwrites it, by pieces of rows. The product of a piece is
// still in the GPU's cache when it is added.
void multiply_into(const at::Tensor& sum, const Factor& left, const Factor& right, bool overwrite) {
  const bool on_gpu = left.numbers.is_cuda();
  const at::Tensor other = on_gpu ? right.numbers.t() : wide(right);
  const std::int64_t all = sum.size(0);
  const std::int64_t most = fp8_piece_rows(sum.size(1));
  for (std::int64_t first = 0; first < all; first += most) {
    const std::int64_t rows = std::min(most, all - first);
    const at::Tensor numbers = left.numbers.narrow(0, first, rows);
    at::Tensor to = sum.narrow(0, first, rows);
    if (on_gpu && overwrite) {
      at::_scaled_mm_out(to, numbers, other, left.scale, right.scale, {}, {}, at::kFloat);
      continue;
    }
    const at::Tensor made =
        on_gpu ? at::_scaled_mm(numbers, other, left.scale, right.scale, {}, {}, at::kFloat)
               : wide_product({numbers, left.scale}, other);
    if (overwrite)
      to.copy_(made);
    else
      to.add_(made);
  }
}

}  // namespace

Fp8Matrix::Fp8Matrix(const at::Tensor& numbers, Fp8Format format, Copies copies) {
  const bool rows = copies != Copies::kByColumns;
  const bool columns = copies != Copies::kByRows;
  const at::ScalarType type = type_of(format);
  const std::int64_t length = padded(numbers.size(0));
  if (numbers.is_cuda()) {
    const at::TensorOptions options = numbers.options().dtype(type);
    scale_ = at::empty({}, options.dtype(at::kFloat));
    if (rows) by_rows_ = at::empty(numbers.sizes(), options);
    if (columns) by_columns_ = at::empty({numbers.size(1), length}, options);
    cuda_cast_to_fp8(numbers.contiguous(), scale_, by_rows_, by_columns_);
    return;
  }
  const float most = format == Fp8Format::kE4m3 ? 448.0F : 57344.0F;
  const float largest = largest_of(numbers);
  const float wanted = most / largest;
  const bool has_scale = largest != 0 && !std::isinf(wanted);
  scale_ = at::full({}, has_scale ? largest / most : 1.0F, numbers.options().dtype(at::kFloat));
  const at::Tensor cast = numbers.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true)
                              .mul_(has_scale ? wanted : 1.0F)
                              .clamp_(-most, most)
                              .to(type);
  if (rows) by_rows_ = cast;
  if (!columns) return;
  by_columns_ = at::zeros({numbers.size(1), length}, cast.options());
  by_columns_.narrow(1, 0, numbers.size(0)).copy_(cast.t());
}

bool has_fp8(at::Device gpu) {
  const int major = cuda_major(gpu);
  return major > 8 || (major == 8 && cuda_minor(gpu) >= 9);
}

bool has_fp8_product(const at::Tensor& weight) {
  if (!divides_fp8(weight.size(0), weight.size(1))) return false;
  if (!weight.is_cuda()) return true;
  return c10::isReducedFloatingType(weight.scalar_type()) && has_fp8(weight.device());
}

at::Tensor fp8_linear(const at::Tensor& input, const Fp8Weight& weight, const at::Tensor& bias) {
  const Fp8Matrix left(as_rows(input), Fp8Format::kE4m3, Fp8Matrix::Copies::kByRows);
  const Fp8Matrix right(
      weight.numbers, Fp8Format::kE4m3,
      weight.in_first ? Fp8Matrix::Copies::kByColumns : Fp8Matrix::Copies::kByRows);
  return with_rows_of(
      multiply({left.by_rows(), left.scale()},
               {weight.in_first ? right.by_columns() : right.by_rows(), right.scale()}, bias,
               input.scalar_type(), Sums::kFast),
      input.sizes());
}

Fp8Backward::Fp8Backward(const at::Tensor& grad_output, bool puts_weight)
    : grad_output_(grad_output),
      cast_(as_rows(grad_output), Fp8Format::kE5m2,
            puts_weight ? Fp8Matrix::Copies::kBoth : Fp8Matrix::Copies::kByRows) {}

at::Tensor Fp8Backward::input_gradient(const Fp8Weight& weight) const {
  const Fp8Matrix right(
      weight.numbers, Fp8Format::kE4m3,
      weight.in_first ? Fp8Matrix::Copies::kByRows : Fp8Matrix::Copies::kByColumns);
  return with_rows_of(
      multiply({cast_.by_rows(), cast_.scale()},
               {weight.in_first ? right.by_rows() : right.by_columns(), right.scale()}, {},
               grad_output_.scalar_type(), Sums::kExact),
      grad_output_.sizes());
}

void Fp8Backward::put_weight(const at::Tensor& gradient, bool in_first, const at::Tensor& input,
                             bool overwrite) const {
  const Fp8Matrix cast(as_rows(input), Fp8Format::kE4m3, Fp8Matrix::Copies::kByColumns);
  const Factor of_input = {cast.by_columns(), cast.scale()};
  const Factor of_output = {cast_.by_columns(), cast_.scale()};
  if (in_first)
    multiply_into(gradient, of_input, of_output, overwrite);
  else
    multiply_into(gradient, of_output, of_input, overwrite);
}

}  // namespace sluice::engine
