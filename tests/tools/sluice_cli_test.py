"""The output, files and exit codes of sluice commands that do not train.

SLUICE is the program; SLUICE_HAS_ENGINE=1 when it was built with LibTorch.
"""

import json
import os
import sys
import unittest
import unittest.mock

from sluice_program import HAS_ENGINE, Program


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


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
