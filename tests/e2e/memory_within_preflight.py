"""Resident memory stays within the preflight table, for models of any size.

The program is the environment's SLUICE. LibTorch's own memory is one generous line of the table.
Most of it is pages of libraries, more of them at the end of the program than while it runs. So the
test also compares what was resident after each step for models of two sizes.
"""

import filecmp
import json
import math
import re
import struct
import subprocess
import sys
import unittest

from sluice_runs import SLUICE, SluiceRuns, own_peak_bytes

HIDDEN, HEADS, CONTEXT, VOCAB = 256, 4, 32, 64
BLOCK = 12 * HIDDEN**2 + 13 * HIDDEN
# Pages that the allocator keeps, threads' stacks, and variation between measurements.
NOISE_BYTES = 32 * 2**20


def parameters(layers):
    """name -> shape."""
    shapes = {"wte.weight": [VOCAB, HIDDEN], "wpe.weight": [CONTEXT, HIDDEN],
              "ln_f.weight": [HIDDEN], "ln_f.bias": [HIDDEN]}
    for layer in range(layers):
        for name, shape in (("ln_1", [HIDDEN]), ("ln_2", [HIDDEN])):
            shapes[f"h.{layer}.{name}.weight"] = shapes[f"h.{layer}.{name}.bias"] = shape
        for name, rows, columns in (("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1),
                                    ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)):
            shapes[f"h.{layer}.{name}.weight"] = [rows * HIDDEN, columns * HIDDEN]
            shapes[f"h.{layer}.{name}.bias"] = [columns * HIDDEN]
    return shapes


def write_zeros(path, shapes):
    """Writes an fp32 safetensors file of zeros, as a sparse file. Returns its tensors' bytes."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(file.tell() + end)
    return end


class Memory(SluiceRuns):
    def setUp(self):
        super().setUp()
        self.tokens("text.bin", 4000, seed=8)

    def run_file(self, layers, **more):
        return self.write_run({
            "train_micro_batch_size_per_gpu": 1,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
            "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0,
                                  "offload_param": {"device": "nvme", "buffer_count": 3},
                                  "offload_optimizer": {"device": "nvme", "buffer_count": 3}},
            "model": {"layers": layers, "hidden": HIDDEN, "heads": HEADS, "context": CONTEXT,
                      "vocab": VOCAB, "dropout": 0},
            "data": {"train": [str(self.path / "text.bin")], "dtype": "uint16",
                     "validation_fraction": 0.2},
            "run": {"steps": 3, "device": "cpu", "cpu_threads": 1, "eval_batches": 16},
            "budget": {"nvme_paths": [str(self.path / "nvme")]}, **more})

    def within_plan(self, outcome):
        planned = outcome.planned("host memory")
        self.assertGreater(outcome.peak_bytes, own_peak_bytes())  # else the test proves nothing
        self.assertLess(outcome.peak_bytes, planned, outcome.stderr)
        return planned

    def test_holds_for_two_models_of_which_one_is_ten_times_as_large(self):
        outcomes = {}
        for layers in (4, 40):
            outcomes[layers] = self.sluice("train",
                                           self.run_file(layers, bf16={"enabled": True}),
                                           "--out", self.path / f"out-{layers}")
            self.within_plan(outcomes[layers])
        small, large = outcomes[4], outcomes[40]
        on_nvme = large.planned("NVMe") - small.planned("NVMe")
        self.assertGreater(on_nvme, 36 * BLOCK * 12)
        planned = large.planned("host memory") - small.planned("host memory")
        resident = {layers: max(step["host_rss_bytes"] for step in self.metrics(f"out-{layers}"))
                    for layers in outcomes}
        grown = resident[40] - resident[4]
        print(f"{resident[4] / 2**20:.0f} and {resident[40] / 2**20:.0f} MiB, planned "
              f"{small.planned('host memory') / 2**20:.0f} and "
              f"{large.planned('host memory') / 2**20:.0f}; {on_nvme / 2**20:.0f} MiB more on NVMe")
        # Gradients take 2 bytes per parameter until the norm is known. Nothing else grows.
        self.assertLess(planned, 1.1 * 36 * BLOCK * 2)
        self.assertLess(grown, planned + NOISE_BYTES)
        self.assertLess(grown, on_nvme / 3)

    def test_a_control_group_of_that_size_is_enough_to_start_from_weights_and_to_resume(self):
        layers, steps = 100, 3
        first, expected, found = (self.path / f"{name}.safetensors" for name in "abc")
        run = self.run_file(layers, bf16={"enabled": True})
        self.sluice("train", run, "--out", self.path / "a", "--steps", "1", "--save-weights", first)
        planned = self.sluice("train", run, "--init-from", first, "--out", self.path / "b",
                              "--steps", steps, "--save-weights", expected).planned("host memory")
        processes = self.group(1.05 * planned)
        self.assertLess(1.05 * planned, 2 * 12 * layers * BLOCK)  # not enough for a model in memory

        def within(*words):
            done = subprocess.run(["sh", "-c", f'echo $$ > {processes}; exec "$@"', "sh", SLUICE,
                                   "train", run, "--out", self.path / "c", "--set",
                                   f"budget.cpu_gib={1.01 * planned / 2**30}", *map(str, words)],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)

        within("--init-from", first, "--steps", steps - 1)
        within("--resume", "--steps", steps, "--save-weights", found)
        self.assertTrue(filecmp.cmp(found, expected, shallow=False), "the weights differ")

    def test_evaluates_a_model_that_is_larger_than_what_it_takes(self):
        layers = 300
        weights_bytes = write_zeros(self.path / "zeros.safetensors", parameters(layers))
        outcome = self.sluice("eval", self.run_file(layers), "--weights",
                              self.path / "zeros.safetensors", "--batches", "20")
        loss = float(re.match(r"loss (\S+)", outcome.stdout).group(1))
        self.assertAlmostEqual(loss, math.log(VOCAB), delta=1e-6)  # the loss of an untrained model
        self.within_plan(outcome)
        print(f"{outcome.peak_bytes / 2**20:.0f} MiB for {weights_bytes / 2**20:.0f} of weights, "
              f"planned {outcome.planned('host memory') / 2**20:.0f}")
        self.assertLess(outcome.peak_bytes, weights_bytes - NOISE_BYTES)
        for absent in ("optimizer state", "gradients"):
            self.assertNotIn(absent, outcome.stderr)
        self.assertLess(outcome.planned("NVMe"), 1.01 * weights_bytes)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
