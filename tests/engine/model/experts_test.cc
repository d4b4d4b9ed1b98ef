// Routing, experts and their gradients, compared with autograd in fp64.
#include "engine/model/ops/experts.h"

#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <tuple>

#include "tests/engine/model/experts_under_test.h"

namespace sluice::engine {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// ---- routing

TEST(ExpertRouting, ChoosesWhatTopkChooses) {
  at::manual_seed(1);
  const at::Tensor logits = at::randn({50, 13});
  const Routing routing = route(logits, {.per_token = 4, .fp32_weights = true});
  const auto [values, experts] = at::topk(at::softmax(logits, -1), 4, -1);
  EXPECT_TRUE(routing.chosen.equal(experts));
  EXPECT_TRUE(routing.weights.equal(values));
}

TEST(ExpertRouting, OfEqualExpertsTakesTheLowerNumbers) {
  const at::Tensor equal = at::zeros({3, 40}, at::kBFloat16);
  EXPECT_TRUE(route(equal, {.per_token = 5}).chosen.equal(at::arange(5).expand({3, 5})));
  const at::Tensor some = at::tensor({0., 2., 1., 2., 1., 2.}).unsqueeze(0);
  EXPECT_TRUE(route(some, {.per_token = 4}).chosen.equal(at::tensor({1, 3, 5, 2}).unsqueeze(0)));
}

TEST(ExpertRouting, WeightsAreRenormalisedAndRoundedAsTheRuleSays) {
  at::manual_seed(2);
  const at::Tensor logits = at::randn({20, 9}).to(at::kBFloat16);
  const at::Tensor exact = std::get<0>(at::topk(at::softmax(logits.to(at::kDouble), -1), 3, -1));
  const at::Tensor shares = exact / exact.sum(1, /*keepdim=*/true);
  const auto weights = [&](bool renormalises, bool fp32) {
    const Routing routing =
        route(logits, {.per_token = 3, .renormalises = renormalises, .fp32_weights = fp32});
    EXPECT_EQ(routing.weights.scalar_type(), at::kFloat);
    return routing.weights;
  };
  EXPECT_TRUE(weights(false, true).to(at::kDouble).allclose(exact, 1e-6, 0));
  EXPECT_TRUE(weights(true, true).to(at::kDouble).allclose(shares, 1e-6, 0));
  for (const bool renormalises : {false, true}) {
    const at::Tensor wide = weights(renormalises, true);
    EXPECT_TRUE(weights(renormalises, false).equal(wide.to(at::kBFloat16).to(at::kFloat)));
    EXPECT_FALSE(weights(renormalises, false).equal(wide));
  }
}

// The run's own checks end it; until then no row may be out of bounds.
TEST(ExpertRouting, OfLogitsThatAreNotNumbersChoosesExperts) {
  for (const double value : {kNan, std::numeric_limits<double>::infinity()}) {
    const at::Tensor logits = at::full({4, 6}, value, at::kFloat);
    const Routing routing = route(logits, {.per_token = 2, .renormalises = true});
    EXPECT_GE(routing.chosen.min().item<std::int64_t>(), 0);
    EXPECT_LT(routing.chosen.max().item<std::int64_t>(), 6);
    EXPECT_EQ(ExpertRows(routing.chosen, 6).ends()[5].item<int>(), 8);
  }
}

// ---- rows

TEST(ExpertRowsOrder, IsByExpertAndThenByToken) {
  const at::Tensor chosen = at::tensor({3, 0, 1, 3, 0, 3, 3, 1}).view({4, 2});
  const ExpertRows rows(chosen, 5);
  const at::Tensor tokens = at::arange(4.).unsqueeze(1);
  EXPECT_TRUE(
      rows.gathered(tokens).equal(at::tensor({0., 2., 1., 3., 0., 1., 2., 3.}).unsqueeze(1)));
  EXPECT_TRUE(rows.ends().equal(at::tensor({2, 4, 4, 8, 8}, at::kInt)));
  std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>> visited;
  rows.for_each([&](std::int64_t expert, std::int64_t first, std::int64_t count) {
    visited.emplace_back(expert, first, count);
  });
  EXPECT_EQ(visited, (decltype(visited){{0, 0, 2}, {1, 2, 2}, {2, 4, 0}, {3, 4, 4}, {4, 8, 0}}));
  const at::Tensor weights = at::arange(8.).view({4, 2});
  EXPECT_TRUE(rows.gathered_weights(weights).equal(
      at::tensor({1., 4., 2., 7., 0., 3., 5., 6.}).unsqueeze(1)));
  EXPECT_TRUE(rows.by_token(rows.gathered_weights(weights).squeeze(1)).equal(weights));
}

// Rounding after each addition would lose every later row.
TEST(ExpertRowsOrder, SumsOfATokenAreRoundedOnce) {
  const at::Tensor chosen = at::arange(8).unsqueeze(0);
  const ExpertRows rows(chosen, 8);
  const at::Tensor values =
      at::tensor({256., 1., 1., 1., 1., 1., 1., 1.}).to(at::kBFloat16).unsqueeze(1);
  EXPECT_EQ(rows.summed(values).item<double>(), 264);  // 263 is between two bf16 numbers
  const at::Tensor weights = at::full({1, 8}, 1.5, at::kFloat);
  EXPECT_EQ(rows.summed(values, weights).item<double>(), 394);  // of 394.5
}

TEST(ExpertMatricesStack, IsAViewOnlyOfEvenlySpacedMatrices) {
  const at::Tensor flat = at::arange(200.);
  const auto at_place = [&](std::int64_t first) { return flat.narrow(0, first, 6).view({2, 3}); };
  const ExpertMatrices pairs({at_place(0), at_place(6), at_place(20), at_place(26)}, 2);
  ASSERT_TRUE(pairs.stacked().defined());
  EXPECT_EQ(pairs.stacked().sizes(), at::IntArrayRef({2, 4, 3}));
  EXPECT_EQ(pairs.stacked()[1][3][2].item<double>(), 31);
  EXPECT_TRUE(pairs.of(1).equal(flat.narrow(0, 20, 12).view({4, 3})));
  const ExpertMatrices one({at_place(8), at_place(14)}, 2);
  EXPECT_EQ(one.stacked()[0][0][0].item<double>(), 8);
  for (const auto& apart :
       {std::vector{at_place(0), at_place(8), at_place(20), at_place(28)},
        std::vector{at_place(0), at_place(6), at_place(20), at_place(27)},
        std::vector{at_place(20), at_place(26), at_place(0), at_place(6)},
        std::vector{at_place(0), at_place(6), at_place(20).clone(), at_place(26).clone()}}) {
    const ExpertMatrices scattered(apart, 2);
    EXPECT_FALSE(scattered.stacked().defined());
    EXPECT_TRUE(scattered.of(1).narrow(0, 2, 2).equal(apart[3]));
  }
  EXPECT_FALSE(ExpertMatrices({at_place(0), at_place(6), at_place(13)}, 1).stacked().defined());
}

// ---- the pass

const ExpertsCase kCases[] = {
    {"Odd", 7, 5, {.count = 4, .per_token = 2, .width = 3}},
    {"OddRenormalised", 7, 5, {.count = 4, .per_token = 2, .width = 3, .renormalises = true}},
    {"Stacked", 33, 16, {.count = 6, .per_token = 3, .width = 8, .renormalises = true}},
    {"StackedWithGaps", 20, 24, {.count = 5, .per_token = 2, .width = 16, .fp32_weights = true}},
    {"OneExpert", 6, 8, {.count = 1, .per_token = 1, .width = 16}},
    {"OneExpertRenormalised",
     6,
     8,
     {.count = 1, .per_token = 1, .width = 16, .renormalises = true}},
    {"AllExperts", 9, 8, {.count = 4, .per_token = 4, .width = 5}},
    {"AllExpertsRenormalised",
     9,
     8,
     {.count = 4, .per_token = 4, .width = 5, .renormalises = true}},
    {"OneToken", 1, 8, {.count = 8, .per_token = 3, .width = 16, .renormalises = true}},
    {"MostWithoutTokens", 3, 8, {.count = 64, .per_token = 2, .width = 16, .fp32_weights = true}},
    {.name = "WithBiases",
     .tokens = 33,
     .hidden = 16,
     .spec = {.count = 6,
              .per_token = 3,
              .width = 10,
              .renormalises = true,
              .bias = true,
              .gate = {.alpha = 1.702, .limit = 7}}},
    {.name = "WithBiasesAndALowLimit",
     .tokens = 33,
     .hidden = 16,
     .spec = {.count = 6,
              .per_token = 3,
              .width = 10,
              .renormalises = true,
              .bias = true,
              .gate = {.alpha = 1.702, .limit = 0.9}}}};

class Experts : public testing::TestWithParam<ExpertsCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, Experts, testing::ValuesIn(kCases),
                         [](const auto& it) { return it.param.name; });

double distance(const at::Tensor& made, const at::Tensor& expected) {
  const double scale = expected.norm().item<double>();
  const double error = (made.cpu().to(at::kDouble) - expected).norm().item<double>();
  return scale == 0 ? error : error / scale;
}

void expect_matches_autograd(const ExpertsUnderTest& experts, std::int64_t per_token,
                             double bound) {
  experts.flat_gradient().zero_();
  const auto made = experts.run();
  const auto expected = experts.expected(chosen_of(made.logits, per_token));
  EXPECT_EQ(made.output.scalar_type(), experts.input().scalar_type());
  EXPECT_LT(distance(made.output, expected.output), bound);
  EXPECT_LT(distance(made.grad_input, expected.grad_input), bound);
  const std::vector<int> places = experts.trained();
  for (std::size_t i = 0; i < places.size(); ++i) {
    const at::Tensor& gradient = experts.gradients()[places[i]];
    if (expected.gradients[i].norm().item<double>() < 1e-12) {
      EXPECT_LT(gradient.norm().item<double>(), i == 0 ? 100 * bound : 1e-300) << i;
      continue;
    }
    EXPECT_LT(distance(gradient, expected.gradients[i]), i == 0 ? 3 * bound : bound) << i;
  }
}

TEST_P(Experts, MatchAutograd) {
  const std::int64_t per_token = GetParam().spec.per_token;
  expect_matches_autograd(ExpertsUnderTest(GetParam(), at::TensorOptions(at::kDouble)), per_token,
                          1e-12);
  expect_matches_autograd(ExpertsUnderTest(GetParam(), at::TensorOptions(at::kFloat)), per_token,
                          2e-6);
  // Rounding moves gates across a low limit, where their slope jumps.
  if (GetParam().spec.gate.exists() && GetParam().spec.gate.limit < 1) return;
  expect_matches_autograd(ExpertsUnderTest(GetParam(), at::TensorOptions(at::kBFloat16)), per_token,
                          0.02);
  expect_matches_autograd(ExpertsUnderTest(GetParam(), at::TensorOptions(at::kHalf)), per_token,
                          0.003);
}

// All tokens go to the experts with the lowest numbers.
TEST_P(Experts, MatchAutogradWhereAllExpertsAreEquallyProbable) {
  const ExpertsUnderTest experts(GetParam(), at::TensorOptions(at::kDouble));
  experts.parameters()[experts.places().router].zero_();
  if (GetParam().spec.bias) experts.parameters()[experts.places().router_bias].zero_();
  expect_matches_autograd(experts, GetParam().spec.per_token, 1e-12);
  const auto unused = static_cast<int>(GetParam().spec.per_token);
  if (unused == GetParam().spec.count) return;
  const at::Tensor& gradient = experts.gradients()[experts.places().expert_out + unused];
  EXPECT_EQ(gradient.abs().max().item<double>(), 0);
}

TEST_P(Experts, AddToGradientsOrOverwriteThem) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const ExpertsUnderTest experts(GetParam(), at::TensorOptions(dtype));
    experts.run();
    const at::Tensor once = experts.flat_gradient().clone();
    experts.run();
    EXPECT_TRUE(experts.flat_gradient().allclose(2 * once, 1e-5, 1e-6)) << dtype;
    experts.flat_gradient().zero_();
    for (const int place : experts.matrices()) experts.gradients()[place].fill_(kNan);
    experts.run(/*overwrite=*/true);
    EXPECT_TRUE(experts.flat_gradient().equal(once)) << dtype;
  }
}

// Whether matrices are one view or apart makes no difference to the products.
TEST_P(Experts, GiveTheSameBitsTwiceAndFromMatricesApart) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    ExpertsUnderTest experts(GetParam(), at::TensorOptions(dtype));
    const auto first = experts.run(/*overwrite=*/true);
    const at::Tensor gradient = experts.flat_gradient().clone();
    experts.flat_gradient().zero_();
    const auto second = experts.run(/*overwrite=*/true);
    EXPECT_TRUE(second.output.equal(first.output));
    EXPECT_TRUE(second.grad_input.equal(first.grad_input));
    EXPECT_TRUE(experts.flat_gradient().equal(gradient));
    experts.scatter();
    const auto apart = experts.run();
    EXPECT_LT(distance(apart.output, first.output.to(at::kDouble)), 0.02);
    EXPECT_LT(distance(apart.grad_input, first.grad_input.to(at::kDouble)), 0.02);
  }
}

TEST_P(Experts, OfAFrozenModelHaveNoGradients) {
  const ExpertsUnderTest experts(GetParam(), at::TensorOptions(at::kDouble));
  UnitViews frozen;
  for (int i = 0; i < experts.gradients().size(); ++i) frozen.append({});
  const at::Tensor expected = experts.run().grad_input;
  EXPECT_TRUE(experts.run_with(frozen).grad_input.equal(expected));
}

}  // namespace
}  // namespace sluice::engine
