"""step_bench from outside: bad input, results, too little memory, Ctrl-C, what it leaves behind.

The program is the environment's STEP_BENCH. Models are tiny: nothing here looks at speed.
"""

import ctypes
import json
import math
import os
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

STEP_BENCH = os.path.abspath(os.environ.get("STEP_BENCH", "build/bin/step_bench"))
LAYERS, HIDDEN, VOCAB, CONTEXT = 2, 64, 300, 32
BLOCK = 12 * HIDDEN * HIDDEN + 13 * HIDDEN
PARAMETERS = LAYERS * BLOCK + (VOCAB + CONTEXT + 2) * HIDDEN
RUN = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
       "bf16": {"enabled": True}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
       "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"},
                             "offload_optimizer": {"device": "cpu"}},
       "model": {"preset": "custom", "layers": LAYERS, "hidden": HIDDEN, "heads": 4,
                 "context": CONTEXT, "vocab": VOCAB},
       "run": {"device": "cpu", "cpu_threads": 1}}
NVME = ["--set", "zero_optimization.offload_optimizer.device=nvme"]


class StepBenchTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="step_bench_test_", dir=os.getcwd())
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.temporary = self.path("tmp")
        os.mkdir(self.temporary)
        os.mkdir(self.path("nvme"))
        Path(self.path("run.json")).write_text(json.dumps(RUN), encoding="utf-8")

    def path(self, name):
        return os.path.join(self.folder, name)

    def arguments(self, *arguments):
        return [STEP_BENCH, self.path("run.json"), "--set",
                f"budget.nvme_paths={json.dumps([self.path('nvme')])}", *map(str, arguments)]

    def run_it(self, *arguments, code=0):
        result = subprocess.run(self.arguments(*arguments), cwd=self.folder, timeout=120,
                                env=dict(os.environ, TMPDIR=self.temporary),
                                stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                check=False)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        self.assertEqual(os.listdir(self.temporary), [])
        return result

    def results(self):
        return json.loads(Path(self.path("out.json")).read_text(encoding="utf-8"))


class Results(StepBenchTest):
    def test_table_and_json(self):
        result = self.run_it("--steps", 4, "--warmup", 2, "--json", self.path("out.json"),
                             "--commit", "abc")
        for word in ("4 steps of 128 tokens", "tokens/s", "forward", "backward", "waited for",
                     "resident at most"):
            self.assertIn(word, result.stdout)
        self.assertIn("optimizer state in memory", result.stderr)  # the plan
        data = self.results()
        self.assertEqual((data["parameters"], data["tokens_per_step"], data["commit"]),
                         (PARAMETERS, 128, "abc"))
        self.assertEqual((len(data["steps"]), len(data["warmup_s"])), (4, 2))
        self.assertEqual((data["micro_batches"], data["waves"], data["wave_micro_batches"],
                          data["untied_embedding_parameters"]), (2, 1, 2, 0))
        self.assertNotIn("gpu", data)
        self.assertEqual((data["out_of_memory"], data["interrupted"]), (False, False))
        self.assertAlmostEqual(data["median"]["tokens_per_s"] * data["median"]["step_s"], 128)
        for step in data["steps"]:
            self.assertGreater(step["seconds"], step["backward_s"])
            self.assertLess(abs(step["loss"] - math.log(VOCAB)), 0.5)  # random tokens
        self.assertEqual(data["moved"]["nvme_read_bytes"]["a_step"], 0)
        self.assertEqual(data["config"]["model"]["hidden"], HIDDEN)

    def test_bytes_of_state_on_nvme(self):
        self.run_it("--steps", 3, "--json", self.path("out.json"), *NVME)
        moved = self.results()["moved"]
        self.assertEqual(moved["steps"], 4)
        for flow in ("nvme_read_bytes", "nvme_write_bytes"):
            # 10 bytes an element; each of the four units is one record with a header of a page.
            least = 10 * PARAMETERS
            self.assertGreaterEqual(moved[flow]["a_step"], least)
            self.assertLess(moved[flow]["a_step"], least + 4 * (4096 + 4096 + 10 * 128 * 12))
            self.assertAlmostEqual(moved[flow]["a_parameter"] * PARAMETERS, moved[flow]["a_step"])
        self.assertEqual(os.listdir(self.path("nvme")), [])

    def test_waves_and_what_is_only_looked_up(self):
        result = self.run_it("--steps", 1, "--json", self.path("out.json"), "--set",
                             "placement.wave_micro_batches=1", "--set", "model.family=llama")
        self.assertIn("2 waves of 1", result.stdout)
        data = self.results()
        self.assertEqual((data["micro_batches"], data["waves"], data["wave_micro_batches"],
                          data["untied_embedding_parameters"]), (2, 2, 1, VOCAB * HIDDEN))

    def test_seconds_end_it(self):
        self.run_it("--steps", 100000, "--seconds", 0.5, "--json", self.path("out.json"))
        data = self.results()
        self.assertGreaterEqual(len(data["steps"]), 1)
        self.assertLess(sum(step["seconds"] for step in data["steps"]), 20)
        self.assertFalse(data["interrupted"])

    def test_json_on_standard_output(self):
        data = json.loads(self.run_it("--steps", 1, "--json", "-").stdout)
        self.assertEqual(len(data["steps"]), 1)

    def test_help_teaches(self):
        for word in ("--steps", "--warmup", "--set", "Examples", "Exit codes", "CONFIG"):
            self.assertIn(word, self.run_it("--help").stdout)


class Memory(StepBenchTest):
    def test_too_little_is_a_result(self):
        result = self.run_it("--set", "budget.cpu_gib=0.1", "--json", self.path("out.json"), code=3)
        self.assertIn("step_bench: out of memory: ", result.stderr)
        data = self.results()
        self.assertTrue(data["out_of_memory"])
        self.assertIn("host memory", data["error"])
        self.assertEqual((data["parameters"], data["steps"]), (PARAMETERS, []))


class BadInput(StepBenchTest):
    def refuse(self, *arguments, needle):
        with self.subTest(arguments=arguments):
            result = self.run_it(*arguments, code=2)
            self.assertIn(needle, result.stderr.strip().splitlines()[-1])
            self.assertEqual(sorted(os.listdir(self.folder)), ["nvme", "run.json", "tmp"])

    def test_is_refused(self):
        self.refuse("--steps", "0", needle="--steps")
        self.refuse("--warmup", "-1", needle="--warmup")
        self.refuse("--seconds", "0", needle="--seconds")
        self.refuse("--colour", needle="--colour")
        self.refuse("--json", self.path("no/x.json"), needle="no folder")
        self.refuse("--set", "model.layer=3", needle="model.layers")
        self.refuse("--set", "model.heads=7", needle="heads")
        self.refuse("--profile", self.path("trace.json"), needle="computes on the CPU")
        self.assertFalse(os.path.exists(self.path("trace.json")))


class Interrupted(StepBenchTest):
    def test_ctrl_c_keeps_what_was_measured(self):
        def default_sigint():
            # A shell's background job ignores SIGINT; the program must not inherit that here.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        process = subprocess.Popen(
            self.arguments("--steps", 1000000, "--json", self.path("out.json"), *NVME),
            env=dict(os.environ, TMPDIR=self.temporary), cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=default_sigint)
        with self.assertRaises(subprocess.TimeoutExpired):
            process.wait(4)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130, errors)
        self.assertRegex(output, "interrupted:.*not complete")
        data = self.results()
        self.assertTrue(data["interrupted"])
        self.assertGreater(len(data["steps"]), 0)
        self.assertEqual(os.listdir(self.temporary), [])
        self.assertEqual(os.listdir(self.path("nvme")), [])


if __name__ == "__main__":
    unittest.main()
