// Counts of experts and the balance loss, compared with its definition and autograd in fp64.
#include "engine/model/expert_load.h"

#include <ATen/ops/one_hot.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "engine/families/families.h"
#include "engine/model/ops/experts.h"
#include "tests/engine/model/experts_under_test.h"
#include "tests/engine/model/specs.h"
#include "tests/engine/model/whole_model.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kExperts = 5;
constexpr std::int64_t kPerToken = 2;
constexpr std::int64_t kLayers = 3;

ModelShape shape_with(std::int64_t experts, std::int64_t per_token) {
  const bool has = experts > 0;
  ModelShape shape = {.layers = kLayers,
                      .hidden = 16,
                      .heads = 2,
                      .context_tokens = 32,
                      .vocab = 29,
                      .ffn_hidden = 12,
                      .family = "llama"};
  shape.numbers["architecture"] = architecture(has ? "qwen3_moe" : "qwen3");
  if (has) shape.numbers["experts"] = static_cast<double>(experts);
  if (has) shape.numbers["experts_per_token"] = static_cast<double>(per_token);
  return complete(shape);
}

// E sum f P over the rows of all layers, as transformers has it.
at::Tensor balance_loss(const std::vector<at::Tensor>& logits, std::int64_t per_token) {
  const at::Tensor all = at::cat(logits).to(at::kDouble);
  const at::Tensor marks = at::one_hot(chosen_of(all, per_token), all.size(1)).sum(1);
  const at::Tensor share = marks.to(at::kDouble).mean(0);
  return (share * at::softmax(all, -1).mean(0)).sum() * all.size(1);
}

class ExpertLoadOf : public testing::Test {
 protected:
  // A model that has routed two micro-batches, of which the second has other tokens.
  static void route_all(ExpertLoad& load, std::vector<std::vector<at::Tensor>>& logits,
                        const RoutingRule& rule, std::int64_t experts, std::int64_t tokens) {
    at::manual_seed(3);
    load.begin_step();
    load.begin_wave();
    logits.resize(2);
    for (int unit = 0; unit < kLayers + 2; ++unit)
      for (std::size_t m = 0; m < logits.size(); ++m) {
        const RoutedTokens* const to = load.counted(unit, m);
        ASSERT_EQ(to != nullptr, unit > 0 && unit <= kLayers);
        if (to == nullptr) continue;
        logits[m].push_back(at::randn({tokens, experts}, at::kDouble));
        ExpertsPass::Middle middle;
        middle.routing = route(logits[m].back(), rule);
        middle.rows.emplace(middle.routing->chosen, experts);
        ExpertsPass::count(middle, *to);
      }
    load.end_forward(logits.size(), tokens, /*scale=*/0.25);
  }
};

TEST_F(ExpertLoadOf, HasTheLossAndTheGradientOfItsDefinition) {
  for (const auto& [experts, per_token] : {std::pair{kExperts, kPerToken},
                                           {kExperts, kExperts},
                                           {std::int64_t{1}, std::int64_t{1}},
                                           {std::int64_t{60}, std::int64_t{1}}}) {
    const ModelLayout model = model_layout({.shape = shape_with(experts, per_token)});
    ExpertLoad load(model, {.coefficient = 3, .micro_batches = 2}, at::kCPU);
    const RoutingRule rule = {.per_token = per_token, .fp32_weights = true};
    std::vector<std::vector<at::Tensor>> logits;
    route_all(load, logits, rule, experts, /*tokens=*/11);
    at::Tensor rows = at::zeros({kLayers, experts}, at::kLong);
    for (std::size_t m = 0; m < 2; ++m) {
      for (at::Tensor& of_layer : logits[m]) of_layer.requires_grad_(true);
      const at::Tensor expected = balance_loss(logits[m], per_token);
      (expected * (3 * 0.25)).backward();
      EXPECT_NEAR(load.balance_losses()[m].item<double>(), expected.item<double>(), 1e-12);
      for (int layer = 0; layer < kLayers; ++layer) {
        const at::Tensor& of_layer = logits[m][static_cast<std::size_t>(layer)];
        const Routing routing = route(of_layer.detach(), rule);
        const at::Tensor made = route_backward(routing, rule, at::zeros_like(routing.weights),
                                               at::kDouble, *load.gradient(layer + 1, m));
        EXPECT_TRUE(made.allclose(of_layer.grad(), 1e-10, 1e-15)) << experts << " " << layer;
        rows[layer] += at::one_hot(routing.chosen, experts).sum(c10::IntArrayRef({0, 1}));
      }
    }
    const std::vector<std::int64_t> counted = load.rows();
    EXPECT_TRUE(rows.equal(at::tensor(counted).view({kLayers, experts})));
    EXPECT_EQ(load.gradient(0, 0), nullptr);
  }
}

// Evenly shared, it is the number of experts per token; of one expert alone, k times as many.
TEST_F(ExpertLoadOf, IsLowestForEvenShares) {
  const ModelLayout model = model_layout({.shape = shape_with(4, 1)});
  const auto loss_of = [&](const at::Tensor& logits) {
    ExpertLoad load(model, {.coefficient = 1, .micro_batches = 1}, at::kCPU);
    load.begin_step();
    load.begin_wave();
    for (int unit = 1; unit <= kLayers; ++unit) {
      ExpertsPass::Middle middle;
      middle.routing = route(logits, {.per_token = 1});
      middle.rows.emplace(middle.routing->chosen, 4);
      ExpertsPass::count(middle, *load.counted(unit, 0));
    }
    load.end_forward(1, logits.size(0), 1);
    return load.balance_losses()[0].item<double>();
  };
  EXPECT_NEAR(loss_of(at::eye(4, at::kDouble) * 100), 1, 1e-12);
  EXPECT_NEAR(loss_of((at::eye(4, at::kDouble) * 100)[2].repeat({8, 1})), 4, 1e-12);
}

// Whatever the alignment of the micro-batch's statistics.
TEST_F(ExpertLoadOf, HasTheSameBitsAtEachPlaceOfAWave) {
  constexpr std::size_t kPlaces = 8;
  for (const std::int64_t experts : {5, 13, 61, 127}) {
    const ModelLayout model = model_layout({.shape = shape_with(experts, kPerToken)});
    ExpertLoad load(model, {.coefficient = 1, .micro_batches = kPlaces}, at::kCPU);
    load.begin_step();
    load.begin_wave();
    at::manual_seed(static_cast<std::uint64_t>(experts));
    for (int unit = 1; unit <= kLayers; ++unit) {
      ExpertsPass::Middle middle;
      middle.routing = route(at::randn({31, experts}, at::kDouble), {.per_token = kPerToken});
      middle.rows.emplace(middle.routing->chosen, experts);
      for (std::size_t m = 0; m < kPlaces; ++m) ExpertsPass::count(middle, *load.counted(unit, m));
    }
    load.end_forward(kPlaces, 31, 1);
    for (const at::Tensor& loss : load.balance_losses())
      EXPECT_EQ(loss.item<double>(), load.balance_losses()[0].item<double>()) << experts;
  }
}

TEST(ExpertLoad, CountsInForwardAlone) {
  const at::Tensor tokens = at::randint(29, {2, 9}, at::kLong);
  const auto rows_with = [&](bool recompute) {
    const WholeModel model({.shape = shape_with(kExperts, kPerToken)}, at::kDouble);
    model.initialise(4);
    ExpertLoad load(model.model().layout(), {.coefficient = 1}, at::kCPU);
    load.begin_step();
    load.begin_wave();
    model.forward_backward({}, tokens, tokens, 1, recompute, &load);
    return std::pair{load.rows(), load.balance_losses()[0].item<double>()};
  };
  const auto kept = rows_with(false);
  EXPECT_EQ(kept, rows_with(true));
  std::int64_t all = 0;
  for (const std::int64_t rows : kept.first) all += rows;
  EXPECT_EQ(all, kLayers * tokens.numel() * kPerToken);
}

TEST(ExpertLoad, OfAModelWithoutExpertsIsNothing) {
  const ModelLayout model = model_layout({.shape = shape_with(0, 0)});
  ExpertLoad load(model, {.coefficient = 1, .micro_batches = 4}, at::kCPU);
  load.begin_step();
  load.begin_wave();
  EXPECT_EQ(load.counted(1, 0), nullptr);
  load.end_forward(4, 8, 1);
  EXPECT_EQ(load.gradient(1, 0), nullptr);
  EXPECT_TRUE(load.rows().empty());
  EXPECT_TRUE(load.balance_losses().empty());
  EXPECT_EQ(model.expert_load_bytes({.balances = true}), 0);
}

TEST(ExpertLoad, WithoutACoefficientOnlyCounts) {
  const ModelLayout model = model_layout({.shape = shape_with(kExperts, kPerToken)});
  ExpertLoad load(model, {}, at::kCPU);
  load.begin_step();
  load.begin_wave();
  const RoutedTokens* const to = load.counted(kLayers, 0);
  ASSERT_NE(to, nullptr);
  EXPECT_FALSE(to->chosen.defined() || to->probabilities.defined());
  load.end_forward(1, 8, 1);
  EXPECT_EQ(load.gradient(kLayers, 0), nullptr);
  EXPECT_EQ(load.rows().size(), kLayers * kExperts);
  EXPECT_EQ(model.expert_load_bytes({}), kLayers * kExperts * 8);
}

}  // namespace
}  // namespace sluice::engine
