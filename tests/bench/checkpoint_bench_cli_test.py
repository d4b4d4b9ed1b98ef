"""checkpoint_bench from outside: bad input, results, Ctrl-C, full disks, what it leaves behind.

The program is the environment's CHECKPOINT_BENCH. Runs are tiny: nothing here looks at speed.
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

CHECKPOINT_BENCH = os.path.abspath(os.environ.get("CHECKPOINT_BENCH", "build/bin/checkpoint_bench"))
SMALL = ["--parameters", "1500000", "--shard-size", "2M", "--block-size", "64K", "--queue-depth",
         "8", "--runs", "1"]


def command(*arguments):
    return [CHECKPOINT_BENCH, *map(str, arguments)]


def run(*arguments, cwd=None):
    return subprocess.run(command(*arguments), cwd=cwd, timeout=120, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True)


class CheckpointBenchTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="checkpoint_bench_test_", dir=os.getcwd())
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def refuse(self, *arguments, needles):
        if "--path" not in arguments:
            arguments = ("--path", self.folder, *arguments)
        with self.subTest(arguments=arguments):
            result = run(*arguments, cwd=self.folder)
            self.assertEqual(result.returncode, 2, result.stderr + result.stdout)
            lines = result.stderr.strip().splitlines()
            self.assertEqual(len(lines), 1, result.stderr)
            self.assertTrue(lines[0].startswith("checkpoint_bench: "), lines[0])
            self.assertEqual(result.stdout, "")
            for needle in needles:
                self.assertIn(needle, lines[0])
            self.assertEqual(os.listdir(self.folder), [])


class BadInput(CheckpointBenchTest):
    def test_options(self):
        for value in ("0", "-1", "many", "", "2T"):
            self.refuse("--parameters", value, needles=["--parameters", value])
        for value in ("0", "1K", "x"):
            self.refuse("--shard-size", value, needles=["--shard-size", value])
        for value in ("1", "65", "x"):
            self.refuse("--chunks", value, needles=["--chunks", value, "2 to 64"])
        self.refuse("--runs", "0", needles=["--runs 0"])
        self.refuse("--block-size", "1000", needles=["--block-size 1000", "4096"])
        self.refuse("--colour", needles=["--colour", "--help"])
        self.refuse("--path", self.folder, "--path", "/", needles=["--path", "one"])

    def test_places(self):
        self.refuse("--path", self.path("nowhere"), needles=["--path", "nowhere", "no such"])
        self.refuse("--json", self.path("no/x.json"), needles=["--json", "no folder"])
        self.refuse("--parameters", "1T", needles=["--parameters 1T", "no room"])


class Results(CheckpointBenchTest):
    def test_json_and_table(self):
        result = run("--path", self.folder, *SMALL[:-2], "--runs", "2", "--json",
                     self.path("out.json"))
        self.assertEqual(result.returncode, 0, result.stderr)
        for word in ("save GB/s", "aio write", "load GB/s", "aio read", "median of 2", "staging"):
            self.assertIn(word, result.stdout)
        with open(self.path("out.json"), encoding="utf-8") as file:
            data = json.load(file)
        self.assertEqual(len(data["rounds"]), 2)
        for one in data["rounds"]:
            self.assertGreater(one["save"]["bytes"], 12 * 1_500_000)
            self.assertEqual(one["save"]["bytes"], one["load"]["bytes"])
            for key in ("aio_write_gb_per_s", "aio_read_gb_per_s"):
                self.assertGreater(one[key], 0)
        self.assertEqual(data["staging_bytes"], 48 << 20)
        self.assertGreater(data["peak_resident_bytes"], 0)
        self.assertGreater(data["median"]["save_share"], 0)
        self.assertEqual(os.listdir(self.folder), ["out.json"])

    def test_help_teaches(self):
        result = run("--help")
        self.assertEqual(result.returncode, 0)
        for word in ("--path", "--parameters", "Examples", "1024", "[512M"):
            self.assertIn(word, result.stdout)


class Interrupted(CheckpointBenchTest):
    def start(self):
        def default_sigint():
            # A shell's background job ignores SIGINT; the program must not inherit that here.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        process = subprocess.Popen(command("--path", self.folder, *SMALL[:-2], "--runs", "100"),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   preexec_fn=default_sigint)
        for line in process.stdout:
            if line.startswith("   1"):
                return process
        self.fail("no run was done")

    def test_everything_is_removed_on_ctrl_c(self):
        process = self.start()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=20)
        self.assertEqual(process.returncode, 130, errors)
        self.assertIn("interrupted", output + errors)
        self.assertEqual(os.listdir(self.folder), [])

    def test_what_a_killed_run_left_is_replaced(self):
        process = self.start()
        second = run("--path", self.folder, *SMALL)
        self.assertEqual(second.returncode, 2, second.stderr)
        self.assertIn("another checkpoint_bench", second.stderr)
        process.kill()
        process.communicate()
        self.assertEqual(os.listdir(self.folder), ["checkpoint_bench"])
        result = run("--path", self.folder, *SMALL)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(os.listdir(self.folder), [])


if __name__ == "__main__":
    if not os.access(CHECKPOINT_BENCH, os.X_OK):
        sys.exit(f"no program at {CHECKPOINT_BENCH}: set CHECKPOINT_BENCH")
    unittest.main()
