"""A small run whose disk fails, or which is stopped in some other way."""

import signal
import subprocess

from sluice_runs import Running, SLUICE, SluiceRuns, WAIT_S

FOREVER = 100000
SAVED = "\nsaved "
BITS = ("step", "loss", "lr", "grad_norm", "loss_scale")


class DiskTest(SluiceRuns):
    def setUp(self):
        super().setUp()
        self.tokens("text.bin", 8000, 3)
        self.write_run({
            "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
            "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"},
                                  "offload_optimizer": {"device": "cpu"}},
            "model": {"layers": 2, "hidden": 32, "heads": 2, "context": 16, "vocab": 64},
            "data": {"train": [str(self.path / "text.bin")], "dtype": "uint16",
                     "validation_fraction": 0.1},
            "run": {"steps": 4, "cpu_threads": 1, "device": "cpu", "eval_batches": 4,
                    "log_every": 1, "checkpoint_background": "off"}})

    def words(self, out, *arguments, steps=FOREVER):
        return [SLUICE, "train", "run.json", "--out", str(out), "--steps", str(steps), *arguments]

    def start(self, out, *arguments, ignoring=None, steps=FOREVER):
        def prepare():
            if ignoring is not None:
                signal.signal(ignoring, signal.SIG_IGN)
        process = subprocess.Popen(
            self.words(out, *arguments, steps=steps), cwd=self.path, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=prepare)
        self.addCleanup(process.kill)
        return Running(process)

    def train(self, out, *arguments, code=0, steps=FOREVER):
        """Runs to the end; returns the messages."""
        done = subprocess.run(self.words(out, *arguments, steps=steps), cwd=self.path, check=False,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=WAIT_S)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def steps(self, out):
        return [step["step"] for step in self.metrics(out)]

    def bits(self, out):
        return [[step[key] for key in BITS] for step in self.metrics(out)]

    def expect_bits_of_a_whole_run(self, out):
        """Continues for three steps; the numbers are those of a run without interruption."""
        last = self.steps(out)[-1] + 3
        self.train(out, "--resume", steps=last)
        self.train("whole", "--overwrite", steps=last)
        self.assertEqual(self.bits(out), self.bits("whole"))
