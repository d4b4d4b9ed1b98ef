"""The output, files and exit codes of sluice commands that do not train.

SLUICE is the program; SLUICE_HAS_ENGINE=1 when it was built with LibTorch.
"""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

from sluice_program import HAS_ENGINE, Program, SLUICE

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import tool_packages  # noqa: E402
from toolbox import Failure  # noqa: E402


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
        self.assertIn("? sluice --help", said)
        said = self.refused("ls", "x", "--verfiy")
        self.assertIn("did you mean --verify?", said)
        self.assertIn("sluice ls --help", said)
        for arguments in (["ls"], ["ls", "a", "b"], ["config", "x", "--set"]):
            self.assertIn(f"sluice {arguments[0]} --help", self.refused(*arguments))

    def test_says_where_it_looked_for_a_run_file(self):
        self.assertRegex(self.refused("config", "absent.json"),
                         rf"absent\.json.*{os.path.realpath(self.path)}")
        self.assertRegex(self.refused("config", "/absent.json"), r"CONFIG:.*/absent\.json")
        self.assertRegex(self.refused("config", "qwen3-8"), "sluice plan.*qwen3-8b")
        self.assertIn(". is a folder", self.refused("config", "."))

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
        last = shown[shown.index('chosen for "auto"'):]
        for key, value in (("train_batch_size", "1"), ("fp16.enabled", "false"),
                           ("bf16.enabled", "true")):
            self.assertRegex(last, rf"(?m)^  {key} +{value} ")
        self.assertIn("--set KEY=VALUE", last.splitlines()[-1])

    def test_refuses_what_would_silently_train_in_fp32(self):
        for section in ("amp", "torch_autocast"):
            self.write("ds.json", {"train_batch_size": 8, section: {"enabled": True}})
            self.assertIn("bf16.enabled or fp16.enabled",
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


class AbsentModels(Program):
    def test_are_to_be_downloaded_whoever_names_them(self):
        self.write("run.json", {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
                                "model": {"path": "models/Qwen3-8B"}})
        self.write("one.json", {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
                                "model": {"preset": "gpt2-small"}})
        (self.path / "text.bin").write_bytes(bytes(64))
        (self.path / "Qwen").mkdir()  # a name in it is a path; tests/tools/hub_cli_test.py has names
        hub = "hf download Qwen/Qwen3-8B --local-dir Qwen/Qwen3-8B"
        cases = [(["config", "run.json"], "hf download Qwen/Qwen3-8B --local-dir models/Qwen3-8B"),
                 (["import", "Qwen/Qwen3-8B", "a"], hub), (["import", "Qwen/Qwen3-8B/", "a"], hub),
                 (["data", "text.bin", "--dtype", "uint16", "--tokenizer", "Qwen/Qwen3-8B"], hub)]
        if HAS_ENGINE:
            cases.append((["train", "one.json", "--out", "a", "--set", "model.init_from=gpt2",
                           "--set", "run.device=cpu", "--set", 'data.train=["text.bin"]',
                           "--set", "data.dtype=uint16", "--set", "data.sequence_length=8"],
                          "hf download openai-community/gpt2 --local-dir gpt2"))
        for arguments, command in cases:
            with self.subTest(arguments=arguments):
                said = self.refused(*arguments)
                self.assertIn(" does not exist: hf download ", said)
                self.assertIn(command, said)
        (self.path / "Qwen/Qwen3-8B").mkdir(parents=True)  # an existing, empty folder
        self.assertNotIn("download", self.refused("import", "Qwen/Qwen3-8B", "a"))


PROGRAMS = {"sluice", "aio_bench", "adam_bench", "swap_bench", "checkpoint_bench", "libsluice_mpi.so",
            *(("sluice-engine", "model_bench", "step_bench") if HAS_ENGINE else ())}


@unittest.skipUnless(shutil.which("cmake"), "cmake is not there")
class Install(Program):
    def install(self, component, code=0, **environment):
        build = Path(SLUICE).resolve().parents[1]
        done = subprocess.run(["cmake", "--install", build, "--prefix", self.path / "x",
                               "--component", component], check=False, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, env={**os.environ, **environment})
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def test_programs_that_are_built_look_for_libraries_beside_themselves_alone(self):
        if not shutil.which("readelf"):
            self.skipTest("readelf is not there")
        self.install("programs")
        names = sorted(PROGRAMS & set(os.listdir(Path(SLUICE).resolve().parent)))
        self.assertEqual(sorted(os.listdir(self.path / "x/bin")), names)
        for name in names:
            shown = subprocess.run(["readelf", "-d", self.path / "x/bin" / name], check=True,
                                   capture_output=True, text=True).stdout
            for folders in re.findall(r"(?:RUNPATH|RPATH).*\[(.*)\]", shown):
                for folder in folders.split(":"):
                    self.assertRegex(folder, r"\A\$ORIGIN/\.\./lib/sluice/")

    def test_configuring_says_that_mpirun_is_left_out_and_why(self):
        shown = subprocess.run(
            ["cmake", "-S", ROOT, "-B", self.path / "build", "-DSLUICE_TORCH=OFF", "-DSLUICE_CUDA=off",
             "-DSLUICE_TESTS=OFF", "-DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON"], check=True,
            capture_output=True, text=True).stdout
        self.assertRegex(shown, r"mpirun.*mpi\.h.*libopenmpi-dev")

    @unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
    def test_a_prefix_that_was_moved_prepares_trains_and_generates(self):
        for component in ("programs", "scripts", "shells"):
            self.install(component)
        self.install("libraries", CMAKE_INSTALL_MODE="ABS_SYMLINK")  # copies take 3.6 GB
        self.install("Unspecified")
        (self.path / "x").rename(self.path / "moved")
        self.assertFalse((self.path / "x").exists())
        program = self.path / "moved/bin/sluice"
        self.assertFalse(program.is_symlink())

        def run(*command):
            done = subprocess.run([str(it) for it in command], cwd=self.path, check=False, text=True,
                                  stdin=subprocess.DEVNULL, capture_output=True, timeout=240)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return done.stdout
        self.write("text.txt", "the cat sat on the mat, and the dog sat on the log. " * 60)
        prepare = self.path / "moved/share/sluice/tools/prepare"
        try:
            tool_packages.provide()
        except Failure as failure:
            self.skipTest(f"no tokenizers package: {failure}")
        run(sys.executable, "-B", prepare, "text.txt", "--tokenizer", "bpe", "--vocab-size", "280",
            "--out", "corpus")
        self.write("run.json", {
            "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
            "model": {"layers": 1, "hidden": 32, "heads": 2, "context": 16, "vocab": 280},
            "data": {"train": ["corpus/train.bin"]},
            "run": {"steps": 2, "cpu_threads": 1, "device": "cpu"}})
        run(program, "train", "run.json", "--out", "run", "--quiet")
        self.assertIn("the cat", run(program, "data", "corpus/train.bin", "--plain").replace("[", ""))
        self.assertTrue(run(program, "generate", "run", "--prompt", "the cat", "--tokens", 4))
        shutil.rmtree(self.path / "moved/share")
        # Outside of the sources: a program below them would find their tools/tokens.
        with tempfile.TemporaryDirectory(prefix="sluice-prefix-") as away:
            shutil.move(self.path / "moved", away)
            said = subprocess.run([f"{away}/moved/bin/sluice", "generate", "run", "--prompt", "the"],
                                  cwd=self.path, stdin=subprocess.DEVNULL, capture_output=True,
                                  text=True, check=False).stderr
        self.assertRegex(said, "tools/tokens .*moved/bin/sluice-engine: install ")


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
        self.assertRegex(shown, r"kept: \./sluice-a \(5\S+\) .*process 1 on pod-1")
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
        self.assertNotIn("measuring", shown.stderr)  # progress is only for terminals
        self.assertEqual(list((self.path / "nvme").iterdir()), [])
        # The cache has exactly the measurements that were not disturbed.
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
        # By the specification, a relative path is ignored, and the default is ~/.cache.
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
BASES = {"qwen3_0.6b": "qwen3-0.6b", "qwen3_8b_24gb": "qwen3-8b", "llama3_8b_24gb": "llama3.1-8b",
         "mistral_7b_24gb": "mistral-7b", "qwen3_32b_lora_24gb": "qwen3-32b"}


@unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
class Plan(Program):
    """The machine is measured once for all tests."""

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
                base = BASES.get(file.stem)  # as if the named folder existed
                model = ["--set", "model.path=", "--set", f"model.preset={base}"] if base else []
                plan = json.loads(self.sluice("plan", file, *CARD, *model, "--json").stdout)
                self.assertTrue(plan["fits"])
                for tier in plan["tiers"].values():
                    self.assertLessEqual(tier["bytes"], tier["budget_bytes"])
                self.assertGreater(plan["prediction"]["tokens_per_s"], 0)
        text = self.sluice("plan", ROOT / "configs/gpt2_small.json", *CARD).stdout
        for what in ("optimizer state", "per step", "limited by", "ZeRO-3", "budget"):
            self.assertIn(what, text)
        self.assertFalse((self.path / "nvme").exists())  # nothing was measured there

    def test_plans_a_model_by_its_name_for_a_machine_that_is_elsewhere(self):
        speeds = Path(os.environ["XDG_CACHE_HOME"]) / "sluice/speeds.json"
        known = speeds.exists() and speeds.read_bytes()
        shown = self.sluice("plan", "qwen3-8b", "--gpu", "rtx4090", "--ram", 64, "--data-tokens",
                            10_000_000)
        for what in ("8.19B parameters", "GeForce RTX 4090", "data sheet's rate",
                     "large products", "copies 50 GB/s",
                     "900 GiB", "the run: 306 steps", "hours",
                     "write endurance"):
            self.assertIn(what, shown.stdout)
        self.assertNotIn("taken from this machine", shown.stdout)
        self.assertEqual(list(self.path.iterdir()), [])  # nothing was measured or created
        self.assertEqual(speeds.exists() and speeds.read_bytes(), known)
        more = ["--nvme-gib", 1800, "--drive-read-gb-per-s", 7, "--drive-write-gb-per-s", 5,
                "--ram-gb-per-s", 60, "--data-tokens", 10_000_000, "--json"]
        plan = json.loads(self.sluice("plan", "Qwen/Qwen3-8B-Base", "--gpu", "RTX 4090", "--ram", 64,
                                      *more).stdout)
        self.assertTrue(plan["fits"])
        self.assertNotIn("assumed", plan["machine"])
        self.assertEqual(plan["tiers"]["cpu"]["budget_bytes"], 56 << 30)
        step, run = plan["prediction"], plan["run"]
        self.assertEqual(run["steps"], 306)
        self.assertAlmostEqual(run["hours"], 306 * step["step_s"] / 3600)
        self.assertAlmostEqual(run["nvme_write_tb"], 306e-12 * step["nvme_write_bytes"])
        self.assertEqual(run["drive_rated_tb"], 1200)
        self.assertAlmostEqual(run["share_of_drive_life"], run["nvme_write_tb"] / 1200)
        given = self.sluice("plan", "qwen3-8b", "--gpu", "rtx4090", "--ram", 64, *more[:-1],
                            "--drive-tbw", 300).stdout
        self.assertIn("300 TB", given)
        shares = {it["what"]: it for it in plan["machine"]["shares_of_data_sheet"]}
        self.assertEqual(shares["large products"]["share"], 0.92)
        self.assertIn("LLMQ", shares["large products"]["from"])

    def test_a_plan_needs_the_shape_of_a_model_and_not_its_folder(self):
        file = ROOT / "configs/qwen3_8b_24gb.json"
        shown = self.sluice("plan", file, "--gpu", "h100", "--ram", 256)
        self.assertRegex(shown.stderr, r"models/Qwen3-8B.*model\.preset qwen3-8b")
        self.assertIn("8.19B parameters", shown.stdout)
        # For another model there are no measurements; its config.json is enough.
        other = ["plan", file, "--gpu", "h100", "--set", "model.path=mine"]
        self.assertIn("hf download OWNER/mine --local-dir mine", self.refused(*other))
        (self.path / "mine").mkdir()
        self.write("mine/config.json", {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512,
            "intermediate_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 4,
            "vocab_size": 1000, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048,
            "hidden_act": "silu", "rope_theta": 10000.0, "tie_word_embeddings": False})
        self.sluice(*other)
        self.sluice("plan", "mine", "--gpu", "l4", "--ram", 32)

    def test_a_described_gpu_needs_no_drive_here(self):
        card = ["--gpu-gib", 24, "--tflops", 165, "--ram", 64]
        for name in (ROOT / "configs/qwen3_8b_24gb.json", "qwen3-0.6b"):
            shown = self.sluice("plan", name, *card)
            self.assertRegex(shown.stdout, r"6 GB/s \(--drive-read-gb-per-s\);.*3 GB/s")
        self.assertRegex(shown.stderr, r"model\.preset qwen3-0\.6b, 16.*2048")
        self.assertEqual(list(self.path.iterdir()), [])
        # The budget is that of the described machine.
        large = ["--gpu", "h100", "--set", "budget.cpu_gib=9000", "--set", "budget.nvme_gib=9000"]
        shown = self.sluice("plan", "qwen3-0.6b", *large)
        self.assertNotIn("asks for", shown.stderr)
        self.assertNotIn("(--ram)", shown.stdout)
        self.assertNotIn("(--nvme-gib)", shown.stdout)

    def test_a_mistyped_run_file_is_no_model(self):
        (self.path / "configs").mkdir()
        for name in ("gpt2_xl_24gb", "configs/gpt2_xl_24gb", "runs/qwen3-8b-lora.jsonc",
                     "qwen3-8b.yaml", "runs/mine/qwen3-8b"):
            with self.subTest(name=name):
                self.assertIn(name, self.refused("plan", name, "--gpu", "rtx4090"))

    def test_counts_steps_by_tokens_only_where_epochs_are_the_length(self):
        plan = ["plan", ROOT / "configs/demo.json", *CARD, "--data-tokens", 1_000_000, "--json",
                "--set"]
        self.assertIn("run.steps is 9", self.refused(*plan, "run.steps=9"))
        made = json.loads(self.sluice(*plan, "run.epochs=1").stdout)
        self.assertEqual(made["run"]["steps"], -(-1_000_000 // made["tokens_per_step"]))

    def test_plans_fp32_by_a_rate_of_fp32(self):
        plan = ["plan", ROOT / "configs/demo.json", "--gpu", "rtx4090", "--set",
                "bf16.enabled=false"]
        self.assertIn("give its fp32 speed", self.refused(*plan))
        self.sluice(*plan, "--tflops", 82)

    def test_knows_gpus_by_name_and_lists_them(self):
        table = self.sluice("plan", "--list-gpus").stdout
        for name in ("rtx3090", "rtx4090", "rtx5090", "a6000", "l4", "l40s", "a100-40", "a100-80",
                     "h100-pcie", "h100", "h200", "b200", "rtxpro6000"):
            self.assertRegex(table, rf"(?m)^{name} ")
        said = self.refused("plan", "qwen3-8b", "--gpu", "voodoo2")
        self.assertIn("rtx4090", said)
        self.assertIn("--tflops", said)
        self.assertIn("qwen9-8b", self.refused("plan", "qwen9-8b", "--gpu", "rtx4090"))

    def test_says_what_it_takes_from_this_machine(self):
        shown = self.sluice("plan", ROOT / "configs/gpt2_small.json", "--gpu-gib", 24,
                            "--tflops", 165, "--cpu-gib", 56).stdout
        self.assertRegex(shown, r"RAM.*\(--ram-gb-per-s\)\n")
        self.assertRegex(shown, r"assumed, because not given: GPU memory 768 GB/s; bus 32")

    def test_ends_with_2_and_a_setting_where_a_configuration_does_not_fit(self):
        little = ["--gpu-gib", 1, "--cpu-gib", 4, "--ram-gb-per-s", 80,
                  "--drive-read-gb-per-s", 6]
        for file in ("gpt2_xl_24gb.json", "gpt_13b_24gb.json"):
            with self.subTest(file=file):
                shown = self.sluice("plan", ROOT / "configs" / file, *little, code=2)
                self.assertRegex(shown.stdout, "not fit: .* missing")
                plan = json.loads(self.sluice("plan", ROOT / "configs" / file, *little, "--json",
                                              code=2).stdout)
                self.assertFalse(plan["fits"])
                self.assertIn(plan["reason"], shown.stdout)
        less = ["--gpu-gib", 1.5, *CARD[2:]]
        shown = self.sluice("plan", ROOT / "configs/gpt2_xl_24gb.json", *less, code=2)
        self.assertRegex(shown.stdout, r"It would fit with .*a GPU with [0-9.]+ GiB")
        self.assertNotIn("budget.gpu_gib", shown.stdout)

    def test_simulates_steps_with_the_table_and_the_trace_of_a_run(self):
        shown = self.sluice("plan", ROOT / "configs/demo.json", *CARD, "--simulate", 2, "--trace",
                            "trace.json", "--set", "model.layers=4",
                            "--set", "zero_optimization.offload_optimizer.device=nvme")
        for what in ("simulated", "update, exposed", "NVMe read", "per step"):
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

    def test_plans_for_the_gpus_of_several_hosts_and_how_it_grows_with_them(self):
        self.write("run.json", {
            "train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True},
            "zero_optimization": {"stage": 3, "offload_param": {"device": "auto"},
                                  "offload_optimizer": {"device": "auto"}},
            "model": {"layers": 8, "hidden": 2048, "heads": 16, "context": 1024, "vocab": 50257},
            "data": {"train": ["text.bin"], "dtype": "uint16"}})
        card = ["plan", "run.json", "--gpu-gib", 24, "--tflops", 150, *CARD[2:]]
        hosts = [*card, "--gpus", 4, "--hosts", 8, "--network-gb-per-s", 100]
        fast = json.loads(self.sluice(*hosts, "--link-gb-per-s", 200, "--json").stdout)
        self.assertEqual((fast["ranks"], fast["ranks_per_host"]), (32, 4))
        self.assertEqual(fast["tokens_per_step"], 32 * 4 * 1024)
        self.assertEqual([(row["ranks"], row["hosts"]) for row in fast["growth"]],
                         [(1, 1), (2, 1), (4, 1), (8, 2), (16, 4), (32, 8)])
        self.assertEqual(fast["growth"][0]["share_of_linear"], 1)
        self.assertEqual(fast["growth"][-1]["step_s"], fast["prediction"]["step_s"])
        for one, more in zip(fast["growth"], fast["growth"][1:]):
            self.assertGreater(more["tokens_per_s"], one["tokens_per_s"])
        self.assertEqual(fast["machine"]["link"]["gather_bytes_per_s"], 200e9)
        slow = json.loads(self.sluice(*hosts, "--link-gb-per-s", 2, "--json").stdout)
        self.assertEqual(slow["prediction"]["bottleneck"], "link between ranks")
        self.assertGreater(slow["prediction"]["link_exposed_s"],
                           fast["prediction"]["link_exposed_s"])
        self.assertLess(slow["prediction"]["tokens_per_s"], fast["prediction"]["tokens_per_s"])
        late = self.sluice(*hosts, "--link-gb-per-s", 200, "--link-latency-us", 50000, "--json")
        self.assertGreater(json.loads(late.stdout)["prediction"]["step_s"],
                           2 * fast["prediction"]["step_s"])
        shown = self.sluice(*hosts, "--link-gb-per-s", 200, "--simulate", 1, "--trace",
                            "ranks.json").stdout
        for what in ("32 ranks, 4 on each of 8", "scaling efficiency",
                     "not overlapped", "each of 32 ranks", "described or assumed"):
            self.assertIn(what, shown)
        trace = (self.path / "ranks.json").read_text(encoding="utf-8")
        self.assertIn('"link"', trace)
        thousands = self.sluice(*card, "--gpus", 8, "--hosts", 1024, "--json").stdout
        self.assertEqual(json.loads(thousands)["growth"][-1]["ranks"], 8192)

    def test_refuses_ranks_that_cannot_be(self):
        demo = ["plan", ROOT / "configs/demo.json"]
        for words, told in (
                (["--hosts", 2], "--gpus"), (["--gpus", 0], "--gpus"),
                ([*CARD, "--link-gb-per-s", 100], "set --gpus"),
                ([*CARD, "--gpus", 2, "--network-gb-per-s", 10], "set --hosts"),
                ([*CARD, "--gpus", 2, "--link-gb-per-s", 0], "--link-gb-per-s"),
                ([*CARD, "--gpus", 64, "--hosts", 2048], "is the maximum"),
                (["--gpus", 2, "--set", "run.device=cpu"], "describe a GPU")):
            with self.subTest(words=words):
                self.assertIn(told, self.refused(*demo, *words))

    def test_warns_where_the_data_could_not_be_trained_on(self):
        for name, tokenizer in (("bytes", {"kind": "bytes"}),
                                ("other", {"kind": "bpe", "vocabulary_sha256": "ab" * 32})):
            self.write(f"{name}.bin.json", {"format": "sluice-tokens", "version": 1, "tokens": 9,
                                            "dtype": "uint16", "vocab_size": 257,
                                            "tokenizer": tokenizer})
        told = self.sluice("plan", ROOT / "configs/demo.json", *CARD).stderr
        self.assertRegex(told, r"data\.train: .*out/demo/corpus/train\.bin")
        told = self.sluice("plan", ROOT / "configs/demo.json", *CARD, "--set",
                           'data.train=["bytes.bin"]', "--set",
                           'data.validation=["other.bin"]').stderr
        self.assertRegex(told, r"data\.train and data\.validation.*tokenizers")

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
        self.assertRegex(lines[plan], "plan: [0-9.]+ ms .* limited by ")
        self.assertEqual(len((self.path / "a/metrics.jsonl").read_text().splitlines()), 3)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
