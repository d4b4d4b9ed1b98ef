"""Parameter groups, schedules and clipping by value of sluice train, compared with
torch.optim.AdamW, transformers' get_scheduler and torch.nn.utils.clip_grad_value_.

The programs are the environment's SLUICE and PRINT_SAMPLES.
"""

import fnmatch
import os
import subprocess
import sys
import unittest

import torch

from reference_gpt import GPT2LMHeadModel, MISSING, loss_of, make_model, windows
from sluice_runs import SluiceRuns

if not MISSING:
    import transformers
    from safetensors.torch import load_file

PRINT_SAMPLES = os.path.abspath(os.environ.get("PRINT_SAMPLES", "build/bin/print_samples"))
STEPS, MICRO, ACCUMULATION, SHUFFLE_SEED = 30, 4, 2, 11
SHAPE = {"layers": 3, "hidden": 64, "heads": 4, "context": 32, "vocab": 256, "dropout": 0}
ADAMW = {"lr": 0.004, "betas": [0.9, 0.98], "eps": 1e-8, "weight_decay": 0.1}
# By names in checkpoints and in transformers; the first match counts.
GROUPS = [{"match": "*.bias", "weight_decay": 0.5},
          {"match": ["transformer.wte.*", "wpe.weight"], "lr": 0.001},
          {"match": "h.1.mlp.c_*", "lr": 0.02, "weight_decay": 0.0},
          {"match": "h.[02].ln_?.weight", "lr": 0.0}]
COSINE = {"type": "cosine", "params": {"warmup_ratio": 0.2}}
CPU = {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}
# Sub-groups and records do not end where parameters do.
NVME = {"stage": 3, "sub_group_size": 20000, "stage3_param_persistence_threshold": 0,
        "offload_param": {"device": "nvme"}, "offload_optimizer": {"device": "nvme"}}
MIXED = {"stage": 3, "sub_group_size": 7001, "offload_param": {"device": "cpu"},
         "offload_optimizer": {"device": "nvme", "ratio": 0.5}}
LIMIT = 0.004
KINDS = [("linear", {"num_warmup_steps": 3}), ("cosine", {"num_warmup_steps": 2}),
         ("cosine_with_restarts", {"num_cycles": 2}),
         ("cosine_with_min_lr", {"num_warmup_steps": 2, "min_lr": 0.0005}),
         ("polynomial", {"num_warmup_steps": 2, "power": 2.0}), ("constant", {}),
         ("constant_with_warmup", {"num_warmup_steps": 4}),
         ("inverse_sqrt", {"num_warmup_steps": 3}),
         ("warmup_stable_decay", {"num_warmup_steps": 3, "num_decay_steps": 5,
                                  "decay_type": "1-sqrt", "min_lr_ratio": 0.1})]


def group_of(name, groups):
    """The group of a parameter of transformers, by Python's own globs; -1 if none matches."""
    ours = name.removeprefix("transformer.")
    for index, group in enumerate(groups):
        patterns = [group["match"]] if isinstance(group["match"], str) else group["match"]
        if any(fnmatch.fnmatchcase(it, pattern) for pattern in patterns for it in (ours, name)):
            return index
    return -1


def torch_optimizer(model, groups):
    made = []
    for name, value in model.named_parameters():
        index = group_of(name, groups)
        own = groups[index] if index >= 0 else {}
        decay = ADAMW["weight_decay"] if value.ndim > 1 else 0
        made.append({"params": [value], "lr": own.get("lr", ADAMW["lr"]),
                     "weight_decay": own.get("weight_decay", decay)})
    return torch.optim.AdamW(made, lr=ADAMW["lr"], betas=ADAMW["betas"], eps=ADAMW["eps"])


@unittest.skipIf(MISSING, MISSING)
class OptimizerAgainstTorch(SluiceRuns):
    def setUp(self):
        super().setUp()
        self.text = self.tokens("train.bin", 12000, seed=4)
        make_model(SHAPE, seed=2).save_pretrained(self.path / "before")

    def run_file(self, name, steps=STEPS, **more):
        run = {"train_micro_batch_size_per_gpu": MICRO,
               "gradient_accumulation_steps": ACCUMULATION,
               "optimizer": {"type": "AdamW", "params": ADAMW}, "zero_optimization": CPU,
               "model": SHAPE,
               "data": {"train": [str(self.path / "train.bin")], "dtype": "uint16",
                        "shuffle_seed": SHUFFLE_SEED, "validation_fraction": 0},
               "run": {"steps": steps, "device": "cpu", "cpu_threads": 1},
               "placement": {"record_elements": 65536},
               "budget": {"nvme_paths": [str(self.path / "nvme")]}, **more}
        return self.write_run(run, f"{name}.json")

    def train(self, name, **more):
        """Trains; returns the metrics. The weights are in `self.path`/NAME-after."""
        after = self.path / f"{name}-after"
        after.mkdir(exist_ok=True)
        self.sluice("train", self.run_file(name, **more), "--out", self.path / name, "--init-from",
                    self.path / "before", "--save-weights", after / "model.safetensors")
        return self.metrics(name)

    def weights(self, name):
        return load_file(self.path / f"{name}-after/model.safetensors")

    def with_groups(self, **more):
        return {"optimizer": {"type": "AdamW", "params": ADAMW, "groups": GROUPS},
                "scheduler": COSINE, **more}

    def reference(self, groups=(), kind="cosine", warmup=6, clip=None):
        """The model after the same steps, and each step's loss and learning rate."""
        firsts = list(map(int, subprocess.run(
            [PRINT_SAMPLES, self.path / "train.bin", str(SHAPE["context"]), str(SHUFFLE_SEED),
             str(STEPS * ACCUMULATION * MICRO)], capture_output=True, check=True).stdout.split()))
        model = GPT2LMHeadModel.from_pretrained(self.path / "before").train()
        optimizer = torch_optimizer(model, list(groups))
        scheduler = transformers.get_scheduler(kind, optimizer, num_warmup_steps=warmup,
                                               num_training_steps=STEPS)
        outcomes = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            total = 0
            for _ in range(ACCUMULATION):
                rows = windows(self.text, [firsts.pop(0) for _ in range(MICRO)], SHAPE["context"])
                loss = loss_of(model, rows) / ACCUMULATION
                loss.backward()
                total += loss.item()
            if clip is not None:
                clip(model)
            # The rate of parameters without a group.
            outcomes.append((total, max(g["lr"] for g, (name, _) in
                                        zip(optimizer.param_groups, model.named_parameters())
                                        if group_of(name, groups) == -1)))
            optimizer.step()
            scheduler.step()
        return model, outcomes

    def distances(self, name, model):
        """By parameter: our distance from torch's value, relative to how far that value moved."""
        start = dict(GPT2LMHeadModel.from_pretrained(self.path / "before").named_parameters())
        ours = self.weights(name)
        with torch.no_grad():
            return {key: ((value - ours[key.removeprefix("transformer.")]).norm() /
                          (value - start[key]).norm().clamp(min=1e-6)).item()
                    for key, value in model.named_parameters()}

    def compare(self, name, steps, model, expected):
        worst = max(abs(step["loss"] - loss) for step, (loss, _) in zip(steps, expected))
        far = max(self.distances(name, model).values())
        print(f"{name}: loss {steps[0]['loss']:.3f} -> {steps[-1]['loss']:.3f}, worst difference "
              f"{worst:.1e}, of weights {far:.1e} of what they moved")
        self.assertLess(steps[-1]["loss"], steps[0]["loss"] - 0.5)
        self.assertLess(worst, 1e-5)
        self.assertEqual([step["lr"] for step in steps], [rate for _, rate in expected])
        self.assertLess(far, 1e-2)

    def test_parameter_groups_follow_torchs(self):
        steps = self.train("grouped", **self.with_groups())
        model, expected = self.reference(GROUPS)
        self.compare("grouped", steps, model, expected)
        used = {group_of(name, GROUPS) for name, _ in model.named_parameters()}
        self.assertEqual(used, {-1, 0, 1, 2, 3})
        # Each group affects its own parameters.
        for index in range(len(GROUPS)):
            others = GROUPS[:index] + GROUPS[index + 1:]
            far = self.distances("grouped", self.reference(others)[0])
            own = [far[name] for name in far if group_of(name, GROUPS) == index]
            self.assertGreater(max(own), 0.05, GROUPS[index])

    def test_parameter_groups_are_the_same_bits_wherever_the_state_lies(self):
        wanted = None
        for precision in ({}, {"bf16": {"enabled": True}}):
            for name, zero in {"cpu": CPU, "nvme": NVME, "mixed": MIXED}.items():
                name += "-".join(precision)
                steps = self.train(name, zero_optimization=zero, **self.with_groups(**precision))
                moved = sum(step["nvme_write_bytes"] for step in steps)
                self.assertEqual(moved > 0, zero is not CPU)
                weights = self.weights(name)
                if zero is CPU:
                    wanted = weights
                self.assertEqual(list(weights), list(wanted))
                for key, value in weights.items():
                    self.assertTrue(torch.equal(value, wanted[key]), f"{name}: {key}")

    def test_a_resumed_run_has_its_groups_and_says_what_changed_in_them(self):
        self.train("whole", **self.with_groups())
        run = self.run_file("part", **self.with_groups(run={
            "steps": STEPS, "device": "cpu", "cpu_threads": 1, "checkpoint_every": 13}))
        out = self.path / "part"
        (self.path / "part-after").mkdir()
        after = ["--save-weights", self.path / "part-after/model.safetensors"]
        self.sluice("train", run, "--out", out, "--init-from", self.path / "before")
        checkpoints = sorted(it.name for it in (out / "checkpoints").glob("step-*"))
        self.assertGreater(len(checkpoints), 1)
        again = self.sluice("train", out / "config.json", "--resume=" + checkpoints[0],
                            "--set-aside-later", *after)
        self.assertNotIn("optimizer.groups", again.stderr)
        wanted = self.weights("whole")
        for key, value in self.weights("part").items():
            self.assertTrue(torch.equal(value, wanted[key]), key)
        other = [*GROUPS]
        other[1] = {"match": ["*wte*"], "lr": 0.5}
        changed = self.sluice(
            "train", out / "config.json", "--resume", "--steps", STEPS + 1, "--set",
            "optimizer.groups=" + str(other).replace("'", '"'))
        self.assertRegex(changed.stderr, r"changed since.*optimizer\.groups\[1\]")
        self.assertIn('and is {"match":"*wte*","lr":0.5}', changed.stderr)
        self.assertNotIn("optimizer.groups[0]", changed.stderr)

    def test_clipping_by_value_follows_torchs(self):
        steps = self.train("clipped", gradient_clipping_value=LIMIT,
                           scheduler={"type": "linear", "params": {"warmup_steps": 3}})
        clip = lambda model: torch.nn.utils.clip_grad_value_(model.parameters(), LIMIT)
        model, expected = self.reference(kind="linear", warmup=3, clip=clip)
        self.compare("clipped", steps, model, expected)
        free, _ = self.reference(kind="linear", warmup=3)
        self.assertGreater(max(self.distances("clipped", free).values()), 0.1)

    def test_schedules_have_transformers_rates(self):
        small = {**SHAPE, "layers": 1, "hidden": 16, "context": 8}
        length = 16
        for kind, params in KINDS:
            with self.subTest(kind=kind):
                run = self.run_file(kind, steps=length, model=small,
                                    scheduler={"type": kind, "params": params})
                self.sluice("train", run, "--out", self.path / kind)
                optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=ADAMW["lr"])
                theirs = dict(params)
                scheduler = transformers.get_scheduler(
                    kind, optimizer, num_warmup_steps=theirs.pop("num_warmup_steps", 0),
                    num_training_steps=length, scheduler_specific_kwargs=theirs)
                rates = []
                for _ in range(length):
                    rates.append(optimizer.param_groups[0]["lr"])
                    optimizer.step()
                    scheduler.step()
                self.assertEqual([step["lr"] for step in self.metrics(kind)], rates)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
