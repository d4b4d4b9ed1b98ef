#include "engine/model/llama/llama_layout.h"

#include "engine/model/llama/llama_costs.h"

namespace sluice::engine {

const BlockNames& llama_names() {
  static constexpr BlockNames kNames = {
      .blocks = "layers",
      .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
      .projection = "self_attn.o_proj",
      .mlp_in = {"mlp.gate_proj", "mlp.up_proj"},
      .mlp_out = "mlp.down_proj",
      .norm1 = "input_layernorm",
      .norm2 = "post_attention_layernorm",
      .head_norms = {"self_attn.q_norm", "self_attn.k_norm"}};
  return kNames;
}

BlockSpec llama_block_spec(const LlamaShape& shape, bool windowed) {
  return {.hidden = shape.hidden,
          .norm = NormKind::kRms,
          .attention = {.heads = shape.heads,
                        .kv_heads = shape.kv_heads,
                        .head_dim = shape.head_dim,
                        .qkv_bias = shape.qkv_bias,
                        .output_bias = shape.output_bias,
                        .head_norms = shape.head_norms,
                        .window = windowed ? shape.window.tokens : 0,
                        .rope = shape.rope,
                        .dropout = shape.attention_dropout,
                        .in_parts = true},
          .mlp = {.width = shape.ffn, .gated = true, .bias = shape.mlp_bias},
          .names = llama_names(),
          .branch_std = kInitialStd,
          .piece_rows = shape.piece_rows,
          .epsilon = shape.epsilon};
}

DecoderSpec llama_spec(const LlamaShape& shape) {
  return {.block = llama_block_spec(shape, /*windowed=*/false),
          .layers = shape.layers,
          .vocab = shape.vocab,
          .tied = shape.tied,
          .token_embedding = "embed_tokens",
          .final_norm = "norm",
          .window = shape.window};
}

ModelLayout llama_layout(const ModelOptions& options) {
  const LlamaShape shape = llama_shape(options.shape);
  const LoraRecipe& lora = options.lora;
  const auto full = llama_block_kind(shape, lora, /*windowed=*/false);
  const auto windowed = llama_block_kind(shape, lora, /*windowed=*/true);
  return decoder_layout(
      llama_spec(shape),
      {.embedding = llama_embedding_kind(shape, lora),
       .block = [&](std::int64_t layer) { return shape.window.has(layer) ? windowed : full; },
       .head = llama_head_kind(shape, lora, options.padded_vocab)},
      options);
}

}  // namespace sluice::engine
