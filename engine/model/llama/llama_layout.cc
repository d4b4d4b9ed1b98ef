#include "engine/model/llama/llama_layout.h"

namespace sluice::engine {

const BlockNames& llama_names(LlamaArchitecture architecture) {
  static constexpr BlockNames kDense = {
      .blocks = "layers",
      .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
      .projection = "self_attn.o_proj",
      .mlp_in = {"mlp.gate_proj", "mlp.up_proj"},
      .mlp_out = "mlp.down_proj",
      .norm1 = "input_layernorm",
      .norm2 = "post_attention_layernorm",
      .head_norms = {"self_attn.q_norm", "self_attn.k_norm"}};
  static constexpr auto kWithExperts = [](std::string_view router, std::string_view experts,
                                          std::array<std::string_view, 2> in,
                                          std::string_view out) {
    BlockNames names = kDense;
    names.router = router;
    names.experts = experts;
    names.mlp_in = in;
    names.mlp_out = out;
    return names;
  };
  static constexpr BlockNames kQwen3Moe =
      kWithExperts("mlp.gate", "mlp.experts", {"gate_proj", "up_proj"}, "down_proj");
  static constexpr BlockNames kMixtral =
      kWithExperts("block_sparse_moe.gate", "block_sparse_moe.experts", {"w1", "w3"}, "w2");
  static constexpr BlockNames kGptOss = [] {
    BlockNames names =
        kWithExperts("mlp.router", "mlp.experts", {"gate_proj", "up_proj"}, "down_proj");
    names.expert_biases = {"mlp.experts.gate_up_proj_bias", "mlp.experts.down_proj_bias"};
    names.sinks = "self_attn.sinks";
    return names;
  }();
  static constexpr BlockNames kPhi3 = [] {
    BlockNames names = kDense;
    names.qkv = {"self_attn.qkv_proj"};
    names.mlp_in = {"mlp.gate_up_proj"};
    return names;
  }();
  switch (architecture) {
    case LlamaArchitecture::kQwen3Moe:
      return kQwen3Moe;
    case LlamaArchitecture::kMixtral:
      return kMixtral;
    case LlamaArchitecture::kGptOss:
      return kGptOss;
    case LlamaArchitecture::kPhi3:
      return kPhi3;
    default:
      return kDense;
  }
}

DecoderSpec llama_spec(const LlamaShape& shape) {
  return {.block = {.hidden = shape.hidden,
                    .norm = shape.architecture == LlamaArchitecture::kGptOss ? NormKind::kRmsWide
                                                                             : NormKind::kRms,
                    .attention = {.heads = shape.heads,
                                  .kv_heads = shape.kv_heads,
                                  .head_dim = shape.head_dim,
                                  .qkv_bias = shape.qkv_bias,
                                  .output_bias = shape.output_bias,
                                  .head_norms = shape.head_norms,
                                  .sinks = shape.sinks,
                                  .rope = shape.rope,
                                  .dropout = shape.attention_dropout,
                                  .in_parts = true},
                    .mlp = {.width = shape.ffn, .gated = true, .bias = shape.mlp_bias},
                    .experts = shape.experts,
                    .names = llama_names(shape.architecture),
                    .branch_std = kInitialStd,
                    .epsilon = shape.epsilon},
          .layers = shape.layers,
          .vocab = shape.vocab,
          .tied = shape.tied,
          .token_embedding = "embed_tokens",
          .final_norm = "norm",
          .window = shape.window};
}

ModelLayout llama_layout(const ModelOptions& options) {
  return decoder_layout(llama_spec(llama_shape(options.shape)), options);
}

}  // namespace sluice::engine
