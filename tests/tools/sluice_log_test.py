"""sluice-log: what TensorBoard, W&B, MLflow and CSV files have of a run, read back by their own readers.

Runs are made up here: files that grow, are begun anew, are cut, and are damaged. The packages are
those of tools/reference_packages.py; without them only CSV files are tested.
"""

import contextlib
import csv
import fcntl
import importlib.util
import json
import math
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import reference_packages

reference_packages.use("monitors")

from sluice_log.records import parse, record_of
from sluice_log.tail import Tail

PROGRAM = ROOT / "tools/sluice-log"


def has(*packages):
    return all(importlib.util.find_spec(package) for package in packages)


class RunFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-log-")
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name)
        self.run = self.path / "run"
        self.run.mkdir()
        (self.run / "config.json").write_text(json.dumps(
            {"optimizer": {"params": {"lr": 0.001}}, "data": {"train": ["a.bin"]}}))
        self.now = 1_700_000_000.0

    def line(self, step, loss=None, **keys):
        self.now += 1
        return json.dumps({
            "schema": 2, "step": step, "tokens_seen": 1000 * step, "unix_s": self.now,
            "loss": 8 / step if loss is None else loss, "lr": 0.001, "grad_norm": 1.5,
            "skipped": False, "tokens_per_s": 500.0, "gpu_peak_bytes": 4096, **keys}) + "\n"

    def steps(self, first, last, name="metrics.jsonl", **keys):
        with open(self.run / name, "a", encoding="utf-8") as file:
            for step in range(first, last + 1):
                file.write(self.line(step, **keys))

    def event(self, kind, step, **members):
        self.now += 1
        with open(self.run / "events.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"event": kind, "unix_s": self.now, "step": step, **members})
                       + "\n")

    def begin(self, step=0):
        self.event("begin", step, schema=1, ranks=1, model={"family": "gpt2", "parameters": 7})

    def cut(self, last):
        """As a resume after step `last` does."""
        path = self.run / "metrics.jsonl"
        kept = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True)
                if json.loads(line)["step"] <= last]
        path.write_text("".join(kept), encoding="utf-8")

    def environment(self):
        folder = str(reference_packages.folder("monitors"))
        return dict(os.environ, PYTHONPATH=folder, MLFLOW_ALLOW_FILE_STORE="true",
                    WANDB_MODE="offline", WANDB_SILENT="true", HOME=str(self.path),
                    GIT_PYTHON_REFRESH="quiet")

    def log(self, *options, code=0, run="run"):
        result = subprocess.run(
            [sys.executable, "-B", PROGRAM, run, *map(str, options)], cwd=self.path, check=False,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
            env=self.environment())
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        return result.stderr

    def start(self, *options, **keywords):
        process = subprocess.Popen(
            [sys.executable, "-B", PROGRAM, "run", "--follow", *map(str, options)], cwd=self.path,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=self.environment(),
            **keywords)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def rows(self):
        """Step and loss of metrics.csv."""
        path = self.path / "csv/metrics.csv"
        if not path.exists():
            return []
        with open(path, encoding="utf-8", newline="") as file:
            return [(int(row["step"]), row["train/loss"]) for row in csv.DictReader(file)]

    def table(self, name="metrics"):
        with open(self.path / f"csv/{name}.csv", encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def until(self, holds, message="", limit_s=60):
        end = time.monotonic() + limit_s
        while not holds():
            self.assertLess(time.monotonic(), end, message)
            time.sleep(0.05)


class Tails(RunFolder):
    def setUp(self):
        super().setUp()
        self.file = self.run / "x"
        self.tail = Tail(str(self.file))
        self.addCleanup(self.tail.close)

    def put(self, text, name="x"):
        with open(self.run / name, "a", encoding="utf-8") as file:
            file.write(text)

    def poll(self):
        lines, restarted = [], False
        while True:
            more, again = self.tail.poll()
            lines = more if again else lines + more
            restarted = restarted or again
            if self.tail.at_end:
                return [line.decode() for line in lines], restarted

    def test_gives_whole_lines_once(self):
        self.assertEqual(self.poll(), ([], False))
        self.put("a\nb\nc")
        self.assertEqual(self.poll(), (["a", "b"], False))
        self.put("c\n")
        self.assertEqual(self.poll(), (["cc"], False))
        self.assertEqual(self.poll(), ([], False))

    def test_reads_parts_from_the_oldest_on(self):
        for name, text in ("x.10", "a\n"), ("x.2", "b\n"), ("x.1", "c\n"), ("x", "d\n"):
            self.put(text, name)
        for name in "x.new", "x.01", "x.1x", "y.1", "x.0":
            self.put("no\n", name)
        (self.run / "x.3").mkdir()
        self.assertEqual(self.poll(), (["a", "b", "c", "d"], False))

    def test_goes_on_in_the_next_part(self):
        self.put("a\n")
        self.poll()
        self.put("b\n")
        self.file.rename(self.run / "x.1")
        self.put("c\n")
        self.assertEqual(self.poll(), (["b", "c"], False))

    def test_begins_anew_where_it_was_left_behind(self):
        self.put("a\n")
        self.poll()
        self.file.rename(self.run / "x.2")
        self.put("b\n", "x.1")
        self.put("c\n")
        self.assertEqual(self.poll(), (["a", "b", "c"], True))

    def test_begins_anew_where_the_file_was_cut_and_has_grown_again(self):
        self.put("a\nb\n")
        self.poll()
        self.file.write_text("a\n")
        self.assertEqual(self.poll(), (["a"], True))
        self.put("b\n")
        self.poll()
        os.truncate(self.file, 2)
        self.put("c\nd\n")
        self.assertEqual(self.poll(), (["a", "c", "d"], True))

    def test_passes_over_what_is_no_line(self):
        self.put("a\n" + "x" * (5 << 20) + "\nb\n")
        self.assertEqual(self.poll(), (["a", "b"], False))
        self.assertEqual(self.tail.too_long, 1)


class Records(unittest.TestCase):
    def test_takes_what_makes_sense_of_a_line(self):
        for text in ("", "[1]", "{", '{"step": -1}', '{"step": 1.5}', '{"step": true}',
                     '{"step": "1"}', '{"step": 1e400}', "[" * 100_000, '{"step": ' + "9" * 5000):
            found = parse(text)
            self.assertIsNone(found and record_of(found), text[:40])
        record = record_of(parse('{"step": 3, "loss": null, "lr": NaN, "step_ms": 1' + "0" * 400 +
                                 ', "tokens_seen": -5, "unix_s": "now", "x": [1], "a\\u0000b": 1}'))
        self.assertTrue(math.isnan(record.values["train/loss"]))
        self.assertTrue(math.isnan(record.values["train/learning_rate"]))
        self.assertEqual(record.values["time/step_ms"], math.inf)
        self.assertEqual(record.values["other/a_b"], 1)
        self.assertEqual((record.tokens, record.unix_s), (None, None))
        many = record_of({"step": 1, **{f"k{i}": i for i in range(5000)}})
        self.assertLessEqual(len(many.values), 100)


class Files(RunFolder):
    """By CSV files, which need no package."""

    def test_writes_a_row_a_step_and_only_what_is_new(self):
        self.begin()
        self.steps(1, 5, val_loss=2.5)
        self.log("--csv", "csv")
        self.assertEqual(self.rows(), [(step, str(8 / step).removesuffix(".0"))
                                       for step in range(1, 6)])
        row = self.table()[1]
        self.assertEqual((row["tokens"], row["validation/loss"], row["speed/tokens_per_second"],
                          row["memory/gpu_bytes"]), ("2000", "2.5", "500", "4096"))
        self.assertIn({"key": "optimizer.params.lr", "value": "0.001"}, self.table("config"))
        self.assertIn({"key": "run.model.family", "value": "gpt2"}, self.table("config"))
        self.log("--csv", "csv")
        self.steps(6, 8)
        self.event("checkpoint", 8, bytes=100, stopped_s=0.5, took_s=1.0)
        self.event("warning", 8, text="hot \x1b[31m\nline")
        self.event("end", 8, how="failed", reason="the disk")
        self.log("--csv", "csv")
        self.assertEqual([step for step, _ in self.rows()], list(range(1, 9)))
        self.log("--csv", "csv")
        self.assertEqual([(row["event"], row["text"]) for row in self.table("events")],
                         [("begin", ""), ("checkpoint", "100"), ("warning", "hot  [31m line"),
                          ("end", "failed the disk")])

    def test_steps_that_were_trained_again_replace_the_earlier_ones(self):
        self.begin()
        self.steps(1, 9)
        self.log("--csv", "csv")
        for with_events in True, False:
            self.cut(4)
            if with_events:
                self.begin(4)
            self.steps(5, 7, loss=0.5 if with_events else 0.25)
            self.log("--csv", "csv")
            self.assertEqual(self.rows()[3:], [(4, "2")] + [
                (step, "0.5" if with_events else "0.25") for step in (5, 6, 7)])

    def test_a_clock_that_was_set_back_hides_no_step(self):
        self.begin()
        self.steps(1, 9)
        self.log("--csv", "csv")
        self.cut(4)
        self.now -= 1000
        self.begin(4)
        self.steps(5, 7, loss=0.5)
        self.log("--csv", "csv")
        self.assertEqual([step for step, loss in self.rows() if loss == "0.5"], [5, 6, 7])
        self.assertEqual(len(self.rows()), 7)

    def test_a_run_in_its_place_begins_anew(self):
        self.begin()
        self.steps(1, 9)
        self.log("--csv", "csv")
        for name in "events.jsonl", "metrics.jsonl":
            (self.run / name).unlink()
        self.begin()
        self.steps(1, 2, loss=0.5)
        self.log("--csv", "csv")
        self.assertEqual(self.rows(), [(1, "0.5"), (2, "0.5")])

    def test_reads_all_parts(self):
        self.steps(1, 3, "metrics.jsonl.2")
        self.steps(4, 6, "metrics.jsonl.1")
        self.steps(7, 9)
        self.log("--csv", "csv")
        self.assertEqual([step for step, _ in self.rows()], list(range(1, 10)))
        (self.run / "metrics.jsonl.2").rename(self.run / "metrics.jsonl.3")
        (self.run / "metrics.jsonl.1").rename(self.run / "metrics.jsonl.2")
        (self.run / "metrics.jsonl").rename(self.run / "metrics.jsonl.1")
        self.steps(10, 11)
        self.log("--csv", "csv")
        self.assertEqual([step for step, _ in self.rows()], list(range(1, 12)))

    def test_what_a_kill_left_in_the_files_is_no_row(self):
        self.steps(1, 3)
        self.log("--csv", "csv")
        with open(self.path / "csv/metrics.csv", "a", encoding="utf-8") as file:
            file.write("4,4000,17000")
        self.steps(4, 5)
        self.log("--csv", "csv")
        self.assertEqual([step for step, _ in self.rows()], [1, 2, 3, 4, 5])
        (self.path / "csv/metrics.csv").write_text("step\n")
        self.log("--csv", "csv")
        self.assertEqual([step for step, _ in self.rows()], [1, 2, 3, 4, 5])
        (self.path / "csv/sluice-log.json").write_text("[" * 1000)
        self.log("--csv", "csv")
        self.assertEqual([step for step, _ in self.rows()], [1, 2, 3, 4, 5])

    def test_columns_come_as_keys_do(self):
        self.steps(1, 2)
        self.log("--csv", "csv")
        self.steps(3, 3, mfu=0.5)
        self.log("--csv", "csv")
        self.assertEqual([row["other/mfu"] for row in self.table()], ["", "", "0.5"])
        self.assertEqual([step for step, _ in self.rows()], [1, 2, 3])

    def test_damaged_lines_are_left_out_and_said(self):
        self.steps(1, 2)
        with open(self.run / "metrics.jsonl", "ab") as file:
            file.write(b"\xff\xfe{}\n\n[1]\nnull\n" + b"[" * 9000 + b"\n")
        self.steps(5, 6, loss=float("nan"))
        with open(self.run / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(self.line(7).rstrip("\n"))
        (self.run / "events.jsonl").write_bytes(b'{"event":"begin"\x00\n{"event":"no","step":1}\n')
        self.assertIn("lines of run cannot be read, and are left out",
                      self.log("--csv", "csv"))
        self.assertEqual([step for step, _ in self.rows()], [1, 2, 5, 6, 7])
        self.assertEqual(self.rows()[2][1], "nan")

    def test_two_writers_leave_a_row_a_step(self):
        for step in range(1, 200):
            self.steps(step, step, loss=1.0)
            self.steps(max(step - 20, 1), max(step - 20, 1), loss=2.0)
        self.log("--csv", "csv")
        self.assertEqual([step for step, _ in self.rows()], list(range(1, 200)))

    def test_refuses_what_makes_no_sense(self):
        self.assertIn("nothing is to be written", self.log(code=2))
        self.assertIn("--wandb-team is of no use without --wandb",
                      self.log("--csv", "csv", "--wandb-team", "x", code=2))
        self.assertIn("there is no absent", self.log("--csv", "csv", run="absent", code=1))
        (self.path / "empty").mkdir()
        self.assertIn("is not a run's directory",
                      self.log("--csv", "csv", run="empty", code=1))
        self.assertFalse((self.path / "csv").exists())
        self.steps(1, 1)
        (self.path / "file").write_text("")
        self.assertIn("CSV: file/x cannot be made", self.log("--csv", "file/x", code=1))
        (self.path / "theirs").mkdir()
        (self.path / "theirs/metrics.csv").write_text("mine")
        self.assertIn("theirs/metrics.csv was not written by sluice-log",
                      self.log("--csv", "theirs", code=1))
        self.assertEqual((self.path / "theirs/metrics.csv").read_text(), "mine")
        (self.path / "csv").mkdir()
        with open_folder(self.path / "csv") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            self.assertIn("another sluice-log writes to csv", self.log("--csv", "csv", code=1))

    def test_one_output_that_fails_does_not_cost_another(self):
        self.steps(1, 3)
        (self.path / "file").write_text("")
        self.log("--csv", "csv", "--tensorboard", "file/x", code=1)
        if has("tensorboard", "numpy"):
            self.assertEqual(len(self.rows()), 3)

    def test_says_which_package_is_missing(self):
        self.steps(1, 1)
        with unittest.mock.patch.dict(os.environ):
            result = subprocess.run(
                [sys.executable, "-B", "-c",
                 "import sys; sys.modules['tensorboard'] = None; "
                 f"sys.path.insert(0, {str(ROOT / 'tools')!r}); from sluice_log.cli import main; "
                 "sys.exit(main(['run', '--tensorboard', 'tb']))"],
                cwd=self.path, check=False, capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertIn("TensorBoard needs the Python package tensorboard", result.stderr)
        self.assertIn("-m pip install tensorboard", result.stderr)


@contextlib.contextmanager
def open_folder(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class Follow(RunFolder):
    def test_follows_a_run_through_parts_and_resumes_and_ends_with_it(self):
        logger = self.start("--csv", "csv")
        self.begin()
        self.steps(1, 3)
        self.until(lambda: len(self.rows()) == 3)
        self.steps(4, 5)
        (self.run / "metrics.jsonl").rename(self.run / "metrics.jsonl.1")
        self.steps(6, 7)
        self.until(lambda: len(self.rows()) == 7)
        self.event("end", 7, how="interrupted")
        self.assertEqual(logger.wait(30), 0, logger.stderr.read())
        self.cut(6)
        self.begin(6)
        logger = self.start("--csv", "csv")
        self.steps(7, 9, loss=0.5)
        self.until(lambda: len(self.rows()) == 9)
        self.cut(8)
        self.event("begin", 8)
        self.steps(9, 9, loss=0.25)
        self.until(lambda: self.rows()[-1] == (9, "0.25"))
        self.event("end", 9, how="completed")
        self.assertEqual(logger.wait(30), 0, logger.stderr.read())
        self.assertEqual([step for step, _ in self.rows()], list(range(1, 10)))

    def test_ends_where_who_trained_is_gone(self):
        self.begin()
        self.steps(1, 3)
        (self.run / "lock").touch()
        with open(self.run / "lock", "rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            logger = self.start("--csv", "csv")
            self.until(lambda: len(self.rows()) == 3)
            time.sleep(1)
            self.assertIsNone(logger.poll())
        self.assertEqual(logger.wait(30), 0)
        self.assertIn("has ended without saying so", logger.stderr.read())

    def test_beside_a_run_it_ends_with_its_input_and_has_all(self):
        self.begin()
        logger = self.start("--csv", "csv", "--beside", stdin=subprocess.PIPE)
        self.steps(1, 3)
        self.until(lambda: len(self.rows()) == 3)
        self.steps(4, 6)
        logger.stdin.close()
        self.assertEqual(logger.wait(30), 0)
        self.assertEqual(len(self.rows()), 6)

    def test_an_interrupt_leaves_files_that_go_on(self):
        logger = self.start("--csv", "csv")  # of metrics alone
        for step in 1, 2, 3:
            self.steps(step, step)
            self.until(lambda wanted=step: len(self.rows()) == wanted)
        logger.send_signal(signal.SIGINT)
        self.assertEqual(logger.wait(30), 130)
        self.steps(4, 4)
        self.log("--csv", "csv")
        self.assertEqual([step for step, _ in self.rows()], [1, 2, 3, 4])


@unittest.skipUnless(has("tensorboard", "numpy"), "the package tensorboard is not there")
class TensorBoard(RunFolder):
    def read(self, folder="tb"):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        found = EventAccumulator(str(self.path / folder), size_guidance={"scalars": 0,
                                                                         "tensors": 0})
        found.Reload()
        return found

    def losses(self, folder="tb", tag="train/loss"):
        return [(event.step, event.value) for event in self.read(folder).Scalars(tag)]

    def test_has_what_the_run_wrote(self):
        self.begin()
        self.steps(1, 9)
        self.steps(10, 10, loss=float("inf"), val_loss=4.5, we_ird=3)
        self.event("warning", 10, text="hot \ud800")
        self.event("end", 10, how="completed")
        self.log("--tensorboard", "tb")
        found = self.read()
        losses = found.Scalars("train/loss")
        self.assertEqual([event.step for event in losses], list(range(1, 11)))
        self.assertAlmostEqual(losses[2].value, 8 / 3, 6)
        self.assertEqual(losses[0].wall_time, 1_700_000_002)
        self.assertEqual(losses[-1].value, math.inf)
        self.assertEqual([event.step for event in found.Scalars("validation/loss")], [10])
        for tag, value in (("speed/tokens_per_second", 500), ("memory/gpu_bytes", 4096),
                           ("progress/tokens", 10_000), ("other/we_ird", 3)):
            self.assertEqual(found.Scalars(tag)[-1].value, value)
        self.assertEqual([event.step for event in self.read("tb/by_tokens").Scalars(
            "by_tokens/train/loss")], list(range(1000, 10_001, 1000)))
        texts = found.Tensors("events/warning")[0].tensor_proto.string_val
        self.assertEqual([text.decode() for text in texts], ["hot ?"])
        from tensorboard.plugins.hparams import plugin_data_pb2

        data = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
        hparams = plugin_data_pb2.HParamsPluginData.FromString(data).session_start_info.hparams
        self.assertEqual(hparams["optimizer.params.lr"].number_value, 0.001)
        self.assertEqual(hparams["run.model.family"].string_value, "gpt2")

    def test_has_no_step_twice(self):
        self.begin()
        self.steps(1, 5)
        self.log("--tensorboard", "tb")
        self.log("--tensorboard", "tb")
        self.steps(6, 8)
        self.log("--tensorboard", "tb")
        self.assertEqual([step for step, _ in self.losses()], list(range(1, 9)))
        # One that was killed before it could remember what it had written.
        state = json.loads((self.path / "tb/sluice-log.json").read_text())
        state.update(step=5, unix_s=json.loads((self.run / "metrics.jsonl").read_text(
            ).splitlines()[4])["unix_s"], tokens=5000)
        (self.path / "tb/sluice-log.json").write_text(json.dumps(state))
        self.log("--tensorboard", "tb")
        self.assertEqual([step for step, _ in self.losses()], list(range(1, 9)))
        self.assertEqual([step for step, _ in self.losses("tb/by_tokens", "by_tokens/train/loss")],
                         list(range(1000, 8001, 1000)))

    def test_steps_that_were_trained_again_replace_the_earlier_ones(self):
        self.begin()
        self.steps(1, 9)
        self.log("--tensorboard", "tb")
        self.cut(4)
        self.begin(4)
        self.steps(5, 7, loss=0.5)
        self.log("--tensorboard", "tb")
        wanted = [(step, 8 / step) for step in range(1, 5)] + [(5, 0.5), (6, 0.5), (7, 0.5)]
        for found, factor in ((self.losses(), 1),
                              (self.losses("tb/by_tokens", "by_tokens/train/loss"), 1000)):
            self.assertEqual([step for step, _ in found], [factor * step for step, _ in wanted])
            for (_, loss), (_, expected) in zip(found, wanted):
                self.assertAlmostEqual(loss, expected, 6)


def log_records(raw):
    """The records of a .wandb file: a header of 7 bytes, then LevelDB's log format, in blocks of
    32 KiB; a record may be in several pieces."""
    assert raw[:4] == b":W&B"
    at, begun = 7, b""
    while at + 7 <= len(raw):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", raw, at + 4)
        if kind == 0:
            break
        begun += raw[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last piece
            yield begun
            begun = b""


@unittest.skipUnless(has("wandb"), "the package wandb is not there")
class Wandb(RunFolder):
    def history(self):
        """Of all offline runs: (internal step, values), as `wandb sync` would send them."""
        from wandb.proto import wandb_internal_pb2

        found, ids, config = [], set(), {}
        for path in sorted((self.run / "wandb").glob("offline-run-*/*.wandb")):
            for data in log_records(path.read_bytes()):
                record = wandb_internal_pb2.Record()
                record.ParseFromString(data)
                if record.WhichOneof("record_type") == "history":
                    values = {item.key or "/".join(item.nested_key): json.loads(item.value_json)
                              for item in record.history.item}
                    found.append((record.history.step.num, values))
                if record.WhichOneof("record_type") == "run":
                    ids.add(record.run.run_id)
                    config.update({item.key: json.loads(item.value_json)
                                   for item in record.run.config.update})
        return found, ids, config

    def test_has_each_step_once_under_one_run_and_marks_those_trained_again(self):
        self.begin()
        self.steps(1, 4)
        self.log("--wandb", "project", "--wandb-offline")
        self.cut(3)
        self.begin(3)
        self.steps(4, 4, loss=0.5)
        self.steps(5, 5, loss=float("nan"))
        self.event("end", 5, how="completed")
        self.log("--wandb", "project", "--wandb-offline")
        found, ids, config = self.history()
        self.assertEqual(len(ids), 1)
        self.assertEqual(config["optimizer.params.lr"], 0.001)
        steps = [(values["step"], values["progress/life"]) for _, values in found
                 if "train/loss" in values]
        self.assertEqual(steps, [(1, 1), (2, 1), (3, 1), (4, 1), (4, 2), (5, 2)])
        internal = [step for step, _ in found]
        self.assertEqual(internal, sorted(set(internal)))
        self.assertEqual(found[3][1]["train/loss"], 2)
        self.assertEqual(found[3][1]["progress/tokens"], 4000)
        self.assertEqual(found[4][1]["train/loss"], 0.5)


@unittest.skipUnless(has("mlflow"), "the package mlflow-skinny is not there")
class Mlflow(RunFolder):
    def test_has_each_step_once_and_marks_those_trained_again(self):
        uri = f"file:{self.path / 'ml'}"
        self.begin()
        self.steps(1, 4)
        self.log("--mlflow", uri)
        self.cut(3)
        self.begin(3)
        self.steps(4, 5, loss=0.5)
        self.event("end", 5, how="failed", reason="the disk")
        self.log("--mlflow", uri, "--name", "second")
        with unittest.mock.patch.dict(os.environ, MLFLOW_ALLOW_FILE_STORE="true",
                                      GIT_PYTHON_REFRESH="quiet"):
            from mlflow.tracking import MlflowClient

            client = MlflowClient(uri)
            experiment = client.get_experiment_by_name("sluice")
            runs = client.search_runs([experiment.experiment_id])
            self.assertEqual(len(runs), 1)
            run = runs[0]
            self.assertEqual(run.info.status, "FAILED")
            self.assertEqual(run.data.params["optimizer.params.lr"], "0.001")
            losses = client.get_metric_history(run.info.run_id, "train/loss")
            self.assertEqual([(it.step, it.value) for it in losses],
                             [(1, 8), (2, 4), (3, 8 / 3), (4, 2), (4, 0.5), (5, 0.5)])
            lives = client.get_metric_history(run.info.run_id, "progress/life")
            self.assertEqual([it.value for it in lives], [1, 1, 1, 1, 2, 2])
            # As if the last batch had not been acknowledged.
            state = json.loads(run.data.tags["sluice.state"])
            first = losses[0].timestamp / 1000
            state.update(step=1, unix_s=first, pending=["train/loss", "progress/life"], life=2)
            client.set_tag(run.info.run_id, "sluice.state", json.dumps(state))
            before = len(losses)
            self.log("--mlflow", uri)
            again = client.get_metric_history(run.info.run_id, "train/loss")
            self.assertEqual(len(again), before)


if __name__ == "__main__":
    unittest.main()
