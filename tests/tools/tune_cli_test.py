"""`sluice tune`, with trials on a simulated machine and with real ones.

SLUICE is the program. The simulated machine is this file, run as the trial's program: TUNE_FAKE in
the environment selects its replies.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

SLUICE = os.environ.get("SLUICE", "build/bin/sluice")
RUN = {
    "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
    "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"},
                          "offload_optimizer": {"device": "nvme"}},
    "aio": {"block_size": 65536, "queue_depth": 2},
    "model": {"layers": 2, "hidden": 32, "heads": 2, "context": 16, "vocab": 64},
    "data": {"train": ["text.bin"], "dtype": "uint16"},
    "placement": {"recompute": "on"},
    "run": {"cpu_threads": 1, "device": "cpu"},
    "budget": {"nvme_paths": ["nvme"]}}
KEEP = [word for key in ("aio.queue_depth", "aio.block_size", "aio.intra_op_parallelism",
                         "placement.record_elements", "placement.swap_buffers")
        for word in ("--keep", key)]
FACTS = {"cuda": True, "state_on_nvme": True, "params_on_nvme": False, "gpu_fraction": 0,
         "cpu_fraction": 0, "nvme_fraction": 1, "largest_unit_elements": 1 << 22, "units": 4,
         "prefetch_units": 1, "swap_buffers": 4, "record_elements": 1 << 20}


def fake_trial():
    """A machine on which a micro-batch of 4 is best; TUNE_FAKE decides the outcome of 8."""
    mode = os.environ["TUNE_FAKE"]
    for line in sys.stdin:
        request = json.loads(line)
        config = json.loads(request.get("plan") or request["measure"])
        micro = config["train_micro_batch_size_per_gpu"]
        step = {1: 2.0, 2: 1.5, 4: 1.0, 8: 0.5}[micro] * (1 + 1 / config["aio"]["queue_depth"])
        if "plan" in request:
            refusal = "does not fit: 9G of the GPU missing" if mode == "plan" and micro == 8 else ""
            answer = {"step_s": 0, "refusal": refusal, "run_id": "", "facts": FACTS}
        elif micro == 8 and mode == "memory":
            answer = {"failure": "out of memory: CUDA wanted 3G"}
        elif micro == 8 and mode == "crash":
            print("about to crash", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        elif micro == 8 and mode == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif (micro == 8 and mode == "hang") or mode == "hang always":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        elif micro == 8 and mode == "rubbish":
            answer = "Segmentation fault"
        else:
            answer = {"step_s": step, "error_s": 0, "tokens_per_s": 128 / step,
                      "gpu_bytes": 1 << 30, "host_bytes": 1 << 31}
        os.write(0, (json.dumps(answer) + "\n").encode())


class Program(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Measure this machine once: that takes most of a test's time.
        cls.cache = tempfile.TemporaryDirectory(prefix="sluice-tune-cache-", dir=os.getcwd())
        cls.addClassCleanup(cls.cache.cleanup)

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-tune-", dir=os.getcwd())
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name)
        (self.path / "nvme").mkdir()
        self.write("run.json", RUN)
        self.environment = dict(os.environ, XDG_CACHE_HOME=self.cache.name)
        self.fake = ["--trial-program", sys.executable, "--trial-program", "-B",
                     "--trial-program", os.path.abspath(__file__), "--trial-program", "trial"]

    def write(self, name, content):
        (self.path / name).write_text(json.dumps(content), encoding="utf-8")

    def read(self, name):
        return json.loads((self.path / name).read_text(encoding="utf-8"))

    def sluice(self, *arguments, code=0, fake=None):
        result = subprocess.run([SLUICE, *map(str, arguments)], cwd=self.path, check=False,
                                env=dict(self.environment, TUNE_FAKE=fake or ""),
                                stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                timeout=300)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result

    def tune(self, *arguments, fake=None, **others):
        given = self.fake if fake else []
        return self.sluice("tune", "run.json", *arguments, *given, fake=fake, **others)


class MadeUp(Program):
    def test_finds_the_best_and_writes_the_users_file_with_it(self):
        shown = self.tune("--out", "best.json", fake="fine")
        best = self.read("best.json")
        self.assertEqual((best["train_micro_batch_size_per_gpu"],
                          best["gradient_accumulation_steps"]), (8, 1))
        self.assertGreater(best["aio"]["queue_depth"], 2)
        for key in ("optimizer", "model", "placement", "run", "budget"):
            self.assertEqual(best[key], RUN[key])
        self.assertEqual(best["zero_optimization"], RUN["zero_optimization"])
        self.assertIn("times as fast", shown.stdout)
        self.assertIn("--vary placement.recompute", shown.stdout)
        self.assertIn("sluice train best.json", shown.stderr)
        resolved = json.loads(self.sluice("config", "best.json", "--json").stdout)
        self.assertEqual(resolved["train_batch_size"], 8)

    def test_a_trial_that_fails_is_a_row_and_the_rest_goes_on(self):
        for fake, says in (("memory", "out of memory: CUDA wanted 3G"),
                           ("crash", "its last output: about to crash"),
                           ("kill", "memory runs out"),
                           ("rubbish", "cannot be read"),
                           ("plan", "9G of the GPU missing")):
            with self.subTest(fake=fake):
                shown = self.tune("--out", "best.json", "--force", *KEEP, fake=fake)
                rows = [line for line in shown.stdout.splitlines() if says in line]
                self.assertEqual(len(rows), 1, shown.stdout)
                self.assertIn("micro-batch 8 x 1", rows[0])
                self.assertEqual(self.read("best.json")["train_micro_batch_size_per_gpu"], 4)

    def test_a_trial_that_hangs_is_ended(self):
        # Far more than a trial that does not hang takes to start.
        shown = self.tune("--trial-seconds", "10", *KEEP, "--json", fake="hang")
        found = json.loads(shown.stdout)
        failed = [one for one in found["trials"] if one["verdict"] == "failed"]
        self.assertEqual([one["changes"] for one in failed], ["micro-batch 8 x 1"])
        self.assertIn("--trial-seconds", failed[0]["reason"])
        self.assertEqual(found["best"]["keys"]["train_micro_batch_size_per_gpu"], 4)

    def test_the_time_of_the_search_ends_a_trial_too(self):
        shown = self.tune("--budget-minutes", "0.05", fake="hang always", code=1)
        self.assertIn("time of the search", shown.stdout)
        self.assertIn("No trial was completed", shown.stdout)

    def test_time_for_nothing_is_no_interrupt(self):
        told = self.tune("--budget-minutes", "0.0001", fake="fine", code=1).stderr
        self.assertIn("--budget-minutes) was used up", told)

    def test_explains_how_to_use_what_was_not_written(self):
        self.assertIn("--set train_micro_batch_size_per_gpu='8'",
                      self.tune(fake="fine").stderr)

    def test_ctrl_c_ends_the_trial_and_keeps_the_best_so_far(self):
        with subprocess.Popen([SLUICE, "tune", "run.json", "--out", "best.json", *self.fake],
                              cwd=self.path, env=dict(self.environment, TUNE_FAKE="hang"),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as process:
            while "4 x 2" not in process.stderr.readline():
                self.assertIsNone(process.poll())
            time.sleep(1)  # the next one hangs
            process.send_signal(signal.SIGINT)
            shown, told = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, told)
        self.assertIn("interrupted", shown)
        self.assertEqual(self.read("best.json")["train_micro_batch_size_per_gpu"], 4)


class Mistakes(Program):
    def refused(self, *arguments):
        last = self.tune(*arguments, fake="fine", code=2).stderr.splitlines()[-1]
        self.assertRegex(last, r"\Asluice: \S")
        return last

    def test_are_told_before_anything_is_measured(self):
        self.write("there.json", {})
        self.assertIn("--force", self.refused("--out", "there.json"))
        self.assertIn("no folder no", self.refused("--out", "no/best.json"))
        self.assertIn("no folder no", self.refused("--log", "no/log.txt"))
        self.assertIn("--force", self.refused("--force"))
        self.assertIn("name one file", self.refused("--out", "x.json", "--log", "x.json"))
        self.assertIn("aio.queue_depth", self.refused("--vary", "model.layers"))
        self.assertIn("--steps", self.refused("--steps", "0"))
        self.assertIn("model.layers", self.refused("--set", "model.layer=3"))
        self.assertEqual(self.read("there.json"), {})
        for name, tokenizer in (("text", {"kind": "bytes"}),
                                ("other", {"kind": "bpe", "vocabulary_sha256": "ab" * 32})):
            self.write(f"{name}.bin.json", {"format": "sluice-tokens", "version": 1, "tokens": 9,
                                            "dtype": "uint16", "vocab_size": 257,
                                            "tokenizer": tokenizer})
        told = self.tune("--vary", "model.layers", "--set", 'data.validation=["other.bin"]',
                         fake="fine", code=2).stderr
        self.assertIn("data.train and data.validation", told)

    def test_the_trial_command_is_not_for_people(self):
        self.assertNotIn("trial", self.sluice("--help").stdout)
        self.assertIn("tune", self.sluice("--help").stdout)


class Real(Program):
    def test_two_trials_and_a_file_that_trains(self):
        shown = self.tune("--out", "best.json", "--trials", "3", "--steps", "2", "--warmup", "1",
                          "--json", "--log", "log.txt")
        found = json.loads(shown.stdout)
        self.assertEqual(found["trials"][0]["verdict"], "start")
        measured = [one for one in found["trials"] if "step_s" in one]
        self.assertEqual(len(measured), 3)
        for one in measured:
            self.assertAlmostEqual(one["tokens_per_s"] * one["step_s"], 8 * 16, delta=1e-3)
            self.assertGreater(one["predicted_step_s"], 0)
            self.assertGreater(one["host_bytes"], 1 << 20)
        self.assertIn("optimizer state", (self.path / "log.txt").read_text(encoding="utf-8"))
        self.assertEqual(os.listdir(self.path / "nvme"), [])
        (self.path / "text.bin").write_bytes(bytes(range(64)) * 200)
        self.sluice("train", "best.json", "--out", "run", "--steps", "2", "--set",
                    "data.dtype=uint16", "--set", "model.vocab=65536")

    def test_what_does_not_fit_is_a_row(self):
        shown = self.tune("--set", "budget.cpu_gib=0.3", "--steps", "1", "--warmup", "1", code=1)
        self.assertIn("does not fit", shown.stdout)
        self.assertIn("of RAM missing", shown.stdout)

    def test_ctrl_c_leaves_nothing_on_the_drive(self):
        with subprocess.Popen([SLUICE, "tune", "run.json", "--out", "best.json", "--steps",
                               "1000", "--trials", "4"], cwd=self.path, env=self.environment,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as process:
            for line in process.stderr:  # messages about the data come first
                if "as configured" in line:
                    break
            deadline = time.monotonic() + 120
            while not os.listdir(self.path / "nvme"):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            _, told = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, told)
        self.assertEqual(os.listdir(self.path / "nvme"), [])
        self.assertEqual(self.read("best.json")["train_batch_size"], 8)

    def test_what_a_killed_trial_leaves_on_the_drive_is_removed(self):
        with subprocess.Popen([SLUICE, "tune", "run.json", "--steps", "1000", "--trials", "1"],
                              cwd=self.path, env=self.environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True) as process:
            deadline = time.monotonic() + 120
            while not any(path.stat().st_size > 65536 for path in
                          (self.path / "nvme").rglob("*") if path.is_file()):
                self.assertLess(time.monotonic(), deadline)
                self.assertIsNone(process.poll())
                time.sleep(0.02)
            # A store that cannot be read, by a process with the same pid: it is not the trial's.
            (self.path / "nvme/sluice-other").mkdir()
            owner = next((self.path / "nvme").glob("sluice-run*/owner.json")).read_bytes()
            for name, content in (("lock", b""), ("owner.json", owner), ("store.json", b"{")):
                (self.path / "nvme/sluice-other" / name).write_bytes(content)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            for child in children.split():
                os.kill(int(child), signal.SIGKILL)
            shown, told = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, told)
        self.assertIn("ended by signal 9", shown)
        self.assertEqual(os.listdir(self.path / "nvme"), ["sluice-other"])


if __name__ == "__main__":
    if sys.argv[1:] == ["trial"]:
        fake_trial()
    else:
        unittest.main()
