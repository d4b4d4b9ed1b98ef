"""The sluice program from outside: what it prints, what it writes, and how it ends.

SLUICE is the program; SLUICE_HAS_ENGINE=1 when it was built with LibTorch.
"""

import json
import os
import random
import signal
import struct
import subprocess
import sys
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
        """Exit code 2, and at the end of standard error one sentence."""
        last = self.sluice(*arguments, code=2).stderr.splitlines()[-1]
        self.assertRegex(last, r"\Asluice: \S")
        return last

    def write(self, name, content):
        text = content if isinstance(content, str) else json.dumps(content)
        (self.path / name).write_text(text, encoding="utf-8")
        return name


class CommandLine(Program):
    def test_explains_itself_and_every_command(self):
        commands = ["config", "scrub"] + (["train", "eval"] if HAS_ENGINE else [])
        text = self.sluice("--help").stdout
        for command in commands:
            self.assertIn(command, text)
            self.assertIn("options", self.sluice(command, "--help").stdout.lower())

    def test_refuses_what_it_does_not_know(self):
        for arguments in ([], ["fly"], ["config"], ["config", "--fast"], ["config", "absent.json"],
                          ["scrub"], ["scrub", "absent"]):
            with self.subTest(arguments=arguments):
                self.refused(*arguments)


class Config(Program):
    def test_names_the_nearest_key_of_one_that_it_does_not_know(self):
        self.write("run.json", {"model": {"preset": "gpt2-small"}, "zero_optimisation": {}})
        self.assertIn("zero_optimization", self.refused("config", "run.json"))

    def test_tells_where_json_is_broken(self):
        self.write("run.json", '{"model": {"preset": "gpt2-small"},\n  oops}')
        self.assertIn("run.json:2:", self.refused("config", "run.json"))

    def test_reads_a_deepspeed_file_and_writes_a_run_file_that_says_the_same(self):
        self.write("ds.json", {"train_batch_size": 16, "fp16": {"enabled": "true"}, "amp": {},
                               "zero_optimization": {"stage": 3, "sub_group_size": 1e9}})
        arguments = ["--deepspeed", "ds.json", "--set", "model.preset=gpt2-small"]
        shown = self.sluice("config", *arguments).stdout
        self.assertIn("amp", shown)
        self.write("run.json", self.sluice("config", "--json", *arguments).stdout)
        self.assertEqual(self.sluice("config", "--json", "run.json").stdout,
                         (self.path / "run.json").read_text(encoding="utf-8"))

    def test_documents_its_keys(self):
        text = self.sluice("config", "--keys").stdout
        for key in ("offload_optimizer.device", "run.steps", "budget.nvme_paths"):
            self.assertIn(key, text)


class Scrub(Program):
    def test_says_that_nothing_is_there(self):
        self.assertIn("no state store", self.sluice("scrub", ".").stdout)
        self.refused("scrub", ".", "--run", "absent")


@unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
class Train(Program):
    def setUp(self):
        super().setUp()
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

    def metrics(self, name):
        lines = (self.path / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def test_writes_a_line_of_metrics_for_each_step_and_leaves_the_drive_empty(self):
        shown = self.sluice("train", "run.json", "--out", "a", "--trace", "2:3")
        self.assertIn("tokens/s", shown.stdout)
        self.assertIn("host memory", shown.stderr)
        steps = self.metrics("a")
        self.assertEqual([step["step"] for step in steps], [1, 2, 3, 4])
        for key in ("loss", "lr", "grad_norm", "tokens_per_s", "nvme_read_bytes", "host_rss_bytes"):
            self.assertIn(key, steps[0])
        self.assertGreater(sum(step["nvme_write_bytes"] for step in steps), 0)
        self.assertIsNotNone(steps[-1]["val_loss"])
        trace = json.loads((self.path / "a/trace.json").read_text(encoding="utf-8"))
        self.assertEqual({event["cat"] for event in trace["traceEvents"] if event["ph"] == "X"},
                         {"compute", "AdamW", "NVMe read", "NVMe write"})
        self.assertEqual(os.listdir(self.path / "nvme"), [])
        again = json.loads((self.path / "a/config.json").read_text(encoding="utf-8"))
        self.assertEqual(again["run"]["steps"], 4)

    def test_saves_the_same_bytes_again_and_evaluates_them_to_the_same_loss(self):
        self.sluice("train", "run.json", "--out", "a", "--save-weights", "a.safetensors")
        self.sluice("train", "run.json", "--out", "b", "--save-weights", "b.safetensors",
                    "--set", "zero_optimization.offload_param.device=cpu",
                    "--set", "zero_optimization.offload_optimizer.device=cpu")
        self.assertEqual((self.path / "a.safetensors").read_bytes(),
                         (self.path / "b.safetensors").read_bytes())
        loss = float(self.sluice("eval", "run.json", "--weights",
                                 "a.safetensors").stdout.split()[1])
        self.assertAlmostEqual(loss, self.metrics("a")[-1]["val_loss"], delta=1e-4)

    def test_does_not_write_over_a_run(self):
        self.sluice("train", "run.json", "--out", "a", "--steps", "1")
        self.assertIn("--overwrite", self.refused("train", "run.json", "--out", "a"))
        self.sluice("train", "run.json", "--out", "a", "--steps", "2", "--overwrite")
        self.assertEqual(len(self.metrics("a")), 2)

    def test_refuses_what_cannot_be_with_a_sentence(self):
        for arguments, says in (
                (["--set", "data.train=[\"absent.bin\"]"], "absent.bin"),
                (["--set", "model.heads=3"], "heads"),
                (["--set", "model.vocab=60"], "text.bin"),
                (["--set", "budget.cpu_gib=0.01"], "missing"),
                (["--init-from", "absent.safetensors"], "absent.safetensors"),
                (["--trace", "x"], "x"),
                (["--dtype", "int8"], "int8")):
            with self.subTest(arguments=arguments):
                out = "o" + str(abs(hash(str(arguments))))
                self.assertIn(says, self.refused("train", "run.json", "--out", out, *arguments))

    def test_ends_with_the_step_on_ctrl_c(self):
        process = subprocess.Popen([SLUICE, "train", "run.json", "--out", "a", "--steps", "100000"],
                                   cwd=self.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        log = self.path / "a/metrics.jsonl"
        deadline = time.monotonic() + 120
        while not (log.exists() and log.read_bytes().count(b"\n") > 3):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        shown, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130)
        self.assertIn(b"tokens/s", shown)
        self.assertEqual(os.listdir(self.path / "nvme"), [])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
