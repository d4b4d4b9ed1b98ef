// Gradients compared with finite differences in float64, and recomputed with saved activations.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/families/make_model.h"
#include "engine/model/model.h"
#include "tests/engine/model/whole_model.h"

namespace sluice::engine {
namespace {

constexpr std::uint64_t kSeed = 11;

using Numbers = std::map<std::string, double>;

ModelOptions options_with(double dropout, const Numbers& numbers = {}) {
  return {.shape = {.layers = 2,
                    .hidden = 24,
                    .heads = 3,
                    .context_tokens = 9,
                    .vocab = 31,
                    .dropout = dropout,
                    .numbers = numbers},
          .padded_vocab = 40,
          .chunk_rows = 5};
}

struct Batch {
  at::Tensor tokens;
  at::Tensor targets;
};

Batch batch_of(std::int64_t rows, std::int64_t tokens, std::int64_t vocab) {
  at::manual_seed(3);
  return {at::randint(vocab, {rows, tokens}, at::kLong),
          at::randint(vocab, {rows, tokens}, at::kLong)};
}

// Larger than GPT-2's own values, so that every path carries a measurable gradient.
void make_lively(const WholeModel& model) {
  model.initialise(kSeed);
  at::manual_seed(5);
  model.for_each_parameter(
      [](const ParameterSpec& spec, const at::Tensor& parameter, const at::Tensor& /*gradient*/) {
        parameter.add_(at::randn(spec.shape, parameter.options()), 0.3);
      });
}

// For a whole parameter along one random direction, so that every element takes part.
void expect_gradients_match_differences(double dropout, bool recompute,
                                        const Numbers& numbers = {}) {
  const WholeModel model(options_with(dropout, numbers), at::TensorOptions().dtype(at::kDouble));
  make_lively(model);
  const PassContext context = {.run_seed = kSeed, .step = 2, .micro_batch = 1};
  const Batch batch = batch_of(2, 7, 31);
  model.forward_backward(context, batch.tokens, batch.targets, 1, recompute);
  const double step = 2e-6;
  model.for_each_parameter(
      [&](const ParameterSpec& spec, const at::Tensor& parameter, const at::Tensor& gradient) {
        const at::Tensor direction = at::randn(spec.shape, parameter.options());
        const auto loss_at = [&](double distance) {
          const at::Tensor before = parameter.clone();
          parameter.add_(direction, distance);
          const double loss = model.loss_sum(context, batch.tokens, batch.targets).item<double>();
          parameter.copy_(before);
          return loss;
        };
        const double difference = (loss_at(step) - loss_at(-step)) / (2 * step);
        const double expected = (gradient * direction).sum().item<double>();
        EXPECT_NEAR(difference, expected, 1e-6 * std::max(1.0, std::abs(expected))) << spec.name;
        EXPECT_GT(gradient.abs().max().item<double>(), 0) << spec.name;
      });
}

TEST(ModelGradient, MatchesFiniteDifferences) { expect_gradients_match_differences(0, false); }

TEST(ModelGradient, MatchesFiniteDifferencesUnderDropout) {
  expect_gradients_match_differences(0.2, false);
}

TEST(ModelGradient, MatchesFiniteDifferencesUnderDropoutFromRecomputedActivations) {
  expect_gradients_match_differences(0.2, true);
}

// GPT-2 variants that are not OpenAI's: each activation with another difference.
const Numbers kVariants[] = {
    {{"activation", 1}, {"norm_epsilon", 0.25}},
    {{"activation", 2}, {"tied_head", 0}},
    {{"activation", 3}, {"scale_attention", 0}, {"scale_attention_by_layer", 1}},
    {{"scale_attention_by_layer", 1}, {"tied_head", 0}, {"norm_epsilon", 1e-12}}};

TEST(ModelGradient, OfOtherGpt2sMatchesFiniteDifferences) {
  for (const Numbers& numbers : kVariants) {
    SCOPED_TRACE(testing::PrintToString(numbers));
    expect_gradients_match_differences(0, false, numbers);
    expect_gradients_match_differences(0.2, true, numbers);
  }
}

TEST(ModelGradient, EveryNumberOfAGpt2ChangesItsLoss) {
  const auto loss = [](const Numbers& numbers) {
    const WholeModel model(options_with(0, numbers), at::TensorOptions().dtype(at::kDouble));
    make_lively(model);
    const Batch batch = batch_of(2, 7, 31);
    return model.loss_sum({}, batch.tokens, batch.targets).item<double>();
  };
  std::set<double> losses = {loss({})};
  const std::vector<Numbers> changes = {{{"activation", 1}},
                                        {{"activation", 2}},
                                        {{"activation", 3}},
                                        {{"norm_epsilon", 0.01}},
                                        {{"tied_head", 0}},
                                        {{"scale_attention", 0}},
                                        {{"scale_attention_by_layer", 1}},
                                        {{"scale_attention", 0}, {"scale_attention_by_layer", 1}}};
  for (const Numbers& numbers : changes) losses.insert(loss(numbers));
  EXPECT_EQ(losses.size(), 1 + changes.size());
  // Explicit defaults and left-out values.
  EXPECT_TRUE(losses.contains(loss({{"activation", 0},
                                    {"norm_epsilon", 1e-5},
                                    {"tied_head", 1},
                                    {"scale_attention", 1},
                                    {"scale_attention_by_layer", 0}})));
}

struct Case {
  at::ScalarType dtype;
  double dropout;
  Numbers numbers = {};
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  std::string name = c10::toString(info.param.dtype);
  if (info.param.dropout > 0) name += "WithDropout";
  if (!info.param.numbers.empty()) name += "Variant" + std::to_string(info.index);
  return name;
}

class ModelPass : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
    Dtypes, ModelPass,
    testing::Values(Case{at::kFloat, 0}, Case{at::kFloat, 0.1}, Case{at::kBFloat16, 0},
                    Case{at::kBFloat16, 0.1}, Case{at::kHalf, 0}, Case{at::kHalf, 0.1},
                    Case{at::kFloat, 0.1, kVariants[0]}, Case{at::kBFloat16, 0, kVariants[1]},
                    Case{at::kHalf, 0.1, kVariants[2]}, Case{at::kBFloat16, 0.1, kVariants[3]}),
    name_of);

TEST_P(ModelPass, RecomputedActivationsGiveTheSameBitsAsSavedOnes) {
  const ModelOptions options = options_with(GetParam().dropout, GetParam().numbers);
  const auto tensor_options = at::TensorOptions().dtype(GetParam().dtype);
  const WholeModel saving(options, tensor_options);
  const WholeModel recomputing(options, tensor_options);
  make_lively(saving);
  recomputing.copy_parameters_from(saving);
  const Batch batch = batch_of(3, 9, 31);
  for (const std::int64_t micro_batch : {0, 1}) {  // the second adds to the gradients of the first
    const PassContext context = {.run_seed = kSeed, .micro_batch = micro_batch};
    const at::Tensor saved_loss =
        saving.forward_backward(context, batch.tokens, batch.targets, 0.01, false);
    const at::Tensor loss =
        recomputing.forward_backward(context, batch.tokens, batch.targets, 0.01, true);
    EXPECT_TRUE(loss.equal(saved_loss));
  }
  for (int unit = 0; unit < saving.model().units(); ++unit) {
    EXPECT_TRUE(recomputing.flat_gradient(unit).equal(saving.flat_gradient(unit))) << unit;
    EXPECT_GT(saving.flat_gradient(unit).abs().max().item<float>(), 0) << unit;
  }
}

TEST_P(ModelPass, GradientsAreAddedAndGapsStayZero) {
  const WholeModel model(options_with(GetParam().dropout, GetParam().numbers),
                         at::TensorOptions().dtype(GetParam().dtype));
  make_lively(model);
  const Batch batch = batch_of(3, 9, 31);
  const PassContext context = {.run_seed = kSeed};
  model.forward_backward(context, batch.tokens, batch.targets, 0.01, false);
  std::vector<at::Tensor> once;
  for (int unit = 0; unit < model.model().units(); ++unit) {
    once.push_back(model.flat_gradient(unit).clone());
  }
  model.forward_backward(context, batch.tokens, batch.targets, 0.01, false);
  for (int unit = 0; unit < model.model().units(); ++unit) {
    const at::Tensor& twice = model.flat_gradient(unit);
    const at::Tensor& single = once[static_cast<std::size_t>(unit)];
    // wte is added to twice per pass, so its sums round differently.
    EXPECT_TRUE(twice.allclose(single * 2, 1e-5, 1e-6)) << unit;
    const UnitLayout& layout = model.model().layout(unit);
    at::Tensor rest = twice.clone();
    for (const ParameterSpec& parameter : layout.parameters) {
      rest.narrow(0, static_cast<std::int64_t>(parameter.first_element),
                  static_cast<std::int64_t>(parameter.elements))
          .zero_();
    }
    EXPECT_EQ(rest.abs().max().item<float>(), 0) << unit;
  }
}

// Their previous contents are not even read; all other gradients are still added to.
TEST_P(ModelPass, OverwritingPutsTheSameGradientInProductsWhateverWasThere) {
  const WholeModel model(options_with(GetParam().dropout, GetParam().numbers),
                         at::TensorOptions().dtype(GetParam().dtype));
  make_lively(model);
  const Batch batch = batch_of(3, 9, 31);
  PassContext context = {.run_seed = kSeed};
  model.forward_backward(context, batch.tokens, batch.targets, 0.01, false);
  std::vector<at::Tensor> added;
  for (int unit = 0; unit < model.model().units(); ++unit) {
    added.push_back(model.flat_gradient(unit).clone());
    at::Tensor flat = model.flat_gradient(unit);
    flat.zero_();
    for (const ParameterSpec& parameter : model.model().layout(unit).parameters) {
      if (!parameter.gradient_is_product) continue;
      flat.narrow(0, static_cast<std::int64_t>(parameter.first_element),
                  static_cast<std::int64_t>(parameter.elements))
          .fill_(std::nan(""));
    }
  }
  context.overwrites = true;
  model.forward_backward(context, batch.tokens, batch.targets, 0.01, false);
  for (int unit = 0; unit < model.model().units(); ++unit)
    EXPECT_TRUE(model.flat_gradient(unit).equal(added[static_cast<std::size_t>(unit)])) << unit;
}

TEST(WholeModel, OtherMicroBatchesStepsAndRanksDrawOtherMasks) {
  const WholeModel model(options_with(0.1), at::TensorOptions().dtype(at::kFloat));
  make_lively(model);
  const Batch batch = batch_of(3, 9, 31);
  const auto loss = [&](const PassContext& context) {
    return model.loss_sum(context, batch.tokens, batch.targets).item<double>();
  };
  EXPECT_EQ(loss({.run_seed = 1}), loss({.run_seed = 1}));
  for (const PassContext& other :
       {PassContext{.run_seed = 2}, PassContext{.run_seed = 1, .step = 1},
        PassContext{.run_seed = 1, .micro_batch = 1}, PassContext{.run_seed = 1, .rank = 1}}) {
    EXPECT_NE(loss({.run_seed = 1}), loss(other));
  }
  EXPECT_EQ(loss({.run_seed = 1, .training = false}), loss({.run_seed = 2, .training = false}));
}

TEST(WholeModel, RefusesBackwardWithoutSavedActivations) {
  const WholeModel model(options_with(0), at::TensorOptions().dtype(at::kFloat));
  const at::Tensor x = at::randn({1, 4, 24});
  Saved nothing;
  EXPECT_ANY_THROW(
      model.model().unit(1).backward({}, model.parameters(1), x, nothing, x, model.gradients(1)));
}

TEST(WholeModel, RefusesAShapeThatCannotBeBuilt) {
  ModelOptions options = options_with(0);
  options.shape.heads = 5;
  EXPECT_THROW(make_model(options), std::invalid_argument);
  options = options_with(0);
  options.padded_vocab = 30;
  EXPECT_THROW(make_model(options), std::invalid_argument);
}

}  // namespace
}  // namespace sluice::engine
