#include "engine/model/gpt2/gpt2_layout.h"

#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "engine/model/gpt2/gpt2_costs.h"
#include "engine/model/gpt2/gpt2_shape.h"

namespace sluice::engine {
namespace {

constexpr float kStd = 0.02F;

ParameterSpec matrix(std::string name, std::int64_t rows, std::int64_t columns, float std = kStd) {
  return {.name = std::move(name), .shape = {rows, columns}, .group = kDecayed, .initial_std = std};
}

// A matrix of a block: only one product is added to its gradient per micro-batch.
ParameterSpec product_matrix(std::string name, std::int64_t rows, std::int64_t columns,
                             float std = kStd) {
  ParameterSpec spec = matrix(std::move(name), rows, columns, std);
  spec.gradient_is_product = true;
  return spec;
}

ParameterSpec vector(std::string name, std::int64_t elements, float value) {
  return {.name = std::move(name),
          .shape = {elements},
          .group = kUndecayed,
          .initial_std = 0,
          .initial_value = value};
}

class EmbeddingKind final : public UnitKind {
 public:
  explicit EmbeddingKind(const ModelShape& shape)
      : UnitKind("embedding", UnitRole::kEmbedding), hidden_(shape.hidden) {}

  Flops flops(std::int64_t /*tokens*/) const override { return {}; }
  // Forward reads the rows of a token and a position and writes their sum; backward reads the
  // gradient and adds it to an fp32 row of each.
  Traffic traffic(std::int64_t number_bytes) const override {
    constexpr double kFp32Bytes = 4;
    const auto hidden = static_cast<double>(hidden_);
    const auto width = static_cast<double>(number_bytes);
    return {.forward = hidden * 3 * width, .backward = hidden * (2 * width + 4 * kFp32Bytes)};
  }
  // The output, and the rows of both embeddings, or what dropout makes of their sum.
  std::uint64_t peak_bytes(const PassShape& pass, const PeakOptions& /*options*/) const override {
    return static_cast<std::uint64_t>(3 * pass.rows() * hidden_ * pass.number_bytes);
  }

 private:
  std::int64_t hidden_;
};

class BlockKind final : public UnitKind {
 public:
  explicit BlockKind(const ModelShape& shape)
      : UnitKind("block", UnitRole::kBlock), shape_(shape) {}

  Flops flops(std::int64_t tokens) const override { return block_flops(shape_, tokens); }
  Traffic traffic(std::int64_t number_bytes) const override {
    return block_traffic(shape_, number_bytes);
  }
  std::uint64_t saved_bytes(const PassShape& pass) const override {
    return block_saved_bytes(shape_, pass);
  }
  KvShape kv_shape() const override {
    return {.heads = shape_.heads, .head_dim = gpt2_head_dim(shape_)};
  }
  std::uint64_t peak_bytes(const PassShape& pass, const PeakOptions& options) const override {
    PeakOptions here = options;
    here.plain_attention |= options.cpu && shape_.dropout > 0;
    return block_peak_bytes(shape_, pass, here);
  }

 private:
  ModelShape shape_;
};

class HeadKind final : public UnitKind {
 public:
  HeadKind(const ModelShape& shape, std::int64_t padded_vocab)
      : UnitKind("head", UnitRole::kHead), shape_(shape), padded_vocab_(padded_vocab) {}

  Flops flops(std::int64_t /*tokens*/) const override { return head_flops(shape_, padded_vocab_); }
  Traffic traffic(std::int64_t number_bytes) const override {
    return logits_traffic(shape_.vocab, number_bytes);
  }
  std::uint64_t peak_bytes(const PassShape& pass, const PeakOptions& options) const override {
    return head_peak_bytes(shape_, pass, padded_vocab_, options);
  }

 private:
  ModelShape shape_;
  std::int64_t padded_vocab_;
};

}  // namespace

Gpt2HeadParameters gpt2_head_parameters(const ModelShape& shape) {
  return gpt2_variant(shape).tied
             ? Gpt2HeadParameters{.output = 2, .norm_weight = 0, .norm_bias = 1}
             : Gpt2HeadParameters{.output = 0, .norm_weight = 1, .norm_bias = 2};
}

UnitLayout gpt2_embedding_layout(const ModelShape& shape, std::int64_t padded_vocab) {
  UnitLayout layout{.name = "embedding"};
  layout.add(matrix("wpe.weight", shape.context_tokens, shape.hidden));
  // Last, so that its padding rows come after the flat order.
  layout.add(matrix("wte.weight", shape.vocab, shape.hidden));
  // A lookup needs no padding, but a product does.
  if (gpt2_variant(shape).tied && padded_vocab != 0) layout.pad_last(padded_vocab);
  return layout;
}

UnitLayout gpt2_block_layout(const ModelShape& shape, std::int64_t layer) {
  const std::string prefix = "h." + std::to_string(layer);
  const std::int64_t hidden = shape.hidden;
  // Each block adds two branches to the residual stream, whose variance should not grow with them.
  const float branch_std = kStd / std::sqrt(2.0F * static_cast<float>(shape.layers));
  UnitLayout layout{.name = prefix};
  layout.add(product_matrix(prefix + ".attn.c_attn.weight", hidden, 3 * hidden));
  layout.add(product_matrix(prefix + ".attn.c_proj.weight", hidden, hidden, branch_std));
  layout.add(product_matrix(prefix + ".mlp.c_fc.weight", hidden, shape.ffn()));
  layout.add(product_matrix(prefix + ".mlp.c_proj.weight", shape.ffn(), hidden, branch_std));
  layout.add(vector(prefix + ".ln_1.weight", hidden, 1));
  layout.add(vector(prefix + ".ln_1.bias", hidden, 0));
  layout.add(vector(prefix + ".attn.c_attn.bias", 3 * hidden, 0));
  layout.add(vector(prefix + ".attn.c_proj.bias", hidden, 0));
  layout.add(vector(prefix + ".ln_2.weight", hidden, 1));
  layout.add(vector(prefix + ".ln_2.bias", hidden, 0));
  layout.add(vector(prefix + ".mlp.c_fc.bias", shape.ffn(), 0));
  layout.add(vector(prefix + ".mlp.c_proj.bias", hidden, 0));
  return layout;
}

UnitLayout gpt2_head_layout(const ModelShape& shape) {
  UnitLayout layout{.name = "head"};
  if (!gpt2_variant(shape).tied) layout.add(matrix("lm_head.weight", shape.vocab, shape.hidden));
  layout.add(vector("ln_f.weight", shape.hidden, 1));
  layout.add(vector("ln_f.bias", shape.hidden, 0));
  return layout;
}

ModelLayout gpt2_layout(const ModelOptions& options) {
  const ModelShape& shape = options.shape;
  const auto block = std::make_shared<BlockKind>(shape);
  std::vector<ModelLayout::Unit> units;
  units.push_back({.kind = std::make_shared<EmbeddingKind>(shape),
                   .layout = gpt2_embedding_layout(shape, options.padded_vocab),
                   .borrowed = {}});
  for (std::int64_t layer = 0; layer < shape.layers; ++layer)
    units.push_back({.kind = block, .layout = gpt2_block_layout(shape, layer), .borrowed = {}});
  ModelLayout::Unit head = {.kind = std::make_shared<HeadKind>(shape, options.padded_vocab),
                            .layout = gpt2_head_layout(shape),
                            .borrowed = {}};
  if (gpt2_variant(shape).tied)
    head.borrowed.push_back({.unit = 0, .parameter = embedding_parameter::kToken});
  units.push_back(std::move(head));
  return {{.hidden = shape.hidden, .vocab = shape.vocab}, std::move(units)};
}

}  // namespace sluice::engine
