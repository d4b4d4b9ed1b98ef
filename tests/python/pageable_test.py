"""Host memory that cannot be pinned for the GPU, or only in part, changes no bit. Runs of the package
(by hooks and by native units) and of the program sluice show it. Needs a GPU
(SLUICE_TEST_DEVICE=cuda)."""

import concurrent.futures
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest
from array import array
from pathlib import Path

import torch

from small_modules import (
    DEVICE,
    LENGTH,
    PLACES,
    VOCAB,
    Block,
    Tower,
    batches,
    masters,
    run_config,
    train,
)

LIMITS = (None, "0", "1M", "64M")
STEPS = 3
SAID = "cannot be pinned for the GPU"


class Wide(Tower):
    """A tower of 13 million parameters: more than 64 MiB of them and their gradients."""

    def __init__(self):
        super().__init__(blocks=0)
        self.embedding = torch.nn.Embedding(VOCAB, 512)
        self.blocks = torch.nn.ModuleList(Block(512) for _ in range(6))
        self.norm = torch.nn.LayerNorm(512)
        self.head = torch.nn.Linear(512, VOCAB, bias=False)


def models():
    """(name, units, model, its batches, how it is trained): by hooks and by native units."""
    import native_models  # sets the learning rate of all configurations

    torch.manual_seed(0)
    yield "tower", "auto", Wide(), batches(2 * STEPS), train
    if native_models.MISSING is None:
        for units in ("engine", "hooks"):
            model = native_models.make("gpt2", n_embd=512, n_layer=4, n_head=4)
            yield "gpt2", units, model, native_models.batches(2 * STEPS), native_models.train


def of_package(folder):
    """Prints the losses and a hash of the weights of each model and place."""
    import sluice

    for place in PLACES:
        for name, units, model, data, run_steps in models():
            config = run_config(
                place=place, drive=folder, data={"sequence_length": LENGTH}, accumulation=2
            )
            config["zero_optimization"].pop("sub_group_size", None)
            with sluice.initialize(model, config, units=units) as engine:
                losses = run_steps(engine, data)
                print(json.dumps([name, units, place, engine.backend, losses, masters(engine)]), flush=True)


def of_program(folder):
    """Prints the losses and hashes of the units of a run with state on all tiers."""
    drive = folder / "nvme"
    drive.mkdir()
    draw = random.Random(3)
    (folder / "train.bin").write_bytes(array("H", (draw.randrange(61) for _ in range(20000))).tobytes())
    settings = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
        "zero_optimization": {
            "stage": 3,
            "stage3_param_persistence_threshold": 0,
            "offload_param": {"device": "cpu"},
            "offload_optimizer": {"device": "auto", "nvme_path": str(drive)},
        },
        "model": {"preset": "custom", "layers": 8, "hidden": 512, "heads": 4, "context": 64, "vocab": 61},
        "data": {"train": [str(folder / "train.bin")], "dtype": "uint16", "validation_fraction": 0},
        "run": {"device": "cuda", "steps": STEPS, "hash_units": True, "deterministic": True, "seed": 3},
        "placement": {
            "optimizer_fractions": {"gpu": 0.3, "cpu": 0.3, "nvme": 0.4},
            "unit_inputs_to_cpu": "on",
            "recompute": "on",
        },
    }
    (folder / "run.json").write_text(json.dumps(settings), encoding="utf-8")
    sluice = os.path.abspath(os.environ.get("SLUICE", "build/bin/sluice"))
    subprocess.run(
        [sluice, "train", folder / "run.json", "--out", folder / "run"],
        env={**os.environ, "XDG_CACHE_HOME": str(folder)},  # speeds with this limit stay here
        check=True,
        stdout=2,
    )
    for line in (folder / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines():
        step = json.loads(line)
        print(json.dumps([step["step"], step["loss"], step["grad_norm"], step["unit_hashes"]]))


def run(what, limit):
    """The output of this file's `what` where so much can be pinned, and whether a refusal was said."""
    environment = {key: text for key, text in os.environ.items() if key != "SLUICE_TEST_PIN_LIMIT"}
    if limit is not None:
        environment["SLUICE_TEST_PIN_LIMIT"] = limit
    with tempfile.TemporaryDirectory(prefix="sluice-pageable-") as folder:
        done = subprocess.run([sys.executable, __file__, what, folder], env=environment, check=False,
                              capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise AssertionError(f"{what} with {limit}: {done.stderr[-3000:]}")
    return done.stdout.splitlines(), done.stderr.count(SAID)


@unittest.skipUnless(DEVICE == "cuda" and torch.cuda.is_available(), "needs a GPU")
class Pageable(unittest.TestCase):
    def compare(self, what, least):
        with concurrent.futures.ThreadPoolExecutor(len(LIMITS)) as pool:
            made = list(pool.map(lambda limit: run(what, limit), LIMITS))
        expected, said = made[0]
        self.assertGreaterEqual(len(expected), least)
        self.assertEqual(said, 0)
        for limit, (lines, said) in zip(LIMITS[1:], made[1:]):
            self.assertEqual(lines, expected, limit)
            self.assertGreaterEqual(said, 1, limit)

    def test_of_the_package(self):
        self.compare("of_package", len(PLACES))

    def test_of_the_program(self):
        self.compare("of_program", STEPS)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in ("of_package", "of_program"):
        globals()[sys.argv[1]](Path(sys.argv[2]))
    else:
        unittest.main()
