"""The sluice program from outside: what it prints, what it writes, and how it ends.

SLUICE is the program; SLUICE_HAS_ENGINE=1 when it was built with LibTorch.
"""

import json
import os
import random
import re
import shutil
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

    def metrics(self, name):
        lines = (self.path / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]


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


    def test_suggests_what_was_meant_and_names_the_help_of_the_command(self):
        said = self.refused("trian" if HAS_ENGINE else "scurb", "x")
        self.assertIn("did you mean train?" if HAS_ENGINE else "did you mean scrub?", said)
        self.assertIn("sluice --help", said)
        said = self.refused("ls", "x", "--verfiy")
        self.assertIn("did you mean --verify?", said)
        self.assertIn("sluice ls --help", said)
        for arguments in (["ls"], ["ls", "a", "b"], ["config", "x", "--set"]):
            self.assertIn(f"sluice {arguments[0]} --help", self.refused(*arguments))

    def test_refuses_what_would_be_without_effect(self):
        self.write("run.json", {"model": {"preset": "gpt2-small"}, "train_batch_size": 1})
        for arguments in (["--json", "--verbose"], ["--keys"], ["--set", ""], ["--set="],
                          ["--json=maybe"], ["--deepspeed", ""]):
            with self.subTest(arguments=arguments):
                self.refused("config", "run.json", *arguments)

    def test_says_what_it_was_built_from(self):
        lines = self.sluice("--version").stdout.splitlines()
        self.assertRegex(lines[0], r"\Asluice \d+\.\d+\.\d+ "
                                   r"\(commit (unknown|[0-9a-f]{12}(-changed)?)\)\Z")
        self.assertRegex(lines[1], r"\ALibTorch: \d" if HAS_ENGINE else r"\ALibTorch: left out")
        self.assertRegex(lines[2], r"\ACUDA: (\d|left out)")

    def test_waits_for_no_pipe(self):
        os.mkfifo(self.path / "pipe")
        for arguments in (["config", "pipe"], ["config", "--deepspeed", "pipe"],
                          ["diff", "pipe", "pipe"]):
            with self.subTest(arguments=arguments):
                self.assertIn("pipe", self.refused(*arguments))
        self.assertIn("--deepspeed: ", self.refused("config", "--deepspeed", "absent"))


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

    def test_lists_what_became_of_each_auto_last(self):
        self.write("ds.json", '{ # of a Trainer\n"train_batch_size": "auto", "fp16": {"enabled": '
                              '"auto"}, bf16: {"enabled": "auto",}, }')
        shown = self.sluice("config", "--deepspeed", "ds.json", "--set", "run.device=cpu").stdout
        last = shown[shown.index('"auto" became'):]
        for key, value in (("train_batch_size", "1"), ("fp16.enabled", "false"),
                           ("bf16.enabled", "true")):
            self.assertRegex(last, rf"(?m)^  {key} +{value} ")
        self.assertIn("--set KEY=VALUE", last.splitlines()[-1])

    def test_refuses_what_would_silently_train_in_fp32(self):
        for section in ("amp", "torch_autocast"):
            self.write("ds.json", {"train_batch_size": 8, section: {"enabled": True}})
            self.assertIn("set bf16.enabled or fp16.enabled to true",
                          self.refused("config", "--deepspeed", "ds.json"))

    def test_the_flag_of_the_watchdog_wins_over_the_key(self):
        self.write("run.json", {"model": {"preset": "gpt2-small"}, "train_batch_size": 1,
                                "run": {"io_watchdog": 3}})
        for before, limit in ([], 3), (["--io-watchdog", "7"], 7):
            shown = self.sluice(*before, "config", "run.json", "--json").stdout
            self.assertEqual(json.loads(shown)["run"]["io_watchdog"], limit)
        for wrong in "nan", "-1", "1e6":
            self.assertIn("--io-watchdog", self.refused("--io-watchdog", wrong, "config",
                                                        "run.json"))

    def test_documents_its_keys(self):
        text = self.sluice("config", "--keys").stdout
        for key in ("offload_optimizer.device", "run.steps", "budget.nvme_paths"):
            self.assertIn(key, text)


class Install(Program):
    def test_programs_look_for_libraries_beside_themselves_alone(self):
        build = Path(SLUICE).resolve().parents[1]
        names = ["sluice", "aio_bench", "adam_bench", "swap_bench", "checkpoint_bench"]
        names += ["model_bench", "step_bench"] if HAS_ENGINE else []
        if not all((build / "bin" / name).exists() for name in names):
            self.skipTest("the build is not complete")
        if not shutil.which("cmake") or not shutil.which("readelf"):
            self.skipTest("cmake or readelf is not there")
        subprocess.run(["cmake", "--install", build, "--prefix", self.path / "x", "--component",
                        "programs"], check=True, stdout=subprocess.DEVNULL)
        self.assertEqual(sorted(os.listdir(self.path / "x/bin")), sorted(names))
        for name in names:
            shown = subprocess.run(["readelf", "-d", self.path / "x/bin" / name], check=True,
                                   capture_output=True, text=True).stdout
            for folders in re.findall(r"(?:RUNPATH|RPATH).*\[(.*)\]", shown):
                for folder in folders.split(":"):
                    self.assertRegex(folder, r"\A\$ORIGIN/\.\./lib/sluice/")


class Scrub(Program):
    def test_says_that_nothing_is_there(self):
        self.assertIn("no state stores", self.sluice("scrub", ".").stdout)
        self.refused("scrub", ".", "--run", "absent")

    def test_says_what_it_keeps_and_removes_what_is_named(self):
        store = self.path / "sluice-a"
        store.mkdir()
        owner = {"pid": 1, "host": "pod-1", "started_utc": "2026-01-02T03:04:05Z"}
        (store / "owner.json").write_text(json.dumps(owner), encoding="utf-8")
        (store / "records").write_bytes(bytes(5120))
        shown = self.sluice("scrub", ".", "--remove-leftovers").stdout
        self.assertIn("0 leftovers removed", shown)
        self.assertRegex(shown, r"kept: \./sluice-a \(5\S+\) is in use by, or was left by, process 1 "
                                r"on pod-1")
        self.assertIn("--run", self.refused("scrub", ".", "--remove"))
        self.refused("scrub", ".", "--remove", "--run", "b")
        self.refused("scrub", ".", "--remove", "--run", "../a")
        self.assertIn("removed: ./sluice-a",
                      self.sluice("scrub", ".", "--remove", "--run", "a").stdout)
        self.assertFalse(store.exists())


@unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
class Probe(Program):
    def setUp(self):
        super().setUp()
        environment = unittest.mock.patch.dict(os.environ, XDG_CACHE_HOME=str(self.path / "cache"))
        environment.start()
        self.addCleanup(environment.stop)
        (self.path / "nvme").mkdir()
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
        # All that was measured in peace, however busy this machine is.
        kept = {"measurements": []}
        if self.kept.exists():
            kept = json.loads(self.kept.read_text(encoding="utf-8"))
        busy = {"host": "memory and cores: ", "drives": "nvme: ", "units": "the model's units: "}
        self.assertEqual([one["what"] for one in kept["measurements"]],
                         [what for what, name in busy.items() if name not in shown.stderr])
        self.assertEqual(len(kept["measurements"]) < 3, "this machine was busy" in shown.stderr)

        again = json.loads(self.sluice("probe", "run.json", "--json").stdout)
        measured = {one["what"]: one["values"] for one in kept["measurements"]}
        for what in ("host", "drives", "units"):
            self.assertEqual(again[what]["cached"], what in measured)
        if "drives" in measured:
            self.assertEqual(again["drives"]["in_bytes_per_s"],
                             measured["drives"]["in_bytes_per_s"])
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
        if "this machine was busy" not in shown.stderr:
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
        self.assertRegex(shown.stdout, r"It would with .*a GPU with [0-9.]+ GiB")
        self.assertNotIn("budget.gpu_gib", shown.stdout)

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
        simulated = ["plan", ROOT / "configs/demo.json", *CARD, "--simulate", 1, "--trace"]
        self.assertIn("--force", self.refused(*simulated, "trace.json"))
        self.assertIn("no folder absent", self.refused(*simulated, "absent/trace.json"))
        for number in ("nan", "-1", "inf"):
            self.refused("plan", ROOT / "configs/demo.json", "--gpu-gib", number)

    def test_warns_where_the_data_could_not_be_trained_on(self):
        for name, tokenizer in (("bytes", {"kind": "bytes"}),
                                ("other", {"kind": "bpe", "vocabulary_sha256": "ab" * 32})):
            self.write(f"{name}.bin.json", {"format": "sluice-tokens", "version": 1, "tokens": 9,
                                            "dtype": "uint16", "vocab_size": 257,
                                            "tokenizer": tokenizer})
        told = self.sluice("plan", ROOT / "configs/demo.json", *CARD).stderr
        self.assertRegex(told, r"would refuse the data: data\.train: "
                               r".*out/demo/corpus/train\.bin")
        told = self.sluice("plan", ROOT / "configs/demo.json", *CARD, "--set",
                           'data.train=["bytes.bin"]', "--set",
                           'data.validation=["other.bin"]').stderr
        self.assertIn("would refuse this: data.train and data.validation are of different "
                      "tokenizers", told)

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
    def test_refuses_an_nvme_folder_that_is_missing_and_makes_none(self):
        # As of a slip of the pen, or a drive that is not mounted.
        missing = self.path / "drives/nvme9/state"
        (self.path / "drives").mkdir()
        self.write("card.json", {**json.loads((self.path / "run.json").read_text()), "budget": {},
                                 "zero_optimization": {"stage": 3, "offload_optimizer": {
                                     "device": "nvme", "nvme_path": str(missing)}}})
        named = ["run.json", "--set", f'budget.nvme_paths=["{missing}"]']
        for words in (["train", *named, "--out", "a"], ["plan", *named], ["probe", *named],
                      ["tune", *named], ["train", "card.json", "--out", "a"], ["scrub", missing]):
            with self.subTest(command=words[:2]):
                told = self.refused(*words)
                self.assertIn(f"{missing} does not exist; {os.path.realpath(self.path)}/drives "
                              "does, on the ", told)
                self.assertIn(f"mkdir -p {missing}", told)
                if "card.json" in words:
                    self.assertIn("zero_optimization.offload_optimizer.nvme_path: ", told)
                self.assertEqual(os.listdir(self.path / "drives"), [])
                self.assertFalse((self.path / "a").exists())
        (self.path / "drives/nvme9").write_text("no folder")
        self.assertIn("is not a folder, or lies below a file", self.refused("plan", *named))
        # Of a tier that is not on NVMe DeepSpeed's key means nothing.
        self.sluice("train", "card.json", "--out", "a", "--set",
                    "zero_optimization.offload_optimizer.device=cpu")

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
        told = json.loads(self.sluice("eval", "run.json", "--weights", "a.safetensors",
                                      "--json").stdout)
        self.assertAlmostEqual(told["loss"], loss, delta=1e-6)
        self.assertGreater(told["tokens"], 0)
        self.assertAlmostEqual(loss, self.metrics("a")[-1]["val_loss"], delta=1e-4)

    def test_says_where_the_weights_come_from(self):
        told = self.sluice("train", "run.json", "--out", "a", "--steps", "1", "--save-weights",
                           "a.safetensors").stderr
        self.assertRegex(told, r"(?m)^weights: random, drawn with seed \d+ \(model\.init_seed\)")
        told = self.sluice("train", "run.json", "--out", "b", "--steps", "1", "--init-from",
                           "a.safetensors").stderr
        self.assertIn("weights: from a.safetensors (model.init_from)", told.splitlines())
        told = self.sluice("train", "a/config.json", "--out", "c", "--steps", "1").stderr
        self.assertIn("the weights of the run in a are not used: --resume=a/checkpoints/NAME", told)
        told = self.sluice("train", "run.json", "--out", "a", "--resume", "--steps", "2").stderr
        self.assertRegex(told, r"(?m)^weights: from a/checkpoints/step-0+1, ")

    def test_says_what_has_changed_since_the_checkpoint(self):
        self.sluice("train", "run.json", "--out", "a", "--steps", "1")
        same = self.sluice("train", "run.json", "--out", "a", "--resume", "--steps", "2", "--set",
                           "zero_optimization.offload_optimizer.device=cpu").stderr
        self.assertNotIn("changed since", same)
        told = self.sluice("train", "run.json", "--out", "a", "--resume", "--steps", "3",
                           "--set", "optimizer.params.lr=0.01", "--set", "gradient_clipping=2",
                           "--set", "train_micro_batch_size_per_gpu=4",
                           "--set", "optimizer.params.weight_decay=0.5").stderr
        for change in ("optimizer.params.lr was 0.003 and is 0.01", "gradient_clipping was ",
                       "train_micro_batch_size_per_gpu was 2 and is 4", "weight_decay was "):
            self.assertIn("changed since the checkpoint: ", told)
            self.assertEqual(told.count(change), 1)
        (self.path / "text.bin").write_bytes(struct.pack("<8000H", *([7] * 8000)))
        said = self.refused("train", "run.json", "--out", "a", "--resume", "--steps", "4")
        self.assertIn("data.train have other tokens", said)

    def test_refuses_flags_that_would_do_nothing(self):
        for arguments in (["--steps", "-5"], ["--steps", "0"], ["--epochs", "0"],
                          ["--epochs", "-1"], ["--epochs", "nan"], ["--dtype", "bf16"], ["--force"],
                          ["--resume", "--init-from", "x"], ["--resume", "--resume=2"],
                          ["--trace", "100:200"], ["--trace", "3:5"], ["--trace", "0:1"],
                          ["--out="], ["--save-weights", ""]):
            with self.subTest(arguments=arguments):
                self.refused("train", "run.json", "--out", "a", *arguments)
                self.assertFalse((self.path / "a/metrics.jsonl").exists())

    def test_refuses_before_training_what_could_not_be_written_after_it(self):
        self.write("w.safetensors", "mine")
        (self.path / "folder.safetensors").mkdir()
        for path, says in (("w.bin", "must end in .safetensors"),
                           ("absent/w.safetensors", "there is no folder absent"),
                           ("run.json/w.safetensors", "run.json"),
                           ("folder.safetensors", "that is a folder"),
                           ("w.safetensors", "--force")):
            with self.subTest(path=path):
                self.assertIn(says, self.refused("train", "run.json", "--out", "a",
                                                 "--save-weights", path))
                self.assertFalse((self.path / "a").exists())
        self.assertEqual((self.path / "w.safetensors").read_text(), "mine")
        self.sluice("train", "run.json", "--out", "a", "--steps", "1", "--save-weights",
                    "w.safetensors", "--force")
        self.assertGreater((self.path / "w.safetensors").stat().st_size, 1000)
        self.sluice("train", "run.json", "--out", "b", "--steps", "1", "--save-weights",
                    "b/w.safetensors")

    def test_a_run_that_cannot_begin_costs_the_former_one_nothing(self):
        self.sluice("train", "run.json", "--out", "a", "--steps", "1")
        before = sorted(self.path.glob("a/**/*"))
        for arguments in (["--set", "data.train=[\"absent.bin\"]"], ["--set", "model.vocab=60"],
                          ["--set", "budget.cpu_gib=0.01"], ["--trace", "9:9"]):
            self.refused("train", "run.json", "--out", "a", "--overwrite", *arguments)
            self.assertEqual(sorted(self.path.glob("a/**/*")), before)

    def test_names_the_key_or_flag_of_a_file_that_is_missing(self):
        for arguments, key in ((["--set", "data.train=[\"absent\"]"], "data.train: "),
                               (["--set", "data.validation=[\"absent\"]"], "data.validation: "),
                               (["--init-from", "absent"], "model.init_from: ")):
            self.assertIn(key, self.refused("train", "run.json", "--out", "a", *arguments))
        self.assertIn("--weights: ", self.refused("eval", "run.json", "--weights", "absent"))

    def test_waits_for_no_pipe(self):
        os.mkfifo(self.path / "pipe.safetensors")
        self.refused("eval", "run.json", "--weights", "pipe.safetensors")
        self.refused("train", "run.json", "--out", "a", "--init-from", "pipe.safetensors")
        self.refused("train", "run.json", "--out", "a", "--save-weights", "pipe.safetensors",
                     "--force")

    def test_counts_every_millisecond_of_a_step_once(self):
        told = self.sluice("train", "run.json", "--out", "a", "--steps", "8", "--set",
                           "run.eval_every=2")
        for step in self.metrics("a"):
            parts = sum(step[part] for part in ("forward_ms", "backward_ms", "update_exposed_ms"))
            self.assertLessEqual(parts, 1.001 * step["step_ms"])
        shares = [float(share) for share in re.findall(r"(\d+\.\d)%", told.stdout)]
        self.assertAlmostEqual(sum(shares[:4]), 100, delta=0.25)
        self.assertEqual(told.stderr.count("validation loss"), 4)
        self.assertNotIn("val ", told.stderr)

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
                (["--dtype", "int8", "--save-weights", "w.safetensors"], "int8")):
            with self.subTest(arguments=arguments):
                out = "o" + str(abs(hash(str(arguments))))
                self.assertIn(says, self.refused("train", "run.json", "--out", out, *arguments))

    def test_shows_what_takes_the_memory_where_it_refuses(self):
        for devices in ([], ["--set", "zero_optimization.offload_optimizer.device=auto"]):
            with self.subTest(devices=devices):
                result = self.sluice("train", "run.json", "--out", f"o{len(devices)}", *devices,
                                     "--set", "budget.cpu_gib=0.01", code=2)
                self.assertRegex(result.stderr, r"host memory +\S+ +of 10\.\d+M")
                self.assertRegex(result.stderr, r"activations +\S+")
                self.assertIn("missing", result.stderr.splitlines()[-1])

    def test_warns_of_a_budget_above_the_machine_when_it_plans_and_when_it_trains(self):
        much = ["--set", "budget.cpu_gib=100000"]
        for command in (["plan", "run.json"], ["train", "run.json", "--out", "o"]):
            shown = self.sluice(*command, *much)
            self.assertEqual(shown.stderr.count("budget.cpu_gib asks for"), 1, command)

    def test_goes_on_decaying_what_it_decayed(self):
        decay = ["--set", "optimizer.params.weight_decay=0.1"]
        def decayed():
            config = json.loads((self.path / "a/config.json").read_text(encoding="utf-8"))
            return config["optimizer"]["params"]["decayed"]
        self.sluice("train", "run.json", "--out", "a", "--steps", 1, *decay,
                    "--set", "optimizer.params.decayed=all")
        shown = self.sluice("train", "run.json", "--out", "a", "--resume", "--steps", 2, *decay)
        self.assertIn("weight decay goes on applying to all parameters", shown.stderr)
        self.assertEqual(decayed(), "all")
        shown = self.sluice("train", "a/config.json", "--out", "a", "--resume", "--steps", 3)
        self.assertNotIn("weight decay", shown.stderr)
        shown = self.sluice("train", "run.json", "--out", "a", "--resume", "--steps", 4, *decay,
                            "--set", "optimizer.params.decayed=matrices")
        self.assertIn("decayed was all, and is matrices from here on", shown.stderr)
        self.assertEqual(shown.stderr.count("optimizer.params.decayed"), 1)
        self.assertEqual(decayed(), "matrices")

    def test_stops_at_a_gradient_that_is_not_finite_and_says_how_to_go_on(self):
        wild = ["--set", "optimizer.params.lr=1e30", "--set", "run.checkpoint_every=1"]
        stopped = self.sluice("train", "run.json", "--out", "a", *wild, code=1).stderr
        last = stopped.splitlines()[-1]
        self.assertRegex(last, r"the gradient of step \d is not finite, in unit \S+ first "
                               r"\(.*micro-batch 1 of 1, loss \S+, text\.bin from tokens \d+")
        self.assertIn("--set run.non_finite_step=skip", last)
        self.assertRegex(last, r"The newest checkpoint is \S*a/checkpoints/step-")
        self.assertNotIn("--resume goes on from there", last)
        # As it says, resuming alone comes to the same step; skipping goes by it, up to the limit.
        again = self.sluice("train", "run.json", "--out", "a", "--resume", *wild, code=1).stderr
        self.assertEqual(again.splitlines()[-1], last)
        skipped = self.sluice("train", "run.json", "--out", "a", "--resume", "--steps", 20, *wild,
                              "--set", "run.non_finite_step=skip",
                              "--set", "run.max_skipped_steps=2", code=1).stderr
        self.assertEqual(skipped.count("The step is skipped"), 2)
        self.assertIn("The 2 steps before it were skipped", skipped.splitlines()[-1])
        self.assertEqual([step["skipped"] for step in self.metrics("a")][-2:], [True, True])

    def test_compares_its_steps_with_the_plan(self):
        cache = {"XDG_CACHE_HOME": str(self.path / "cache")}
        with unittest.mock.patch.dict(os.environ, cache):
            auto = ["--set", "zero_optimization.offload_optimizer.device=auto"]
            self.sluice("probe", "run.json")
            kept = self.path / "cache/sluice/speeds.json"
            if not kept.exists() or len(json.loads(kept.read_text("utf-8"))["measurements"]) < 3:
                self.skipTest("this machine is too busy to be measured")
            # As another program's work would have it.
            speeds = json.loads(kept.read_text(encoding="utf-8"))
            for one in speeds["measurements"]:
                for name in one["values"]:
                    one["values"][name] *= 1000 if one["what"] == "units" else 0.001
            kept.write_text(json.dumps(speeds), encoding="utf-8")
            shown = self.sluice("train", "run.json", "--out", "a", "--steps", 5, *auto)
            self.assertRegex(shown.stdout, r"step, median +[0-9.]+ ms \(0\.0\d+ of the plan\)")
            self.assertIn("the steps took another time than planned", shown.stderr)
            self.assertIn("is measured anew next time", shown.stderr)
            self.assertEqual(json.loads(kept.read_text(encoding="utf-8"))["measurements"], [])

    def test_saves_and_ends_well_on_ctrl_c_and_goes_on_with_the_same_bits(self):
        self.sluice("train", "run.json", "--out", "whole", "--steps", "60", "--save-weights",
                    "whole.safetensors")
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=number):
                out = f"stopped{int(number)}"
                process = self.start("train", "run.json", "--out", out, "--steps", "100000",
                                     "--trace", "99999:100000")
                self.wait_for_steps(out, 3)
                process.send_signal(number)
                shown, told = process.communicate(timeout=120)
                self.assertEqual(process.returncode, 0, told)
                self.assertIn(b"tokens/s", shown)
                self.assertIn(b"interrupted; --resume goes on from here", told)
                self.assertIn(b"no trace was written: the run ended before step 99999", told)
                self.assertFalse((self.path / out / "trace.json").exists())
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
        # Both are there when it goes on, so that no step can end between them.
        for number in signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT:
            process.send_signal(number)  # two of one kind may arrive as one
        process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130)
        self.assertIn("going on from", self.sluice("train", "run.json", "--out", "a", "--resume",
                                                   "--steps", "8").stderr)

    def test_says_how_to_begin_again_where_nothing_is_saved(self):
        process = self.start("--io-watchdog", "9", "train", "run.json", "--out", "a b", "--steps",
                             "100000", "--set", "run.checkpoint_at_end=false")
        self.wait_for_steps("a b", 3)
        process.send_signal(signal.SIGINT)
        told = process.communicate(timeout=120)[1].decode()
        self.assertEqual(process.returncode, 130, told)
        self.assertIn("interrupted, and no step is saved; to begin again: sluice --io-watchdog 9 "
                      "train run.json --set run.checkpoint_at_end=false --out 'a b' --steps 100000 "
                      "--overwrite\n", told)

    def test_a_run_that_has_no_step_left_replaces_no_trace(self):
        self.sluice("train", "run.json", "--out", "a", "--trace", "1:1")
        trace = (self.path / "a/trace.json").read_bytes()
        self.assertIn("none is left to trace", self.refused(
            "train", "run.json", "--out", "a", "--resume", "--trace", "1:1"))
        self.assertEqual((self.path / "a/trace.json").read_bytes(), trace)

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
        shown = self.sluice("scrub", "a", "nvme", code=1).stdout
        self.assertIn("no state stores", shown, "what is damaged does not end the look-around")
        self.assertIn(weights.name, shown)
        self.assertIn("step-000000002: ", shown)
        self.assertIn("complete", self.sluice("ls", "a").stdout)
        self.assertIn(weights.name, self.sluice("ls", "a", "--verify", code=1).stdout)
        shown = self.sluice("ls", "a", "--verify", code=1).stdout.splitlines()
        self.assertLess(max(len(row) for row in shown[:3]), 80)
        found = json.loads(self.sluice("ls", "a", "--verify", "--json", code=1).stdout)
        self.assertEqual([(one["step"], one["state"]) for one in found["checkpoints"]],
                         [(2, "intact"), (4, "damaged")])
        self.assertIn(weights.name, found["checkpoints"][1]["problem"])
        weights.unlink()
        self.assertIn("damaged", self.sluice("ls", "a", code=1).stdout)
        self.refused("ls", "absent")
        self.refused("ls", "nvme")

    def test_overwriting_leaves_nothing_to_resume_of_the_run_before(self):
        self.sluice("train", "run.json", "--out", "a")
        self.sluice("train", "run.json", "--out", "a", "--overwrite", "--steps", "1", "--set",
                    "run.checkpoint_at_end=false")
        self.assertIn("starting at step 0",
                      self.sluice("train", "run.json", "--out", "a", "--resume").stderr)

    SCHEDULE = {"type": "WarmupDecayLR", "params": {"warmup_max_lr": "auto",
                "warmup_num_steps": "auto", "total_num_steps": "auto"}}

    def with_schedule(self, name="scheduled.json", **params):
        run = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        run["scheduler"] = {**self.SCHEDULE, "params": {**self.SCHEDULE["params"], **params}}
        return self.write(name, run)

    def rates(self, name):
        return [step["lr"] for step in self.metrics(name)]

    def test_epochs_reach_the_schedule_and_the_kept_configuration(self):
        run = self.with_schedule()
        told = self.sluice("train", run, "--out", "a", "--epochs", "0.05").stderr
        rates = self.rates("a")
        self.assertIn(f"{len(rates)} steps: run.epochs 0.05 x ", told)
        self.assertEqual([step for step, rate in enumerate(rates) if rate == 0], [0, 1])
        self.assertEqual(max(rates), 0.003)  # out of the warm-up
        self.assertLess(rates[-1], 0.001)
        kept = json.loads((self.path / "a/config.json").read_text(encoding="utf-8"))
        self.assertEqual((kept["run"]["epochs"], kept["run"]["steps"]), (0.05, "auto"))
        self.sluice("train", "a/config.json", "--out", "b")
        self.assertEqual(self.results("b"), self.results("a"))
        self.assertIn("is not above 0", self.refused("train", run, "--out", "c", "--epochs", "0"))
        self.assertIn("is less than 1", self.refused("train", run, "--out", "c", "--steps", "-5"))
        self.assertFalse((self.path / "c").exists())

    def test_a_run_that_is_made_longer_says_what_its_schedule_was_and_is(self):
        run = self.with_schedule()
        self.sluice("train", run, "--out", "a", "--steps", "12")
        frozen = self.with_schedule("frozen.json", warmup_num_steps=1, total_num_steps=12)
        said = self.refused("train", frozen, "--out", "a", "--resume", "--steps", "30")
        self.assertIn("a learning rate of exactly 0", said)
        self.assertIn("--set scheduler.params.total_num_steps=auto", said)
        self.assertEqual(len(self.metrics("a")), 12)
        told = self.sluice("train", "a/config.json", "--resume", "--steps", "30").stderr
        self.assertRegex(told, r"the learning rate of step 13 was to be \S+, and is 0\.00")
        self.assertIn("run.steps was 12 and is 30", told)
        self.assertGreater(min(self.rates("a")[2:]), 0)
        self.assertNotIn("the learning rate of step",
                         self.sluice("train", "a/config.json", "--resume").stderr)
        self.sluice("train", "run.json", "--out", "b", "--steps", "2")
        self.assertIn("run.steps was 2 and is 4; the schedule stays as it was",
                      self.sluice("train", "run.json", "--out", "b", "--resume").stderr)

    def test_warns_of_steps_behind_the_end_of_the_schedule(self):
        run = self.with_schedule(total_num_steps=6, warmup_num_steps=2)
        told = self.sluice("train", run, "--out", "a", "--steps", "10").stderr
        self.assertEqual(self.rates("a").count(0) - 2, 3)
        self.assertIn("its last 3 steps have a learning rate of exactly 0", told)

    FP16 = ("--set", "bf16.enabled=false", "--set", "fp16.enabled=true")

    def test_a_fixed_loss_scale_that_always_overflows_is_no_success(self):
        too_much = (*self.FP16, "--set", "fp16.loss_scale=1e30")
        told = self.sluice("train", "run.json", "--out", "a", "--steps", "50", *too_much,
                           code=1).stderr
        self.assertIn("fp16.loss_scale", told.splitlines()[-1])
        self.assertEqual(len(self.metrics("a")), 5)
        told = self.sluice("train", "run.json", "--out", "b", *too_much, code=1).stderr
        self.assertIn("no step was applied", told.splitlines()[-1])
        self.sluice("train", "run.json", "--out", "b", "--resume", "--steps", "8", *self.FP16,
                    "--set", "fp16.loss_scale=64")
        self.assertEqual([step["skipped"] for step in self.metrics("b")], [True] * 4 + [False] * 4)

    def test_an_evaluation_without_a_finite_loss_is_no_success(self):
        self.sluice("train", "run.json", "--out", "a", "--save-weights", "a.safetensors")
        content = bytearray((self.path / "a.safetensors").read_bytes())
        content[-4:] = struct.pack("<f", float("nan"))
        (self.path / "a.safetensors").write_bytes(content)
        result = self.sluice("eval", "run.json", "--weights", "a.safetensors", code=1)
        self.assertIn("loss nan", result.stdout)
        self.assertIn("the loss is not finite", result.stderr.splitlines()[-1])

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


@unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
class TokenData(Program):
    """Data of bytes, and data of another tokenizer of as many tokens, by their sidecars."""

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



class Tokenizers(TokenData):
    def test_are_compared_between_training_and_validation(self):
        self.sluice("train", "run.json", "--out", "old")
        mixed = ["train", "run.json", *self.of("other", "data.validation")]
        said = self.refused(*mixed, "--out", "old", "--overwrite")
        self.assertIn("data.validation", said)
        self.assertIn("--any-tokenizer", said)
        self.assertTrue((self.path / "old/checkpoints/step-000000001").is_dir())  # nothing is lost
        self.assertIn("different tokenizers",
                      self.sluice(*mixed, "--out", "a", "--any-tokenizer").stderr)
        self.sluice("train", "run.json", "--out", "b", *self.of("unknown", "data.validation"))
        self.refused("train", "run.json", "--out", "c", "--set",
                     'data.train=["bytes/train.bin", "other/train.bin"]')

    def test_are_compared_when_a_run_goes_on(self):
        self.sluice("train", "run.json", "--out", "a")
        on = ["train", "run.json", "--resume", "--steps", "2", "--out", "a"]
        self.assertIn("the run that wrote a/checkpoints", self.refused(*on, *self.of("other")))
        kept = (self.path / "a/tokenizer/tokenizer.json").read_bytes()
        self.sluice(*on, *self.of("unknown"))
        on[4] = "3"
        told = self.sluice(*on, *self.of("other"), "--any-tokenizer").stderr
        self.assertIn("different tokenizers", told)
        # Of that one there is nothing but its fingerprint.
        self.assertIn("the run keeps its tokenizer, bytes", told)
        self.assertEqual((self.path / "a/tokenizer/tokenizer.json").read_bytes(), kept)
        self.write("other/tokenizer.json", {"model": {"vocab": {"some": 0, "words": 1}}})
        on[4] = "4"
        told = self.sluice(*on, *self.of("other"), "--any-tokenizer").stderr
        self.assertIn("the one before it is in a/tokenizer-before-step-4", told)
        self.assertEqual((self.path / "a/tokenizer-before-step-4/tokenizer.json").read_bytes(),
                         kept)
        self.assertEqual((self.path / "a/tokenizer/tokenizer.json").read_bytes(),
                         (self.path / "other/tokenizer.json").read_bytes())

    def test_are_compared_with_the_weights_that_are_begun_with_or_evaluated(self):
        self.sluice("train", "run.json", "--out", "a", "--save-weights", "a/w.safetensors")
        for command in (["train", "run.json", "--out", "b", "--init-from", "a/w.safetensors"],
                        ["eval", "run.json", "--weights", "a/w.safetensors"]):
            with self.subTest(command=command[0]):
                self.assertIn("different tokenizers", self.refused(*command, *self.of("other")))
                self.sluice(*command, *self.of("unknown"))
        self.sluice("eval", "run.json", "--weights", "a/w.safetensors", *self.of("other"),
                    "--any-tokenizer")
        # The data had no sidecar: what is known of the weights is known of the run.
        self.assertEqual((self.path / "b/tokenizer/tokenizer.json").read_bytes(),
                         (self.path / "a/tokenizer/tokenizer.json").read_bytes())
        self.assertEqual(json.loads((self.path / "b/tokenizer/generation_config.json").read_text()),
                         {"bos_token_id": 256, "eos_token_id": 256})

    def test_are_compared_where_a_run_that_was_to_go_on_begins(self):
        self.sluice("train", "run.json", "--out", "a", "--save-weights", "a/w.safetensors")
        words = ["train", "run.json", "--out", "b", "--resume", "--set",
                 "model.init_from=a/w.safetensors"]
        said = self.refused(*words, *self.of("other"))
        self.assertIn("different tokenizers", said)
        result = self.sluice(*words, "--set", "model.layers=2", code=2).stderr
        self.assertIn("a/config.json describes another model", result)
        self.assertNotIn("2 layers x 32", result)  # before any plan
        self.sluice(*words, *self.of("unknown"))
        self.assertTrue((self.path / "b/tokenizer/tokenizer.json").exists())

    def test_say_what_is_not_known_and_where_a_vocabulary_is_much_larger(self):
        told = self.sluice("train", "run.json", "--out", "a", *self.of("unknown")).stderr
        self.assertIn("which tokenizer the data is of is not known", told)
        told = self.sluice("train", "run.json", "--out", "b", "--set", "model.vocab=5000").stderr
        self.assertIn("model.vocab=257", told)
        self.assertNotIn("model.vocab=257",
                         self.sluice("train", "run.json", "--out", "c").stderr)


@unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
class RunFolders(TokenData):
    """A run's folder is whole by itself, wherever it lies."""

    def test_goes_on_in_the_folder_that_it_was_moved_or_copied_to(self):
        self.sluice("train", "run.json", "--out", "a", "--set", "run.checkpoint_every=1")
        kept = json.loads((self.path / "a/config.json").read_text(encoding="utf-8"))
        self.assertEqual(kept["run"]["dir"], "")
        self.assertEqual(kept["data"]["train"], [str(self.path / "bytes/train.bin")])
        shutil.copytree(self.path / "a", self.path / "elsewhere/copy")
        before = sorted(os.listdir(self.path / "a/checkpoints"))
        told = subprocess.run([SLUICE, "train", "copy/config.json", "--resume", "--steps", "2"],
                              cwd=self.path / "elsewhere", check=False, capture_output=True,
                              text=True, timeout=240)
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertEqual(sorted(os.listdir(self.path / "a/checkpoints")), before)
        self.assertIn("step-000000002", os.listdir(self.path / "elsewhere/copy/checkpoints"))

    def test_goes_on_with_the_data_in_its_folder_before_its_first_checkpoint_too(self):
        self.sluice("train", "run.json", "--out", "a", "--steps", "1", "--set",
                    "run.checkpoint_at_end=false", "--set", "run.checkpoint_minutes=0")
        self.assertNotIn("checkpoints", os.listdir(self.path / "a"))
        shutil.copytree(self.path / "bytes", self.path / "a/data")
        self.sluice("train", "a/config.json", "--resume", "--set",
                    'data.train=["a/data/train.bin"]', "--steps", "1", "--set",
                    "run.checkpoint_at_end=true")
        kept = json.loads((self.path / "a/config.json").read_text(encoding="utf-8"))
        self.assertEqual(kept["data"]["train"], ["data/train.bin"])
        (self.path / "a").rename(self.path / "moved")
        shutil.rmtree(self.path / "bytes")
        self.sluice("train", "moved/config.json", "--resume", "--steps", "2")
        self.assertEqual(len(self.metrics("moved")), 2)

    def test_generates_and_exports_without_its_data(self):
        self.sluice("train", "run.json", "--out", "a")
        words = ["--prompt", "some", "--tokens", "5", "--temperature", "0"]
        text = self.sluice("generate", "a", *words).stdout
        (self.path / "bytes/train.bin.json").unlink()
        (self.path / "a").rename(self.path / "moved")
        self.assertEqual(self.sluice("generate", "moved", *words).stdout, text)
        shown = self.sluice("export", "moved", "out").stdout
        self.assertIn("tokenizer: bytes", shown)
        self.assertEqual(json.loads((self.path / "out/generation_config.json").read_text()),
                         {"bos_token_id": 256, "eos_token_id": 256})
        shutil.rmtree(self.path / "moved/tokenizer")
        told = self.sluice("export", "moved", "bare").stderr
        self.assertIn("--tokenizer FILE", told)
        self.assertNotIn("tokenizer.json", os.listdir(self.path / "bare"))
        self.sluice("export", "moved", "named", "--tokenizer", "bytes")
        self.assertIn("tokenizer.json", os.listdir(self.path / "named"))
        self.assertIn("--tokenizer FILE", self.refused("generate", "moved", *words))

    def test_a_copied_configuration_names_no_folder(self):
        self.sluice("train", "run.json", "--out", "a")
        shutil.copy(self.path / "a/config.json", self.path / "mine.json")
        self.assertIn("--out", self.refused("train", "mine.json"))
        self.sluice("train", "mine.json", "--out", "b")

    def test_overwriting_removes_the_tokenizer_of_the_run_before(self):
        self.sluice("train", "run.json", "--out", "a")
        self.assertTrue((self.path / "a/tokenizer/tokenizer.json").exists())
        (self.path / "a/tokenizer/diary.txt").write_text("dear diary", encoding="ascii")
        self.sluice("train", "run.json", "--out", "a", "--overwrite", *self.of("unknown"))
        self.assertEqual(os.listdir(self.path / "a/tokenizer"), ["diary.txt"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
