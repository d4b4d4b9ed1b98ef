"""Shared by tests of sluice-log: artificial runs, and the program.

The packages that it uses are those of tools/reference_packages.py.
"""

import csv
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "python")]

import reference_packages

reference_packages.use("monitors")

PROGRAM = ROOT / "tools/sluice-log"
HUNG_S = 200  # less than the 4 minutes for which MLflow alone repeats its requests


def has(*packages):
    return all(importlib.util.find_spec(package) for package in packages)


class RunFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-log-")
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name)
        self.run = self.path / "run"
        self.run.mkdir()
        (self.run / "config.json").write_text(json.dumps(
            {"optimizer": {"params": {"lr": 0.001}}, "data": {"train": ["a.bin"]}}))
        self.now = 1_700_000_000.0

    def line(self, step, loss=None, **keys):
        self.now += 1
        return json.dumps({
            "schema": 2, "step": step, "tokens_seen": 1000 * step, "unix_s": self.now,
            "loss": 8 / step if loss is None else loss, "lr": 0.001, "grad_norm": 1.5,
            "skipped": False, "tokens_per_s": 500.0, "gpu_peak_bytes": 4096, **keys}) + "\n"

    def steps(self, first, last, name="metrics.jsonl", **keys):
        with open(self.run / name, "a", encoding="utf-8") as file:
            for step in range(first, last + 1):
                file.write(self.line(step, **keys))

    def event(self, kind, step, **members):
        self.now += 1
        with open(self.run / "events.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"event": kind, "unix_s": self.now, "step": step, **members})
                       + "\n")

    def begin(self, step=0):
        self.event("begin", step, schema=1, ranks=1, model={"family": "gpt2", "parameters": 7})

    def cut(self, last):
        """Rewrites the files as a resume after step `last` does."""
        path = self.run / "metrics.jsonl"
        kept = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True)
                if json.loads(line)["step"] <= last]
        path.write_text("".join(kept), encoding="utf-8")

    def environment(self):
        folder = str(reference_packages.folder("monitors"))
        return dict(os.environ, PYTHONPATH=folder, MLFLOW_ALLOW_FILE_STORE="true",
                    WANDB_MODE="offline", WANDB_SILENT="true", HOME=str(self.path),
                    GIT_PYTHON_REFRESH="quiet")

    def log(self, *options, code=0, run="run"):
        result = subprocess.run(
            [sys.executable, "-B", PROGRAM, run, *map(str, options)], cwd=self.path, check=False,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HUNG_S,
            env=self.environment())
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        return result.stderr

    def start(self, *options, **keywords):
        process = subprocess.Popen(
            [sys.executable, "-B", PROGRAM, "run", "--follow", *map(str, options)], cwd=self.path,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=self.environment(),
            **keywords)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def rows(self):
        """The steps and losses in metrics.csv."""
        path = self.path / "csv/metrics.csv"
        if not path.exists():
            return []
        with open(path, encoding="utf-8", newline="") as file:
            return [(int(row["step"]), row["train/loss"]) for row in csv.DictReader(file)]

    def table(self, name="metrics"):
        with open(self.path / f"csv/{name}.csv", encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def until(self, holds, message="", limit_s=60):
        end = time.monotonic() + limit_s
        while not holds():
            self.assertLess(time.monotonic(), end, message)
            time.sleep(0.05)
