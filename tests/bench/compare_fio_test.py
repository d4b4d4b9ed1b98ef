"""compare_fio: what it concludes from runs, what it refuses, and that it leaves no file behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

AIO_BENCH = os.path.abspath(os.environ.get("AIO_BENCH", "build/bin/aio_bench"))
BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench")
COMPARE_FIO = os.path.join(BENCH, "compare_fio")
sys.dont_write_bytecode = True
sys.path.insert(0, BENCH)

import compare_stats  # noqa: E402

CONFIG = ("read", "1M", 32)


def records_of(kind, tools, speeds):
    return [{"mode": "read", "block": "1M", "depth": 32, "pair": pair, "kind": kind, "tool": tool,
             "gb_per_s": speed, "cpu_s_per_gb": 0.01 * (1 + index)}
            for pair, both in enumerate(speeds)
            for index, (tool, speed) in enumerate(zip(tools, both))]


def summary(real, control):
    return compare_stats.summarise(
        CONFIG, records_of("real", ("aio", "fio"), real)
        + records_of("control", ("fio", "fio'"), control), seed=1)


class Statistics(unittest.TestCase):
    CONTROL = [(1.0, 1.0), (1.02, 1.0), (0.98, 1.0), (1.01, 1.0), (0.99, 1.0)] * 4

    def test_verdict(self):
        for ratio, verdict in ((0.9, "below"), (1.0, "inside"), (1.1, "above")):
            row = summary([(ratio * 2, 2.0)] * 20, self.CONTROL)
            self.assertAlmostEqual(row["ratio"], ratio)
            self.assertEqual(row["verdict"], verdict)
            low, high = row["control_interval"]
            self.assertLessEqual(0.98, low)
            self.assertLessEqual(low, 1.0)
            self.assertLessEqual(high, 1.02)

    def test_ratio_is_of_pairs_and_not_of_medians(self):
        # The disk doubles its speed half way: each pair still says 1.
        row = summary([(1.0, 1.0)] * 10 + [(2.0, 2.0)] * 9 + [(1.0, 2.0)], self.CONTROL)
        self.assertAlmostEqual(row["ratio"], 1.0)

    def test_interval_covers_the_median_about_as_often_as_it_says(self):
        import random
        chooser = random.Random(7)
        covered = 0
        compare_stats.BOOTSTRAPS = 500
        for trial in range(200):
            low, high = compare_stats.median_interval(
                [chooser.gauss(1, 0.1) for _ in range(20)], trial)
            covered += low <= 1 <= high
        compare_stats.BOOTSTRAPS = 10_000
        self.assertGreater(covered, 175)
        self.assertLess(covered, 200)

    def test_cpu_ratio_and_half_pairs(self):
        records = records_of("real", ("aio", "fio"), [(1.0, 1.0)] * 3) + records_of(
            "control", ("fio", "fio'"), self.CONTROL)
        records.append({**records[0], "pair": 99})
        self.assertAlmostEqual(compare_stats.summarise(CONFIG, records, 1)["cpu_ratio"], 0.5)
        self.assertIsNone(compare_stats.summarise(CONFIG, records[:6], 1))

    def test_table_is_markdown(self):
        lines = compare_stats.table_lines([summary([(1.0, 1.0)] * 3, self.CONTROL)])
        self.assertEqual(len({len(line) for line in lines}), 1)
        self.assertEqual({line.count("|") for line in lines}, {11})


class Program(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="compare_fio_test_", dir=os.getcwd())
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        if shutil.which("fio") is None:
            self.skipTest("fio is not installed")

    def command(self, *arguments):
        return [sys.executable, COMPARE_FIO, "--path", self.folder, "--aio-bench", AIO_BENCH,
                "--size", "8M", "--gap", "0", *arguments]

    def test_refuses_bad_input(self):
        for arguments in (["--size", "0"], ["--size", "9000T"], ["--pairs", "0"],
                          ["--seconds", "0"], ["--modes", "fast"], ["--configs", "1M"],
                          ["--configs", "1000x4"], ["--configs", "4Kx0"],
                          ["--modes", "read", "--configs", "4Kx1:write"],
                          ["--fio", "/nowhere/fio"], ["--aio-bench", "/nowhere/aio_bench"],
                          ["--path", "/nowhere"], ["--json", "/nowhere/x"],
                          ["--configs", "3Mx4"]):
            with self.subTest(arguments=arguments):
                result = subprocess.run(self.command(*arguments), capture_output=True, text=True)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
                self.assertEqual(os.listdir(self.folder), [])

    def test_runs_and_removes_its_file(self):
        out = os.path.join(self.folder, "out.json")
        result = subprocess.run(
            self.command("--pairs", "1", "--seconds", "0.2", "--configs", "64Kx4,4Kx4:randread",
                         "--json", out, "--markdown", os.path.join(self.folder, "out.md")),
            capture_output=True, text=True)
        if result.returncode == 1 and "io_uring" in result.stderr:
            self.skipTest("io_uring is refused here")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted(os.listdir(self.folder)), ["out.json", "out.md"])
        with open(out, encoding="utf-8") as file:
            data = json.load(file)
        self.assertEqual([row["mode"] for row in data["summary"]],
                         ["read", "write", "mixed", "randread"])
        self.assertEqual(len(data["runs"]), 4 * 4)
        for run in data["runs"]:
            self.assertGreater(run["gb_per_s"], 0)
        # A short run may end before the kernel has counted any of its CPU time.
        self.assertGreater(sum(run["cpu_s_per_gb"] for run in data["runs"]), 0)

    def test_interrupt_removes_the_file_and_shows_what_there_is(self):
        # What a shell starts in the background ignores SIGINT, and so does what that starts.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen(
                self.command("--pairs", "50", "--seconds", "0.2", "--configs", "64Kx4"),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            begun = time.monotonic()
            while not os.listdir(self.folder) and time.monotonic() < begun + 30:
                time.sleep(0.05)
            time.sleep(1)
            process.send_signal(number)
            output, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130, errors)
            self.assertIn("Interrupted", output)
            self.assertEqual(os.listdir(self.folder), [])


if __name__ == "__main__":
    unittest.main()
