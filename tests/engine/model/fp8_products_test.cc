#include "engine/model/ops/fp8_products.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

#include "engine/model/fp8_recipe.h"

namespace sluice::engine {
namespace {

// Half a unit in the last place, relative to the number, and half of the smallest number.
struct Rounding {
  double relative;
  double absolute;
};
Rounding rounding_of(Fp8Format format) {
  return format == Fp8Format::kE4m3 ? Rounding{std::ldexp(1.0, -4), std::ldexp(1.0, -10)}
                                    : Rounding{std::ldexp(1.0, -3), std::ldexp(1.0, -17)};
}

at::Tensor numbers(at::IntArrayRef sizes, at::ScalarType type, std::uint64_t seed) {
  at::manual_seed(seed);
  return at::randn(sizes, at::kDouble).pow(3).to(type);
}

at::Tensor widened(const Fp8Matrix& matrix) {
  return matrix.by_rows().to(at::kDouble) * matrix.scale().to(at::kDouble);
}

// What each number of left @ right^T may be off, if both are rounded to fp8.
at::Tensor bound(const at::Tensor& left, Fp8Format of_left, const at::Tensor& right,
                 Fp8Format of_right) {
  const auto off = [](const at::Tensor& x, Fp8Format format) {
    const Rounding rounding = rounding_of(format);
    const double most = format == Fp8Format::kE4m3 ? 448 : 57344;
    return x.abs() * (rounding.relative * 1.01) + x.abs().max() / most * (rounding.absolute * 1.01);
  };
  const at::Tensor a = left.to(at::kDouble);
  const at::Tensor b = right.to(at::kDouble);
  const at::Tensor da = off(a, of_left);
  const at::Tensor db = off(b, of_right);
  const at::Tensor sum = a.abs().mm(b.abs().t());
  // The product's own rounding, and that of its sums.
  return da.mm(b.abs().t()) + a.abs().mm(db.t()) + da.mm(db.t()) + sum * 0.01;
}

void expect_within(const at::Tensor& got, const at::Tensor& wanted, const at::Tensor& most) {
  ASSERT_EQ(got.sizes(), wanted.sizes());
  const at::Tensor off = (got.to(at::kDouble) - wanted.to(at::kDouble)).abs();
  EXPECT_TRUE((off <= most).all().item<bool>()) << (off / most).max().item<double>();
}

TEST(Fp8Products, CastsWithinHalfAUnit) {
  for (const Fp8Format format : {Fp8Format::kE4m3, Fp8Format::kE5m2}) {
    const at::Tensor x = numbers({37, 48}, at::kBFloat16, 1);
    const Fp8Matrix cast(x, format, Fp8Matrix::Copies::kBoth);
    const Rounding rounding = rounding_of(format);
    const double scale = cast.scale().item<double>();
    const at::Tensor exact = x.to(at::kDouble);
    expect_within(widened(cast), exact,
                  exact.abs() * (rounding.relative * 1.0001) + rounding.absolute * scale);
    EXPECT_EQ(cast.by_columns().size(1), 48);
    EXPECT_TRUE(
        cast.by_columns().to(at::kFloat).narrow(1, 0, 37).equal(cast.by_rows().to(at::kFloat).t()));
    EXPECT_EQ(cast.by_columns().to(at::kFloat).narrow(1, 37, 11).abs().max().item<float>(), 0);
  }
}

TEST(Fp8Products, OfBothOrdersAreWithinTheirRounding) {
  const at::Tensor input = numbers({5, 7, 48}, at::kFloat, 2);
  const at::Tensor weight = numbers({32, 48}, at::kFloat, 3);
  const at::Tensor bias = numbers({32}, at::kFloat, 4);
  const at::Tensor rows = input.view({35, 48});
  const at::Tensor made = fp8_linear(input, {.numbers = weight}, bias);
  const at::Tensor turned = weight.t().contiguous();
  EXPECT_TRUE(made.equal(fp8_linear(input, {.numbers = turned, .in_first = true}, bias)));
  const at::Tensor exact =
      rows.to(at::kDouble).mm(weight.to(at::kDouble).t()) + bias.to(at::kDouble);
  expect_within(made.view({35, 32}), exact,
                bound(rows, Fp8Format::kE4m3, weight, Fp8Format::kE4m3) + 1e-5);

  const at::Tensor grad = numbers({5, 7, 32}, at::kFloat, 5);
  const Fp8Backward backward(grad, /*puts_weight=*/true);
  const at::Tensor grad_rows = grad.view({35, 32});
  const at::Tensor of_input = backward.input_gradient({.numbers = weight});
  EXPECT_TRUE(of_input.equal(backward.input_gradient({.numbers = turned, .in_first = true})));
  expect_within(of_input.view({35, 48}), grad_rows.to(at::kDouble).mm(weight.to(at::kDouble)),
                bound(grad_rows, Fp8Format::kE5m2, weight.t(), Fp8Format::kE4m3));

  const at::Tensor of_weight = at::ones({32, 48});
  backward.put_weight(of_weight, /*in_first=*/false, input, /*overwrite=*/false);
  expect_within(of_weight - 1, grad_rows.t().to(at::kDouble).mm(rows.to(at::kDouble)),
                bound(grad_rows.t(), Fp8Format::kE5m2, rows.t(), Fp8Format::kE4m3) + 1e-5);
  const at::Tensor over = at::full({48, 32}, std::numeric_limits<float>::quiet_NaN());
  backward.put_weight(over, /*in_first=*/true, input, /*overwrite=*/true);
  EXPECT_TRUE(at::allclose(over.t() + 1, of_weight, 1e-5, 1e-5));
}

// The three products of a layer, and what each may be off.
struct Layer {
  at::Tensor input;   // [rows, in]
  at::Tensor weight;  // [out, in]
  at::Tensor grad;    // [rows, out]

  static Layer drawn(std::int64_t rows, std::int64_t in, std::int64_t out) {
    return {numbers({rows, in}, at::kFloat, 20), numbers({out, in}, at::kFloat, 21),
            numbers({rows, out}, at::kFloat, 22)};
  }
  at::Tensor output() const { return fp8_linear(input, {.numbers = weight}, {}); }
  at::Tensor input_gradient() const {
    return Fp8Backward(grad, false).input_gradient({.numbers = weight});
  }
  at::Tensor weight_gradient() const {
    const at::Tensor sum = at::empty_like(weight);
    Fp8Backward(grad, true).put_weight(sum, /*in_first=*/false, input, /*overwrite=*/true);
    return sum;
  }
};

void expect_within_bounds(const Layer& layer) {
  const auto exact = [](const at::Tensor& x) { return x.to(at::kDouble); };
  const auto [input, weight, grad] = layer;
  expect_within(layer.output(), exact(input).mm(exact(weight).t()),
                bound(input, Fp8Format::kE4m3, weight, Fp8Format::kE4m3) + 1e-5);
  expect_within(layer.input_gradient(), exact(grad).mm(exact(weight)),
                bound(grad, Fp8Format::kE5m2, weight.t(), Fp8Format::kE4m3) + 1e-5);
  expect_within(layer.weight_gradient(), exact(grad).t().mm(exact(input)),
                bound(grad.t(), Fp8Format::kE5m2, input.t(), Fp8Format::kE4m3) + 1e-5);
}

TEST(Fp8Products, AreWithinTheirRoundingInOddShapes) {
  for (const std::int64_t rows : {1, 3, 16, 17, 65})
    for (const auto& [in, out] : {std::pair{16, 16}, std::pair{48, 176}, std::pair{272, 32}})
      expect_within_bounds(Layer::drawn(rows, in, out));
}

// All other numbers of its matrix may become 0, but not more is lost.
TEST(Fp8Products, OneHugeOrManyTinyNumbersStayWithinTheRounding) {
  for (at::Tensor Layer::*const operand : {&Layer::input, &Layer::weight, &Layer::grad})
    for (const float huge : {1e6F, -1e15F}) {
      Layer layer = Layer::drawn(33, 64, 48);
      (layer.*operand)[5][7] = huge;
      expect_within_bounds(layer);
      layer.*operand = (layer.*operand) * 1e-38F;  // many are subnormal
      EXPECT_TRUE(layer.output().isfinite().all().item<bool>());
      EXPECT_TRUE(layer.input_gradient().isfinite().all().item<bool>());
      EXPECT_TRUE(layer.weight_gradient().isfinite().all().item<bool>());
    }
}

TEST(Fp8Products, ZerosMakeZeros) {
  for (at::Tensor Layer::*const operand : {&Layer::input, &Layer::weight, &Layer::grad}) {
    Layer layer = Layer::drawn(7, 32, 16);
    (layer.*operand).zero_();
    const auto is_zero = [](const at::Tensor& x) { return x.eq(0).all().item<bool>(); };
    EXPECT_EQ(is_zero(layer.output()), operand != &Layer::grad);
    EXPECT_EQ(is_zero(layer.input_gradient()), operand != &Layer::input);
    EXPECT_EQ(is_zero(layer.weight_gradient()), operand != &Layer::weight);
  }
}

// The gradient norm sees them, so the step is not taken.
TEST(Fp8Products, WithNumbersThatAreNotFiniteAreNotEither) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (const float hostile :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()})
      for (at::Tensor Layer::*const operand : {&Layer::input, &Layer::weight, &Layer::grad}) {
        Layer layer = Layer::drawn(4, 32, 16);
        (layer.*operand)[2][3] = hostile;
        layer = {layer.input.to(type), layer.weight.to(type), layer.grad.to(type)};
        const auto is_seen = [](const at::Tensor& x) { return !x.isfinite().any().item<bool>(); };
        EXPECT_EQ(is_seen(layer.output()), operand != &Layer::grad);
        EXPECT_EQ(is_seen(layer.input_gradient()), operand != &Layer::input);
        if (type == at::kFloat) {
          EXPECT_EQ(is_seen(layer.weight_gradient()), operand != &Layer::weight);
        }
      }
}

// Pieces of a gradient's rows are those of the whole.
TEST(Fp8Products, GradientsOfLargeWeightsAreComputedInPieces) {
  constexpr std::int64_t kColumns = 1 << 16;
  constexpr std::int64_t kRows = 272;  // 128, 128 and 16
  ASSERT_EQ(fp8_piece_rows(kColumns), 128);
  const Layer layer = Layer::drawn(2, kColumns, kRows);
  const at::Tensor whole = layer.weight_gradient();
  expect_within(whole, layer.grad.to(at::kDouble).t().mm(layer.input.to(at::kDouble)),
                bound(layer.grad.t(), Fp8Format::kE5m2, layer.input.t(), Fp8Format::kE4m3) + 1e-5);
  const at::Tensor twice = whole.clone();
  Fp8Backward(layer.grad, true).put_weight(twice, false, layer.input, /*overwrite=*/false);
  EXPECT_TRUE(twice.equal(whole * 2));
}

TEST(Fp8Products, NeedMultiplesOf16) {
  EXPECT_TRUE(has_fp8_product(at::zeros({32, 48})));
  EXPECT_FALSE(has_fp8_product(at::zeros({32, 40})));
  EXPECT_FALSE(has_fp8_product(at::zeros({8, 48})));
}

bool gpu_multiplies() {
  return at::hasCUDA() &&
         has_fp8_product(at::zeros({16, 16}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16)));
}

TEST(Fp8ProductsCuda, CastToTheBitsOfTheCpu) {
  if (!gpu_multiplies()) GTEST_SKIP() << "no GPU of compute capability 8.9";
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf})
    for (const Fp8Format format : {Fp8Format::kE4m3, Fp8Format::kE5m2})
      for (const std::int64_t rows : {1, 16, 63, 64, 65, 1000})
        for (const std::int64_t columns : {16, 80, 2048}) {
          at::Tensor x = numbers({rows, columns}, at::kFloat, 9).clamp(-3e4, 3e4).to(type);
          if (rows == 63) x.zero_();
          if (rows == 16) x = x * 1e-38;  // many are subnormal in bf16, and 0 in fp16
          if (rows == 65) x[64][3] = std::numeric_limits<float>::quiet_NaN();
          const Fp8Matrix here(x, format, Fp8Matrix::Copies::kBoth);
          const Fp8Matrix there(x.cuda(), format, Fp8Matrix::Copies::kBoth);
          const auto bits = [](const at::Tensor& of) { return of.cpu().view(at::kByte); };
          EXPECT_TRUE(at::equal(here.scale().view(at::kInt), there.scale().cpu().view(at::kInt)) ||
                      rows == 65);
          if (rows == 65) {  // NaN has two signs
            EXPECT_TRUE(here.by_rows()
                            .to(at::kFloat)
                            .isnan()
                            .equal(there.by_rows().cpu().to(at::kFloat).isnan()));
            continue;
          }
          EXPECT_TRUE(bits(here.by_rows()).equal(bits(there.by_rows()))) << rows << columns;
          EXPECT_TRUE(bits(here.by_columns()).equal(bits(there.by_columns()))) << rows << columns;
          const Fp8Matrix one(x.cuda(), format, Fp8Matrix::Copies::kByColumns);
          EXPECT_TRUE(bits(one.by_columns()).equal(bits(there.by_columns())));
        }
}

TEST(Fp8ProductsCuda, ProductsAreThoseOfTheCpu) {
  if (!gpu_multiplies()) GTEST_SKIP() << "no GPU of compute capability 8.9";
  for (const std::int64_t rows : {3, 64, 500}) {
    const at::Tensor input = numbers({rows, 512}, at::kBFloat16, 10);
    const at::Tensor weight = numbers({768, 512}, at::kBFloat16, 11);
    const at::Tensor bias = numbers({768}, at::kBFloat16, 12);
    const at::Tensor grad = numbers({rows, 768}, at::kBFloat16, 13);
    const auto near = [](const at::Tensor& here, const at::Tensor& there) {
      const double most = here.to(at::kFloat).abs().max().item<double>();
      return at::allclose(here.to(at::kFloat), there.cpu().to(at::kFloat), 0.01, 0.002 * most);
    };
    EXPECT_TRUE(near(fp8_linear(input, {.numbers = weight}, bias),
                     fp8_linear(input.cuda(), {.numbers = weight.cuda()}, bias.cuda())));
    const Fp8Backward here(grad, true);
    const Fp8Backward there(grad.cuda(), true);
    EXPECT_TRUE(near(here.input_gradient({.numbers = weight}),
                     there.input_gradient({.numbers = weight.cuda()})));
    const at::Tensor sum = at::ones({768, 512});
    const at::Tensor on_gpu = sum.cuda();
    here.put_weight(sum, false, input, false);
    there.put_weight(on_gpu, false, input.cuda(), false);
    EXPECT_TRUE(near(sum, on_gpu));
    const at::Tensor again = at::zeros({512, 768}).cuda();
    there.put_weight(again, true, input.cuda(), true);
    there.put_weight(again, true, input.cuda(), false);
    EXPECT_TRUE(near((sum - 1).t() * 2, again));
  }
}

}  // namespace
}  // namespace sluice::engine
