"""swap_bench from outside: bad input, results, Ctrl-C, full disks, what it leaves behind.

The program is the environment's SWAP_BENCH. Runs are tiny: nothing here looks at speed.
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SWAP_BENCH = os.path.abspath(os.environ.get("SWAP_BENCH", "build/bin/swap_bench"))
# 17 records of 640 KiB, the last one shorter.
SMALL = ["--elements", "1050000", "--record-elements", "64K", "--buffers", "3", "--block-size",
         "64K", "--queue-depth", "8", "--threads", "2"]


def command(*arguments):
    return [SWAP_BENCH, *map(str, arguments)]


def run(*arguments, cwd=None):
    return subprocess.run(command(*arguments), cwd=cwd, timeout=120, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True)


class SwapBenchTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="swap_bench_test_", dir=os.getcwd())
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def assert_refused(self, result, *needles):
        self.assertEqual(result.returncode, 2, result.stderr + result.stdout)
        lines = result.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertTrue(lines[0].startswith("swap_bench: "), lines[0])
        self.assertEqual(result.stdout, "")
        for needle in needles:
            self.assertIn(needle, lines[0])

    def refuse(self, *arguments, needles):
        if "--path" not in arguments:
            arguments = ("--path", self.folder, *arguments)
        with self.subTest(arguments=arguments):
            before = os.listdir(self.folder)
            self.assert_refused(run(*arguments, cwd=self.folder), *needles)
            self.assertEqual(os.listdir(self.folder), before)


class BadInput(SwapBenchTest):
    def test_state(self):
        for value in ("0", "-1", "many", "", "2000000G"):
            self.refuse("--elements", value, needles=["--elements", value])
        for value in ("0", "64", "1K", "100000", "32M", "x"):
            self.refuse("--record-elements", value, needles=["--record-elements", value])
        for value in ("0", "9", "ten", "16"):
            self.refuse("--bytes-per-element", value, needles=["--bytes-per-element", value])
        self.refuse("--elements", "1T", "--record-elements", "64K", needles=["million records"])

    def test_memory(self):
        for value in ("0", "1", "1025", "x"):
            self.refuse("--buffers", value, needles=["--buffers", value, "2 to 1024"])
        self.refuse("--pinned-budget", "10M", needles=["--pinned-budget 10M", "two records", "40"])
        self.refuse("--pinned-budget", "big", needles=["--pinned-budget big"])
        self.refuse("--pinned-budget", "1G", "--buffers", "3", needles=["not both"])
        self.refuse("--buffers", "1024", "--record-elements", "16M", needles=["memory"])

    def test_work(self):
        self.refuse("--order", "random", needles=["--order random", "bursts"])
        self.refuse("--burst-records", "4", "--buffers", "3", needles=["--burst-records 4"])
        self.refuse("--queues", "3", needles=["--queues 3", "1 to 2"])
        self.refuse("--queue-depth", "1", needles=["--queue-depth 1", "--queues 1"])
        self.refuse("--threads", "0", needles=["--threads 0"])
        self.refuse("--compute", "sgd", needles=["--compute sgd", "adamw"])
        self.refuse("--isa", "mmx", needles=["--isa"])
        self.refuse("--steps", "0", needles=["--steps 0"])
        self.refuse("--seconds", "nan", needles=["--seconds nan"])
        self.refuse("--steps", "2", "--seconds", "1", needles=["not both"])
        self.refuse("--aio-reference", "maybe", needles=["--aio-reference maybe"])
        self.refuse("--weights", "auto", needles=["--weights auto"])
        self.refuse("--block-size", "1000", needles=["--block-size 1000", "4096"])
        self.refuse("--colour", needles=["--colour", "--help"])

    def test_places(self):
        self.refuse("--path", self.path("nowhere"), needles=["--path", "nowhere", "no such"])
        self.refuse("--json", self.path("no/x.json"), needles=["--json", "no folder"])

    def test_a_full_disk_is_an_error_before_anything_is_written(self):
        mounted = os.geteuid() == 0 and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", self.folder],
            capture_output=True).returncode == 0
        if not mounted:
            self.skipTest("mounting needs root and a mount namespace that allows it")
        try:
            # The state alone is too large; then only the state fits, the reference's file does not.
            for elements in ("4M", "1M"):
                result = run("--path", self.folder, "--elements", elements, *SMALL[2:])
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn("room", result.stderr + result.stdout)
                self.assertEqual(os.listdir(self.folder), [])
        finally:
            subprocess.run(["umount", self.folder], check=True)


class Results(SwapBenchTest):
    def test_every_number_is_there_and_adds_up(self):
        for form, orders, queues in (("10", "both", 2), ("12", "mixed", 1), ("8", "bursts", 2),
                                     ("6", "mixed", 2)):
            with self.subTest(form=form):
                out = self.path("out.json")
                result = run("--path", self.folder, *SMALL, "--bytes-per-element", form, "--order",
                             orders, "--queues", queues, "--steps", "2", "--json", out)
                self.assertEqual(result.returncode, 0, result.stderr)
                with open(out, encoding="utf-8") as file:
                    data = json.load(file)
                names = ["mixed", "bursts"] if orders == "both" else [orders]
                self.assertEqual(data["records"], 17)
                self.assertEqual(len(data["rounds"]), 2)
                self.assertEqual(sorted(data["medians"]), sorted(names))
                image = 4096 + 65536 * int(form)
                last = 1050000 - 16 * 65536
                fields = {"10": (2, 4, 4), "12": (4, 4, 4), "8": (4, 4),
                          "6": (2, 2, 2)}[form]
                last_bytes = sum((size * last + 63) // 64 * 64 for size in fields)
                moved = 16 * image + 4096 + (last_bytes + 4095) // 4096 * 4096
                for one in data["rounds"]:
                    self.assertEqual([step["order"] for step in one["steps"]], names)
                    self.assertGreater(one["aio_mixed"]["read_gb_per_s"], 0)
                    for step in one["steps"]:
                        self.assertEqual(step["read_bytes"], moved)
                        self.assertEqual(step["write_bytes"], moved)
                        self.assertEqual(step["records_written"], 17)
                        self.assertAlmostEqual(step["read_gb_per_s"],
                                               moved / step["seconds"] / 1e9)
                        self.assertLessEqual(
                            step["wait_read_s"] + step["compute_s"] + step["wait_write_s"],
                            step["seconds"] * 1.001)
                pinned = data["pinned"]
                self.assertEqual(pinned["promised_bytes"], 3 * image)
                self.assertEqual(pinned["peak_leased_bytes"], 3 * image)
                self.assertGreater(data["checksums"]["alone_gb_per_s"], 0)
                self.assertEqual(os.listdir(self.folder), ["out.json"])

    def test_table_and_sentences(self):
        result = run("--path", self.folder, *SMALL, "--steps", "1")
        self.assertEqual(result.returncode, 0, result.stderr)
        for word in ("swap_bench ", "read GB/s", "wait write", "of aio", "median", "checksums:",
                     "promised", "leased at most", "bottleneck (", "bytes read and"):
            self.assertIn(word, result.stdout)
        self.assertNotIn("\r", result.stderr, "a progress line where there is no terminal")

    def test_budget_is_kept_to(self):
        result = run("--path", self.folder, *(word for word in SMALL if word not in
                                              ("--buffers", "3")), "--pinned-budget", "3M",
                     "--steps", "1", "--json", "-", "--aio-reference", "off", "--compute", "none")
        self.assertEqual(result.returncode, 0, result.stderr)
        data = json.loads(result.stdout)
        self.assertEqual(data["pinned"]["buffers"], 4)
        self.assertLessEqual(data["pinned"]["peak_leased_bytes"], 3 << 20)
        self.assertNotIn("aio_mixed", data["rounds"][0])
        self.assertNotIn("share_of_aio_mixed", data["medians"]["mixed"])

    def test_two_paths_and_posix(self):
        for name in "ab":
            os.mkdir(self.path(name))
        result = run("--path", self.path("a"), "--path", self.path("b"), "--weights", "2:1",
                     "--stripe-size", "64K", *SMALL, "--backend", "posix", "--steps", "1",
                     "--json", "-")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["backend"], "posix")
        self.assertEqual(os.listdir(self.path("a")) + os.listdir(self.path("b")), [])

    def test_help_teaches(self):
        result = run("--help")
        self.assertEqual(result.returncode, 0)
        for word in ("--path", "--order", "--pinned-budget", "Examples", "powers of 1024", "[1G"):
            self.assertIn(word, result.stdout)


class Interrupted(SwapBenchTest):
    def start(self, *arguments):
        def default_sigint():
            # A shell's background job ignores SIGINT; the program must not inherit that here.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        return subprocess.Popen(command("--path", self.folder, *arguments),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                preexec_fn=default_sigint)

    def stop(self, process, number):
        process.send_signal(number)
        output, errors = process.communicate(timeout=20)
        self.assertEqual(process.returncode, 130, errors)
        self.assertIn("interrupted", output + errors)
        self.assertEqual(os.listdir(self.folder), [])

    def test_the_state_is_removed_on_ctrl_c(self):
        process = self.start(*SMALL, "--steps", "1000")
        for line in process.stdout:
            if line.startswith("mixed"):
                break
        self.stop(process, signal.SIGINT)
        process = self.start("--elements", "256M", "--record-elements", "64K", "--steps", "1000")
        while not os.listdir(self.folder):
            time.sleep(0.01)
        self.stop(process, signal.SIGTERM)

    def test_what_a_killed_run_left_is_replaced(self):
        process = self.start(*SMALL, "--steps", "1000")
        for line in process.stdout:
            if line.startswith("mixed"):
                break
        process.kill()
        process.communicate()
        self.assertEqual(os.listdir(self.folder), ["sluice-swap_bench"])
        result = run("--path", self.folder, *SMALL, "--steps", "1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("left incomplete", result.stderr)
        self.assertEqual(os.listdir(self.folder), [])

    def test_two_at_once_do_not_touch_each_other(self):
        process = self.start(*SMALL, "--steps", "1000")
        for line in process.stdout:
            if line.startswith("mixed"):
                break
        second = run("--path", self.folder, *SMALL, "--steps", "1")
        self.assertEqual(second.returncode, 2, second.stderr)
        self.assertIn("sluice-swap_bench", second.stderr)
        self.stop(process, signal.SIGINT)


if __name__ == "__main__":
    if not os.access(SWAP_BENCH, os.X_OK):
        sys.exit(f"no program at {SWAP_BENCH}: set SWAP_BENCH")
    unittest.main()
