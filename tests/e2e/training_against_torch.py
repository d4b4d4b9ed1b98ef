"""50 steps of sluice train, compared with PyTorch from the same weights, with the same batches.

The programs are the environment's SLUICE and PRINT_SAMPLES.
"""

import json
import os
import subprocess
import sys
import unittest

import torch

from reference_gpt import GPT2LMHeadModel, MISSING, Training, make_model, windows
from sluice_runs import SluiceRuns

PRINT_SAMPLES = os.path.abspath(os.environ.get("PRINT_SAMPLES", "build/bin/print_samples"))
STEPS, MICRO, ACCUMULATION, CLIP, SHUFFLE_SEED = 50, 4, 2, 1.6, 11
SHAPE = {"layers": 3, "hidden": 64, "heads": 4, "context": 32, "vocab": 256, "dropout": 0}
ADAMW = {"lr": 0.004, "betas": [0.9, 0.98], "eps": 1e-8, "weight_decay": 0.1}
WARMUP = {"warmup_min_lr": 0.0004, "warmup_max_lr": 0.004, "warmup_num_steps": 10,
          "warmup_type": "linear"}
NVME = {"stage": 3, "sub_group_size": 20000, "stage3_param_persistence_threshold": 0,
        "offload_param": {"device": "nvme"}, "offload_optimizer": {"device": "nvme"}}
CPU = {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}
LEARNT = 1.5  # the least fall of the loss: a run that stands still proves nothing


def rate_of(applied):
    """Steps like DeepSpeed's scheduler: after each update, the first one counted as 0."""
    share = min(1.0, max(0, applied - 1) / WARMUP["warmup_num_steps"])
    return WARMUP["warmup_min_lr"] + share * (WARMUP["warmup_max_lr"] - WARMUP["warmup_min_lr"])


@unittest.skipIf(MISSING, MISSING)
class AgainstTorch(SluiceRuns):
    def train(self, zero, precision, deepspeed=False):
        """Trains; returns the metrics. The weights are in `self.path`/after.

        With `deepspeed`, all keys that DeepSpeed has are in a file of their own.
        """
        self.text = self.tokens("train.bin", 12000, seed=4)
        make_model(SHAPE, seed=2).save_pretrained(self.path / "before")
        (self.path / "after").mkdir()
        run = {"train_micro_batch_size_per_gpu": MICRO,
               "gradient_accumulation_steps": ACCUMULATION, "gradient_clipping": CLIP,
               "optimizer": {"type": "AdamW", "params": ADAMW},
               "scheduler": {"type": "WarmupLR", "params": WARMUP},
               "zero_optimization": zero, "model": SHAPE,
               "data": {"train": [str(self.path / "train.bin")], "dtype": "uint16",
                        "shuffle_seed": SHUFFLE_SEED, "validation_fraction": 0},
               "run": {"steps": STEPS, "device": "cpu", "cpu_threads": 1},
               "placement": {"record_elements": 65536},
               "budget": {"nvme_paths": [str(self.path / "nvme")]}, **precision}
        files = [self.write_run(run)]
        if deepspeed:
            theirs = {key: run.pop(key) for key in list(run)
                      if key not in ("model", "data", "run", "placement", "budget")}
            (self.path / "ds.json").write_text(json.dumps(theirs), encoding="utf-8")
            files = [self.write_run(run), "--deepspeed", self.path / "ds.json"]
        self.sluice("train", *files, "--out", self.path / "out", "--init-from",
                    self.path / "before", "--save-weights", self.path / "after/model.safetensors")
        steps = self.metrics("out")
        self.assertEqual(len(steps), STEPS)
        self.assertLess(sum(step["loss"] for step in steps[-5:]) / 5, steps[0]["loss"] - LEARNT)
        moved = sum(step["nvme_write_bytes"] for step in steps)
        self.assertEqual(moved > 0, zero is NVME)
        return steps

    def samples(self):
        count = STEPS * ACCUMULATION * MICRO
        result = subprocess.run([PRINT_SAMPLES, self.path / "train.bin", str(SHAPE["context"]),
                                 str(SHUFFLE_SEED), str(count)], capture_output=True, check=True)
        firsts = list(map(int, result.stdout.split()))
        self.assertEqual(len(set(firsts)), count)
        return firsts

    def reference(self, skipped, **more):
        """The model after the same steps, and each step's (loss, norm, rate)."""
        training = Training(GPT2LMHeadModel.from_pretrained(self.path / "before"),
                            {**ADAMW, **more}, rate_of)
        firsts = iter(self.samples())
        outcomes = []
        for skip in skipped:
            batch = [windows(self.text, [next(firsts) for _ in range(MICRO)], SHAPE["context"])
                     for _ in range(ACCUMULATION)]
            outcomes.append(training.step(batch, CLIP, skip))
        return training.model, outcomes

    def test_follows_in_fp32(self):
        steps = self.train(CPU, {})
        model, expected = self.reference([False] * STEPS)
        worst = max(abs(step["loss"] - loss) for step, (loss, _, _) in zip(steps, expected))
        print(f"fp32: loss {steps[0]['loss']:.3f} -> {steps[-1]['loss']:.3f}, "
              f"worst difference {worst:.1e}")
        clipped = 0
        for step, (loss, norm, rate) in zip(steps, expected):
            with self.subTest(step=step["step"]):
                self.assertAlmostEqual(step["loss"], loss, delta=2e-5)
                self.assertAlmostEqual(step["grad_norm"], norm, delta=2e-4 * norm)
                self.assertAlmostEqual(step["lr"], rate, delta=1e-9)
                clipped += norm > CLIP
        self.assertGreater(clipped, 5)
        self.assertLess(clipped, STEPS - 5)
        self.compare_weights(model)

    # The norms show which parameters decay: 50 steps take 2% off their ones.
    def test_decays_all_parameters_for_a_deepspeed_file_and_matrices_for_ours(self):
        self.train(CPU, {}, deepspeed=True)
        decayed, _ = self.reference([False] * STEPS, decayed="all")
        self.compare_weights(decayed)
        kept, _ = self.reference([False] * STEPS)
        with self.assertRaises(AssertionError):
            self.compare_weights(kept)

    def compare_weights(self, model):
        model.config.save_pretrained(self.path / "after")
        ours = dict(GPT2LMHeadModel.from_pretrained(self.path / "after").named_parameters())
        start = dict(GPT2LMHeadModel.from_pretrained(self.path / "before").named_parameters())
        with torch.no_grad():
            for name, value in model.named_parameters():
                moved = (value - start[name]).norm()
                apart = (value - ours[name]).norm()
                self.assertGreater(moved, 0.02, name)
                self.assertLess(apart, 1e-2 * moved, name)

    def test_follows_in_bf16_with_all_state_on_nvme(self):
        steps = self.train(NVME, {"bf16": {"enabled": True}})
        _, expected = self.reference([False] * STEPS)
        self.compare_losses("bf16", steps, expected)
        for step, (_, norm, rate) in zip(steps, expected):
            self.assertAlmostEqual(step["lr"], rate, delta=1e-9)
            self.assertAlmostEqual(step["grad_norm"], norm, delta=0.2 * norm)

    def test_follows_in_fp16_with_a_loss_scale_that_overflows_and_grows(self):
        steps = self.train(NVME, {"fp16": {"enabled": True, "initial_scale_power": 24,
                                           "loss_scale_window": 8, "hysteresis": 1}})
        skipped = [step["skipped"] for step in steps]
        self.assertTrue(skipped[0])
        self.assertLess(sum(skipped), STEPS // 3)
        applied = [step["loss_scale"] for step in steps if not step["skipped"]]
        self.assertGreater(max(applied), applied[0])
        _, expected = self.reference(skipped)
        self.compare_losses("fp16", steps, expected)

    def compare_losses(self, name, steps, expected):
        worst = max(abs(step["loss"] - loss) / loss for step, (loss, _, _) in zip(steps, expected))
        print(f"{name}: loss {steps[0]['loss']:.3f} -> {steps[-1]['loss']:.3f}, "
              f"worst difference {100 * worst:.2f}%")
        for step, (loss, _, _) in zip(steps, expected):
            with self.subTest(step=step["step"]):
                self.assertLess(abs(step["loss"] - loss), 0.02 * loss)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
