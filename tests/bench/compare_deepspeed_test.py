"""compare_deepspeed: what it concludes from runs, and how it takes peers that fail, hang or end.

The peers here are small scripts; step_bench is the environment's STEP_BENCH where it is built, on a
model of two small blocks, and another small script otherwise.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

STEP_BENCH = os.environ.get("STEP_BENCH", "")
BENCH = Path(__file__).resolve().parents[2] / "bench"
COMPARE = BENCH / "compare_deepspeed"
sys.dont_write_bytecode = True
sys.path.insert(0, str(BENCH))

import target_rows  # noqa: E402

GIB = 2**30


def record(row, side, tokens_per_s=1000.0, pair=0, ok=True, boot="a", **more):
    return {"row": row, "pair": pair, "side": side, "ok": ok, "boot": boot,
            "tokens_per_s": tokens_per_s, "step_s": 2048 / tokens_per_s, "parameters": 1000,
            "gpu_bytes": 10 * GIB, "host_bytes": 14000.0, "nvme_read": 10.01, "nvme_write": 10.01,
            "predicted_s": None, "error": "it broke", **more}


def verdicts(records, names=tuple(target_rows.ROWS)):
    return {line[0]: (line[4], line[5]) for line in target_rows.table(records, names)}


class Conclusions(unittest.TestCase):
    TITLE = target_rows.ROWS["xl-auto"].title

    def pairs(self, sluice, fp16=1000.0, bf16=500.0, count=3):
        return [record("xl-auto", side, speed * (1 + pair), pair)
                for pair in range(count)
                for side, speed in (("sluice", sluice), ("ds-fp16", fp16), ("ds-bf16", bf16))]

    def test_the_fastest_peer_of_a_pair_counts(self):
        for speed, verdict in ((11_900.0, "missed"), (12_100.0, "reached")):
            result, said = verdicts(self.pairs(speed))[self.TITLE]
            self.assertEqual(said, verdict)
            # The machine became three times as fast: each pair still says the same.
            self.assertEqual(result, f"{speed / 1000:.2f} ({speed / 1000:.2f} to "
                                     f"{speed / 1000:.2f}), 3 pairs")

    def test_a_failed_peer_is_told_and_the_other_one_counts(self):
        records = [r if r["side"] != "ds-fp16" else {**r, "ok": False}
                   for r in self.pairs(12_100.0)]
        line = next(x for x in target_rows.table(records, ["xl-auto"]) if x[0] == self.TITLE)
        self.assertIn("DeepSpeed fp16: failed: it broke", line[3])
        self.assertIn("24.20", line[4])

    def test_without_sluice_or_any_peer_there_is_no_ratio(self):
        for side in ("sluice", "ds"):
            records = [{**r, "ok": not r["side"].startswith(side)} for r in self.pairs(12_100.0)]
            self.assertEqual(verdicts(records)[self.TITLE], ("-", "-"))

    def test_half_pairs_and_pairs_of_two_machines_do_not_count(self):
        records = self.pairs(12_100.0, count=1)
        self.assertEqual(verdicts(records[:2])[self.TITLE], ("-", "-"))
        records[0]["boot"] = "b"
        self.assertEqual(verdicts(records)[self.TITLE], ("-", "-"))

    def test_more_than_the_budget_of_the_gpu_reaches_nothing(self):
        records = [{**r, "gpu_bytes": 25 * GIB} for r in self.pairs(12_100.0)]
        self.assertIn("more than 24 GiB", verdicts(records)[self.TITLE][1])

    def test_bytes_and_predictions(self):
        for host, nvme, predicted, verdict in ((14_400.0, 10.04, 2.0, "reached"),
                                               (14_600.0, 10.06, 1.5, "missed")):
            records = [record("3b-cpu", "sluice", 1024, host_bytes=host),
                       record("xl-nvme", "sluice", 1024, nvme_read=nvme, nvme_write=nvme,
                              predicted_s=predicted)]
            said = verdicts(records)
            chosen = [v for k, v in said.items() if k.startswith(("host", "NVMe", "step /"))]
            self.assertEqual([v[1] for v in chosen], [verdict] * 3)

    def test_the_largest_model_has_to_train(self):
        for ok, parameters, verdict in ((True, 12.85e9, "reached"), (True, 6e9, "missed"),
                                        (False, 12.85e9, "missed")):
            records = [record("13b", "sluice", ok=ok, parameters=parameters)]
            self.assertEqual([v[1] for k, v in verdicts(records).items()
                              if k.startswith("largest")], [verdict])

    def test_the_table_is_markdown(self):
        text = target_rows.markdown(target_rows.table(self.pairs(12_100.0), ["xl-auto"]))
        self.assertEqual({line.count("|") for line in text.splitlines()}, {7})


PEER = """
import json, os, sys, time
open({log!r}, "a").write(" ".join(sys.argv[1:]) + chr(10))
{body}
print("RESULT", json.dumps(dict(tok_s=10.0, step_s=0.1, params=1000, peak_resv_gb=1.5, rss_gb=2.0)))
"""
FAKE_STEP_BENCH = """#!{python}
import json, sys
flow = dict(a_step=0, a_parameter=10.0)
use = dict(resident_bytes=0, peak_resident_bytes=5, gpu_used_bytes=0)
json.dump(dict(median=dict(tokens_per_s=100.0, step_s=0.1), parameters=7, memory=dict(before=use,
          after=use, gpu_peak_bytes=0), moved=dict(nvme_read_bytes=flow, nvme_write_bytes=flow)),
          open(sys.argv[sys.argv.index("--json") + 1], "w"))
"""
SMALL = [word for key in ("model.layers=2", "model.hidden=32", "model.heads=2", "model.vocab=128",
                          "data.sequence_length=16", "run.device=cpu", "run.cpu_threads=1")
         for word in ("--set", key)]


class Program(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="compare_deepspeed_test_", dir=os.getcwd()))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        program = self.folder / "build/bin/step_bench"
        program.parent.mkdir(parents=True)
        if os.path.exists(STEP_BENCH):
            program.symlink_to(os.path.abspath(STEP_BENCH))
        else:
            program.write_text(FAKE_STEP_BENCH.format(python=sys.executable), encoding="utf-8")
            program.chmod(0o755)
        self.peer("")

    def peer(self, body):
        log = str(self.folder / "peer.log")
        (self.folder / "peer_ds.py").write_text(PEER.format(log=log, body=body), encoding="utf-8")

    def peer_runs(self):
        log = self.folder / "peer.log"
        return log.read_text(encoding="utf-8").splitlines() if log.exists() else []

    def command(self, *arguments):
        return [sys.executable, "-B", str(COMPARE), "--build", str(self.folder / "build"),
                "--peers", str(self.folder), "--python", sys.executable, "--nvme",
                str(self.folder / "nvme"), "--out", str(self.folder / "out.json"), *SMALL,
                *arguments]

    def run_it(self, *arguments, code=0):
        result = subprocess.run(self.command(*arguments), capture_output=True, text=True,
                                timeout=300, check=False)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        return result

    def runs(self, name="out.json"):
        return json.loads((self.folder / name).read_text(encoding="utf-8"))["runs"]

    def test_runs_every_side_once_and_goes_on(self):
        result = self.run_it("--rows", "xl-1024,xl-nvme", "--pairs", "2", "--markdown",
                             str(self.folder / "out.md"))
        runs = self.runs()
        self.assertEqual(sorted({(r["row"], r["pair"], r["side"]) for r in runs}),
                         sorted((row, pair, side) for row in ("xl-1024", "xl-nvme")
                                for pair in (0, 1) for side in ("sluice", "ds-bf16")))
        self.assertEqual(len(runs), 8)
        self.assertTrue(all(r["ok"] for r in runs), runs)
        self.assertEqual(len(self.peer_runs()), 4)
        self.assertTrue(any("--dev nvme" in line and "--pipe" in line for line in self.peer_runs()))
        self.assertFalse((self.folder / "nvme/peer").exists())
        self.assertIn("2 pairs", result.stdout)
        self.assertEqual((self.folder / "out.md").read_text(encoding="utf-8"), result.stdout)
        self.run_it("--rows", "xl-1024", "--pairs", "3")
        self.assertEqual(len(self.runs()), 10)
        self.assertEqual(len(self.peer_runs()), 5)

    def test_a_peer_that_fails_is_a_result(self):
        self.peer("raise SystemError('no buffers left')")
        result = self.run_it("--rows", "xl-1024", "--pairs", "1")
        self.assertIn("failed: SystemError: no buffers left", result.stdout)
        failed = next(r for r in self.runs() if r["side"] == "ds-bf16")
        self.assertEqual((failed["ok"], failed["exit_code"]), (False, 1))
        self.run_it("--rows", "xl-1024", "--pairs", "1")
        self.assertEqual(len(self.peer_runs()), 1)
        self.peer("")
        self.run_it("--rows", "xl-1024", "--pairs", "1", "--again-failed")
        self.assertEqual([r["ok"] for r in self.runs()], [True, True])

    def test_a_peer_that_hangs_is_stopped_with_its_children(self):
        child = str(self.folder / "child")
        self.peer("import subprocess; subprocess.Popen(['sh', '-c', "
                  f"'sleep 6; touch {child}']); print('waiting', flush=True); time.sleep(600)")
        begin = time.monotonic()
        result = self.run_it("--rows", "xl-1024", "--pairs", "1", "--sides", "ds-bf16",
                             "--time-limit", "3")
        self.assertIn("not done after 3 s; waiting", result.stdout)
        time.sleep(max(0, 8 - (time.monotonic() - begin)))
        self.assertFalse(os.path.exists(child))

    def test_what_total_cuts_short_is_not_a_result(self):
        self.peer("time.sleep(600)")
        result = self.run_it("--rows", "xl-1024", "--pairs", "1", "--sides", "ds-bf16", "--total",
                             "12")
        self.assertIn("--total is over", result.stderr)
        self.assertFalse((self.folder / "out.json").exists() and self.runs())

    def test_results_are_put_together(self):
        self.run_it("--rows", "xl-1024", "--pairs", "1")
        first, second = self.folder / "first.json", self.folder / "second.json"
        (self.folder / "out.json").rename(first)
        data = json.loads(first.read_text(encoding="utf-8"))
        for run in data["runs"]:
            run["boot"] = "another"
        second.write_text(json.dumps(data), encoding="utf-8")
        result = self.run_it("--merge", str(first), str(second), str(second))
        self.assertEqual(len(self.runs()), 4)
        self.assertIn("2 pairs", result.stdout)

    def test_interrupt_stops_the_run_and_keeps_what_there_is(self):
        self.peer("time.sleep(600)")
        process = subprocess.Popen(
            self.command("--rows", "xl-1024", "--pairs", "1", "--seed", "1"),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not self.peer_runs() and process.poll() is None:
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130, errors)
        self.assertIn("interrupted", errors)
        self.assertIn("| target |", output)

    def test_refuses_bad_input(self):
        for arguments in (["--rows", "xl"], ["--pairs", "0"], ["--sides", "fast"],
                          ["--peers", "/nowhere"], ["--python", "/nowhere/python"],
                          ["--build", "/nowhere"], ["--out", "/nowhere/x.json"],
                          ["--merge", "/nowhere/x.json"], ["--time-limit", "0"]):
            with self.subTest(arguments=arguments):
                result = self.run_it(*arguments, code=2)
                self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
                self.assertEqual(self.peer_runs(), [])

    def test_lists_without_running(self):
        result = self.run_it("--list")
        for name in target_rows.ROWS:
            self.assertIn(name + ": ", result.stdout)
        self.assertEqual(self.peer_runs(), [])


if __name__ == "__main__":
    unittest.main()
