#include "engine/model/kv_cache.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "engine/families/families.h"
#include "tests/engine/model/specs.h"
#include "tests/engine/model/whole_model.h"

namespace sluice::engine {
namespace {

const ModelShape kShape{
    .layers = 3, .hidden = 48, .heads = 4, .context_tokens = 24, .vocab = 101, .dropout = 0.1};

// Makes weights so large that attention is far from uniform.
void stir(const WholeModel& whole) {
  whole.initialise(3);
  whole.for_each_parameter(
      [](const ParameterSpec& spec, const at::Tensor& parameter, const at::Tensor&) {
        if (spec.group == kDecayed) parameter.mul_(12);
      });
}

// Each block has its own scale, and the head is untied.
const ModelShape kOther = [] {
  ModelShape shape = kShape;
  shape.numbers = {{"activation", 2},
                   {"norm_epsilon", 0.01},
                   {"tied_head", 0},
                   {"scale_attention", 0},
                   {"scale_attention_by_layer", 1}};
  return shape;
}();

// Each key has two queries, and attention a window.
ModelShape windowed() {
  return complete({.layers = 3,
                   .hidden = 48,
                   .heads = 4,
                   .context_tokens = 24,
                   .vocab = 101,
                   .family = "llama",
                   .numbers = {{"architecture", architecture("mistral")},
                               {"kv_heads", 2},
                               {"head_dim", 16},
                               {"window", 6}}});
}

// The same in two of three blocks, with other positions there; norms of what branches add.
ModelShape gemma3() {
  return complete({.layers = 3,
                   .hidden = 48,
                   .heads = 4,
                   .context_tokens = 24,
                   .vocab = 101,
                   .family = "gemma3",
                   .numbers = {{"kv_heads", 2},
                               {"head_dim", 16},
                               {"window", 6},
                               {"full_interval", 3},
                               {"rope_factor", 8},
                               {"query_scalar", 24}}});
}

// Soft caps that bend scores and logits of this size.
ModelShape gemma2() {
  return complete({.layers = 3,
                   .hidden = 48,
                   .heads = 4,
                   .context_tokens = 24,
                   .vocab = 101,
                   .family = "gemma2",
                   .numbers = {{"kv_heads", 2},
                               {"head_dim", 16},
                               {"window", 6},
                               {"query_scalar", 24},
                               {"score_cap", 2},
                               {"logit_cap", 5}}});
}

// One block without rotary positions, and one with a window.
ModelShape smollm3() {
  return complete({.layers = 3,
                   .hidden = 48,
                   .heads = 4,
                   .context_tokens = 24,
                   .vocab = 101,
                   .family = "llama",
                   .numbers = {{"architecture", architecture("smollm3")},
                               {"kv_heads", 2},
                               {"window", 6},
                               {"window_first_layer", 2},
                               {"unrotated_interval", 2}}});
}

at::Tensor tokens(std::int64_t count, at::Device device) {
  return at::arange(count).mul(37).add(11).remainder(kShape.vocab).unsqueeze(0).to(device);
}

// The logits of the last position after extending by `input`.
at::Tensor extend(const WholeModel& whole, const at::Tensor& input, KvCache& cache) {
  const Model& model = whole.model();
  at::Tensor flow = input;
  for (int unit = 0; unit < model.head_index(); ++unit)
    flow = model.unit(unit).extend(whole.parameters(unit), flow, cache);
  cache.advance(input.size(1));
  return model.head().logits(whole.parameters(model.head_index()), flow, 1);
}

struct Pieces {
  std::int64_t first = 1;
  std::int64_t next = 1;
};

// Against the whole sequence at once, where the sequence is extended by pieces.
double worst_difference(at::ScalarType dtype, at::Device device, const Pieces& pieces,
                        const ModelShape& shape = kShape) {
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  const WholeModel whole({.shape = shape, .padded_vocab = 128}, options);
  stir(whole);
  const at::Tensor ids = tokens(kShape.context_tokens, device);
  const PassContext context{.training = false};
  const at::Tensor expected = whole.logits(context, ids, kShape.context_tokens).to(at::kDouble);
  KvCache cache(model_layout({.shape = shape}), kShape.context_tokens, options);
  double worst = 0;
  const auto compare = [&](const at::Tensor& logits) {
    const at::Tensor wanted = expected.narrow(1, cache.length() - 1, 1);
    worst = std::max(worst, logits.to(at::kDouble).sub(wanted).abs().max().item<double>());
  };
  for (const std::int64_t kept : {0, 0, 5}) {  // the later rounds start in the same memory
    cache.truncate(kept);
    std::int64_t next = pieces.first;
    while (cache.length() < kShape.context_tokens) {
      next = std::min(next, kShape.context_tokens - cache.length());
      compare(extend(whole, ids.narrow(1, cache.length(), next), cache));
      next = pieces.next;
    }
  }
  return worst / expected.abs().max().item<double>();
}

TEST(KvCache, GivesTheLogitsOfTheWholeSequenceAtEveryPosition) {
  for (const Pieces& pieces :
       {Pieces{1, 1}, {2, 1}, {7, 1}, {23, 1}, {24, 1}, {1, 7}, {7, 5}, {3, 24}}) {
    SCOPED_TRACE(std::to_string(pieces.first) + ", then " + std::to_string(pieces.next));
    for (const ModelShape& shape : {kShape, kOther, windowed(), gemma3(), gemma2(), smollm3()}) {
      EXPECT_LT(worst_difference(at::kDouble, at::kCPU, pieces, shape), 1e-13);
      EXPECT_LT(worst_difference(at::kFloat, at::kCPU, pieces, shape), 2e-6);
      EXPECT_LT(worst_difference(at::kBFloat16, at::kCPU, pieces, shape), 0.03);
    }
  }
}

TEST(ModelCudaKvCache, GivesTheLogitsOfTheWholeSequenceAtEveryPosition) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU that LibTorch can use";
  for (const Pieces& pieces : {Pieces{7, 1}, {7, 5}, {1, 7}}) {
    SCOPED_TRACE(std::to_string(pieces.first) + ", then " + std::to_string(pieces.next));
    for (const ModelShape& shape : {kShape, kOther, windowed(), gemma3(), gemma2(), smollm3()}) {
      EXPECT_LT(worst_difference(at::kFloat, at::kCUDA, pieces, shape), 1e-4);
      EXPECT_LT(worst_difference(at::kBFloat16, at::kCUDA, pieces, shape), 0.03);
    }
  }
}

TEST(KvCache, RefusesMoreThanTheContext) {
  const WholeModel whole({.shape = kShape}, at::TensorOptions(at::kFloat));
  KvCache cache(model_layout({.shape = kShape}), kShape.context_tokens,
                at::TensorOptions(at::kFloat));
  extend(whole, tokens(20, at::kCPU), cache);
  EXPECT_THROW(extend(whole, tokens(5, at::kCPU), cache), c10::Error);
  extend(whole, tokens(4, at::kCPU), cache);
  EXPECT_THROW(extend(whole, tokens(1, at::kCPU), cache), c10::Error);
}

TEST(KvCache, TakesWhatItSays) {
  const KvCache cache(model_layout({.shape = kShape}), kShape.context_tokens,
                      at::TensorOptions(at::kBFloat16));
  std::uint64_t bytes = 0;
  for (std::int64_t layer = 0; layer < kShape.layers; ++layer) {
    bytes += cache.keys(layer, kShape.context_tokens).nbytes();
    bytes += cache.values(layer, kShape.context_tokens).nbytes();
  }
  EXPECT_EQ(bytes, model_layout({.shape = kShape}).kv_cache_bytes(kShape.context_tokens, 2));
}

}  // namespace
}  // namespace sluice::engine
