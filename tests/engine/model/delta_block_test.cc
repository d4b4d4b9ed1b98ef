// Blocks with a gated delta rule, and with a gate of attention's output: gradients against finite
// differences, recomputed, in pieces, extended, with documents and with adapters.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/decoder/block_costs.h"
#include "engine/model/decoder/decoder_block.h"
#include "engine/model/decoder/decoder_layout.h"
#include "engine/model/kv_cache.h"

#ifdef SLUICE_HAS_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace sluice::engine {
namespace {

constexpr std::int64_t kHidden = 24;

constexpr BlockNames kNames = {.blocks = "layers",
                               .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                               .projection = "self_attn.o_proj",
                               .mlp_in = {"mlp.gate_proj", "mlp.up_proj"},
                               .mlp_out = "mlp.down_proj",
                               .norm1 = "input_layernorm",
                               .norm2 = "post_attention_layernorm",
                               .head_norms = {"self_attn.q_norm", "self_attn.k_norm"},
                               .delta = {.in = {"linear_attn.in_proj_qkv", "linear_attn.in_proj_z",
                                                "linear_attn.in_proj_b", "linear_attn.in_proj_a"},
                                         .convolution = "linear_attn.conv1d",
                                         .decay_bias = "linear_attn.dt_bias",
                                         .decay_rate = "linear_attn.A_log",
                                         .norm = "linear_attn.norm",
                                         .out = "linear_attn.out_proj"}};

// Layer 0 has a delta rule, and layer 1 attends.
DecoderSpec decoder(std::int64_t piece_rows = kPieceRows) {
  return {.block = {.hidden = kHidden,
                    .norm = NormKind::kRmsFromOne,
                    .attention = {.heads = 4,
                                  .kv_heads = 2,
                                  .head_dim = 6,
                                  .head_norms = true,
                                  .output_gate = true,
                                  .rope = {.theta = 10000, .original_context = 64, .share = 0.7},
                                  .in_parts = true},
                    .mlp = {.width = 20, .gated = true},
                    .names = kNames,
                    .branch_std = kInitialStd,
                    .piece_rows = piece_rows,
                    .epsilon = 1e-6},
          .layers = 2,
          .vocab = 31,
          .token_embedding = "embed_tokens",
          .final_norm = "norm",
          .attention_interval = 2,
          .delta = {.heads = {2, 4, 5, 6}, .taps = 4}};
}

// With parameters that are the same for all of a shape.
struct Block {
  Block(std::int64_t layer, const at::TensorOptions& options, const LoraRecipe& lora = {},
        std::int64_t piece_rows = kPieceRows)
      : spec(decoder(piece_rows).block_at(layer)),
        block(spec, lora, layer),
        layout(block.layout()),
        parameters(layout, lively(layout, options)) {
    const bool is_double = options.dtype() == at::kDouble;
    UnitLayout trained = layout;
    if (lora.exists()) {
      trained = adapter_layout(spec, lora, layer);
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

  BlockSpec spec;
  DecoderBlock block;
  UnitLayout layout;
  UnitViews parameters;
  at::Tensor gradient;
  UnitViews gradients;
};

at::Tensor random(const at::TensorOptions& options, std::int64_t rows = 2,
                  std::int64_t tokens = 70) {
  return at::randn({rows, tokens, kHidden}, at::kDouble).to(options);
}

double distance(const at::Tensor& made, const at::Tensor& expected) {
  const at::Tensor difference = made.to(at::kDouble) - expected.to(at::kDouble);
  return (difference.norm() / expected.to(at::kDouble).norm()).item<double>();
}

TEST(DeltaBlock, HasTheParametersOfItsKind) {
  const UnitLayout delta = block_layout(decoder().block_at(0), 0);
  const UnitLayout attention = block_layout(decoder().block_at(1), 1);
  const auto find = [](const UnitLayout& layout, const std::string& name) -> const ParameterSpec& {
    for (const ParameterSpec& parameter : layout.parameters)
      if (parameter.name == name) return parameter;
    ADD_FAILURE() << name;
    return layout.parameters.front();
  };
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(find(delta, "layers.0.linear_attn.in_proj_qkv.weight").shape, (Shape{44, kHidden}));
  EXPECT_EQ(find(delta, "layers.0.linear_attn.in_proj_a.weight").shape, (Shape{4, kHidden}));
  EXPECT_EQ(find(delta, "layers.0.linear_attn.conv1d.weight").shape, (Shape{44, 1, 4}));
  EXPECT_EQ(find(delta, "layers.0.linear_attn.A_log").group, kUndecayed);
  EXPECT_EQ(find(delta, "layers.0.linear_attn.dt_bias").initial_value, 1);
  EXPECT_EQ(find(delta, "layers.0.linear_attn.norm.weight").shape, (Shape{6}));
  EXPECT_EQ(find(delta, "layers.0.linear_attn.out_proj.weight").shape, (Shape{kHidden, 24}));
  EXPECT_EQ(delta.parameters.size(), 5U + 3 + 1 + 2 + 3);
  EXPECT_EQ(find(attention, "layers.1.self_attn.q_proj.weight").shape, (Shape{48, kHidden}));
  EXPECT_EQ(attention.parameters.size(), 4U + 3 + 2 + 2);
}

// Along a random direction of every parameter, and of the input.
TEST(DeltaBlock, HasTheGradientsOfFiniteDifferences) {
  const auto options = at::TensorOptions(at::kDouble);
  for (const std::int64_t layer : {0, 1}) {
    const Block block(layer, options);
    const at::Tensor input = random(options);
    const at::Tensor grad = random(options);
    const Block::Result made = block.run(input, grad);
    constexpr double kStep = 1e-5;
    const auto value = [&](const at::Tensor& at) {
      return (block.block.forward({}, block.parameters, at, nullptr) * grad).sum().item<double>();
    };
    const auto expect_slope = [&](const at::Tensor& number, const at::Tensor& gradient,
                                  const auto& evaluate, const std::string& name) {
      const at::Tensor way = at::randn(number.sizes(), options);
      number.add_(way, kStep);
      const double after = evaluate();
      number.sub_(way, 2 * kStep);
      const double before = evaluate();
      number.add_(way, kStep);
      const double expected = (gradient * way).sum().item<double>();
      const double scale = (gradient.norm() * way.norm()).item<double>();
      EXPECT_NEAR((after - before) / (2 * kStep), expected, 1e-6 * scale + 1e-7) << name;
      EXPECT_GT(scale, 1e-6) << name;
    };
    for (int place = 0; place < block.parameters.size(); ++place)
      expect_slope(
          block.parameters[place], block.gradients[place], [&] { return value(input); },
          block.layout.parameters[static_cast<std::size_t>(place)].name);
    const at::Tensor moved = input.clone();
    expect_slope(
        moved, made.grad_input, [&] { return value(moved); }, "input");
  }
}

TEST(DeltaBlock, IsTheSameInPiecesAndRecomputed) {
  const auto options = at::TensorOptions(at::kDouble);
  for (const std::int64_t layer : {0, 1}) {
    const at::Tensor input = random(options);
    const at::Tensor grad = random(options);
    const Block whole(layer, options);
    const auto expected = whole.run(input, grad);
    for (const bool recompute : {false, true}) {
      const Block cut(layer, options, {}, /*piece_rows=*/16);
      const auto made = cut.run(input, grad, recompute, {.overwrites = true});
      EXPECT_LT(distance(made.output, expected.output), 1e-13);
      EXPECT_LT(distance(made.grad_input, expected.grad_input), 1e-12);
      EXPECT_LT(distance(cut.gradient, whole.gradient), 1e-12);
    }
  }
}

TEST(DeltaBlock, RecomputedActivationsAreTheSavedOnes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const std::int64_t layer : {0, 1}) {
      const auto options = at::TensorOptions(dtype);
      const Block block(layer, options);
      const at::Tensor input = random(options);
      Saved kept;
      Saved again;
      block.block.forward({}, block.parameters, input, &kept);
      block.block.recompute({}, block.parameters, input, again);
      ASSERT_EQ(kept.tensors().size(), again.tensors().size());
      for (std::size_t i = 0; i < kept.tensors().size(); ++i) {
        const at::Tensor& tensor = kept.tensors()[i];
        ASSERT_EQ(tensor.defined(), again.tensors()[i].defined()) << i;
        if (!tensor.defined()) continue;
        EXPECT_TRUE(tensor.equal(again.tensors()[i])) << i;
      }
      const PassShape pass = {.micro_batch = 2,
                              .tokens = 70,
                              .number_bytes = static_cast<std::int64_t>(input.element_size())};
      EXPECT_EQ(kept.bytes(), block_saved_bytes(block.spec, pass)) << layer << dtype;
    }
}

TEST(DeltaBlock, ExtendsToTheOutputOfTheWholeSequence) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const std::int64_t layer : {0, 1}) {
      const auto options = at::TensorOptions(dtype);
      const Block block(layer, options);
      const at::Tensor input = random(options, 1, 90);
      const at::Tensor expected =
          block.block.forward({.training = false}, block.parameters, input, nullptr);
      const ModelLayout model = decoder_layout(decoder(), {});
      KvCache cache(model, 128, options);
      const double bound = dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-5 : 0.03;
      const auto extend = [&](std::int64_t first, std::int64_t count) {
        const at::Tensor made =
            block.block.extend(block.parameters, input.narrow(1, first, count), cache);
        EXPECT_LT(distance(made, expected.narrow(1, first, count)), bound) << first;
        cache.advance(count);
      };
      extend(0, 66);
      extend(66, 2);
      for (std::int64_t next = 68; next < 90; ++next) extend(next, 1);
    }
}

TEST(DeltaBlock, BeginsAnewWhereItsStateCannotBeTruncated) {
  const auto options = at::TensorOptions(at::kDouble);
  const Block block(0, options);
  const at::Tensor input = random(options, 1, 9);
  KvCache cache(decoder_layout(decoder(), {}), 16, options);
  const auto extend = [&](std::int64_t count) {
    return block.block.extend(block.parameters, input.narrow(1, cache.length(), count), cache);
  };
  const at::Tensor first = extend(6);
  cache.advance(6);
  cache.truncate(6);
  EXPECT_EQ(cache.length(), 6);
  cache.truncate(5);
  EXPECT_EQ(cache.length(), 0);
  EXPECT_TRUE(extend(6).equal(first));
  // A pass that was not counted left a state behind.
  EXPECT_THROW(extend(1), c10::Error);
  cache.truncate(cache.length());
  EXPECT_TRUE(extend(6).equal(first));
}

TEST(DeltaBlock, KeepsDocumentsApart) {
  const auto options = at::TensorOptions(at::kDouble);
  const std::vector<std::int64_t> lengths = {1, 30, 2, 67};
  std::vector<std::int64_t> positions;
  std::vector<std::int32_t> starts = {0};
  for (const std::int64_t length : lengths) {
    for (std::int64_t i = 0; i < length; ++i) positions.push_back(i);
    starts.push_back(static_cast<std::int32_t>(positions.size()));
  }
  const Documents documents = {.positions = at::tensor(positions).unsqueeze(0),
                               .starts = at::tensor(starts, at::kInt),
                               .longest = 67,
                               .lengths = lengths};
  for (const std::int64_t layer : {0, 1}) {
    const Block packed(layer, options);
    const Block apart(layer, options);
    const at::Tensor input = random(options, 1, 100);
    const at::Tensor grad = random(options, 1, 100);
    const auto made = packed.run(input, grad, false, {.documents = &documents});
    std::vector<at::Tensor> outputs;
    std::vector<at::Tensor> gradients;
    std::int64_t first = 0;
    for (const std::int64_t length : lengths) {
      const auto of = [&](const at::Tensor& all) {
        return all.narrow(1, first, length).contiguous();
      };
      const auto one = apart.run(of(input), of(grad));
      outputs.push_back(one.output);
      gradients.push_back(one.grad_input);
      first += length;
    }
    EXPECT_LT(distance(made.output, at::cat(outputs, 1)), 1e-13);
    EXPECT_LT(distance(made.grad_input, at::cat(gradients, 1)), 1e-12);
    EXPECT_LT(distance(packed.gradient, apart.gradient), 1e-12);
  }
}

TEST(DeltaBlock, TakesAdaptersOfAllItsProducts) {
  const auto options = at::TensorOptions(at::kDouble);
  const LoraRecipe lora = {.rank = 2,
                           .alpha = 4,
                           .targets = {"q_proj", "o_proj", "in_proj_qkv", "in_proj_z", "in_proj_b",
                                       "in_proj_a", "out_proj", "up_proj"}};
  for (const auto& [layer, adapters] : {std::pair(0, 6U), std::pair(1, 3U)}) {
    const Block block(layer, options, lora);
    EXPECT_EQ(adapter_layout(block.spec, lora, layer).parameters.size(), 2 * adapters);
    const at::Tensor input = random(options);
    const at::Tensor grad = random(options);
    const auto made = block.run(input, grad);
    const int first = static_cast<int>(block.layout.parameters.size());
    // Along the gradient, the output's product with `grad` grows by its square.
    constexpr double kStep = 1e-7;
    for (int place = first; place < block.parameters.size(); ++place) {
      EXPECT_GT(block.gradients[place].norm().item<double>(), 0) << place;
      block.parameters[place].add_(block.gradients[place], kStep);
    }
    const at::Tensor moved = block.block.forward({}, block.parameters, input, nullptr);
    const double growth = ((moved - made.output) * grad).sum().item<double>() / kStep;
    const double square = block.gradient.square().sum().item<double>();
    EXPECT_NEAR(growth / square, 1, 1e-3);
  }
}

#ifdef SLUICE_HAS_CUDA

class ModelCudaDeltaBlock : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device in this machine";
  }
};

TEST_F(ModelCudaDeltaBlock, MatchesTheCpuAndItsOwnBits) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const std::int64_t layer : {0, 1}) {
      const at::Tensor input = random(dtype, 2, 300);
      const at::Tensor grad = random(dtype, 2, 300);
      const auto options = at::TensorOptions(dtype).device(at::kCUDA);
      const Block host(layer, at::TensorOptions(dtype));
      const Block saving(layer, options);
      const Block recomputing(layer, options);
      const auto expected = host.run(input, grad);
      const PassContext context = {.deterministic = true};
      const auto made = saving.run(input.cuda(), grad.cuda(), false, context);
      const auto again = recomputing.run(input.cuda(), grad.cuda(), true, context);
      const double bound = dtype == at::kFloat ? 1e-4 : 0.05;
      EXPECT_LT(distance(made.output.cpu(), expected.output), bound);
      EXPECT_LT(distance(made.grad_input.cpu(), expected.grad_input), bound);
      EXPECT_LT(distance(saving.gradient.cpu(), host.gradient), bound);
      EXPECT_TRUE(made.output.equal(again.output));
      EXPECT_TRUE(made.grad_input.equal(again.grad_input));
      EXPECT_TRUE(saving.gradient.equal(recomputing.gradient));
    }
}

#endif

}  // namespace
}  // namespace sluice::engine
