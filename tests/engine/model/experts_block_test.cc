// A block whose feed-forward is experts: compared with the dense block, in pieces, recomputed,
// extended and with adapters.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/families/families.h"
#include "engine/model/decoder/decoder_block.h"
#include "engine/model/kv_cache.h"
#include "tests/engine/model/specs.h"

#ifdef SLUICE_HAS_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace sluice::engine {
namespace {

constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kKvHeads = 2;

// `experts` of count 0: a dense feed-forward of the same width.
BlockSpec spec_with(const ExpertsSpec& experts, std::int64_t head_dim,
                    std::int64_t piece_rows = kPieceRows) {
  BlockSpec spec =
      spec_of({.layers = 1,
               .hidden = kHeads * head_dim,
               .heads = kHeads,
               .context_tokens = 64,
               .vocab = 31,
               .ffn_hidden = experts.width,
               .family = "llama",
               .numbers = {{"architecture", architecture(experts.exist() ? "qwen3_moe" : "qwen3")},
                           {"kv_heads", kKvHeads},
                           {"head_dim", static_cast<double>(head_dim)}}})
          .block_at(0);
  spec.experts = experts;
  spec.piece_rows = piece_rows;
  if (experts.shared) {
    spec.mlp.width = experts.width + 3;
    spec.names.shared = {
        .in = {"shared.gate", "shared.up"}, .out = "shared.down", .logit = "share"};
  }
  return spec;
}

// With parameters that are the same for all of a shape.
struct Block {
  Block(const BlockSpec& spec, const at::TensorOptions& options, const LoraRecipe& lora = {})
      : block(spec, lora, 0),
        places(block_parameters(spec, lora)),
        layout(block.layout()),
        parameters(layout, lively(layout, options)) {
    const bool is_double = options.dtype() == at::kDouble;
    UnitLayout trained = layout;
    if (lora.exists()) {
      trained = adapter_layout(spec, lora, 0);
      parameters = with_adapters(parameters, UnitViews(trained, lively(trained, options)));
      for (std::size_t i = 0; i < layout.parameters.size(); ++i) gradients.append({});
    }
    gradient = at::zeros({static_cast<std::int64_t>(trained.slot_elements)},
                         options.dtype(is_double ? at::kDouble : at::kFloat));
    const UnitViews own(trained, gradient);
    for (int i = 0; i < own.size(); ++i) gradients.append(own[i]);
  }

  struct Result {
    at::Tensor output;
    at::Tensor grad_input;
  };
  Result run(const at::Tensor& input, const at::Tensor& grad_output, bool recompute = false,
             const PassContext& context = {}) const {
    Saved saved;
    Result result;
    result.output = block.forward(context, parameters, input, recompute ? nullptr : &saved);
    if (recompute) block.recompute(context, parameters, input, saved);
    result.grad_input = block.backward(context, parameters, input, saved, grad_output, gradients);
    return result;
  }

  static at::Tensor lively(const UnitLayout& layout, const at::TensorOptions& options) {
    at::manual_seed(7);
    const auto elements = static_cast<std::int64_t>(layout.slot_elements);
    return at::randn({elements}, at::kDouble).mul_(0.3).to(options);
  }

  DecoderBlock block;
  BlockParameters places;
  UnitLayout layout;
  UnitViews parameters;
  at::Tensor gradient;
  UnitViews gradients;
};

const ExpertsSpec kSpecs[] = {
    {.count = 5, .per_token = 2, .width = 7},
    {.count = 8, .per_token = 3, .width = 16, .renormalises = true},
    {.count = 4, .per_token = 4, .width = 5, .shared = true},
    {.count = 40, .per_token = 2, .width = 16, .renormalises = true, .fp32_weights = true}};

at::Tensor random(const at::TensorOptions& options, std::int64_t hidden, std::int64_t rows = 2,
                  std::int64_t tokens = 11) {
  return at::randn({rows, tokens, hidden}, at::kDouble).to(options);
}

double distance(const at::Tensor& made, const at::Tensor& expected) {
  const at::Tensor difference = made.to(at::kDouble) - expected.to(at::kDouble);
  return (difference.norm() / expected.to(at::kDouble).norm()).item<double>();
}

// All experts are the dense feed-forward, and their weights add up to 1.
TEST(ExpertsBlock, OfEqualExpertsIsTheDenseBlock) {
  const auto options = at::TensorOptions(at::kDouble);
  const ExpertsSpec spec = {.count = 6, .per_token = 3, .width = 10, .renormalises = true};
  const Block dense(spec_with({.width = spec.width}, 6), options);
  const Block experts(spec_with(spec, 6), options);
  const int gate = dense.places.mlp_in.weight;
  const int down = dense.places.mlp_out.weight;
  for (int e = 0; e < spec.count; ++e) {
    experts.parameters[experts.places.expert_in + 2 * e].copy_(dense.parameters[gate]);
    experts.parameters[experts.places.expert_in + 2 * e + 1].copy_(dense.parameters[gate + 1]);
    experts.parameters[experts.places.expert_out + e].copy_(dense.parameters[down]);
  }
  for (const auto& [to, from] :
       {std::pair(experts.places.norm1.gain, dense.places.norm1.gain),
        std::pair(experts.places.norm2.gain, dense.places.norm2.gain),
        std::pair(experts.places.query_norm, dense.places.query_norm),
        std::pair(experts.places.query_norm + 1, dense.places.query_norm + 1)})
    experts.parameters[to].copy_(dense.parameters[from]);
  const at::Tensor input = random(options, 24);
  const at::Tensor grad = random(options, 24);
  const auto expected = dense.run(input, grad);
  const auto made = experts.run(input, grad);
  EXPECT_LT(distance(made.output, expected.output), 1e-13);
  EXPECT_LT(distance(made.grad_input, expected.grad_input), 1e-12);
  at::Tensor sum = at::zeros_like(dense.gradients[down]);
  for (int e = 0; e < spec.count; ++e) sum.add_(experts.gradients[experts.places.expert_out + e]);
  EXPECT_LT(distance(sum, dense.gradients[down]), 1e-12);
  EXPECT_LT(distance(experts.gradients[experts.places.norm2.gain],
                     dense.gradients[dense.places.norm2.gain]),
            1e-12);
}

// Experts that return zero leave the shared one, which is the dense feed-forward times its weight.
TEST(ExpertsBlock, TheSharedExpertIsTheDenseFeedForwardTimesItsWeight) {
  const auto options = at::TensorOptions(at::kDouble);
  const ExpertsSpec spec = {.count = 3, .per_token = 2, .width = 10, .shared = true};
  const Block dense(spec_with({.width = spec.width + 3}, 6), options);
  const Block shared(spec_with(spec, 6), options);
  for (int e = 0; e < spec.count; ++e) shared.parameters[shared.places.expert_out + e].zero_();
  const int logit = shared.places.shared_logit.weight;
  shared.parameters[logit].zero_();
  for (int i = 0; i < 3; ++i)
    for (const auto& [to, from] :
         {std::pair(shared.places.qkv.weight, dense.places.qkv.weight),
          std::pair(shared.places.mlp_in.weight, dense.places.mlp_in.weight)})
      if (to != shared.places.mlp_in.weight || i < 2)
        shared.parameters[to + i].copy_(dense.parameters[from + i]);
  for (const auto& [to, from] :
       {std::pair(shared.places.projection.weight, dense.places.projection.weight),
        std::pair(shared.places.mlp_out.weight, dense.places.mlp_out.weight),
        std::pair(shared.places.norm1.gain, dense.places.norm1.gain),
        std::pair(shared.places.norm2.gain, dense.places.norm2.gain),
        std::pair(shared.places.query_norm, dense.places.query_norm),
        std::pair(shared.places.query_norm + 1, dense.places.query_norm + 1)})
    shared.parameters[to].copy_(dense.parameters[from]);
  // The sigmoid of 0: the branch is half the dense one, whose last matrix is halved here.
  dense.parameters[dense.places.mlp_out.weight].mul_(0.5);
  const at::Tensor input = random(options, 24);
  const at::Tensor grad = random(options, 24);
  const auto expected = dense.run(input, grad);
  const auto made = shared.run(input, grad);
  EXPECT_LT(distance(made.output, expected.output), 1e-13);
  EXPECT_LT(distance(made.grad_input, expected.grad_input), 1e-12);
  for (const auto& [to, from, factor] :
       {std::tuple(shared.places.mlp_in.weight, dense.places.mlp_in.weight, 1.0),
        std::tuple(shared.places.mlp_out.weight, dense.places.mlp_out.weight, 0.5)})
    EXPECT_LT(distance(shared.gradients[to], dense.gradients[from] * factor), 1e-12);
  // Along the logit's gradient the output's product with `grad` grows by its square.
  constexpr double kStep = 1e-6;
  shared.parameters[logit].add_(shared.gradients[logit], kStep);
  const at::Tensor moved = shared.block.forward({}, shared.parameters, input, nullptr);
  const double growth = ((moved - made.output) * grad).sum().item<double>() / kStep;
  EXPECT_NEAR(growth / shared.gradients[logit].square().sum().item<double>(), 1, 1e-3);
}

TEST(ExpertsBlock, IsTheSameInPieces) {
  const auto options = at::TensorOptions(at::kDouble);
  for (const ExpertsSpec& spec : kSpecs) {
    const at::Tensor input = random(options, 24);
    const at::Tensor grad = random(options, 24);
    const Block whole(spec_with(spec, 6), options);
    const auto expected = whole.run(input, grad);
    for (const std::int64_t piece_rows : {2, 8}) {
      for (const bool recompute : {false, true}) {
        const Block cut(spec_with(spec, 6, piece_rows), options);
        for (const ParameterSpec& parameter : cut.layout.parameters)
          if (parameter.gradient_is_product)
            cut.gradient
                .narrow(0, static_cast<std::int64_t>(parameter.first_element),
                        static_cast<std::int64_t>(parameter.elements))
                .fill_(std::nan(""));
        const auto made = cut.run(input, grad, recompute, {.overwrites = true});
        EXPECT_LT(distance(made.output, expected.output), 1e-13);
        EXPECT_LT(distance(made.grad_input, expected.grad_input), 1e-12);
        EXPECT_LT(distance(cut.gradient, whole.gradient), 1e-12);
      }
    }
  }
}

TEST(ExpertsBlock, CountsTheSameInPiecesAndOnlyInForward) {
  const auto options = at::TensorOptions(at::kDouble);
  const ExpertsSpec& spec = kSpecs[1];
  const at::Tensor input = random(options, 24);
  const auto counted = [&](std::int64_t piece_rows) {
    const Block block(spec_with(spec, 6, piece_rows), options);
    RoutedTokens routed = {.rows = at::zeros({spec.count}, at::kLong),
                           .chosen = at::zeros({spec.count}, at::kLong),
                           .probabilities = at::zeros({spec.count}, at::kDouble)};
    Saved saved;
    block.block.forward({.routed = &routed}, block.parameters, input, nullptr);
    block.block.recompute({}, block.parameters, input, saved);
    block.block.backward({}, block.parameters, input, saved, input, block.gradients);
    return routed;
  };
  const RoutedTokens whole = counted(kPieceRows);
  const RoutedTokens cut = counted(4);
  const std::int64_t tokens = input.size(0) * input.size(1);
  EXPECT_EQ(whole.rows.sum().item<std::int64_t>(), tokens * spec.per_token);
  EXPECT_NEAR(whole.probabilities.sum().item<double>(), static_cast<double>(tokens), 1e-9);
  EXPECT_TRUE(whole.rows.equal(cut.rows) && whole.chosen.equal(cut.chosen));
  EXPECT_TRUE(whole.rows.equal(whole.chosen));
  EXPECT_LT(distance(cut.probabilities, whole.probabilities), 1e-14);
}

TEST(ExpertsBlock, RecomputedActivationsAreTheSavedOnes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const ExpertsSpec& spec : kSpecs)
      for (const std::int64_t piece_rows : {std::int64_t{4}, kPieceRows}) {
        const auto options = at::TensorOptions(dtype);
        const Block block(spec_with(spec, 8, piece_rows), options);
        const at::Tensor input = random(options, 32);
        Saved kept;
        Saved again;
        block.block.forward({}, block.parameters, input, &kept);
        block.block.recompute({}, block.parameters, input, again);
        ASSERT_EQ(kept.tensors().size(), again.tensors().size());
        std::int64_t numbers = 0;
        for (std::size_t i = 0; i < kept.tensors().size(); ++i) {
          const at::Tensor& tensor = kept.tensors()[i];
          ASSERT_EQ(tensor.defined(), again.tensors()[i].defined()) << i;
          if (!tensor.defined()) continue;
          EXPECT_TRUE(tensor.equal(again.tensors()[i])) << i;
          if (tensor.scalar_type() == dtype) numbers += tensor.numel();
        }
        if (piece_rows == kPieceRows && dtype != at::kFloat) {
          const std::int64_t rows = input.size(0) * input.size(1);
          const std::int64_t shared = spec.shared ? 2 * (spec.width + 3) + 1 : 0;
          EXPECT_EQ(numbers,
                    rows * (64 + 32 + 32 + 2 * spec.per_token * spec.width + spec.count + shared));
        }
      }
}

TEST(ExpertsBlock, ExtendsToTheOutputOfTheWholeSequence) {
  const ModelShape dense = complete({.layers = 1,
                                     .hidden = 32,
                                     .heads = kHeads,
                                     .context_tokens = 64,
                                     .vocab = 31,
                                     .family = "llama",
                                     .numbers = {{"kv_heads", kKvHeads}, {"head_dim", 8}}});
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16})
    for (const ExpertsSpec& spec : kSpecs) {
      const auto options = at::TensorOptions(dtype);
      const Block block(spec_with(spec, 8), options);
      const at::Tensor input = random(options, 32, 1, 17);
      const at::Tensor expected =
          block.block.forward({.training = false}, block.parameters, input, nullptr);
      KvCache cache(model_layout({.shape = dense}), 64, options);
      std::int64_t next = 5;
      while (cache.length() < input.size(1)) {
        const std::int64_t first = cache.length();
        const at::Tensor made =
            block.block.extend(block.parameters, input.narrow(1, first, next), cache);
        EXPECT_LT(distance(made, expected.narrow(1, first, next)),
                  dtype == at::kDouble ? 1e-13 : 0.03);
        cache.advance(next);
        next = 1;
      }
    }
}

class ExpertsBlockWith : public testing::TestWithParam<std::vector<std::string>> {};

TEST_P(ExpertsBlockWith, AdaptersHasTheirGradients) {
  const auto options = at::TensorOptions(at::kDouble);
  const LoraRecipe lora = {.rank = 2, .alpha = 4, .targets = GetParam()};
  const Block block(spec_with(kSpecs[1], 6), options, lora);
  const at::Tensor input = random(options, 24);
  const at::Tensor grad = random(options, 24);
  const auto made = block.run(input, grad);
  EXPECT_GT(block.gradient.norm().item<double>(), 0);
  // Along the gradient, the output's product with `grad` grows by its square.
  constexpr double kStep = 1e-6;
  const int first = static_cast<int>(block.layout.parameters.size());
  for (int place = first; place < block.parameters.size(); ++place)
    block.parameters[place].add_(block.gradients[place], kStep);
  const at::Tensor moved = block.block.forward({}, block.parameters, input, nullptr);
  const double growth = ((moved - made.output) * grad).sum().item<double>() / kStep;
  const double square = block.gradient.square().sum().item<double>();
  EXPECT_NEAR(growth / square, 1, 1e-3);
}

TEST_P(ExpertsBlockWith, AdaptersIsTheSameInPiecesAndRecomputed) {
  const auto options = at::TensorOptions(at::kDouble);
  const LoraRecipe lora = {.rank = 3, .alpha = 4, .targets = GetParam()};
  for (const bool in_turn : {false, true})
    for (const ExpertsSpec& of : kSpecs) {
      ExpertsSpec spec = of;
      spec.in_turn = in_turn;
      const at::Tensor input = random(options, 24);
      const at::Tensor grad = random(options, 24);
      const Block whole(spec_with(spec, 6), options, lora);
      const auto expected = whole.run(input, grad);
      const Block cut(spec_with(spec, 6, /*piece_rows=*/8), options, lora);
      cut.gradient.fill_(std::nan(""));
      const auto made = cut.run(input, grad, /*recompute=*/true, {.overwrites = true});
      EXPECT_LT(distance(made.output, expected.output), 1e-13);
      EXPECT_LT(distance(made.grad_input, expected.grad_input), 1e-12);
      for (int i = 0; i < cut.gradients.size(); ++i)
        if (cut.gradients[i].defined()) {
          EXPECT_LT(distance(cut.gradients[i], whole.gradients[i]), 1e-12) << i;
        }
    }
}

using Targets = std::vector<std::string>;
INSTANTIATE_TEST_SUITE_P(Of, ExpertsBlockWith,
                         testing::Values(Targets{"q_proj", "o_proj"}, Targets{"experts"},
                                         Targets{"v_proj", "experts"}),
                         [](const auto& it) { return "Targets" + std::to_string(it.index); });

#ifdef SLUICE_HAS_CUDA

class ModelCudaExpertsBlock : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device in this machine";
  }
  static void expect_same(const LoraRecipe& lora);
};

TEST_F(ModelCudaExpertsBlock, MatchesTheCpuAndItsOwnBits) { expect_same({}); }

// Grouped where a rank is aligned, and one by one elsewhere.
TEST_F(ModelCudaExpertsBlock, MatchesTheCpuWithAdaptersOfExperts) {
  for (const std::int64_t rank : {3, 16})
    expect_same({.rank = rank, .alpha = 4, .targets = {"q_proj", "experts"}});
}

void ModelCudaExpertsBlock::expect_same(const LoraRecipe& lora) {
  for (const ExpertsSpec& spec : kSpecs) {
    const at::Tensor input = random(at::kBFloat16, 256, 2, 300);
    const at::Tensor grad = random(at::kBFloat16, 256, 2, 300);
    const Block host(spec_with(spec, 64), at::TensorOptions(at::kBFloat16), lora);
    const auto options = at::TensorOptions(at::kBFloat16).device(at::kCUDA);
    for (const std::int64_t piece_rows : {std::int64_t{96}, kPieceRows}) {
      const Block saving(spec_with(spec, 64, piece_rows), options, lora);
      const Block recomputing(spec_with(spec, 64, piece_rows), options, lora);
      host.gradient.zero_();
      const auto expected = host.run(input, grad);
      const PassContext context = {.deterministic = true};
      const auto made = saving.run(input.cuda(), grad.cuda(), false, context);
      const auto again = recomputing.run(input.cuda(), grad.cuda(), true, context);
      // Rounding changes which of two nearly equal experts is chosen for a few tokens.
      EXPECT_LT(distance(made.output.cpu(), expected.output), 0.1);
      EXPECT_LT(distance(made.grad_input.cpu(), expected.grad_input), 0.1);
      EXPECT_TRUE(made.output.equal(again.output));
      EXPECT_TRUE(made.grad_input.equal(again.grad_input));
      EXPECT_TRUE(saving.gradient.equal(recomputing.gradient));
    }
  }
}

#endif

}  // namespace
}  // namespace sluice::engine
