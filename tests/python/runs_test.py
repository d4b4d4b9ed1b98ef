"""Runs of configurations, plans, probes, metrics and weights from Python: the functions of the
command line, in a script."""

import contextlib
import csv
import io
import json
import logging
import math
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import types
import unittest
from pathlib import Path
from unittest import mock

import torch

import sluice
from small_modules import Tower, batches, initialize, run_config, tower, train

SLUICE = os.environ.get("SLUICE", "")


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-runs-")
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name)
        cache = self.path / "cache"
        before = os.environ.get("XDG_CACHE_HOME")
        os.environ["XDG_CACHE_HOME"] = str(cache)
        self.addCleanup(
            lambda: os.environ.pop("XDG_CACHE_HOME")
            if before is None
            else os.environ.update(XDG_CACHE_HOME=before)
        )
        here = os.getcwd()
        os.chdir(self.path)
        self.addCleanup(os.chdir, here)
        draw = random.Random(3)
        last, tokens = 1, []
        for _ in range(8000):
            last = (last * 5 + 3 + draw.randrange(2)) % 61
            tokens.append(last)
        (self.path / "text.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
        (self.path / "nvme").mkdir()
        self.config = {
            "train_micro_batch_size_per_gpu": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
            "zero_optimization": {
                "stage": 3,
                "offload_param": {"device": "cpu"},
                "offload_optimizer": {"device": "cpu"},
                "stage3_param_persistence_threshold": 0,
            },
            "model": {"layers": 2, "hidden": 32, "heads": 2, "context": 16, "vocab": 64},
            "data": {"train": ["text.bin"], "dtype": "uint16", "validation_fraction": 0.1},
            "run": {"steps": 6, "cpu_threads": 1, "device": "cpu", "eval_batches": 4},
        }
        (self.path / "run.json").write_text(json.dumps(self.config))

    def run_of(self, out, config="run.json", **options):
        return sluice.Run(config, out=out, progress=False, **options)

    def refused(self, sentence, work, error=sluice.RefusedError):
        with self.assertRaisesRegex(error, sentence) as raised:
            work()
        return raised.exception


def results(steps):
    """The values that have the same bits whenever a step runs, and with every placement."""
    return [(it["step"], it["loss"], it["lr"], it["grad_norm"]) for it in steps]


class Runs(Folder):
    def test_steps_are_those_of_the_command_line(self):
        mine = list(self.run_of("a"))
        self.assertEqual([it["step"] for it in mine], [1, 2, 3, 4, 5, 6])
        self.assertEqual(mine, sluice.metrics("a"))
        self.assertIsNotNone(mine[-1]["val_loss"])
        self.assertIsNone(mine[0]["val_loss"])
        told = subprocess.run(
            [SLUICE, "train", "run.json", "--out", "b"], check=True, capture_output=True, text=True
        )
        self.assertIn("tokens/s", told.stdout)
        self.assertEqual(results(mine), results(sluice.metrics("b")))
        same = subprocess.run(
            [SLUICE, "diff", "a", "b"], capture_output=True, text=True, check=False
        )
        self.assertEqual(same.returncode, 0, same.stdout + same.stderr)
        events = [json.loads(line) for line in Path("a/events.jsonl").read_text().splitlines()]
        self.assertEqual([events[0]["event"], events[-1]["how"]], ["begin", "completed"])
        self.assertEqual(sorted(os.listdir("a")), sorted(os.listdir("b")))

    def test_monitors_have_each_step(self):
        self.config["csv_monitor"] = {"enabled": True, "output_path": "csv", "job_name": "job"}
        losses = [it["loss"] for it in self.run_of("a", self.config)]
        with open("csv/job/metrics.csv", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([float(row["train/loss"]) for row in rows], losses)
        self.assertEqual(rows[0]["validation/loss"], "")
        self.assertTrue(rows[-1]["validation/loss"])
        self.assertTrue(all(row["unix_s"] for row in rows))

    def test_leaving_the_loop_saves_and_resuming_has_the_same_bits(self):
        whole = results(self.run_of("whole"))
        for metrics in self.run_of("a", self.config):  # the configuration is a dict
            if metrics["step"] == 3:
                break
        self.assertEqual(os.listdir("a/checkpoints"), ["step-000000003"])
        rest = self.run_of("a", resume=True)
        self.assertEqual(rest.step, 3)
        self.assertEqual(results(rest), whole[3:])
        self.assertEqual(results(sluice.metrics("a")), whole)
        # In parts: the run resumes at the step that it reached.
        with self.run_of("b", steps=6) as run:
            self.assertEqual(next(iter(run))["step"], 1)
        self.assertEqual(self.run_of("b", resume=True).train()["step"], 6)
        self.assertEqual(results(sluice.metrics("b")), whole)

    def test_an_exception_in_the_loop_ends_the_run_as_leaving_it(self):
        with self.assertRaisesRegex(ZeroDivisionError, "division"):
            for metrics in self.run_of("a"):
                1 / (metrics["step"] - 2)
        self.assertEqual(os.listdir("a/checkpoints"), ["step-000000002"])

    def test_ctrl_c_saves_and_is_raised(self):
        script = textwrap.dedent(
            """
            import sluice, sys
            try:
                for metrics in sluice.Run("run.json", out="a", steps=100000, progress=False):
                    print(metrics["step"], flush=True)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            """
        )
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(process.kill)
        for line in process.stdout:
            if int(line) >= 3:
                break
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
        self.assertTrue(rest.endswith("interrupted\n"), rest[-200:] + errors)
        steps = sluice.metrics("a")
        self.assertEqual(
            os.listdir("a/checkpoints"), [f"step-{steps[-1]['step']:09}"], errors
        )
        events = [json.loads(line) for line in Path("a/events.jsonl").read_text().splitlines()]
        self.assertEqual(events[-1]["how"], "interrupted")

    def test_may_be_stopped_by_another_thread(self):
        run = self.run_of("a", steps=100000)
        stopper = threading.Timer(0.3, run.stop)
        stopper.start()
        steps = list(run)
        stopper.join()
        self.assertGreater(len(steps), 0)
        self.assertEqual(os.listdir("a/checkpoints"), [f"step-{steps[-1]['step']:09}"])
        self.assertEqual(results(sluice.metrics("a")), results(steps))

    def test_a_program_that_ends_in_the_middle_has_saved(self):
        script = (
            "import sluice; run = sluice.Run('run.json', out='a', progress=False);"
            "steps = iter(run); [next(steps) for _ in range(3)]"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(os.listdir("a/checkpoints"), ["step-000000003"])

    def test_other_threads_run_while_a_step_does(self):
        turns = 0
        ended = threading.Event()

        def count():
            nonlocal turns
            while not ended.is_set():
                turns += 1
                time.sleep(0.0005)

        thread = threading.Thread(target=count)
        run = self.run_of("a", overrides={"train_micro_batch_size_per_gpu": 256})
        thread.start()
        try:
            before = turns
            run.train()
            self.assertGreater(turns, before + 5)
        finally:
            ended.set()
            thread.join()

    def test_what_the_command_line_says_goes_to_the_log(self):
        with self.assertLogs("sluice", "INFO") as logs:
            self.run_of("a", steps=1, save_weights="a.safetensors", trace=(1, 1)).train()
        said = "\n".join(logs.output)
        for text in ("weights: random", "host memory", "saved a/checkpoints/step-",
                     "validation loss", "a.safetensors", "trace: a/trace.json"):
            self.assertIn(text, said)
        self.assertEqual(len(sluice.load("a.safetensors")), len(sluice.load("a")))
        json.loads(Path("a/trace.json").read_text())

    def test_refusals_are_the_command_lines_sentences(self):
        self.run_of("a", steps=1).train()
        self.refused("a is not empty", lambda: self.run_of("a"))
        self.refused("no folder is given", lambda: sluice.Run("run.json", progress=False))
        self.refused("no configuration was given", lambda: sluice.Run(out="b"))
        self.refused("nowhere.json", lambda: self.run_of("b", "nowhere.json"), sluice.Error)
        self.refused("run.stepz", lambda: self.run_of("b", overrides={"run.stepz": 3}))
        self.refused("overwrite=True", lambda: self.run_of("a", overwrite=True, resume=True))
        self.refused("steps and epochs", lambda: self.run_of("b", steps=1, epochs=1))
        self.refused("written as JSON", lambda: self.run_of("b", {"run": {1, 2}}))
        self.refused(
            "data.train", lambda: self.run_of("b", overrides={"data.train": ["none.bin"]}),
            sluice.Error,
        )
        with self.run_of("c") as run:
            steps = iter(run)
            next(steps)
            self.refused("another process", lambda: self.run_of("c", resume=True), sluice.Error)
        self.assertFalse(Path("b").exists())

    def test_a_gradient_that_is_not_finite_is_an_exception(self):
        run = self.run_of("a", overrides={"optimizer.params.lr": 1e30})
        error = self.refused("not finite", run.train, sluice.NonFiniteGradientError)
        self.assertIn("no checkpoint yet", str(error))
        events = [json.loads(line) for line in Path("a/events.jsonl").read_text().splitlines()]
        self.assertEqual(events[-1]["how"], "failed")
        self.assertIsNone(run._next())  # it has ended

    def test_a_fork_leaves_the_run_to_its_parent(self):
        run = self.run_of("a")
        next(steps := iter(run))
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                try:
                    next(steps)
                except sluice.RefusedError as error:
                    code = 0 if "before this process was forked" in str(error) else 2
            os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(next(steps)["step"], 2)
        steps.close()

    def test_a_bar_where_tqdm_is_installed(self):
        bars = []

        class Bar:
            def __init__(self, **options):
                self.options, self.updates, self.texts, self.closed = options, 0, [], False
                bars.append(self)

            def set_postfix(self, texts, refresh):
                self.texts.append(texts)

            def update(self):
                self.updates += 1

            def close(self):
                self.closed = True

        auto = types.ModuleType("tqdm.auto")
        auto.tqdm = Bar
        with mock.patch.dict(sys.modules, {"tqdm": types.ModuleType("tqdm"), "tqdm.auto": auto}):
            for metrics in sluice.Run("run.json", out="a"):
                if metrics["step"] == 4:
                    break
            sluice.Run("run.json", out="a", resume=True).train()
            with initialize(tower(), accumulation=2) as engine:
                train(engine, sluice.progress(batches(6), engine))
        self.assertEqual([it.updates for it in bars], [4, 2, 3])
        self.assertEqual([it.options["total"] for it in bars], [6, 6, 3])
        self.assertEqual([it.options["initial"] for it in bars], [0, 4, 0])
        self.assertTrue(all(it.closed for it in bars))
        self.assertIn("loss", bars[2].texts[0])

    def test_a_line_now_and_then_where_there_is_no_bar(self):
        shown = io.StringIO()
        no_tqdm = dict.fromkeys(("tqdm", "tqdm.auto"))
        with contextlib.redirect_stderr(shown), mock.patch.dict(sys.modules, no_tqdm):
            sluice.Run("run.json", out="a", steps=2).train()
        self.assertRegex(shown.getvalue(), r"step 1/2  loss 4\.\d+  lr 0\.003  tok_s ")
        self.assertIn("step 2/2", shown.getvalue())


class Plans(Folder):
    def test_a_configurations_is_the_command_lines(self):
        # The machine is described, so nothing is measured.
        machine = {
            "cpu_gib": 4, "ram_gb_per_s": 20, "gpu_gib": 1, "tflops": 100, "bus_gb_per_s": 20,
        }  # fmt: skip
        options = [f"--{key.replace('_', '-')}={value}" for key, value in machine.items()]
        plan = sluice.plan("run.json", machine=machine)
        told = subprocess.run(
            [SLUICE, "plan", "run.json", *options], check=True, capture_output=True, text=True
        )
        self.assertEqual(str(plan), told.stdout)
        self.assertTrue(plan.fits)
        self.assertGreater(plan.step_s, 0)
        self.assertEqual(plan.step_s, plan["prediction"]["step_s"])
        self.assertEqual(plan.memory["cpu"]["bytes"], sum(plan.memory["cpu"]["parts"].values()))
        self.assertEqual(plan.assumptions, [])
        self.assertIn("units", dict(plan))

    def test_what_does_not_fit_is_refused_with_the_nearest_setting(self):
        described = {
            "gpu_gib": 0.6, "cpu_gib": 0.4, "ram_gb_per_s": 20, "tflops": 100, "bus_gb_per_s": 20,
        }  # fmt: skip
        error = self.refused(
            "does not fit|missing|exceed",
            lambda: sluice.plan(
                "run.json", machine=described, overrides={"model": {"preset": "gpt2-xl"}}
            ),
        )
        self.assertFalse(error.plan.fits)
        self.assertIn("host memory", str(error.plan))
        self.refused("no teraflops", lambda: sluice.plan("run.json", machine={"teraflops": 1}))
        self.refused("above 0", lambda: sluice.plan("run.json", machine={"tflops": math.nan}))

    def test_a_modules(self):
        config = run_config(run={"device": "cpu"}, data={"sequence_length": 12})
        module = tower()
        plan = sluice.plan(config, model=module)
        self.assertIn("module model with", str(plan))
        self.assertRegex(str(plan), "micro-batch.*2 x 12 tokens")
        self.assertGreater(plan.step_s, 0)
        self.assertEqual(plan["parameters"], sum(it.numel() for it in module.parameters()))
        self.assertEqual([it["unit"] for it in plan.units][1], "blocks.0")
        self.assertEqual(plan.memory["gpu"]["budget_bytes"], 0)  # there is no GPU
        with torch.device("meta"):  # the plan needs no values
            described = sluice.plan(config, model=Tower(), machine={"ram_gb_per_s": 20})
            parts = described.memory["cpu"]["parts"]
        self.assertEqual(parts, plan.memory["cpu"]["parts"])
        with sluice.initialize(module, config) as engine:
            state = dict(engine.memory["host"])["optimizer state in memory"]
        self.assertEqual(plan.memory["cpu"]["parts"]["optimizer state in memory"], state)

    def test_a_probe_is_kept_for_the_command_line(self):
        small = {"model": self.config["model"], "run.cpu_threads": 1}
        probe = sluice.probe(path=self.path / "nvme", overrides=small)
        self.assertGreater(probe["host"]["copy_bytes_per_s"], 0)
        self.assertEqual(probe["paths"][0]["path"], str(self.path / "nvme"))
        self.assertIn("copy", str(probe))
        if probe["host"].get("disturbed"):
            return  # measurements on a busy machine are not kept
        again = sluice.probe(path=self.path / "nvme", overrides=small)
        self.assertEqual(again["host"]["copy_bytes_per_s"], probe["host"]["copy_bytes_per_s"])


class Weights(Folder):
    def test_of_a_run_are_its_masters_and_become_a_folder_for_hugging_face(self):
        self.run_of("a", save_weights="a.safetensors").train()
        newest = sluice.load("a")
        final = sluice.load("a.safetensors")
        self.assertEqual(newest.keys(), final.keys())
        for name, value in newest.items():
            self.assertEqual(value.dtype, torch.float32)
            self.assertTrue(torch.equal(value, final[name]), name)
        by_name = sluice.load("a", checkpoint=6, dtype="bf16")
        self.assertEqual(by_name[name].dtype, torch.bfloat16)
        sluice.save("a", "exported", dtype="fp32")
        os.mkdir("b")
        told = subprocess.run(
            [SLUICE, "export", "a", "b/exported"], check=True, capture_output=True, text=True
        )
        self.assertIn("b/exported", told.stdout)
        for file in sorted(os.listdir("b/exported")):
            self.assertEqual(
                Path("exported", file).read_bytes(), Path("b/exported", file).read_bytes(), file
            )
        for name, value in sluice.load("exported").items():
            self.assertTrue(torch.equal(value, newest[name]), name)
        self.refused("not empty", lambda: sluice.save("a", "exported"), sluice.Error)

    def test_of_an_engine_and_of_tensors(self):
        module = tower()
        with initialize(module) as engine:
            train(engine, batches(2))
            engine.save_checkpoint("python")
            sluice.save(engine, "engine.safetensors")
            sluice.save(module, "module.safetensors", dtype="bf16")
        saved = sluice.load("python")
        self.assertEqual(
            set(saved), {name for name, _ in Tower().named_parameters()}
        )
        masters = sluice.load("engine.safetensors")
        rounded = sluice.load("module.safetensors")
        for name, value in saved.items():
            self.assertTrue(torch.equal(value, masters[name]), name)
            self.assertTrue(torch.equal(value.bfloat16(), rounded[name]), name)
        self.refused("is of Long", lambda: sluice.save({"a": torch.arange(3)}, "x.safetensors"))
        self.refused("not a tensor", lambda: sluice.save({"a": 3}, "x.safetensors"))
        self.refused("not a list", lambda: sluice.save([], "x.safetensors"))
        self.refused('dtype is "int4"', lambda: sluice.load("python", dtype="int4"))
        self.refused("merged .*a run", lambda: sluice.save(saved, "x", merged=True))
        mixed = {"a": torch.ones(3, dtype=torch.float16), "b": torch.full((2, 2), 0.5),
                 "c": torch.tensor(7.0)}  # fmt: skip
        sluice.save(mixed, "mixed.safetensors")
        again = sluice.load("mixed.safetensors")
        for name, value in mixed.items():
            self.assertTrue(torch.equal(again[name], value.cpu()))
            self.assertEqual(again[name].dtype, value.dtype)

    def test_what_is_damaged_or_missing(self):
        self.run_of("a").train()
        self.refused("nowhere", lambda: sluice.load("nowhere"), sluice.Error)
        self.refused('no checkpoint "9"', lambda: sluice.load("a", checkpoint=9), sluice.Error)
        shard = next(Path("a/checkpoints/step-000000006").glob("master-*"))
        content = bytearray(shard.read_bytes())
        content[-100] ^= 1
        shard.write_bytes(content)
        self.refused(shard.name, lambda: sluice.load("a"), sluice.Error)
        Path("torn.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{")
        self.refused("torn.safetensors", lambda: sluice.load("torn.safetensors"), sluice.Error)


class Metrics(Folder):
    def test_are_rows_with_the_same_keys(self):
        self.run_of("a").train()
        rows = sluice.metrics("a")
        self.assertEqual(len({tuple(it) for it in rows}), 1)
        text = Path("a/metrics.jsonl").read_text()
        first = json.loads(text.splitlines()[0])
        first["loss"], first["step"] = None, 7
        Path("a/metrics.jsonl").write_text(text + json.dumps(first) + '\n{"step": 8, "lo')
        rows = sluice.metrics("a/metrics.jsonl")
        self.assertEqual(len(rows), 7)  # the incomplete line is ignored
        self.assertTrue(math.isnan(rows[-1]["loss"]))
        Path("a/metrics.jsonl").write_text("no metrics\n" + text)
        self.refused("metrics.jsonl", lambda: sluice.metrics("a"), sluice.Error)
        self.refused("open nowhere failed", lambda: sluice.metrics("nowhere"), sluice.Error)


if __name__ == "__main__":
    logging.getLogger("sluice").setLevel(logging.INFO)
    unittest.main()
