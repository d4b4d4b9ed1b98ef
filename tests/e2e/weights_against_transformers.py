"""Weights go from sluice to transformers and back, with the same loss on both sides.

The program is the environment's SLUICE.
"""

import re
import sys
import unittest

import torch

from reference_gpt import GPT2LMHeadModel, MISSING, make_model, mean_loss
from sluice_runs import SluiceRuns

MICRO, LENGTH = 4, 24
SHAPE = {"layers": 2, "hidden": 48, "heads": 4, "context": 32, "vocab": 193, "dropout": 0.1}
WINDOWS = 4 * MICRO + 1  # the last micro-batch is smaller
TOKENS = WINDOWS * LENGTH + 1 + 7


@unittest.skipIf(MISSING, MISSING)
class AgainstTransformers(SluiceRuns):
    def setUp(self):
        super().setUp()
        self.text = self.tokens("text.bin", TOKENS, seed=9)
        self.run_file = self.write_run({
            "train_micro_batch_size_per_gpu": MICRO, "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
            "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"},
                                  "offload_optimizer": {"device": "nvme"},
                                  "stage3_param_persistence_threshold": 0},
            "model": SHAPE,
            "data": {"train": [str(self.path / "text.bin")], "dtype": "uint16",
                     "sequence_length": LENGTH},
            "run": {"steps": 30, "device": "cpu", "cpu_threads": 1, "eval_batches": 1},
            "budget": {"nvme_paths": [str(self.path / "nvme")]}})

    def evaluate(self, weights, *arguments):
        shown = self.sluice("eval", self.run_file, "--weights", self.path / weights, "--data",
                            self.path / "text.bin", *arguments).stdout
        loss, tokens = re.match(r"loss (\S+) .* over (\d+) tokens", shown).groups()
        self.assertEqual(int(tokens), WINDOWS * LENGTH)
        return float(loss)

    def assert_close(self, ours, expected, bound):
        self.assertLess(abs(ours - expected), bound * expected, f"{ours}, expected {expected}")

    def test_evaluates_what_transformers_wrote_in_one_file_or_several(self):
        model = make_model(SHAPE, seed=6)
        with torch.no_grad():  # so large that every weight matters
            for value in model.parameters():
                value.add_(0.1 * torch.randn_like(value))
        model.save_pretrained(self.path / "one")
        model.save_pretrained(self.path / "several", max_shard_size="60KB")
        self.assertGreater(len(list((self.path / "several").glob("*.safetensors"))), 2)
        expected = mean_loss(model, self.text, LENGTH)
        for weights in ("one", "several", "one/model.safetensors"):
            with self.subTest(weights=weights):
                self.assert_close(self.evaluate(weights), expected, 1e-5)
        self.assert_close(self.evaluate("one", "--set", "bf16.enabled=true"), expected, 1e-2)
        self.assert_close(self.evaluate("one", "--set", "fp16.enabled=true"), expected, 2e-3)

    def test_trains_weights_that_transformers_loads(self):
        make_model(SHAPE, seed=6).config.save_pretrained(self.path / "ours")
        before = None
        for dtype in ("fp32", "bf16", "fp16"):
            with self.subTest(dtype=dtype):
                self.sluice("train", self.run_file, "--out", self.path / f"out-{dtype}", "--dtype",
                            dtype, "--save-weights", self.path / "ours/model.safetensors",
                            "--force")
                model, info = GPT2LMHeadModel.from_pretrained(
                    self.path / "ours", output_loading_info=True, dtype=torch.float32)
                for problem, names in info.items():
                    self.assertFalse(names, problem)
                loss = mean_loss(model, self.text, LENGTH)
                self.assertLess(loss, 3)  # it learnt: ln(193) is 5.3
                self.assertNotEqual(loss, before)
                before = loss
                self.assert_close(self.evaluate("ours"), loss, 1e-5)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
