"""The files of configs/: each is valid as a whole, and trains with a small model.

The program is the environment's SLUICE.
"""

import json
import re
import sys
import unittest
from pathlib import Path

from sluice_runs import SluiceRuns

FOLDER = Path(__file__).resolve().parents[2] / "configs"
FILES = sorted(FOLDER.glob("*.json"))
SHAPES = {  # layers, hidden
    "demo": (3, 512), "gpt2_small": (12, 768), "gpt2_medium": (24, 1024), "gpt2_large": (36, 1280),
    "gpt2_xl_24gb": (48, 1600), "gpt2_xl_24gb_1024": (48, 1600), "gpt2_xl_24gb_fp16": (48, 1600),
    "gpt2_xl_24gb_nvme": (48, 1600), "gpt_13b_24gb": (40, 5120)}
SMALL = {"model.layers": 2, "model.hidden": 32, "model.heads": 2, "model.context": 16,
         "model.vocab": 64}
SMALL_RUN = {"data.sequence_length": 16, "data.dtype": "uint16",
             "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
             "run.device": "cpu", "run.cpu_threads": 1, "run.eval_batches": 2}
# The config.json files of the Hugging Face Hub that model.path names, with only the shapes.
QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "attention_bias": False,
         "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 40960,
         "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
         "use_sliding_window": False, "vocab_size": 151936}
BASES = {
    "qwen3_0.6b": {**QWEN3, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
                   "num_attention_heads": 16, "num_key_value_heads": 8,
                   "tie_word_embeddings": True},
    "qwen3_8b_24gb": {**QWEN3, "hidden_size": 4096, "intermediate_size": 12288,
                      "num_hidden_layers": 36, "num_attention_heads": 32,
                      "num_key_value_heads": 8, "tie_word_embeddings": False},
    "qwen3_32b_lora_24gb": {**QWEN3, "hidden_size": 5120, "intermediate_size": 25600,
                            "num_hidden_layers": 64, "num_attention_heads": 64,
                            "num_key_value_heads": 8, "tie_word_embeddings": False},
    "qwen3_30b_a3b_24gb": {**QWEN3, "model_type": "qwen3_moe",
                           "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048,
                           "intermediate_size": 6144, "moe_intermediate_size": 768,
                           "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
                           "decoder_sparse_step": 1, "mlp_only_layers": [],
                           "output_router_logits": False, "router_aux_loss_coef": 0.001,
                           "num_hidden_layers": 48, "num_attention_heads": 32,
                           "num_key_value_heads": 4, "tie_word_embeddings": False},
    "qwen3.5_9b_24gb": {"model_type": "qwen3_5", "architectures": [
        "Qwen3_5ForConditionalGeneration"], "tie_word_embeddings": False, "vision_config": {},
        "text_config": {"model_type": "qwen3_5_text", "attention_bias": False, "head_dim": 256,
                        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288,
                        "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
                        "linear_key_head_dim": 128, "linear_num_key_heads": 16,
                        "linear_num_value_heads": 32, "linear_value_head_dim": 128,
                        "max_position_embeddings": 262144, "num_attention_heads": 16,
                        "num_hidden_layers": 32, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
                        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000,
                                            "partial_rotary_factor": 0.25,
                                            "mrope_interleaved": True,
                                            "mrope_section": [11, 11, 10]},
                        "tie_word_embeddings": False, "vocab_size": 248320}},
    "qwen3.5_35b_a3b_24gb": {"model_type": "qwen3_5_moe", "architectures": [
        "Qwen3_5MoeForConditionalGeneration"], "tie_word_embeddings": False, "vision_config": {},
        "text_config": {"model_type": "qwen3_5_moe_text", "attention_bias": False, "head_dim": 256,
                        "hidden_act": "silu", "hidden_size": 2048, "moe_intermediate_size": 512,
                        "num_experts": 256, "num_experts_per_tok": 8,
                        "shared_expert_intermediate_size": 512, "full_attention_interval": 4,
                        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
                        "linear_num_key_heads": 16, "linear_num_value_heads": 32,
                        "linear_value_head_dim": 128, "max_position_embeddings": 262144,
                        "mlp_only_layers": [], "mtp_num_hidden_layers": 1,
                        "num_attention_heads": 16, "num_hidden_layers": 40,
                        "num_key_value_heads": 2, "output_router_logits": False,
                        "rms_norm_eps": 1e-6, "router_aux_loss_coef": 0.001,
                        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000,
                                            "partial_rotary_factor": 0.25,
                                            "mrope_interleaved": True,
                                            "mrope_section": [11, 11, 10]},
                        "tie_word_embeddings": False, "vocab_size": 248320}},
    "gpt_oss_20b_24gb": {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"],
                         "attention_bias": True, "head_dim": 64, "hidden_act": "silu",
                         "hidden_size": 2880, "intermediate_size": 2880,
                         "layer_types": ["sliding_attention", "full_attention"] * 12,
                         "max_position_embeddings": 131072, "num_attention_heads": 64,
                         "num_experts_per_tok": 4, "num_hidden_layers": 24,
                         "num_key_value_heads": 8, "num_local_experts": 32,
                         "output_router_logits": False, "rms_norm_eps": 1e-5,
                         "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
                                          "original_max_position_embeddings": 4096,
                                          "rope_type": "yarn", "truncate": False},
                         "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128,
                         "swiglu_limit": 7.0, "tie_word_embeddings": False, "vocab_size": 201088,
                         "quantization_config": {"quant_method": "mxfp4"}},
    "gemma3_12b_24gb": {"model_type": "gemma3", "architectures": [
        "Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106], "vision_config": {},
        "text_config": {"model_type": "gemma3_text", "hidden_size": 3840,
                        "intermediate_size": 15360, "num_attention_heads": 16,
                        "num_hidden_layers": 48, "num_key_value_heads": 8,
                        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                        "sliding_window": 1024}},
    "llama3_8b_24gb": {"model_type": "llama", "architectures": ["LlamaForCausalLM"],
                       "attention_bias": False, "hidden_act": "silu", "hidden_size": 4096,
                       "intermediate_size": 14336, "max_position_embeddings": 131072,
                       "mlp_bias": False, "num_attention_heads": 32, "num_hidden_layers": 32,
                       "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
                       "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
                                        "high_freq_factor": 4.0, "rope_type": "llama3",
                                        "original_max_position_embeddings": 8192},
                       "tie_word_embeddings": False, "vocab_size": 128256},
    "phi4_24gb": {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"],
                  "attention_bias": False, "attention_dropout": 0.0, "embd_pdrop": 0.0,
                  "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 17920,
                  "max_position_embeddings": 16384, "num_attention_heads": 40,
                  "num_hidden_layers": 40, "num_key_value_heads": 10,
                  "original_max_position_embeddings": 16384, "partial_rotary_factor": 1.0,
                  "resid_pdrop": 0.0, "rms_norm_eps": 1e-5, "rope_scaling": None,
                  "rope_theta": 250000, "sliding_window": None, "tie_word_embeddings": False,
                  "vocab_size": 100352},
    "mistral_7b_24gb": {"model_type": "mistral", "architectures": ["MistralForCausalLM"],
                        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
                        "max_position_embeddings": 32768, "num_attention_heads": 32,
                        "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
                        "rope_theta": 1000000.0, "sliding_window": None,
                        "tie_word_embeddings": False, "vocab_size": 32768},
}
TEXTS = {name: base.get("text_config", base) for name, base in BASES.items()}
SHAPES.update({name: (text["num_hidden_layers"], text["hidden_size"])
               for name, text in TEXTS.items()})


# The section of `sluice config` for keys without effect, where only the length was overruled.
IGNORED = re.compile(r"(?m)^ignored.*\n(?:  run\.(?:steps|epochs) .* overruled by --set\n)+(?!  )")
# Of each kind one leaves places to the planner, which measures the machine: that takes seconds.
PLANNED = ("gpt2_small", "qwen3_0.6b")


def placed(file):
    """Options that place in host memory what the file leaves to the planner."""
    if file.stem in PLANNED:
        return []
    found = re.findall(r'"(offload_\w+)": \{"device": "auto"', file.read_text(encoding="utf-8"))
    return words_of({f"zero_optimization.{name}.device": "cpu" for name in found})


def words_of(overrides):
    return [word for key, value in overrides.items() for word in ("--set", f"{key}={json.dumps(value)}")]


class ReadyConfigurations(SluiceRuns):
    def folder_of(self, file):
        """The options for a configuration's model, with its config.json alone; [] if it has
        none."""
        if file.stem not in BASES:
            return []
        folder = self.path / f"{file.stem}-hub"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(BASES[file.stem]), encoding="utf-8")
        return ["--set", f"model.path={folder}"]

    def test_these_are_there(self):
        self.assertEqual({file.stem for file in FILES}, set(SHAPES))

    def test_each_is_understood_as_a_whole(self):
        for file in FILES:
            with self.subTest(file=file.name):
                there = self.folder_of(file)
                outcome = self.sluice("config", file, *there, "--json")
                self.assertEqual(outcome.stderr, "")
                resolved = json.loads(outcome.stdout)
                self.assertEqual((resolved["model"]["layers"], resolved["model"]["hidden"]),
                                 SHAPES[file.stem])
                self.assertEqual(resolved.get("recipe", {}).get("lora", {}).get("rank", 0),
                                 16 if "lora" in file.stem else 0)
                self.assertEqual(resolved["scheduler"]["params"]["total_num_steps"], "auto")
                # A user can change the steps, and the schedule follows.
                longer = ("config", file, *there, "--set", "run.epochs=null", "--set", "run.steps=7000")
                outcome = self.sluice(*longer)
                self.assertEqual(outcome.stderr, "")
                if not there:  # otherwise, other overridden keys are listed
                    self.assertEqual(IGNORED.sub("", outcome.stdout).count("ignored"), 0)
                self.assertRegex(outcome.stdout,
                                 r"(?m)^  scheduler\.params\.total_num_steps +7000 ")
                if file.stem in PLANNED:
                    kept = json.loads(self.sluice(*longer, "--json").stdout)
                    self.assertEqual(kept["scheduler"]["params"]["total_num_steps"], "auto")

    def write_tokens(self):
        self.tokens("train.bin", 20000, seed=5)
        self.tokens("val.bin", 2000, seed=6)
        return {"data.train": [str(self.path / "train.bin")],
                "data.validation": [str(self.path / "val.bin")],
                "budget.nvme_paths": [str(self.path / "nvme")]}

    def test_each_trains_when_its_model_is_small(self):
        words = words_of({**SMALL, **SMALL_RUN, **self.write_tokens()})
        for file in FILES:
            if file.stem in BASES:
                continue
            with self.subTest(file=file.name):
                self.sluice("train", file, "--out", self.path / file.stem, "--steps", 3, *words,
                            *placed(file))
                steps = self.metrics(file.stem)
                self.assertEqual(len(steps), 3)
                self.assertLess(abs(steps[0]["loss"] - 4.16), 0.4)  # ln(64): untrained
                self.assertIn("val_loss", steps[-1])
                # See deepspeed_files.py for why three steps.
                on_nvme = any(step["nvme_write_bytes"] for step in steps)
                self.assertEqual(on_nvme, file.stem in ("demo", "gpt2_xl_24gb_nvme"))

    def small_base(self, architecture, words):
        """A Hugging Face folder of the architecture, which is made once."""
        made, base = self.path / f"{architecture}-made", self.path / f"{architecture}-base"
        if not base.exists():
            experts = {"experts": 4, "experts_per_token": 2} if architecture in (
                "qwen3_moe", "gpt_oss", "qwen3_5_moe") else {}
            model = {"family": "llama", "architecture": architecture, **experts}
            if architecture == "gemma3":
                model = {"family": architecture, "head_dim": 16, "window": 8, "full_interval": 2}
            if architecture in ("qwen3_5", "qwen3_5_moe"):
                model = {"family": "qwen3_5", **experts, "head_dim": 16, "attention_interval": 2,
                         "delta_key_heads": 1, "delta_value_heads": 2, "delta_key_dim": 8,
                         "delta_value_dim": 8}
            run = self.write_run({"model": {"preset": "custom", "kv_heads": 1, "ffn_multiplier": 2,
                                            **model},
                                  "bf16": {"enabled": True}})
            self.sluice("train", run, "--out", made, "--steps", 1, *words_of(SMALL), *words)
            self.sluice("export", made, base, "--tokenizer", "bytes")
        return base

    def test_each_fine_tunes_a_small_model_of_its_architecture(self):
        words = words_of({**SMALL_RUN, **self.write_tokens()})
        for file in FILES:
            if file.stem not in BASES:
                continue
            with self.subTest(file=file.name):
                base = self.small_base(BASES[file.stem]["model_type"], words)
                self.sluice("train", file, "--out", self.path / file.stem, "--set",
                            f"model.path={base}", "--set", "run.epochs=null", "--steps", 3,
                            "--any-tokenizer", *words, *placed(file))
                steps = self.metrics(file.stem)
                self.assertEqual(len(steps), 3)
                self.assertIn("val_loss", steps[-1])
                out = self.path / f"{file.stem}-out"
                self.sluice("export", self.path / file.stem, out, "--tokenizer", "bytes")
                name = "adapter_config.json" if "lora" in file.stem else "config.json"
                self.assertTrue((out / name).exists())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
