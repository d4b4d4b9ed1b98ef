#include "engine/model/gpt2/gpt2_layout.h"

#include <cmath>
#include <memory>

#include "engine/model/decoder/block_costs.h"
#include "engine/model/gpt2/gpt2_costs.h"
#include "engine/model/gpt2/gpt2_shape.h"

namespace sluice::engine {
namespace {

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
      : UnitKind("block", UnitRole::kBlock), shape_(shape), spec_(gpt2_spec(shape).block) {}

  Flops flops(std::int64_t tokens) const override { return block_flops(spec_, {}, tokens); }
  Traffic traffic(std::int64_t number_bytes) const override {
    return block_traffic(shape_, number_bytes);
  }
  std::uint64_t saved_bytes(const PassShape& pass) const override {
    return block_saved_bytes(spec_, pass);
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
  BlockSpec spec_;
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

DecoderSpec gpt2_spec(const ModelShape& shape) {
  const Gpt2Variant variant = gpt2_variant(shape);
  return {.block = {.hidden = shape.hidden,
                    .norm = NormKind::kLayer,
                    .attention = {.heads = shape.heads,
                                  .kv_heads = shape.heads,
                                  .head_dim = gpt2_head_dim(shape),
                                  .qkv_bias = true,
                                  .output_bias = true,
                                  .dropout = shape.dropout,
                                  .scales = variant.scales_attention,
                                  .scales_by_layer = variant.scales_by_layer},
                    .mlp = {.width = shape.ffn(), .bias = true, .activation = variant.activation},
                    .names = {.blocks = "h",
                              .qkv = {"attn.c_attn"},
                              .projection = "attn.c_proj",
                              .mlp_in = {"mlp.c_fc"},
                              .mlp_out = "mlp.c_proj",
                              .norm1 = "ln_1",
                              .norm2 = "ln_2"},
                    .stores_in_first = true,
                    .vectors_by_branch = true,
                    // Each block adds two branches to the residual stream, whose variance should
                    // not grow with them.
                    .branch_std = kInitialStd / std::sqrt(2.0F * static_cast<float>(shape.layers)),
                    .epsilon = variant.epsilon,
                    .residual_dropout = shape.dropout},
          .layers = shape.layers,
          .vocab = shape.vocab,
          .positions = shape.context_tokens,
          .tied = variant.tied,
          .token_embedding = "wte",
          .position_embedding = "wpe",
          .final_norm = "ln_f",
          .embedding_dropout = shape.dropout};
}

const BlockParameters& gpt2_block_parameters() {
  static const BlockParameters parameters = block_parameters(
      gpt2_spec({.layers = 1, .hidden = 1, .heads = 1, .context_tokens = 1, .vocab = 1}).block);
  return parameters;
}

ModelLayout gpt2_layout(const ModelOptions& options) {
  const ModelShape& shape = options.shape;
  auto block = std::make_shared<BlockKind>(shape);
  return decoder_layout(gpt2_spec(shape),
                        {.embedding = std::make_shared<EmbeddingKind>(shape),
                         .block = [&](std::int64_t /*layer*/) { return block; },
                         .head = std::make_shared<HeadKind>(shape, options.padded_vocab)},
                        options);
}

}  // namespace sluice::engine
