"""Models of transformers, and runs of Sluice with their shape."""

import re
import subprocess
import unittest
from pathlib import Path

import torch

from reference_gpt import MISSING, make_model
from sluice_runs import SLUICE, SluiceRuns

if not MISSING:
    from transformers import GPT2LMHeadModel

MICRO, LENGTH = 4, 24
SHAPE = {"layers": 2, "hidden": 48, "heads": 4, "context": 32, "vocab": 193, "dropout": 0.1}
WINDOWS = 4 * MICRO + 1
TOKENS = WINDOWS * LENGTH + 1 + 7
PREPARE = Path(__file__).resolve().parents[2] / "tools/prepare"


def stirred(shape, seed, by=0.1):
    """A model with weights so large that each of them matters."""
    model = make_model(shape, seed)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(by * torch.randn_like(value))
    return model


def loaded(folder, **options):
    model, info = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True, **options)
    problems = {problem: names for problem, names in info.items() if names}
    assert not problems, problems
    return model


@unittest.skipIf(MISSING, MISSING)
class Exchange(SluiceRuns):
    def setUp(self):
        super().setUp()
        self.text = self.tokens("text.bin", TOKENS, seed=9)

    def run_file(self, train, **model):
        return self.write_run({
            "train_micro_batch_size_per_gpu": MICRO,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
            "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"},
                                  "offload_optimizer": {"device": "nvme"},
                                  "stage3_param_persistence_threshold": 0},
            "model": {**SHAPE, **model},
            "data": {"train": [str(train)], "sequence_length": LENGTH},
            "run": {"steps": 10, "device": "cpu", "cpu_threads": 1, "eval_batches": 1},
            "budget": {"nvme_paths": [str(self.path / "nvme")]}})

    def refused(self, *arguments, code=2):
        done = subprocess.run([SLUICE, *map(str, arguments)], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def imported(self, name="run", source="theirs"):
        self.sluice("import", self.path / source, self.path / name)
        return self.path / name

    def evaluate(self, weights, config):
        shown = self.sluice("eval", config, "--weights", weights, "--data",
                            self.path / "text.bin", "--set", "data.dtype=uint16").stdout
        return float(re.match(r"loss (\S+) ", shown).group(1))

    def assert_close(self, ours, expected, bound):
        self.assertLess(abs(ours - expected), bound * expected, f"{ours}, expected {expected}")
