// Products of matrices cast to 8-bit floating-point numbers (fp8_recipe.h), with sums in fp32. On
// CUDA by cuBLASLt (at::_scaled_mm). On the CPU the same numbers are multiplied in fp32, for
// comparison; that is slower than without.
//
// Hostile numbers: an infinity or NaN makes the whole product NaN, because it sets the scale.
//           Numbers below 2^-10 / 448 of the largest (2^-17 / 57344 in e5m2) become 0.
// Bits:     the CPU and CUDA cast to the same bits.
// Errors:   thrown: c10::Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace sluice::engine {

enum class Fp8Format : std::uint8_t { kE4m3, kE5m2 };

// A matrix in fp8 and its scale. A factor of a product needs its summed dimension to be contiguous,
// so there are two copies.
class Fp8Matrix {
 public:
  enum class Copies : std::uint8_t { kByRows, kByColumns, kBoth };

  // `numbers`: [rows, columns], fp32 or 16 bits; on CUDA bf16 or fp16.
  Fp8Matrix(const at::Tensor& numbers, Fp8Format format, Copies copies);

  const at::Tensor& by_rows() const { return by_rows_; }        // [rows, columns]
  const at::Tensor& by_columns() const { return by_columns_; }  // [columns, rows, padded by zeros]
  const at::Tensor& scale() const { return scale_; }            // fp32, a scalar

 private:
  at::Tensor by_rows_;
  at::Tensor by_columns_;
  at::Tensor scale_;
};

// Whether a GPU multiplies fp8: from compute capability 8.9 on.
bool has_fp8(at::Device gpu);

// Whether products of a weight are computed in fp8: on the CPU, or for 16-bit numbers on a
// GPU with has_fp8(), if divides_fp8().
bool has_fp8_product(const at::Tensor& weight);

// `weight` is [out, in], or [in, out] if `in_first`. Rows are all dimensions but the last.
struct Fp8Weight {
  const at::Tensor& numbers;
  bool in_first = false;
};

// input @ weight^T + bias; `bias` may be undefined. Input and weight in e4m3.
at::Tensor fp8_linear(const at::Tensor& input, const Fp8Weight& weight, const at::Tensor& bias);

// One backward pass through fp8_linear(), whose output's gradient is cast once, to e5m2.
class Fp8Backward {
 public:
  // `puts_weight`: put_weight() will be called.
  Fp8Backward(const at::Tensor& grad_output, bool puts_weight);

  at::Tensor input_gradient(const Fp8Weight& weight) const;
  // gradient (fp32, of the weight's shape) += its gradient, or overwrites it. `input` becomes e4m3.
  void put_weight(const at::Tensor& gradient, bool in_first, const at::Tensor& input,
                  bool overwrite) const;

 private:
  at::Tensor grad_output_;
  Fp8Matrix cast_;
};

}  // namespace sluice::engine
