"""The Llama family beside transformers, and its adapters beside PEFT: loss, logits and all gradients
of random small models.

The program is the environment's MODEL_DRIVER. Both sides get the same config.json, as transformers
writes it, the same random weights and tokens. transformers in float64 is the judge: of ours in
float64, in fp32 and in bf16, and of transformers' own in bf16. With adapters it is PEFT's.
"""

import contextlib
import os
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np
import torch
from driver_process import driver

sys.path.append(str(Path(__file__).resolve().parents[3] / "tools"))
import reference_packages

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is fetched

reference_packages.use()
MISSING = ""
try:
    import transformers
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM
except ImportError as missing:
    MISSING = f"transformers cannot be imported ({missing}); tools/setup --for=test installs it"

BATCH, TOKENS = 2, 37  # no row is aligned by chance
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}
# Largest error of a tensor, relative to its largest magnitude. What is left in float64 is rounding
# in fp32 by transformers, whose norms and rotary positions have no other form.
BOUNDS = {"fp64": 2e-6, "fp32": 1e-5, "bf16": 8e-2}
# A recurrence carries its rounding from token to token, as transformers' own does.
BOUNDS_OF_RECURRENCES = {"fp64": 2e-6, "fp32": 1e-4, "bf16": 0.4}
# Against transformers in bf16, judged by float64: ours may not be much worse.
WORSE_THAN_PEER = 1.5

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


def driver_words(adapters):
    """What model_driver is told of them."""
    if adapters is None:
        return {}
    return {"rank": adapters["r"], "alpha": adapters["lora_alpha"],
            "rank_stabilised": int(adapters.get("use_rslora", False)),
            "targets": ",".join([
                *(name for name in [*EVERY, *PACKED, *OF_DELTA, OF_SHARED]
                  if name in adapters["target_modules"]),
                *(["experts"] if "target_parameters" in adapters else [])])}


def make_config(case):
    kind, keys = CASES[case]
    return getattr(transformers, kind)(**{**SIZES, **keys}, attn_implementation="eager")


def our_name(name):
    wrapped = "" if "lora_" in name else ".base_layer"  # part of the name of experts' adapters
    for part in ("base_model.model.", wrapped, ".default"):
        name = name.replace(part, "")
    return name.removeprefix("model.")


# The names of an expert's gate, up and down in files.
EXPERT_NAMES = {"qwen3_moe": ("mlp", "gate_proj", "up_proj", "down_proj"),
                "qwen3_5_moe_text": ("mlp", "gate_proj", "up_proj", "down_proj"),
                "mixtral": ("block_sparse_moe", "w1", "w3", "w2"),
                "gpt_oss": ("mlp", "gate_proj", "up_proj", "down_proj")}


def our_views(model, name, value):
    """Our names of one of the model's parameters, with the parts of `value` that they name: in
    memory, transformers joins the experts of a layer."""
    names = EXPERT_NAMES.get(model.config.model_type)
    name = our_name(name)
    if names is None or ".mlp." not in name:
        return {name: value}
    home, gate, up, down = names
    layer, last = name.split(".mlp.")
    if last == "gate.weight":
        return {f"{layer}.{home}.gate.weight": value}
    parts = {"experts.gate_up_proj": (gate, up), "experts.down_proj": (down,)}.get(last)
    if parts is None:
        return {name: value}
    is_gpt_oss = model.config.model_type == "gpt_oss"  # transposed, and gate and up alternate
    views = ((lambda matrix: [matrix.T[part::len(parts)] for part in range(len(parts))])
             if is_gpt_oss else lambda matrix: matrix.chunk(len(parts)))
    return {f"{layer}.{home}.experts.{expert}.{part}.weight": view
            for expert, matrix in enumerate(value)
            for part, view in zip(parts, views(matrix))}


class WideTorch:
    """torch, for a module of transformers whose "torch.float32" shall be float64."""

    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextlib.contextmanager
def wide_delta_rule(model):
    """transformers computes the rule, and what it is given, in fp32 whatever the model's dtype. Over
    the tokens of a text that adds up to more than the bounds of float64."""
    from transformers.models.qwen3_5 import modeling_qwen3_5
    from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe
    modeling = {"qwen3_5_text": modeling_qwen3_5,
                "qwen3_5_moe_text": modeling_qwen3_5_moe}.get(model.config.model_type)
    if modeling is None or next(model.parameters()).dtype != torch.float64:
        yield
        return
    narrow = torch.Tensor.float
    modeling.torch = WideTorch()
    torch.Tensor.float = lambda self: self if self.dtype == torch.float64 else narrow(self)
    try:
        yield
    finally:
        modeling.torch = torch
        torch.Tensor.float = narrow


def reference_model(config, weights, adapters=None):
    with_experts = {"experts_implementation": "eager"} if hasattr(config, "num_experts") else {}
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", **with_experts)
    if adapters is not None:
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **adapters))
    model = model.double()
    with torch.no_grad():
        state = {}
        for name, value in model.named_parameters():
            state |= our_views(model, name, value)
        if set(state) != set(weights):
            raise AssertionError(f"other parameters: {set(state) ^ set(weights)}")
        for name, value in weights.items():
            state[name].copy_(value)
    return model.train()


def balance_loss(model, of_passes):
    """From the router's logits in each pass, by layer. All passes are one micro-batch."""
    config = model.config
    layers = tuple(torch.cat(of_layer) for of_layer in zip(*of_passes))
    home = sys.modules[type(model.get_base_model() if hasattr(model, "get_base_model")
                            else model).__module__]
    experts = getattr(config, "num_local_experts", None) or config.num_experts
    return home.load_balancing_loss_func(layers, experts, config.num_experts_per_tok)


def reference_pass(model, tokens, begins=None):
    """Of whole rows, or of each document on its own."""
    routed = []
    balances = getattr(model.config, "output_router_logits", False)

    def logits_in(tokens):
        made = model(tokens)
        if balances:
            routed.append(made.router_logits)
        return made.logits

    def logits_of(row):
        ends = [*begins[row][1:], tokens.shape[1] - 1] if begins else [tokens.shape[1] - 1]
        firsts = begins[row] if begins else [0]
        return torch.cat([logits_in(tokens[row:row + 1, first:end])
                          for first, end in zip(firsts, ends)], dim=1)
    with wide_delta_rule(model):
        logits = torch.cat([logits_of(row) for row in range(tokens.shape[0])])
    loss = torch.nn.functional.cross_entropy(logits.double().flatten(0, 1), tokens[:, 1:].flatten())
    if balances:
        loss = loss + model.config.router_aux_loss_coef * balance_loss(model, routed)
    loss.backward()
    results = {"logits": logits, "loss": loss}
    for name, value in model.named_parameters():
        if value.requires_grad:
            results |= our_views(model, name, value.grad)
    return {name: value.detach().double() for name, value in results.items()}


def errors(ours, reference):
    """name -> largest difference, relative to the reference's largest magnitude. An expert without
    tokens has a gradient of zero, exactly."""
    return {name: ((ours[name] - value).abs().max() / (value.abs().max() or 1)).item()
            for name, value in reference.items()}


def distances(ours, reference):
    """name -> the norm of the difference, relative to the reference's; of tensors, not of the loss,
    which can be right by chance."""
    return {name: ((ours[name] - value).norm() / value.norm()).item()
            for name, value in reference.items() if value.ndim > 0}


class Comparison(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(21)
        cls.tokens = torch.randint(0, SIZES["vocab_size"], (BATCH, TOKENS + 1))
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)

    def folder(self, case):
        folder = Path(self.scratch.name) / case
        make_config(case).save_pretrained(folder)
        return folder / "config.json"

    def weights(self, case, layout, dtype):
        """Large enough that every path matters; exact in `dtype`, so nobody starts with an error. They
        depend on the case alone."""
        torch.manual_seed(21)
        values = {}
        for name, shape in layout:
            random = (0.05 if "lora_" in name else 0.15) * torch.randn(shape)
            from_one = case.startswith(("qwen3_5", "gemma")) and "linear_attn" not in name
            if "norm" in name and not from_one:
                random += 1  # elsewhere the gain is already stored without it
            values[name] = random.to(DTYPES[dtype]).float()
        return values

    def ours(self, config, layout, weights, dtype, trained, **options):
        with tempfile.TemporaryDirectory() as folder:
            files = {key: Path(folder) / key for key in ("weights", "tokens", "out")}
            np.concatenate([weights[name].numpy().ravel() for name, _ in layout]).tofile(
                files["weights"])
            self.tokens.numpy().astype("<i8").tofile(files["tokens"])
            driver("run", config=config, dtype=dtype, batch=BATCH, tokens_per_row=TOKENS, **files,
                   **options)
            flat = torch.from_numpy(np.fromfile(files["out"],
                                                dtype="<f8" if dtype == "fp64" else "<f4"))
        pieces = [("logits", (BATCH, TOKENS, SIZES["vocab_size"])), ("loss", ()), *trained]
        sizes = [int(np.prod(shape)) for _, shape in pieces]
        self.assertEqual(flat.numel(), sum(sizes))
        return {name: piece.double().view(shape)
                for (name, shape), piece in zip(pieces, flat.split(sizes))}

    def compare(self, case, dtype, begins=None, adapters=None, **options):
        config = self.folder(case)
        options |= driver_words(adapters)
        if begins:
            options["documents"] = ";".join(",".join(map(str, row)) for row in begins)
        lines = (line.split() for line in driver("layout", config=config, **driver_words(adapters))
                 .splitlines())
        layout = [(words[0], tuple(map(int, words[1:]))) for words in lines]
        trained = [(name, shape) for name, shape in layout if adapters is None or "lora_" in name]
        weights = self.weights(case, layout, dtype)
        model = reference_model(make_config(case), weights, adapters)
        exact = reference_pass(model, self.tokens, begins)
        made = self.ours(config, layout, weights, dtype, trained, **options)
        ours = errors(made, exact)
        self.assertEqual(len(ours), 2 + len(trained))
        if CANCELLED.get(case) in ours:
            ours[CANCELLED[case]] = made[CANCELLED[case]].abs().max().item()
        worst = max(ours, key=ours.get)
        print(f"{case} {dtype} {options}: worst {worst} {ours[worst]:.2e}")
        bounds = BOUNDS_OF_RECURRENCES if case.startswith("qwen3_5") else BOUNDS
        for name, error in ours.items():
            self.assertLess(error, bounds[dtype], f"{case} {name}")
        if dtype == "bf16":
            model = reference_model(make_config(case), weights, adapters).to(torch.bfloat16)
            peer = distances(reference_pass(model, self.tokens, begins), exact)
            worse = {name: distance / peer[name]
                     for name, distance in distances(made, exact).items()}
            print(f"{case} {dtype}: {sum(worse.values()) / len(worse):.2f} of the peer's distance "
                  f"in the mean, {max(worse.values()):.2f} for {max(worse, key=worse.get)}")
            for name, ratio in worse.items():
                self.assertLess(ratio, WORSE_THAN_PEER, f"{case} {name}")


@unittest.skipIf(MISSING, MISSING)
class AgainstTransformers(Comparison):
    def test_every_architecture_in_float64(self):
        for case in CASES:
            with self.subTest(case=case):
                self.compare(case, "fp64")

    def test_every_architecture_in_fp32_from_recomputed_activations(self):
        for case in CASES:
            with self.subTest(case=case):
                self.compare(case, "fp32", recompute=1, chunk_rows=10)

    def test_is_as_close_as_transformers_in_bf16(self):
        for case in ("llama", "mistral", "qwen2", "qwen3", "qwen3_5", "qwen3_5_moe_all", "phi3",
                     "gemma3", "gemma2", "smollm3"):
            with self.subTest(case=case):
                self.compare(case, "bf16")

    def test_a_padded_vocabulary_of_a_tied_head(self):
        for case in ("llama_tied", "llama"):
            with self.subTest(case=case):
                self.compare(case, "fp32", padded_vocab=128)

    def test_documents_of_a_row_do_not_see_one_another(self):
        for case in ("llama", "mistral", "qwen2_windows", "qwen3", "yarn_scaling",
                     "dynamic_scaling", "qwen3_moe", "qwen3_moe_balanced", "mixtral", "gpt_oss",
                     "qwen3_5", "qwen3_5_odd", "qwen3_5_moe", "qwen3_5_moe_odd", "phi3",
                     "phi3_parts", "gemma3", "gemma3_odd", "gemma2", "gemma2_odd", "smollm3",
                     "smollm3_windows", "smollm3_odd", "smollm3_rotated"):
            with self.subTest(case=case):
                self.compare(case, "fp64", begins=[[0, 11, 13], [0, 30]])


@unittest.skipIf(MISSING, MISSING)
class AdaptersAgainstPeft(Comparison):
    def test_every_product_in_float64(self):
        for case, adapters in ADAPTERS.items():
            with self.subTest(case=case):
                self.compare(case, "fp64", adapters=adapters)

    def test_every_product_in_fp32_from_recomputed_activations(self):
        for case in ("llama", "qwen2"):
            with self.subTest(case=case):
                self.compare(case, "fp32", adapters=ADAPTERS[case], recompute=1, chunk_rows=10)

    def test_is_as_close_as_peft_in_bf16(self):
        for case in ("llama", "mistral", "qwen2", "qwen3"):
            with self.subTest(case=case):
                self.compare(case, "bf16", adapters=ADAPTERS[case])

    def test_documents_of_a_row_do_not_see_one_another(self):
        self.compare("qwen3", "fp64", begins=[[0, 11, 13], [0, 30]], adapters=ADAPTERS["qwen3"])


if __name__ == "__main__":
    unittest.main()
