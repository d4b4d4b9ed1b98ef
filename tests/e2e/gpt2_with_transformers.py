"""GPT-2 variants, written by transformers, trained by sluice and read again.

The programs are the environment's SLUICE and PRINT_SAMPLES.
"""

import json
import shutil
import sys
import unittest

import torch

from llama_with_transformers import (ACCUMULATION, ADAMW, LENGTH, MICRO, NVME, STEPS, LlamaRuns,
                                     loaded)
from reference_gpt import MISSING, Training, mean_loss, windows

if not MISSING:
    from safetensors.torch import load_file
    from transformers import GPT2Config, GPT2LMHeadModel

SIZES = {"vocab_size": 257, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 96,
         "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
CASES = {
    "gelu": {"activation_function": "gelu", "layer_norm_epsilon": 1e-6},
    "relu": {"activation_function": "relu", "tie_word_embeddings": False, "n_inner": 100},
    "silu": {"activation_function": "silu", "scale_attn_by_inverse_layer_idx": True},
    "untied": {"tie_word_embeddings": False},
    "unscaled": {"scale_attn_weights": False, "layer_norm_epsilon": 0.01},
}
# ReLU's derivative jumps, and AdamW makes whole steps of small gradients. If rounding moves a
# number across 0, PyTorch in fp32 differs as much from PyTorch in float64 (by 7.7e-5 of a loss).
BOUNDS = {"relu": {"bound": 2e-3, "norm_bound": 2e-2}}
# The keys of a configuration for the same settings.
KEYS = {"activation_function": "activation", "layer_norm_epsilon": "norm_epsilon",
        "tie_word_embeddings": "tied_head", "scale_attn_weights": "scale_attention",
        "scale_attn_by_inverse_layer_idx": "scale_attention_by_layer"}


def make_model(case, seed=3, stir=0.1, **more):
    """A model with weights so large that each of them matters."""
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(GPT2Config(**{**SIZES, **CASES[case], **more}, bos_token_id=None,
                                       eos_token_id=None, attn_implementation="eager"))
    with torch.no_grad():
        for value in model.parameters():
            value.add_(stir * torch.randn_like(value))
    return model


@unittest.skipIf(MISSING, MISSING)
class OtherGpt2s(LlamaRuns):
    def imported(self, case, **options):
        model = make_model(case, **options)
        model.save_pretrained(self.path / f"{case}-theirs", max_shard_size="40KB")
        self.sluice("import", self.path / f"{case}-theirs", self.path / case)
        return model, self.path / case

    def train(self, run, steps, **more):
        super().train(run, steps, **{"model.dropout": 0, **more})

    def test_thirty_steps_are_pytorchs_whether_stopped_or_not(self):
        for case in CASES:
            with self.subTest(case=case):
                model, run = self.imported(case)
                self.train(run, STEPS // 2)
                self.train(run, STEPS)
                steps = self.assert_steps_are_those_of(model, case, **BOUNDS.get(case, {}))
                self.assertLess(steps[-1]["loss"], steps[0]["loss"] - 0.3)

    def test_what_is_exported_is_what_sluice_evaluates_and_imports(self):
        for case, keys in CASES.items():
            with self.subTest(case=case):
                model, run = self.imported(case)
                before = mean_loss(model, self.text, LENGTH)
                self.assert_close(self.evaluate(self.path / f"{case}-theirs", run), before, 1e-5)
                self.train(run, 3)
                ours = self.path / f"{case}-ours"
                self.sluice("export", run, ours, "--max-shard-size", "60K")
                after = loaded(ours)
                expected = mean_loss(after, self.text, LENGTH)
                self.assertLess(expected, before)
                self.assert_close(self.evaluate(ours, run), expected, 1e-5)
                written = json.loads((ours / "config.json").read_text(encoding="utf-8"))
                for key, value in keys.items():
                    self.assertEqual(written[key], value, key)
                card = (ours / "README.md").read_text(encoding="utf-8")
                for key, name in KEYS.items():
                    self.assertEqual(f"{name} " in card, key in keys, name)
                # The way back gives the same model, bit by bit.
                again = self.path / f"{case}-again"
                self.sluice("import", ours, again)
                self.sluice("export", again, self.path / f"{case}-twice")
                twice = load_file(self.path / f"{case}-twice/model.safetensors")
                self.assertEqual("lm_head.weight" in twice,
                                 not keys.get("tie_word_embeddings", True))
                second = loaded(self.path / f"{case}-twice").state_dict()
                for name, value in after.state_dict().items():
                    self.assertTrue(torch.equal(value, second[name]), name)

    def test_a_folder_is_trained_without_an_import(self):
        for case in ("relu", "silu"):
            with self.subTest(case=case):
                model = make_model(case)
                model.save_pretrained(self.path / "theirs")
                file = self.write_run({"model": {"path": str(self.path / "theirs")}})
                run = self.path / f"run-{case}"
                words = self.words(**{"model.dropout": 0})
                self.sluice("train", file, "--out", run, "--steps", 3, *words)
                firsts = self.samples(ACCUMULATION * MICRO)
                batch = [windows(self.text, [next(firsts) for _ in range(MICRO)], LENGTH)
                         for _ in range(ACCUMULATION)]
                loss, norm, _ = Training(model, ADAMW, lambda applied: ADAMW["lr"]).step(batch, 1.0)
                first = self.metrics(run.name)[0]
                self.assert_close(first["loss"], loss, 1e-5)
                self.assert_close(first["grad_norm"], norm, 2e-4)
                shutil.rmtree(self.path / "theirs")
                self.sluice("train", run / "config.json", "--out", run, "--resume", "--steps", 5)
                self.sluice("export", run, self.path / f"ours-{case}")
                loaded(self.path / f"ours-{case}")

    def test_one_from_nothing_is_what_its_keys_say(self):
        for case, keys in CASES.items():
            with self.subTest(case=case):
                model = {"preset": "custom", "layers": 2, "hidden": 32, "heads": 2, "context": 64,
                         "vocab": 257, "dropout": 0,
                         **{KEYS[key]: value for key, value in keys.items() if key in KEYS}}
                file = self.write_run({"model": model})
                run = self.path / f"new-{case}"
                self.sluice("train", file, "--out", run, "--steps", 2, *self.words())
                self.sluice("export", run, self.path / f"new-{case}-out")
                made = loaded(self.path / f"new-{case}-out")
                expected = mean_loss(made, self.text, LENGTH)
                self.assert_close(self.evaluate(self.path / f"new-{case}-out", run), expected,
                                  1e-5)
                for key, value in keys.items():
                    if key in KEYS:
                        self.assertEqual(getattr(made.config, key), value)

    def test_placements_and_a_stop_half_way_change_no_bit(self):
        for case in ("relu", "silu"):
            hashes = set()
            for name, placement, stops in (("cpu", {}, [6]), ("nvme", NVME, [6]),
                                           ("stopped", NVME, [3, 6])):
                _, run = self.imported(case)
                for steps in stops:
                    self.train(run, steps, **{"bf16.enabled": "true"}, **placement)
                self.sluice("export", run, self.path / f"{case}-{name}-out")
                hashes.add((self.path / f"{case}-{name}-out/model.safetensors").read_bytes())
                shutil.rmtree(run)
            self.assertEqual(len(hashes), 1, case)

    def test_a_run_of_another_model_does_not_continue(self):
        _, run = self.imported("relu")
        self.train(run, 1)
        for word, said in (("model.activation=gelu", "activation is gelu, and was relu"),
                           ("model.tied_head=true", "tied_head is true, and was false"),
                           ("model.norm_epsilon=1e-6", "norm_epsilon is 1e-06, and was 1e-05")):
            told = self.refused("train", run / "config.json", "--out", run, "--resume", "--steps",
                                2, *self.words(), "--set", "model.dropout=0", "--set", word)
            self.assertIn(said, told)

    def test_greedy_tokens_are_transformers(self):
        prompt = "once upon a time"
        for case in CASES:
            with self.subTest(case=case):
                model, run = self.imported(case, stir=0.3)
                expected = self.greedy(model.eval(), prompt.encode(), 40)
                self.assertGreater(len(set(expected)), 4)  # else the test proves little
                shown = self.sluice("generate", run, "--prompt", prompt, "--tokenizer", "bytes",
                                    "--temperature", "0", "--tokens", 40,
                                    *self.words(**{"data.sequence_length": 96})).stdout
                text = bytes(expected).decode(errors="replace").replace("\r", "\n")
                self.assertEqual(shown, text + "\n")  # newlines are converted when it is read

    def test_what_is_not_known_is_refused_before_any_work(self):
        make_model("relu").save_pretrained(self.path / "theirs")
        file = self.path / "theirs/config.json"
        config = json.loads(file.read_text(encoding="utf-8"))
        run = self.write_run({"model": {"path": str(self.path / "theirs")}})
        for key, value, code in (("activation_function", "quick_gelu", 2),
                                 ("layer_norm_epsilon", 0, 1), ("layer_norm_epsilon", None, 2),
                                 ("tie_word_embeddings", None, 2), ("scale_attn_weights", 1, 1),
                                 ("scale_attn_by_inverse_layer_idx", "no", 1),
                                 ("reorder_and_upcast_attn", 0, 2), ("n_inner", -4, 1),
                                 ("add_cross_attention", True, 2)):
            with self.subTest(key=key):
                file.write_text(json.dumps({**config, key: value}), encoding="utf-8")
                wanted = f'"{key}" is {json.dumps(value)}'
                self.assertIn(wanted, self.refused("import", self.path / "theirs",
                                                   self.path / "run", code=code))
                self.assertIn(wanted, self.refused("train", run, "--out", self.path / "run",
                                                   "--steps", 1, *self.words()))
                self.assertFalse((self.path / "run").exists())
        # Untied weights without a head, and tied ones with a head that differs.
        file.write_text(json.dumps(config), encoding="utf-8")
        weights = load_file(self.path / "theirs/model.safetensors")
        self.assertIn("lm_head.weight", weights)
        file.write_text(json.dumps({**config, "tie_word_embeddings": True}), encoding="utf-8")
        self.assertIn("lm_head.weight", self.refused("import", self.path / "theirs",
                                                     self.path / "run"))
        make_model("gelu").save_pretrained(self.path / "tied")
        file = self.path / "tied/config.json"
        file.write_text(file.read_text(encoding="utf-8").replace(
            '"tie_word_embeddings": true', '"tie_word_embeddings": false'), encoding="utf-8")
        self.assertIn('no tensor "lm_head.weight"', self.refused("import", self.path / "tied",
                                                                 self.path / "run"))


del LlamaRuns  # its tests run elsewhere


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
