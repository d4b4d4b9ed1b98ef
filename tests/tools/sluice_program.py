"""Shared by tests of the sluice program: running it, and a folder to train in.

SLUICE is the program; SLUICE_HAS_ENGINE=1 when it was built with LibTorch.
"""

import json
import os
import random
import struct
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

SLUICE = os.environ["SLUICE"]
HAS_ENGINE = os.environ.get("SLUICE_HAS_ENGINE") == "1"


class Program(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-cli-", dir=os.getcwd())
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name)

    def sluice(self, *arguments, code=0):
        result = subprocess.run([SLUICE, *map(str, arguments)], cwd=self.path, check=False,
                                stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                timeout=240)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result

    def refused(self, *arguments):
        """Exit code 2, and one sentence at the end of standard error."""
        last = self.sluice(*arguments, code=2).stderr.splitlines()[-1]
        self.assertRegex(last, r"\Asluice: \S")
        return last

    def write(self, name, content):
        text = content if isinstance(content, str) else json.dumps(content)
        (self.path / name).write_text(text, encoding="utf-8")
        return name

    def metrics(self, name):
        lines = (self.path / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]


class Training(Program):
    def setUp(self):
        super().setUp()
        (self.path / "nvme").mkdir()
        draw = random.Random(3)
        last, tokens = 1, []
        for _ in range(8000):
            last = (last * 5 + 3 + draw.randrange(2)) % 61
            tokens.append(last)
        (self.path / "text.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
        self.write("run.json", {
            "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
            "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"},
                                  "offload_optimizer": {"device": "nvme"},
                                  "stage3_param_persistence_threshold": 0},
            "model": {"layers": 2, "hidden": 32, "heads": 2, "context": 16, "vocab": 64},
            "data": {"train": ["text.bin"], "dtype": "uint16", "validation_fraction": 0.1},
            "run": {"steps": 4, "cpu_threads": 1, "device": "cpu", "eval_batches": 4},
            "budget": {"nvme_paths": ["nvme"]}})

    def results(self, name):
        """The values that have the same bits whenever a step runs, and with every placement."""
        return [{key: step[key] for key in ("step", "loss", "lr", "grad_norm", "loss_scale")}
                for step in self.metrics(name)]

    def start(self, *arguments):
        process = subprocess.Popen([SLUICE, *arguments], cwd=self.path, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        return process

    def wait_for_steps(self, name, count):
        log = self.path / name / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while not (log.exists() and log.read_bytes().count(b"\n") >= count):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)


@unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
class TokenData(Program):
    """Data of the byte tokenizer, and data of another one with as many tokens, by their
    sidecars."""

    def setUp(self):
        super().setUp()
        self.data("bytes", {"kind": "bytes", "end_of_text": 256})
        self.data("other", {"kind": "bpe", "end_of_text": 0, "vocabulary_sha256": "ab" * 32})
        self.data("unknown", None)
        self.write("run.json", {
            "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
            "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"},
                                  "offload_optimizer": {"device": "cpu"}},
            "model": {"layers": 1, "hidden": 32, "heads": 2, "context": 16, "vocab": 257},
            "data": {"train": ["bytes/train.bin"], "dtype": "uint16", "validation_fraction": 0.1},
            "run": {"steps": 1, "cpu_threads": 1, "device": "cpu", "eval_batches": 1}})

    def data(self, name, tokenizer):
        (self.path / name).mkdir()
        tokens = [byte for byte in b"some words, " * 60]
        (self.path / name / "train.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
        if tokenizer:
            self.write(f"{name}/train.bin.json", {
                "format": "sluice-tokens", "version": 1, "dtype": "uint16", "tokens": len(tokens),
                "vocab_size": 257, "tokenizer": tokenizer})

    @staticmethod
    def of(name, key="data.train"):
        return ["--set", f'{key}=["{name}/train.bin"]']
