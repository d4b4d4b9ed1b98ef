// The matrix products of all families: sums in fp32, rounded once.
//
// Not every processor multiplies 16-bit numbers fast. Without instructions for a type, LibTorch's
// products of it take 4 to 170 times as long as in fp32. On such processors the same 16-bit numbers
// are copied to fp32, in bounded pieces (fp32_pieces.h), and multiplied there. The choice depends
// only on the processor; oneDNN's variable ONEDNN_MAX_CPU_ISA can restrict it.
#pragma once

#include <ATen/core/Tensor.h>

namespace sluice::engine {

// Whether the processor multiplies numbers of this type at least as fast as fp32.
bool has_fast_products(at::ScalarType type);

// Whether `numbers` are on the CPU and multiplied from fp32 copies.
bool multiplies_in_fp32(const at::Tensor& numbers);

// left @ right, for matrices of one type.
at::Tensor product(const at::Tensor& left, const at::Tensor& right);
void product_out(at::Tensor& out, const at::Tensor& left, const at::Tensor& right);

// addend + left @ right; the addend is a row, or has the product's shape.
at::Tensor product_plus(const at::Tensor& addend, const at::Tensor& left, const at::Tensor& right);

struct ProductScales {
  double beta = 1;
  double alpha = 1;
};
// sum = beta * sum + alpha * left @ right; with beta 0, `sum` is not read.
void add_product(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right,
                 const ProductScales& scales = {});

// sum (fp32) += left^T @ right, for numbers that are multiplied in fp32; `overwrites` replaces
// `sum` instead.
void add_transposed_product_in_fp32(const at::Tensor& sum, const at::Tensor& left,
                                    const at::Tensor& right, bool overwrites);

}  // namespace sluice::engine
