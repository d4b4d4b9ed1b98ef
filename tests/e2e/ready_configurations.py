"""The files of configs/: each is understood as a whole, and trains once its model is small.

The program is the environment's SLUICE.
"""

import json
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
         "model.vocab": 64, "data.sequence_length": 16, "data.dtype": "uint16",
         "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
         "run.device": "cpu", "run.cpu_threads": 1, "run.eval_batches": 2}


class ReadyConfigurations(SluiceRuns):
    def test_these_are_there(self):
        self.assertEqual({file.stem for file in FILES}, set(SHAPES))

    def test_each_is_understood_as_a_whole(self):
        for file in FILES:
            with self.subTest(file=file.name):
                outcome = self.sluice("config", file)
                self.assertEqual(outcome.stderr, "")
                self.assertNotIn("ignored", outcome.stdout)
                resolved = json.loads(self.sluice("config", file, "--json").stdout)
                self.assertEqual((resolved["model"]["layers"], resolved["model"]["hidden"]),
                                 SHAPES[file.stem])
                # Steps are the user's to change, and the schedule follows.
                longer = ("config", file, "--set", "run.steps=7000")
                self.assertRegex(self.sluice(*longer).stdout,
                                 r"(?m)^  scheduler\.params\.total_num_steps +7000 ")
                kept = json.loads(self.sluice(*longer, "--json").stdout)
                self.assertEqual(kept["scheduler"]["params"]["total_num_steps"], "auto")

    def test_each_trains_when_its_model_is_small(self):
        self.tokens("train.bin", 20000, seed=5)
        self.tokens("val.bin", 2000, seed=6)
        overrides = {**SMALL, "data.train": [str(self.path / "train.bin")],
                     "data.validation": [str(self.path / "val.bin")],
                     "budget.nvme_paths": [str(self.path / "nvme")]}
        words = [word for key, value in overrides.items()
                 for word in ("--set", f"{key}={json.dumps(value)}")]
        for file in FILES:
            with self.subTest(file=file.name):
                self.sluice("train", file, "--out", self.path / file.stem, "--steps", 3, *words)
                steps = self.metrics(file.stem)
                self.assertEqual(len(steps), 3)
                self.assertLess(abs(steps[0]["loss"] - 4.16), 0.4)  # ln(64): it knows nothing
                self.assertIn("val_loss", steps[-1])
                # See deepspeed_files.py for why three steps.
                on_nvme = any(step["nvme_write_bytes"] for step in steps)
                self.assertEqual(on_nvme, file.stem in ("demo", "gpt2_xl_24gb_nvme"))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
