"""sluice-log with files that grow, start again, are cut or damaged; and its CSV files."""

import contextlib
import fcntl
import math
import os
import subprocess
import sys
import unittest

from sluice_log_runs import ROOT, RunFolder, has

from sluice_log.records import parse, record_of
from sluice_log.tail import Tail


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
        for key, name in (("tflops_per_s", "speed/tflops_per_second"),
                          ("recompute_ms", "time/recompute_ms"),
                          ("await_params_ms", "time/await_params_ms"),
                          ("await_inputs_ms", "time/await_inputs_ms")):
            self.assertEqual(record_of({"step": 1, key: 2}).values, {name: 2})
        layers = {"busiest_expert": [1.5, 4, 2], "idle_experts": [1, 0, 3], "balance_loss": 2.5}
        self.assertEqual(record_of({"step": 1, **layers}).values,
                         {"experts/busiest": 4, "experts/idle": 4, "train/balance_loss": 2.5})
        for wrong in ([], [None], [[1]], ["1"], [True], {"a": 1}, "1"):
            self.assertEqual(record_of({"step": 1, "idle_experts": wrong}).values, {})
        self.assertEqual(record_of({"step": 1, "idle_experts": [10**400, 1.5]}).values,
                         {"experts/idle": math.inf})
        self.assertEqual((record.tokens, record.unix_s), (None, None))
        many = record_of({"step": 1, **{f"k{i}": i for i in range(5000)}})
        self.assertLessEqual(len(many.values), 100)


class Files(RunFolder):
    """Tests by CSV files, which need no package."""

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
        self.assertIn("lines of run",
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
        self.assertIn("no output was chosen", self.log(code=2))
        self.assertRegex(self.log("--csv", "csv", "--wandb-team", "x", code=2),
                         "--wandb-team.*without --wandb")
        self.assertIn("absent does not exist", self.log("--csv", "csv", run="absent", code=1))
        (self.path / "empty").mkdir()
        self.assertIn("folder of a run",
                      self.log("--csv", "csv", run="empty", code=1))
        self.assertFalse((self.path / "csv").exists())
        self.steps(1, 1)
        (self.path / "file").write_text("")
        self.assertIn("CSV: file/x", self.log("--csv", "file/x", code=1))
        (self.path / "theirs").mkdir()
        (self.path / "theirs/metrics.csv").write_text("mine")
        self.assertRegex(self.log("--csv", "theirs", code=1), r"theirs/metrics\.csv.*sluice-log")
        self.assertEqual((self.path / "theirs/metrics.csv").read_text(), "mine")
        (self.path / "csv").mkdir()
        with open_folder(self.path / "csv") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            self.assertIn("writes to csv", self.log("--csv", "csv", code=1))

    def test_names_what_is_no_file_and_waits_for_none(self):
        self.begin()
        self.steps(1, 2)
        makers = {"not a regular file": (os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)),
                  "symbolic links": (lambda path: os.symlink(path, path),)}
        for name in ("metrics.jsonl", "events.jsonl", "config.json"):
            (self.run / name).rename(self.path / name)
            for words, ways in makers.items():
                for make in ways:
                    make(self.run / name)
                    is_needed = name != "config.json"
                    said = self.log("--csv", "csv", code=1 if is_needed else 0)
                    if is_needed:
                        self.assertRegex(said, rf"\Asluice-log: .*{name}.*{words}")
                    remove = os.rmdir if make is os.mkdir else os.unlink
                    remove(self.run / name)
            (self.path / name).rename(self.run / name)
        self.assertEqual([step for step, _ in self.rows()], [1, 2])

    def test_reads_and_writes_nothing_through_a_link(self):
        self.begin()
        self.steps(1, 2)
        theirs = self.path / "theirs"
        (self.run / "metrics.jsonl").rename(theirs)
        (self.run / "metrics.jsonl").symlink_to(theirs)
        self.assertIn("is a link", self.log("--csv", "csv", code=1))
        (self.run / "metrics.jsonl").unlink()
        theirs.rename(self.run / "m.jsonl")
        (self.run / "metrics.jsonl").symlink_to("m.jsonl")  # a target in the folder
        self.log("--csv", "csv")
        self.assertEqual([step for step, _ in self.rows()], [1, 2])
        theirs.write_text("mine", encoding="ascii")
        state = next((self.path / "csv").glob("*.json"), None) or next(
            each for each in (self.path / "csv").iterdir() if each.suffix != ".csv")
        state.with_name(state.name + ".new").symlink_to(theirs)
        self.steps(3, 4)
        self.log("--csv", "csv")
        self.assertEqual([step for step, _ in self.rows()], [1, 2, 3, 4])
        (self.path / "csv/metrics.csv").unlink()
        (self.path / "csv/metrics.csv").symlink_to(theirs)
        self.steps(5, 6)
        self.log("--csv", "csv")  # which replaces the file
        self.assertEqual(theirs.read_text(encoding="ascii"), "mine")

    def test_one_output_that_fails_does_not_cost_another(self):
        self.steps(1, 3)
        (self.path / "file").write_text("")
        self.log("--csv", "csv", "--tensorboard", "file/x", code=1)
        if has("tensorboard", "numpy"):
            self.assertEqual(len(self.rows()), 3)

    def test_says_which_package_is_missing(self):
        self.steps(1, 1)
        result = subprocess.run(
            [sys.executable, "-B", "-c",
             "import sys; sys.modules['tensorboard'] = None; "
             f"sys.path.insert(0, {str(ROOT / 'python')!r}); from sluice_log.cli import main; "
             "sys.exit(main(['run', '--tensorboard', 'tb']))"],
            cwd=self.path, check=False, capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertIn("package tensorboard", result.stderr)
        self.assertIn("-m pip install tensorboard", result.stderr)


@contextlib.contextmanager
def open_folder(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    unittest.main()
