// Products and attention of 16-bit numbers on the CPU, compared with fp64. CTest runs the program
// again with oneDNN limited to AVX2, which multiplies them from fp32 copies.
#include "engine/model/ops/products.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "engine/model/fp32_pieces.h"
#include "engine/model/ops/attention.h"
#include "engine/model/ops/linear.h"

namespace sluice::engine {
namespace {

class Products : public testing::TestWithParam<at::ScalarType> {
 protected:
  Products() { at::manual_seed(19); }

  static at::Tensor numbers(at::IntArrayRef shape) { return at::randn(shape).to(GetParam()); }
  static at::Tensor fp64(const at::Tensor& numbers) { return numbers.to(at::kDouble); }

  // Half a unit in the last place, plus the error of fp32 sums.
  static double rounding() { return (GetParam() == at::kBFloat16 ? 0x1p-8 : 0x1p-11) * 1.01; }
  // `terms`: for each result, the sum of the absolute values of its terms.
  static void expect_rounded_once(const at::Tensor& made, const at::Tensor& exact,
                                  const at::Tensor& terms) {
    EXPECT_EQ(made.scalar_type(), GetParam());
    const at::Tensor allowed = exact.abs() * rounding() + terms * 0x1p-20 + 0x1p-24;
    EXPECT_LT((fp64(made) - exact).abs().div(allowed).max().item<double>(), 1);
  }
  static void expect_product(const at::Tensor& made, const at::Tensor& left,
                             const at::Tensor& right) {
    expect_rounded_once(made, at::matmul(fp64(left), fp64(right)),
                        at::matmul(fp64(left).abs(), fp64(right).abs()));
  }
};

INSTANTIATE_TEST_SUITE_P(Types, Products, testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& it) { return std::string(c10::toString(it.param)); });

TEST(ProductsHere, AreFastWithoutSixteenBits) {
  EXPECT_TRUE(has_fast_products(at::kFloat));
  EXPECT_TRUE(has_fast_products(at::kDouble));
}

TEST(ProductsHere, GoThroughFp32WhereOneDnnIsHeldToAvx2) {
  const char* const held = std::getenv("ONEDNN_MAX_CPU_ISA");
  if (held == nullptr || !std::string_view(held).starts_with("AVX2"))
    GTEST_SKIP() << "ONEDNN_MAX_CPU_ISA is not AVX2";
#if !defined(__x86_64__)
  GTEST_SKIP() << "it holds processors of x86-64 alone";
#endif
  EXPECT_FALSE(has_fast_products(at::kBFloat16));
  EXPECT_FALSE(has_fast_products(at::kHalf));
  EXPECT_TRUE(multiplies_in_fp32(at::ones({1}, at::kBFloat16)));
  EXPECT_FALSE(multiplies_in_fp32(at::ones({1})));
}

// For any bf16 instructions of the processor.
TEST(ProductsHere, GoThroughFp32WhereOneDnnIsHeldToAvx512WithoutBf16) {
  const char* const held = std::getenv("ONEDNN_MAX_CPU_ISA");
  if (held == nullptr || std::string_view(held) != "AVX512_CORE")
    GTEST_SKIP() << "ONEDNN_MAX_CPU_ISA is not AVX512_CORE";
#if !defined(__x86_64__)
  GTEST_SKIP() << "it holds processors of x86-64 alone";
#endif
  EXPECT_FALSE(has_fast_products(at::kBFloat16));
}

TEST(Fp32Pieces, CoverEverythingWithinTheirBound) {
  for (const std::int64_t rows : {1L, 7L, 20'000L})
    for (const std::int64_t inner : {1L, 4096L, 20'000'000L})
      for (const std::int64_t columns : {1L, 50'257L}) {
        const Fp32ProductPiece piece(rows, inner, columns);
        EXPECT_GE(piece.rows, 1);
        EXPECT_LE(piece.rows, rows);
        EXPECT_GE(piece.columns, 1);
        EXPECT_LE(piece.columns, columns);
        EXPECT_LE(piece.numbers, 3 * std::max(kFp32PieceNumbers, inner));
      }
  const Fp32AttentionPiece all(4, 8, 1024 * 64);
  EXPECT_EQ(std::pair(all.sequences, all.kv_heads), std::pair(std::int64_t{4}, std::int64_t{8}));
  const Fp32AttentionPiece some(4, 8, 8192 * 128);
  EXPECT_EQ(std::pair(some.sequences, some.kv_heads), std::pair(std::int64_t{1}, std::int64_t{8}));
  const Fp32AttentionPiece heads(4, 8, 4 * 8192 * 128);
  EXPECT_EQ(std::pair(heads.sequences, heads.kv_heads),
            std::pair(std::int64_t{1}, std::int64_t{2}));
  EXPECT_LE(heads.numbers, kFp32AttentionNumbers);
}

TEST_P(Products, AreRoundedOnceForEveryLayout) {
  for (const auto& [rows, inner, columns] :
       {std::tuple(1, 700, 33), std::tuple(1, 4096, 1), std::tuple(5, 64, 48),
        std::tuple(300, 17, 5), std::tuple(2, 8800, 1000), std::tuple(1000, 8800, 2)}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << inner << " x " << columns);
    const at::Tensor left = numbers({rows, inner});
    const at::Tensor right = numbers({inner, columns});
    const at::Tensor turned = numbers({columns, inner}).t();
    expect_product(product(left, right), left, right);
    expect_product(product(left, turned), left, turned);
    at::Tensor out = numbers({rows, columns});
    product_out(out, left, turned);
    expect_product(out, left, turned);
  }
}

TEST_P(Products, AreAddedBeforeTheyAreRounded) {
  const at::Tensor left = numbers({40, 300});
  const at::Tensor right = numbers({300, 24});
  const at::Tensor bias = numbers({24});
  const at::Tensor terms = at::matmul(fp64(left).abs(), fp64(right).abs());
  const at::Tensor exact = at::matmul(fp64(left), fp64(right));
  expect_rounded_once(product_plus(bias, left, right), exact + fp64(bias), terms);
  at::Tensor wide = numbers({40, 30});
  const at::Tensor columns = wide.narrow(1, 3, 24);
  const at::Tensor before = wide.clone();
  add_product(columns, left, right, {.alpha = 0.25});
  expect_rounded_once(columns, fp64(before.narrow(1, 3, 24)) + 0.25 * exact, terms);
  EXPECT_TRUE(wide.narrow(1, 0, 3).equal(before.narrow(1, 0, 3)));
  EXPECT_TRUE(wide.narrow(1, 27, 3).equal(before.narrow(1, 27, 3)));
  at::Tensor fresh = at::empty({40, 24}, left.options()).fill_(NAN);
  add_product(fresh, left, right, {.beta = 0, .alpha = 0.5});
  expect_rounded_once(fresh, 0.5 * exact, terms);
}

TEST_P(Products, OfNothingAreZero) {
  const at::Tensor none = numbers({0, 12});
  EXPECT_EQ(product(none, numbers({12, 5})).sizes(), at::IntArrayRef({0, 5}));
  at::Tensor gradient = at::ones({12, 12});
  accumulate_weight_gradient(gradient, none, none);
  EXPECT_TRUE(gradient.equal(at::ones({12, 12})));
  write_weight_gradient(gradient, none, none);
  EXPECT_EQ(gradient.abs().max().item<float>(), 0);
}

// Rows that take several pieces: the pieces add up in the gradient itself.
TEST_P(Products, OfWeightGradientsAreNotRoundedWhereTheyAreMadeInFp32) {
  const at::Tensor left = numbers({1700, 6});
  const at::Tensor right = numbers({1700, 6000});
  const at::Tensor exact = at::matmul(fp64(left).t(), fp64(right));
  const at::Tensor terms = at::matmul(fp64(left).t().abs(), fp64(right).abs());
  const double rounded = multiplies_in_fp32(left) ? 0 : rounding();
  const auto expect_sum = [&](const at::Tensor& gradient, const at::Tensor& expected) {
    const at::Tensor allowed = expected.abs() * rounded + terms * 0x1p-20;
    EXPECT_LT((gradient.to(at::kDouble) - expected).abs().div(allowed).max().item<double>(), 1);
  };
  at::Tensor gradient = at::empty({6, 6000}).fill_(NAN);
  write_weight_gradient(gradient, left, right);
  expect_sum(gradient, exact);
  accumulate_weight_gradient(gradient, left, right);
  expect_sum(gradient, 2 * exact);
  at::Tensor added = at::zeros({6, 6000});
  accumulate_weight_gradient(added, left, right);
  write_weight_gradient(gradient, left, right);
  EXPECT_TRUE(added.equal(gradient));  // whether the gradient is overwritten or added to zeros
}

HeadViews fp32(const HeadViews& heads) {
  return {heads.query.to(at::kFloat), heads.key.to(at::kFloat), heads.value.to(at::kFloat)};
}

struct AttentionCase {
  HeadShape heads;
  std::int64_t sequences = 1;
  std::int64_t tokens = 1;
  std::int64_t window = 0;
  const Documents* documents = nullptr;
};

// Compared with fp32 on the same numbers, within the rounding of inputs, outputs and gradients.
void expect_attention(const AttentionCase& it) {
  const at::Tensor packed =
      at::randn({it.sequences, it.tokens, it.heads.width()}).to(Products::GetParam());
  const AttentionOptions options = {.heads = it.heads,
                                    .reach = {.window = it.window, .documents = it.documents}};
  const HeadViews heads(packed, it.heads);
  const Attended made = attention(heads, options);
  const Attended exact = attention(fp32(heads), options);
  const double rounding = Products::GetParam() == at::kBFloat16 ? 0x1p-7 : 0x1p-10;
  const auto expect_close = [&](const at::Tensor& one, const at::Tensor& other) {
    const at::Tensor wide = other.to(at::kFloat);
    EXPECT_EQ(one.sizes(), other.sizes());
    EXPECT_LT((one.to(at::kFloat) - wide).abs().max().item<double>(),
              rounding * wide.abs().max().item<double>());
  };
  expect_close(made.output, exact.output);
  EXPECT_EQ(made.logsumexp.sizes(), exact.logsumexp.sizes());
  EXPECT_LT((made.logsumexp - exact.logsumexp).abs().max().item<double>(), 4 * rounding);
  const at::Tensor grad = at::randn(made.output.sizes()).to(Products::GetParam());
  const at::Tensor bias = at::zeros({it.heads.width()});
  const at::Tensor exact_bias = at::zeros({it.heads.width()});
  const at::Tensor gradient = attention_backward(grad, heads, made, options, bias);
  const at::Tensor exact_gradient =
      attention_backward(grad.to(at::kFloat), fp32(heads), exact, options, exact_bias);
  EXPECT_EQ(gradient.scalar_type(), Products::GetParam());
  expect_close(gradient, exact_gradient);
  EXPECT_LT((bias - exact_bias).abs().max().item<double>(),
            rounding * exact_gradient.abs().flatten(0, 1).sum(0).max().item<double>());
}

TEST_P(Products, OfAttentionAreFp32s) {
  expect_attention({.heads = equal_heads(3, 96), .sequences = 2, .tokens = 65});
  expect_attention({.heads = {.heads = 6, .kv_heads = 2, .head_dim = 16},
                    .sequences = 2,
                    .tokens = 130,
                    .window = 9});
}

// More than one piece holds, in sequences and in heads.
TEST_P(Products, OfAttentionAreTheSameInPieces) {
  if (GetParam() == at::kHalf) GTEST_SKIP() << "pieces are cut alike for both types";
  const HeadShape grouped = {.heads = 4, .kv_heads = 2, .head_dim = 8192};
  ASSERT_LT(Fp32AttentionPiece(9, 2, 2 * 32 * 8192).sequences, 9);
  expect_attention({.heads = grouped, .sequences = 9, .tokens = 32});
  const HeadShape many = {.heads = 18, .kv_heads = 18, .head_dim = 16384};
  ASSERT_LT(Fp32AttentionPiece(1, 18, 32 * 16384).kv_heads, 18);
  expect_attention({.heads = many, .sequences = 1, .tokens = 32});
}

// Each row has its own mask, of which one piece at a time is widened.
TEST_P(Products, OfAttentionHaveTheMasksOfTheirRows) {
  constexpr std::int64_t kRows = 9;
  constexpr std::int64_t kTokens = 32;
  const HeadShape grouped = {.heads = 4, .kv_heads = 2, .head_dim = 8192};
  ASSERT_LT(Fp32AttentionPiece(kRows, 2, 2 * kTokens * 8192).sequences, kRows);
  Documents documents;
  documents.positions = at::empty({kRows, kTokens}, at::kLong);
  std::int64_t* position = documents.positions.data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < kRows; ++row)
    for (std::int64_t token = 0; token < kTokens; ++token) *position++ = token % (row + 3);
  expect_attention(
      {.heads = grouped, .sequences = kRows, .tokens = kTokens, .documents = &documents});
}

// The last positions alone, with the keys of all positions. 300 are computed in several parts.
TEST_P(Products, OfTheLastPositionsAreThoseOfAll) {
  const HeadShape shape = {.heads = 6, .kv_heads = 2, .head_dim = 16};
  constexpr std::int64_t kTokens = 333;
  const HeadViews heads(numbers({2, kTokens, shape.width()}), shape);
  for (const std::int64_t window : {0, 1, 50, 200, 333}) {
    const AttentionOptions options = {.heads = shape, .reach = {.window = window}};
    const at::Tensor all = attention(heads, options).output;
    for (const std::int64_t count : {1, 2, 33, 128, 129, 300, 333}) {
      SCOPED_TRACE(std::to_string(count) + " positions, window " + std::to_string(window));
      const std::int64_t first = kTokens - count;
      const at::Tensor last =
          attend_last({heads.query.narrow(2, first, count), heads.key, heads.value}, options);
      EXPECT_LT((fp64(last) - fp64(all.narrow(1, first, count))).abs().max().item<double>(),
                4 * rounding());
    }
  }
}

TEST_P(Products, OfAdaptersAreRoundedOnce) {
  const at::Tensor input = numbers({2, 20, 64});
  const at::Tensor output = numbers({2, 20, 48});
  const at::Tensor a = numbers({8, 64});
  const at::Tensor b = numbers({48, 8});
  const Adapter adapter = {.a = a, .b = b, .scale = 0.125};
  const at::Tensor inner = fp64(at::matmul(fp64(input), fp64(adapter.a.t())).to(GetParam()));
  const at::Tensor exact = fp64(output) + 0.125 * at::matmul(inner, fp64(adapter.b.t()));
  const at::Tensor terms = at::matmul(inner.abs(), fp64(adapter.b.t()).abs());
  add_adapter(output, input, adapter);
  // A's product may differ in its last place, which B's product multiplies.
  expect_rounded_once(output, exact, terms * (0x1p20 * 2 * rounding()));
}

}  // namespace
}  // namespace sluice::engine
