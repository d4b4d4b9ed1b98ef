"""A run that is killed, resumed and completed: its records, and the report made from them."""

import json
import os
import re
import signal
import subprocess
import sys
import unittest
from pathlib import Path

from sluice_runs import SLUICE, Running, SluiceRuns

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
from chromium import Chromium  # noqa: E402

DATA = re.compile(r'<script type="application/json" id="sluice-data">(.*?)</script>', re.DOTALL)
STEPS, KILLED_AFTER = 30, 14


class ReportOfRuns(SluiceRuns):
    def setUp(self):
        super().setUp()
        self.tokens("text.bin", 40_000, 7)
        self.config = self.write_run({
            "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
            "zero_optimization": {"stage": 3, "offload_param": {"device": "auto"},
                                  "offload_optimizer": {"device": "nvme"}},
            "model": {"layers": 2, "hidden": 32, "heads": 2, "context": 16, "vocab": 64},
            "data": {"train": [str(self.path / "text.bin")], "dtype": "uint16",
                     "validation_fraction": 0.1},
            "run": {"steps": STEPS, "cpu_threads": 1, "device": "cpu", "eval_batches": 1,
                    "eval_every": 10, "checkpoint_every": 5, "log_every": 1, "keep_last": 2},
            "budget": {"nvme_paths": [str(self.path / "nvme")]}})
        self.out = self.path / "run"

    def events(self):
        return [json.loads(line) for line in
                (self.out / "events.jsonl").read_text(encoding="utf-8").splitlines()]

    def train_until_killed(self):
        run = Running(subprocess.Popen(
            [SLUICE, "train", str(self.config), "--out", str(self.out), "--set",
             f"run.steps={100 * STEPS}"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True))
        run.wait_for(f"\nstep {KILLED_AFTER}/")
        run.send(signal.SIGKILL)
        run.end()

    def check_metrics(self):
        lines = self.metrics("run")
        self.assertEqual([line["step"] for line in lines], list(range(1, STEPS + 1)))
        self.assertEqual([line["tokens_seen"] for line in lines],
                         [32 * step for step in range(1, STEPS + 1)])
        clock = [line["unix_s"] for line in lines]
        self.assertEqual(clock, sorted(clock))
        self.assertLess(abs(clock[-1] - os.stat(self.out / "metrics.jsonl").st_mtime), 120)
        keys = json.loads(self.sluice("metrics", "--keys", "--json").stdout)
        for name, file in (("metrics", lines), ("events", self.events())):
            known = {key["name"] for key in keys[name]["keys"]}
            self.assertEqual({key for line in file for key in line} - known, set())
        self.assertEqual({line["schema"] for line in lines}, {keys["metrics"]["schema"]})

    def check_events(self):
        kinds = [event["event"] for event in self.events() if event["event"] != "warning"]
        self.assertEqual((kinds[0], kinds[-1]), ("begin", "end"))
        self.assertEqual(kinds.count("begin"), 2)
        self.assertNotIn("end", kinds[:-1])
        first, second = (event for event in self.events() if event["event"] == "begin")
        self.assertEqual((first["step"], first["steps"]), (0, 100 * STEPS))
        self.assertEqual((second["step"] % 5, second["steps"]), (0, STEPS))
        self.assertGreater(second["plan"]["step_s"], 0)
        self.assertGreater(second["plan"]["nvme_write_bytes"], 0)
        self.assertEqual(second["tokens_per_step"], 32)
        self.assertGreater(second["model"]["flops_per_token"]["backward"], 0)
        self.assertTrue(all(one["step_s"] > 0 for one in second["what_if"]))
        self.assertGreater(second["tiers"]["nvme"]["bytes"], 0)
        self.assertRegex(second["build"], r"\Asluice \S+ \(commit ")
        outcomes = {key["path"]: key["outcome"] for key in second["config"]}
        self.assertEqual(outcomes["optimizer.params.lr"], "given")
        self.assertEqual(outcomes["train_batch_size"], "derived")
        ends = [event["how"] for event in self.events() if event["event"] == "end"]
        self.assertEqual(ends, ["completed"])
        return second["step"]

    def test_shows_what_it_planned_did_and_went_through(self):
        self.train_until_killed()
        last = self.metrics("run")[-1]["step"]
        self.sluice("train", self.config, "--out", self.out, "--resume")
        self.check_metrics()
        continued_after = self.check_events()
        page_path = self.path / "report.html"
        self.sluice("report", self.out, "-o", page_path, "--drive-tbw", 600)
        page = page_path.read_text(encoding="utf-8")
        run, = json.loads(DATA.search(page).group(1))["runs"]
        self.assertEqual(run["notices"], [])
        self.assertEqual(run["series"]["last"], list(range(1, STEPS + 1)))
        lines = self.metrics("run")
        for name in ("loss", "step_ms", "nvme_write_bytes"):
            for shown, line in zip(run["series"]["columns"][name]["v"], lines):
                self.assertAlmostEqual(shown, line[name], delta=1e-5 * abs(line[name]))
        self.assertEqual(run["drives"]["write_bytes"], sum(one["nvme_write_bytes"] for one in lines))
        self.assertEqual(run["drives"].get("again_lines", 0), last - continued_after)
        self.assertEqual([one["step"] for one in run["checkpoints"]], [STEPS - 5, STEPS])
        begun = [event for event in run["events"] if event["event"] == "begin"]
        self.assertIn(["run.steps", str(100 * STEPS), str(STEPS)], begun[1]["changes"])
        self.assertNotRegex(page, r"(?i)(src|href)\s*=|https?://(?!github\.com/leeoniya|opensource)")
        with Chromium.open() as browser:
            if browser is None:
                self.skipTest("the page was not opened: no Chromium is installed")
            shown = browser.page(page_path.as_uri())
            self.assertEqual(shown.complaints, [])
            cut_off = ("[...document.querySelectorAll('.two .panel')]"
                       ".filter(it => it.scrollWidth > it.clientWidth).length")
            self.assertEqual(shown.value(cut_off), 0)
            wide = browser.page(page_path.as_uri(), width=1700)
            self.assertEqual(wide.value(cut_off), 0)
            text = shown.value("document.body.innerText")
            for words in ("completed", f"continued after step {continued_after}", "it was killed",
                          "× the plan", "limits the step", "optimizer.params.lr", "TFLOP/s, median",
                          "predicted effect"):
                self.assertIn(words, text)


if __name__ == "__main__":
    unittest.main()
