#include "engine/model/ops/products.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cpu/Utils.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string>
#include <utility>

#include "engine/model/fp32_pieces.h"

namespace sluice::engine {
namespace {

// Whether oneDNN multiplies the type, by LibTorch's own query, which respects ONEDNN_MAX_CPU_ISA.
bool onednn_multiplies(const char* question) {
  if (!at::globalContext().hasMKLDNN()) return false;
  const auto found = c10::Dispatcher::singleton().findSchema({question, ""});
  return found && found->typed<bool()>().call();
}

bool processor_has(const char* feature) {
  const auto features = at::cpu::get_cpu_capabilities();
  const auto found = features.find(feature);
  return found != features.end() && found->second.isBool() && found->second.toBool();
}

bool is_x86() {
#if defined(__x86_64__)
  return true;
#else
  return false;
#endif
}

// Whether oneDNN's variable forbids just the processor's bf16 instructions.
bool is_held_below_bf16() {
  for (const char* const name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr) continue;
    std::string isa = value;
    for (char& c : isa) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return isa == "AVX512_CORE" || isa == "AVX512_CORE_VNNI" || isa == "AVX2_VNNI_2";
  }
  return false;
}

// With AVX-512 but no bf16 instructions, oneDNN claims to multiply bf16, but is four times slower
// than fp32.
bool has_fast_bf16() {
  return onednn_multiplies("mkldnn::_is_mkldnn_bf16_supported") &&
         (!is_x86() ||
          (!is_held_below_bf16() && (processor_has("avx512_bf16") || processor_has("amx_bf16"))));
}

// Passes each piece of the product to `finish`: its destination, and fp32 sums that include
// `addend`.
template <typename Finish>
void multiply_pieces(const at::Tensor& left, const at::Tensor& right, const at::Tensor& addend,
                     const ProductScales& scales, const Finish& finish) {
  const std::int64_t rows = left.size(0);
  const std::int64_t columns = right.size(1);
  const Fp32ProductPiece piece(rows, left.size(1), columns);
  for (std::int64_t column = 0; column < columns; column += piece.columns) {
    const std::int64_t wide = std::min(piece.columns, columns - column);
    const at::Tensor of_right = right.narrow(1, column, wide).to(at::kFloat);
    for (std::int64_t row = 0; row < rows; row += piece.rows) {
      const std::int64_t high = std::min(piece.rows, rows - row);
      const at::Tensor of_left = left.narrow(0, row, high).to(at::kFloat);
      at::Tensor sum;
      if (addend.defined()) {
        at::Tensor added = addend.narrow(-1, column, wide);
        if (added.dim() == 2) added = added.narrow(0, row, high);
        sum = added.to(at::kFloat);
        // In place if that is a copy, and not one row for all.
        if (added.dim() == 2 && added.scalar_type() != at::kFloat)
          sum.addmm_(of_left, of_right, scales.beta, scales.alpha);
        else
          sum = at::addmm(sum, of_left, of_right, scales.beta, scales.alpha);
      } else {
        sum = at::mm(of_left, of_right);
        if (scales.alpha != 1) sum.mul_(scales.alpha);
      }
      finish(row, high, column, wide, sum);
    }
  }
}

void multiply_into(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right,
                   const at::Tensor& addend, const ProductScales& scales) {
  multiply_pieces(
      left, right, addend, scales,
      [&](std::int64_t row, std::int64_t high, std::int64_t column, std::int64_t wide,
          const at::Tensor& sum) { out.narrow(0, row, high).narrow(1, column, wide).copy_(sum); });
}

at::Tensor empty_product(const at::Tensor& left, const at::Tensor& right) {
  return at::empty({left.size(0), right.size(1)}, left.options());
}

// One row with a matrix stored by columns: LibTorch's dot products read the 16-bit numbers once,
// with fp32 sums, and run at memory speed.
bool is_row_of_dots(const at::Tensor& left, const at::Tensor& right) {
  return left.size(0) == 1 && right.stride(0) == 1;
}

}  // namespace

bool has_fast_products(at::ScalarType type) {
  static const bool bf16 = has_fast_bf16();
  static const bool fp16 = onednn_multiplies("mkldnn::_is_mkldnn_fp16_supported");
  if (type == at::kBFloat16) return bf16;
  return type == at::kHalf ? fp16 : true;
}

bool multiplies_in_fp32(const at::Tensor& numbers) {
  return numbers.is_cpu() && !has_fast_products(numbers.scalar_type());
}

at::Tensor product(const at::Tensor& left, const at::Tensor& right) {
  if (!multiplies_in_fp32(left) || is_row_of_dots(left, right)) return at::mm(left, right);
  at::Tensor out = empty_product(left, right);
  multiply_into(out, left, right, {}, {});
  return out;
}

void product_out(at::Tensor& out, const at::Tensor& left, const at::Tensor& right) {
  if (multiplies_in_fp32(left))
    multiply_into(out, left, right, {}, {});
  else
    at::mm_out(out, left, right);
}

at::Tensor product_plus(const at::Tensor& addend, const at::Tensor& left, const at::Tensor& right) {
  if (!multiplies_in_fp32(left)) return at::addmm(addend, left, right);
  at::Tensor out = empty_product(left, right);
  multiply_into(out, left, right, addend, {});
  return out;
}

void add_product(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right,
                 const ProductScales& scales) {
  if (multiplies_in_fp32(left))
    multiply_into(sum, left, right, scales.beta == 0 ? at::Tensor() : sum, scales);
  else
    sum.addmm_(left, right, scales.beta, scales.alpha);
}

void add_transposed_product_in_fp32(const at::Tensor& sum, const at::Tensor& left,
                                    const at::Tensor& right, bool overwrites) {
  const std::int64_t rows = left.size(0);
  if (rows == 0 && overwrites) sum.zero_();
  const std::int64_t piece = fp32_piece_rows(std::max(left.size(1), right.size(1)));
  at::Tensor added = sum;
  for (std::int64_t row = 0; row < rows; row += piece) {
    const std::int64_t high = std::min(piece, rows - row);
    const at::Tensor of_left = left.narrow(0, row, high).to(at::kFloat).t();
    const at::Tensor of_right = right.narrow(0, row, high).to(at::kFloat);
    if (overwrites && row == 0)
      at::mm_out(added, of_left, of_right);
    else
      added.addmm_(of_left, of_right);
  }
}

}  // namespace sluice::engine
