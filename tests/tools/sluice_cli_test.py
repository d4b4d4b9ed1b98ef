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
import unittest.mock
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
        commands = ["config", "diff", "ls", "scrub"]
        if HAS_ENGINE:
            commands += ["train", "eval", "plan", "probe", "tune"]
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
class Probe(Program):
    def setUp(self):
        super().setUp()
        environment = unittest.mock.patch.dict(os.environ, XDG_CACHE_HOME=str(self.path / "cache"))
        environment.start()
        self.addCleanup(environment.stop)
        self.kept = self.path / "cache/sluice/speeds.json"
        self.write("run.json", {
            "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
            "model": {"layers": 2, "hidden": 32, "heads": 2, "context": 16, "vocab": 64},
            "run": {"cpu_threads": 1, "device": "cpu"},
            "aio": {"queue_depth": 2, "block_size": 65536},
            "budget": {"nvme_paths": ["nvme"], "cpu_gib": 0.4}})

    def test_measures_shows_and_keeps(self):
        shown = self.sluice("probe", "run.json")
        for what in ("memory, copy", "AdamW", "NVMe, nvme", "write, while also read", "block",
                     "micro-batch 2 x 16 tokens", str(self.kept)):
            self.assertIn(what, shown.stdout)
        self.assertNotIn("measuring", shown.stderr)  # progress is for terminals
        self.assertEqual(list((self.path / "nvme").iterdir()), [])
        kept = json.loads(self.kept.read_text(encoding="utf-8"))
        self.assertEqual([one["what"] for one in kept["measurements"]],
                         ["host", "drives", "units"])

        again = json.loads(self.sluice("probe", "run.json", "--json").stdout)
        self.assertTrue(again["host"]["cached"] and again["drives"]["cached"]
                        and again["units"]["cached"])
        self.assertEqual(again["drives"]["in_bytes_per_s"],
                         kept["measurements"][1]["values"]["in_bytes_per_s"])
        fresh = json.loads(self.sluice("probe", "run.json", "--json", "--refresh").stdout)
        self.assertFalse(fresh["host"]["cached"] or fresh["drives"]["cached"]
                         or fresh["units"]["cached"])

    def test_measures_again_what_was_kept_badly(self):
        # As the specification wants it: no relative path, and below ~/.cache without another.
        os.environ.update(XDG_CACHE_HOME="relative", HOME=str(self.path))
        self.kept = self.path / ".cache/sluice/speeds.json"
        self.kept.parent.mkdir(parents=True)
        self.kept.write_text("{", encoding="utf-8")
        shown = self.sluice("probe", "run.json", "--set", "budget.nvme_paths=[]")
        self.assertIn(str(self.kept), shown.stderr)
        json.loads(self.kept.read_text(encoding="utf-8"))

    def test_names_the_path_that_cannot_be_written(self):
        self.write("file", "")
        self.assertIn("file/below", self.refused("probe", "run.json", "--set",
                                                 'budget.nvme_paths=["file/below"]'))


ROOT = Path(__file__).resolve().parents[2]
CARD = ["--gpu-gib", 24, "--cpu-gib", 110, "--nvme-gib", 500, "--ram-gb-per-s", 80,
        "--drive-read-gb-per-s", 6, "--drive-write-gb-per-s", 4]


@unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
class Plan(Program):
    """What is measured is measured once for all tests."""

    @classmethod
    def setUpClass(cls):
        cache = tempfile.TemporaryDirectory(prefix="sluice-cli-", dir=os.getcwd())
        cls.addClassCleanup(cache.cleanup)
        environment = unittest.mock.patch.dict(os.environ, XDG_CACHE_HOME=cache.name)
        environment.start()
        cls.addClassCleanup(environment.stop)

    def test_plans_every_configuration_for_a_card_of_24_gib(self):
        for file in sorted((ROOT / "configs").glob("*.json")):
            with self.subTest(file=file.name):
                plan = json.loads(self.sluice("plan", file, *CARD, "--json").stdout)
                self.assertTrue(plan["fits"])
                for tier in plan["tiers"].values():
                    self.assertLessEqual(tier["bytes"], tier["budget_bytes"])
                self.assertGreater(plan["prediction"]["tokens_per_s"], 0)
        text = self.sluice("plan", ROOT / "configs/gpt2_xl_24gb.json", *CARD).stdout
        for what in ("optimizer state", "a step", "held by", "ZeRO-3", "budget"):
            self.assertIn(what, text)
        self.assertFalse((self.path / "nvme").exists())  # nothing was measured there

    def test_ends_with_2_and_a_setting_where_a_configuration_does_not_fit(self):
        little = ["--gpu-gib", 1, "--cpu-gib", 4, "--ram-gb-per-s", 80,
                  "--drive-read-gb-per-s", 6]
        for file in ("gpt2_xl_24gb.json", "gpt_13b_24gb.json"):
            with self.subTest(file=file):
                shown = self.sluice("plan", ROOT / "configs" / file, *little, code=2)
                self.assertRegex(shown.stdout, "this run does not fit: .* are missing")
                plan = json.loads(self.sluice("plan", ROOT / "configs" / file, *little, "--json",
                                              code=2).stdout)
                self.assertFalse(plan["fits"])
                self.assertIn(plan["reason"], shown.stdout)
        less = ["--gpu-gib", 1.5, *CARD[2:]]
        shown = self.sluice("plan", ROOT / "configs/gpt2_xl_24gb.json", *less, code=2)
        self.assertRegex(shown.stdout, r"It would with .*budget\.gpu_gib [0-9.]+")

    def test_simulates_steps_with_the_table_and_the_trace_of_a_run(self):
        shown = self.sluice("plan", ROOT / "configs/demo.json", *CARD, "--simulate", 2, "--trace",
                            "trace.json", "--set", "model.layers=4",
                            "--set", "zero_optimization.offload_optimizer.device=nvme")
        for what in ("simulated", "update, waited for", "NVMe read", "per step"):
            self.assertIn(what, shown.stdout)
        summary = subprocess.run([sys.executable, "-B", ROOT / "tools/trace_summary",
                                  self.path / "trace.json"], check=True, capture_output=True,
                                 text=True, timeout=60).stdout
        self.assertRegex(summary, r"NVMe read +[1-9]")
        self.assertRegex(summary, r"compute +[1-9]")
        self.refused("plan", ROOT / "configs/demo.json", "--trace", "trace.json")

    def test_a_run_says_its_plan_before_the_first_step(self):
        (self.path / "text.bin").write_bytes(struct.pack("<8000H", *(i % 61 for i in range(8000))))
        self.write("run.json", {
            "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
            "zero_optimization": {"stage": 3, "offload_param": {"device": "auto"},
                                  "offload_optimizer": {"device": "auto"}},
            "model": {"layers": 2, "hidden": 32, "heads": 2, "context": 16, "vocab": 64},
            "data": {"train": ["text.bin"], "dtype": "uint16", "validation_fraction": 0.1},
            "run": {"steps": 3, "cpu_threads": 1, "device": "cpu", "eval_batches": 2}})
        shown = self.sluice("train", "run.json", "--out", "a")
        lines = shown.stderr.splitlines()
        plan = next(i for i, line in enumerate(lines) if line.startswith("plan: "))
        step = next(i for i, line in enumerate(lines) if line.startswith("step "))
        self.assertLess(plan, step)
        self.assertRegex(lines[plan], r"plan: [0-9.]+ ms a step, .* held by ")
        self.assertEqual(len((self.path / "a/metrics.jsonl").read_text().splitlines()), 3)


class Training(Program):
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

    def results(self, name):
        """What must be the same bits wherever and whenever a step was run."""
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
class Train(Training):
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

    def test_saves_and_ends_well_on_ctrl_c_and_goes_on_with_the_same_bits(self):
        self.sluice("train", "run.json", "--out", "whole", "--steps", "60", "--save-weights",
                    "whole.safetensors")
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=number):
                out = f"stopped{int(number)}"
                process = self.start("train", "run.json", "--out", out, "--steps", "100000")
                self.wait_for_steps(out, 3)
                process.send_signal(number)
                shown, told = process.communicate(timeout=120)
                self.assertEqual(process.returncode, 0, told)
                self.assertIn(b"tokens/s", shown)
                self.assertIn(b"--resume", told)
                self.assertEqual(os.listdir(self.path / "nvme"), [])
                done = len(self.metrics(out))
                self.assertLess(done, 60, "the machine was too slow to interrupt it in time")
                told = self.sluice("train", "run.json", "--out", out, "--resume", "--steps", "60",
                                   "--save-weights", out + ".safetensors").stderr
                self.assertIn(f"after step {done}", told)
                self.assertEqual(self.results(out), self.results("whole"))
                self.assertEqual((self.path / (out + ".safetensors")).read_bytes(),
                                 (self.path / "whole.safetensors").read_bytes())

    def test_stops_at_once_on_the_second_ctrl_c_without_harm(self):
        process = self.start("train", "run.json", "--out", "a", "--steps", "100000", "--set",
                             "run.checkpoint_every=2")
        self.wait_for_steps("a", 5)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)  # two of one kind may arrive as one
        process.communicate(timeout=120)
        self.assertIn(process.returncode, (0, 130))
        self.assertIn("going on from", self.sluice("train", "run.json", "--out", "a", "--resume",
                                                   "--steps", "8").stderr)

    def test_keeps_checkpoints_on_the_way_and_goes_on_from_a_named_one(self):
        self.sluice("train", "run.json", "--out", "a", "--steps", "6", "--set",
                    "run.checkpoint_every=2", "--set", "run.keep_last=2")
        self.assertEqual(sorted(os.listdir(self.path / "a/checkpoints")),
                         ["step-000000004", "step-000000006"])
        whole = self.results("a")
        told = self.sluice("train", "run.json", "--out", "a", "--resume=step-000000004", "--steps",
                           "6", "--set-aside-later", "--set", "run.checkpoint_background=on",
                           "--set", "zero_optimization.offload_optimizer.device=cpu").stderr
        self.assertIn("after step 4", told)
        self.assertEqual(self.results("a"), whole)
        self.assertIn("all 6 steps are done",
                      self.sluice("train", "run.json", "--out", "a", "--resume", "--steps",
                                  "6").stderr)

    def test_a_full_disk_costs_a_checkpoint_and_not_the_run(self):
        small = self.path / "small"
        small.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)],
                                 check=False, capture_output=True)
        if mounted.returncode != 0:
            self.skipTest("only root can mount a small drive")
        self.addCleanup(subprocess.run, ["umount", "-l", str(small)], check=False)
        # A checkpoint is 350 KiB: two fit, and the third one does until the ballast comes.
        self.sluice("train", "run.json", "--out", "small/run", "--steps", "2", "--set",
                    "run.checkpoint_every=1", "--set", "run.keep_last=1")
        (small / "ballast").write_bytes(bytes(450 * 1024))
        shown = self.sluice("train", "run.json", "--out", "small/run", "--resume", code=1)
        self.assertIn("was not saved", shown.stderr)
        self.assertIn("because the disk was full", shown.stderr)
        self.assertEqual(len(self.metrics("small/run")), 4)
        self.assertEqual(os.listdir(small / "run/checkpoints"), ["step-000000002"])
        (small / "ballast").unlink()
        self.assertIn("after step 2",
                      self.sluice("train", "run.json", "--out", "small/run", "--resume").stderr)
        self.assertEqual(self.results("small/run")[0]["step"], 1)

    def test_a_drive_that_fails_ends_the_run_with_its_name_and_the_way_on(self):
        process = self.start("train", "run.json", "--out", "a", "--steps", "100000", "--set",
                             "run.checkpoint_every=2", "--set", "run.checkpoint_background=off")
        self.wait_for_steps("a", 5)
        for store in (self.path / "nvme").rglob("*"):
            if store.is_file() and store.stat().st_size > 65536:
                os.truncate(store, 4096)
        _, told = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 1, told)
        last = told.decode().splitlines()[-1]
        self.assertRegex(last, r"\Asluice: .*mounted at /.*checkpoints/step-\d+: --resume")
        self.sluice("train", "run.json", "--out", "a", "--resume", "--steps", "30")
        self.sluice("train", "run.json", "--out", "whole", "--steps", "30")
        self.assertEqual(self.results("a")[:30], self.results("whole")[:30])

    def test_starts_at_step_0_where_there_is_nothing_to_resume(self):
        told = self.sluice("train", "run.json", "--out", "a", "--resume").stderr
        self.assertIn("starting at step 0", told)
        self.assertEqual(len(self.metrics("a")), 4)

    def test_a_run_file_of_a_resumed_run_does_not_resume_another(self):
        self.sluice("train", "run.json", "--out", "a", "--resume")
        self.assertIn("is not empty", self.refused("train", "a/config.json", "--out", "a"))

    def test_refuses_a_checkpoint_that_is_damaged_or_another_runs(self):
        self.sluice("train", "run.json", "--out", "a", "--set", "run.checkpoint_every=2")
        last = self.path / "a/checkpoints/step-000000004"
        damaged = sorted(last.glob("exp_avg-*.safetensors"))[0]
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 16
        damaged.write_bytes(content)
        result = self.sluice("train", "run.json", "--out", "a", "--resume", code=1)
        self.assertIn(damaged.name, result.stderr)
        self.assertIn("--resume=step-000000002 --set-aside-later", result.stderr)
        self.sluice("train", "run.json", "--out", "a", "--resume=step-000000002",
                    "--set-aside-later")
        self.assertEqual(len(self.metrics("a")), 4)
        self.assertIn("dropout", self.refused("train", "run.json", "--out", "a", "--resume",
                                              "--set", "model.dropout=0.3"))

    def test_lists_and_scrubs_checkpoints_and_names_what_is_damaged(self):
        self.sluice("train", "run.json", "--out", "a", "--set", "run.checkpoint_every=2")
        rows = self.sluice("ls", "a", "--verify").stdout.splitlines()
        self.assertEqual([row.split()[1] for row in rows], ["step", "2", "4"])
        self.assertIn("intact", rows[2])
        self.assertIn(f"{self.metrics('a')[3]['loss']:.4f}", rows[2])
        self.assertEqual(self.sluice("scrub", "a").stdout.count("every checksum is right"), 2)
        weights = sorted((self.path / "a/checkpoints/step-000000004").glob("master-*"))[0]
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
        shown = self.sluice("scrub", "a", code=1).stdout
        self.assertIn(weights.name, shown)
        self.assertIn("step-000000002: ", shown)
        self.assertIn("complete", self.sluice("ls", "a").stdout)
        self.assertIn(weights.name, self.sluice("ls", "a", "--verify", code=1).stdout)
        weights.unlink()
        self.assertIn("damaged", self.sluice("ls", "a", code=1).stdout)
        self.refused("ls", "absent")

    def test_overwriting_leaves_nothing_to_resume_of_the_run_before(self):
        self.sluice("train", "run.json", "--out", "a")
        self.sluice("train", "run.json", "--out", "a", "--overwrite", "--steps", "1", "--set",
                    "run.checkpoint_at_end=false")
        self.assertIn("starting at step 0",
                      self.sluice("train", "run.json", "--out", "a", "--resume").stderr)

    def test_does_not_train_where_another_process_does(self):
        process = self.start("train", "run.json", "--out", "a", "--steps", "100000")
        self.wait_for_steps("a", 1)
        self.assertIn("another process",
                      self.refused("train", "run.json", "--out", "a", "--resume"))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)

    def test_names_the_step_and_the_units_in_which_two_runs_part(self):
        hashed = ["--set", "run.hash_units=true", "--set", "optimizer.params.lr=0.01"]
        self.sluice("train", "run.json", "--out", "a", *hashed)
        self.sluice("train", "run.json", "--out", "b", *hashed, "--set",
                    "placement.overlap_update=false")
        self.assertIn("4 steps are the same", self.sluice("diff", "a", "b").stdout)
        self.sluice("train", "run.json", "--out", "c", *hashed, "--set",
                    "optimizer.params.betas=[0.9, 0.99]")
        # In the first step the bias correction takes beta2 out again.
        shown = self.sluice("diff", "a", "c", code=1).stdout
        self.assertIn("step 2 is the first that differs", shown)
        self.assertIn("it is the update that went apart", shown)
        self.refused("diff", "a", "absent")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
