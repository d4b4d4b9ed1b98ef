#include "engine/model/gpt2/gpt2_layout.h"

#include <cmath>

#include "engine/model/gpt2/gpt2_shape.h"

namespace sluice::engine {

DecoderSpec gpt2_spec(const ModelShape& shape) {
  const Gpt2Variant variant = gpt2_variant(shape);
  return {.block = {.hidden = shape.hidden,
                    .norm = NormKind::kLayer,
                    .attention = {.heads = shape.heads,
                                  .kv_heads = shape.heads,
                                  .head_dim = shape.hidden / shape.heads,
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

ModelLayout gpt2_layout(const ModelOptions& options) {
  return decoder_layout(gpt2_spec(options.shape), options);
}

}  // namespace sluice::engine
