"""Cases of llama_against_transformers.py: models of transformers' classes, and their adapters."""

# Small, and odd where it can be. Each key is a class of transformers.
SIZES = {"vocab_size": 101, "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 3,
         "num_attention_heads": 4, "max_position_embeddings": 64}


def rope(kind, **more):
    return {"rope_type": kind, "rope_theta": 100.0, **more}


DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12,
         "linear_value_head_dim": 8,
         "layer_types": ["linear_attention", "linear_attention", "full_attention"]}
# With a padding token, the row of that one would have no gradient as an input.
UNPADDED = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
BALANCED = {"output_router_logits": True, "router_aux_loss_coef": 3.0}
LONGROPE = {"original_max_position_embeddings": 16, "rope_parameters": rope(
    "longrope", short_factor=[1.0, 1.1, 1.25, 1.5, 2.0, 3.0],
    long_factor=[1.2, 1.5, 2.0, 4.0, 7.0, 13.0])}
CASES = {
    "llama": ("LlamaConfig", {"num_key_value_heads": 2}),
    "llama_tied": ("LlamaConfig", {"tie_word_embeddings": True}),
    "llama_biases": ("LlamaConfig", {"num_key_value_heads": 1, "attention_bias": True,
                                     "mlp_bias": True}),
    "llama_odd": ("LlamaConfig", {"hidden_size": 35, "num_attention_heads": 5, "head_dim": 6,
                                  "num_key_value_heads": 1, "intermediate_size": 31,
                                  "rms_norm_eps": 1e-3}),
    "llama3_scaling": ("LlamaConfig", {"rope_parameters": rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=16)}),
    "linear_scaling": ("LlamaConfig", {"rope_parameters": rope("linear", factor=4.0)}),
    "dynamic_scaling": ("LlamaConfig", {"max_position_embeddings": 16,
                                        "rope_parameters": rope("dynamic", factor=2.0)}),
    "yarn_scaling": ("LlamaConfig", {"rope_parameters": rope(
        "yarn", factor=4.0, original_max_position_embeddings=16)}),
    "yarn_mscale": ("LlamaConfig", {"rope_parameters": rope(
        "yarn", factor=4.0, original_max_position_embeddings=16, mscale=0.7, mscale_all_dim=1.2,
        beta_fast=8, beta_slow=2, truncate=False)}),
    "mistral": ("MistralConfig", {"num_key_value_heads": 2, "sliding_window": 8, "head_dim": 16}),
    "mistral_no_window": ("MistralConfig", {"num_key_value_heads": 2, "sliding_window": None}),
    "ministral": ("MinistralConfig", {
        "num_key_value_heads": 2, "sliding_window": 8, "head_dim": 12,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
    "qwen2": ("Qwen2Config", {"num_key_value_heads": 2}),
    "qwen2_windows": ("Qwen2Config", {"num_key_value_heads": 2, "use_sliding_window": True,
                                      "sliding_window": 5, "max_window_layers": 1,
                                      "tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {"num_key_value_heads": 2, "head_dim": 24}),
    "qwen3_tied": ("Qwen3Config", {"num_key_value_heads": 4, "head_dim": 8,
                                   "tie_word_embeddings": True, "attention_bias": True}),
    # All experts, some with few rows, and one alone; weights with and without normalisation.
    "qwen3_moe": ("Qwen3MoeConfig", {"num_key_value_heads": 2, "head_dim": 24, "num_experts": 7,
                                     "num_experts_per_tok": 3, "moe_intermediate_size": 20,
                                     "norm_topk_prob": True}),
    "qwen3_moe_sums": ("Qwen3MoeConfig", {"num_key_value_heads": 1, "head_dim": 8,
                                          "num_experts": 40, "num_experts_per_tok": 2,
                                          "moe_intermediate_size": 9, "attention_bias": True,
                                          "use_sliding_window": True, "sliding_window": 8}),
    "qwen3_moe_all": ("Qwen3MoeConfig", {"num_key_value_heads": 4, "num_experts": 3,
                                         "num_experts_per_tok": 3, "moe_intermediate_size": 16,
                                         "tie_word_embeddings": True}),
    "mixtral": ("MixtralConfig", {"num_key_value_heads": 2, "num_local_experts": 4,
                                  "num_experts_per_tok": 2, "sliding_window": 9}),
    "mixtral_odd": ("MixtralConfig", {"hidden_size": 35, "num_attention_heads": 5, "head_dim": 6,
                                      "num_key_value_heads": 1, "intermediate_size": 31,
                                      "num_local_experts": 5, "num_experts_per_tok": 2}),
    # With the balance loss, which is larger here than the text's: of all experts, some, and one.
    "qwen3_moe_balanced": ("Qwen3MoeConfig", {
        "num_key_value_heads": 2, "num_experts": 7, "num_experts_per_tok": 2,
        "moe_intermediate_size": 20, "norm_topk_prob": True, **BALANCED}),
    "qwen3_moe_balanced_idle": ("Qwen3MoeConfig", {
        "num_key_value_heads": 2, "num_experts": 90, "num_experts_per_tok": 1,
        "moe_intermediate_size": 9, **BALANCED}),
    "qwen3_moe_balanced_all": ("Qwen3MoeConfig", {
        "num_key_value_heads": 4, "num_experts": 3, "num_experts_per_tok": 3,
        "moe_intermediate_size": 16, **BALANCED}),
    "mixtral_balanced": ("MixtralConfig", {"num_key_value_heads": 2, "num_local_experts": 4,
                                           "num_experts_per_tok": 2, **BALANCED}),
    "mixtral_balanced_one": ("MixtralConfig", {"num_key_value_heads": 2, "num_local_experts": 1,
                                               "num_experts_per_tok": 1, **BALANCED}),
    "gpt_oss_balanced": ("GptOssConfig", {
        "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 6,
        "num_experts_per_tok": 3, "sliding_window": 7, **BALANCED}),
    # Blocks with a delta rule and with attention.
    "qwen3_5": ("Qwen3_5TextConfig", {"num_key_value_heads": 2, "head_dim": 16, **DELTA}),
    "qwen3_5_odd": ("Qwen3_5TextConfig", {
        "hidden_size": 35, "num_attention_heads": 5, "head_dim": 12, "num_key_value_heads": 1,
        "intermediate_size": 31, "num_hidden_layers": 2, "tie_word_embeddings": True,
        "attention_bias": True, "rms_norm_eps": 1e-3, "linear_num_key_heads": 1,
        "linear_num_value_heads": 3, "linear_key_head_dim": 7, "linear_value_head_dim": 5,
        "linear_conv_kernel_dim": 3, "layer_types": ["linear_attention", "full_attention"],
        "rope_parameters": rope("default", partial_rotary_factor=0.5)}),
    # Experts with a shared one: some with few tokens, all for each token, and one alone.
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", {
        "num_key_value_heads": 2, "head_dim": 16, "num_experts": 7, "num_experts_per_tok": 3,
        "moe_intermediate_size": 20, "shared_expert_intermediate_size": 28, **DELTA, **BALANCED}),
    "qwen3_5_moe_odd": ("Qwen3_5MoeTextConfig", {
        "hidden_size": 35, "num_attention_heads": 5, "head_dim": 12, "num_key_value_heads": 1,
        "num_hidden_layers": 2, "tie_word_embeddings": True, "attention_bias": True,
        "rms_norm_eps": 1e-3, "linear_num_key_heads": 1, "linear_num_value_heads": 3,
        "linear_key_head_dim": 7, "linear_value_head_dim": 5, "linear_conv_kernel_dim": 3,
        "num_experts": 40, "num_experts_per_tok": 2, "moe_intermediate_size": 9,
        "shared_expert_intermediate_size": 31, **BALANCED,
        "layer_types": ["linear_attention", "full_attention"],
        "rope_parameters": rope("default", partial_rotary_factor=0.5)}),
    "qwen3_5_moe_all": ("Qwen3_5MoeTextConfig", {
        "num_key_value_heads": 4, "head_dim": 8, "num_experts": 3, "num_experts_per_tok": 3,
        "moe_intermediate_size": 16, "shared_expert_intermediate_size": 1, **DELTA}),
    "qwen3_5_moe_one": ("Qwen3_5MoeTextConfig", {
        "num_key_value_heads": 1, "head_dim": 8, "num_experts": 1, "num_experts_per_tok": 1,
        "moe_intermediate_size": 24, "shared_expert_intermediate_size": 8,
        "tie_word_embeddings": True, **DELTA, "layer_types": ["full_attention"] * 3,
        **BALANCED}),
    # Blocks with and without a window; thetas by kind; a scale that is not the heads'. Without a
    # padding token, whose row of the embedding would have no gradient as an input.
    "gemma3": ("Gemma3TextConfig", {
        "pad_token_id": None, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8,
        "query_pre_attn_scalar": 24,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}),
    "gemma3_odd": ("Gemma3TextConfig", {
        "pad_token_id": None, "hidden_size": 35, "num_attention_heads": 5, "head_dim": 6,
        "num_key_value_heads": 1, "intermediate_size": 31, "num_hidden_layers": 2, "tie_word_embeddings": False,
        "attention_bias": True, "rms_norm_eps": 1e-3, "sliding_window": 5,
        "query_pre_attn_scalar": 6, "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}}),
    "gemma3_windows": ("Gemma3TextConfig", {
        "pad_token_id": None, "num_key_value_heads": 4, "head_dim": 12, "sliding_window": 3,
        "layer_types": ["sliding_attention"] * 3}),
    # Caps that bend scores and logits of this size; and none.
    "gemma2": ("Gemma2Config", {
        "pad_token_id": None, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8,
        "query_pre_attn_scalar": 24, "attn_logit_softcapping": 0.7,
        "final_logit_softcapping": 0.9}),
    "gemma2_odd": ("Gemma2Config", {
        "pad_token_id": None, "hidden_size": 35, "num_attention_heads": 5, "head_dim": 6,
        "num_key_value_heads": 1, "intermediate_size": 31, "num_hidden_layers": 2,
        "tie_word_embeddings": False, "attention_bias": True, "rms_norm_eps": 1e-3,
        "sliding_window": 5, "query_pre_attn_scalar": 6, "attn_logit_softcapping": 0.4,
        "final_logit_softcapping": None, "layer_types": ["full_attention"] * 2}),
    "gemma2_uncapped": ("Gemma2Config", {
        "pad_token_id": None, "num_key_value_heads": 4, "head_dim": 12, "sliding_window": 3,
        "attn_logit_softcapping": None, "final_logit_softcapping": 0.5,
        "layer_types": ["sliding_attention"] * 3}),
    "mixtral_one": ("MixtralConfig", {"num_key_value_heads": 2, "num_local_experts": 1,
                                      "num_experts_per_tok": 1}),
    # Windows in every other layer, as the class has them; and layers in another order.
    "gpt_oss": ("GptOssConfig", {"num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 6,
                                 "num_experts_per_tok": 3, "sliding_window": 7}),
    "gpt_oss_odd": ("GptOssConfig", {
        "hidden_size": 35, "num_attention_heads": 5, "head_dim": 6, "num_key_value_heads": 1,
        "intermediate_size": 31, "num_local_experts": 9, "num_experts_per_tok": 2,
        "sliding_window": 5, "tie_word_embeddings": True, "rms_norm_eps": 1e-3,
        "attention_bias": False,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "rope_parameters": rope("yarn", factor=4.0, original_max_position_embeddings=16,
                                truncate=False)}),
    "gpt_oss_one": ("GptOssConfig", {
        "num_key_value_heads": 4, "head_dim": 8, "num_local_experts": 1, "num_experts_per_tok": 1,
        "layer_types": ["full_attention"] * 3,
        "rope_parameters": rope("default")}),
    # Packed products; whole heads rotated, and parts of them.
    "phi3": ("Phi3Config", {"num_key_value_heads": 2, "sliding_window": 8, "pad_token_id": None}),
    "phi3_parts": ("Phi3Config", {
        "num_key_value_heads": 2, "tie_word_embeddings": True, "pad_token_id": None,
        "rope_parameters": rope("default", partial_rotary_factor=0.5)}),
    "phi3_odd": ("Phi3Config", {
        "hidden_size": 50, "num_attention_heads": 5, "num_key_value_heads": 1,
        "intermediate_size": 31, "rms_norm_eps": 1e-3, "pad_token_id": None,
        "rope_parameters": rope("default", partial_rotary_factor=0.85)}),
    # Factors for short texts and for long ones; an attention factor; part of a head.
    "phi3_longrope": ("Phi3Config", {"num_key_value_heads": 2, "pad_token_id": None, **LONGROPE}),
    "phi3_longrope_short": ("Phi3Config", {
        "num_key_value_heads": 4, "pad_token_id": None, **LONGROPE,
        "original_max_position_embeddings": 60}),
    "phi3_longrope_parts": ("Phi3Config", {
        "num_key_value_heads": 1, "pad_token_id": None, **LONGROPE,
        "rope_parameters": rope("longrope", partial_rotary_factor=0.5, factor=3.0,
                                attention_factor=1.7, short_factor=[1.0, 0.7, 1.9],
                                long_factor=[1.0, 2.5, 9.0])}),
    # Layers without rotary positions: some, with and without windows there; all; and none.
    "smollm3": ("SmolLM3Config", {**UNPADDED, "num_key_value_heads": 2, "num_hidden_layers": 4,
                                  "rope_parameters": rope("default")}),
    "smollm3_windows": ("SmolLM3Config", {
        **UNPADDED, "num_key_value_heads": 2, "num_hidden_layers": 5, "no_rope_layer_interval": 2,
        "use_sliding_window": True, "sliding_window": 8, "tie_word_embeddings": False,
        "rope_parameters": rope("yarn", factor=4.0, original_max_position_embeddings=16)}),
    "smollm3_odd": ("SmolLM3Config", {
        **UNPADDED, "hidden_size": 35, "num_attention_heads": 5, "head_dim": 6,
        "num_key_value_heads": 1, "intermediate_size": 31, "rms_norm_eps": 1e-3,
        "attention_bias": True, "mlp_bias": True, "no_rope_layers": [1, 0, 1],
        "use_sliding_window": True, "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    "smollm3_unrotated": ("SmolLM3Config", {
        **UNPADDED, "num_key_value_heads": None, "no_rope_layers": [0, 0, 0]}),
    "smollm3_rotated": ("SmolLM3Config", {
        **UNPADDED, "num_key_value_heads": 4, "no_rope_layer_interval": 9,
        "max_position_embeddings": 16, "rope_parameters": rope("dynamic", factor=2.0)}),
}


EVERY = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PACKED = ["qkv_proj", "gate_up_proj"]
OF_EXPERTS = {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
OF_DELTA = ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"]
OF_SHARED = "shared_expert_gate"
# Joined products with no part adapted, one, and all; both scales; a rank beyond a product's width.
ADAPTERS = {
    "llama": {"r": 3, "lora_alpha": 7, "target_modules": EVERY},
    "llama_tied": {"r": 50, "lora_alpha": 9, "target_modules": EVERY, "use_rslora": True},
    "llama_biases": {"r": 4, "lora_alpha": 8, "target_modules": ["k_proj", "gate_proj"]},
    "llama_odd": {"r": 1, "lora_alpha": 0.3, "target_modules": ["q_proj", "o_proj", "down_proj"]},
    "mistral": {"r": 2, "lora_alpha": 4, "target_modules": ["v_proj", "up_proj"]},
    "qwen2": {"r": 5, "lora_alpha": 5, "target_modules": EVERY, "use_rslora": True},
    "qwen3": {"r": 4, "lora_alpha": 16, "target_modules": EVERY},
    "qwen3_tied": {"r": 6, "lora_alpha": 12, "target_modules": ["q_proj", "k_proj", "v_proj"]},
    "qwen3_moe": {"r": 4, "lora_alpha": 8, "target_modules": EVERY[:4]},
    "mixtral": {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj", "o_proj"]},
    "mixtral_balanced": {"r": 3, "lora_alpha": 5, "target_modules": EVERY[:4]},
    # All experts' tensors; with and without attention; a rank beyond an expert's width.
    "qwen3_moe_sums": {"r": 12, "lora_alpha": 8, "target_modules": EVERY[:4], **OF_EXPERTS},
    "qwen3_moe_balanced": {"r": 3, "lora_alpha": 7, "target_modules": [], **OF_EXPERTS},
    "mixtral_odd": {"r": 2, "lora_alpha": 5, "target_modules": ["v_proj"], "use_rslora": True,
                    **OF_EXPERTS},
    "gpt_oss_balanced": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], **OF_EXPERTS},
    "qwen3_5": {"r": 3, "lora_alpha": 6, "target_modules": EVERY + OF_DELTA},
    "gemma3": {"r": 3, "lora_alpha": 6, "target_modules": EVERY},
    "gemma2": {"r": 3, "lora_alpha": 6, "target_modules": EVERY},
    "gemma3_odd": {"r": 2, "lora_alpha": 4, "target_modules": ["v_proj", "o_proj", "down_proj"]},
    "qwen3_5_odd": {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "in_proj_qkv",
                                                                "in_proj_a", "down_proj"]},
    "qwen3_5_moe": {"r": 3, "lora_alpha": 6, "target_modules": EVERY + OF_DELTA + [OF_SHARED]},
    "qwen3_5_moe_odd": {"r": 2, "lora_alpha": 4, "target_modules": ["k_proj", "in_proj_z",
                                                                    "up_proj", OF_SHARED]},
    "qwen3_5_moe_one": {"r": 2, "lora_alpha": 3, "target_modules": ["down_proj"]},
    "qwen3_5_moe_all": {"r": 5, "lora_alpha": 3, "target_modules": ["o_proj", OF_SHARED],
                        **OF_EXPERTS},
    "gpt_oss": {"r": 4, "lora_alpha": 8, "target_modules": EVERY[:4]},
    "phi3": {"r": 3, "lora_alpha": 6, "target_modules": ["o_proj", "down_proj", *PACKED]},
    "phi3_odd": {"r": 2, "lora_alpha": 4, "target_modules": ["gate_up_proj"]},
    "smollm3": {"r": 3, "lora_alpha": 6, "target_modules": EVERY},
    "smollm3_odd": {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj", "up_proj"]},
}


# Without rotary positions, a bias of keys adds one number to all scores of a query. Softmax cancels
# it, so that its gradient is rounding alone.
CANCELLED = {"smollm3_odd": "layers.1.self_attn.k_proj.bias"}
