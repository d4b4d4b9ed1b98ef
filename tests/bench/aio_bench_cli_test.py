"""aio_bench's command line: what it refuses, prints and writes as JSON."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import unittest

from aio_bench_runs import AIO_BENCH, AioBenchTest, MODES, SHORT, command, measure, run, sha256


class BadInput(AioBenchTest):
    def test_sizes(self):
        for value in ("0", "-1", "x", "", "1.5", "4X", "100", "99999999999999999999"):
            self.refuse("--size", value, needles=["--size", "4K" if value in ("0", "100") else ""])
        for value in ("0", "1000", "4097", "2G", "big", "-4096", ""):
            self.refuse("--block-size", value, needles=["--block-size", value])
        self.refuse("--block-size", "1000", needles=["4096", "because", "sectors"])
        self.refuse("--size", "64K", "--block-size", "1M", needles=["--block-size 1M", "64K"])

    def test_size_over_free_space(self):
        free = shutil.disk_usage(self.folder).free
        self.refuse("--size", "900T", needles=["--size 900T", self.folder, "are free"])
        self.assertGreater(shutil.disk_usage(self.folder).free, free // 2)

    def test_counts(self):
        self.refuse("--queue-depth", "", needles=["--queue-depth", "empty"])
        for value in ("0", "4097", "-1", "many", "1.5"):
            self.refuse("--queue-depth", value, needles=["--queue-depth", value, "1 to 4096"])
        for value in ("0", "65", "-2", "two"):
            self.refuse("--threads", value, needles=["--threads", value, "1 to 64"])
        for value in ("0", "-1", "x"):
            self.refuse("--runs", value, needles=["--runs", value])
        for value in ("0", "-1", "x", "nan", "inf", "1e9", ""):
            self.refuse("--seconds", value, needles=["--seconds", value])
        for value in ("-1", "x", "nan"):
            self.refuse("--ramp", value, needles=["--ramp", value])
        for value in ("-1", "x"):
            self.refuse("--seed", value, needles=["--seed", value])
        self.refuse("--threads", "8", "--queue-depth", "1024",
                    needles=["--threads 8", "8192", "4096"])
        self.refuse("--block-size", "1G", "--size", "1G", "--queue-depth", "4096",
                    needles=["--block-size 1G", "memory"])

    def test_names(self):
        self.refuse("--mode", "fast", needles=["--mode fast", "randread"])
        self.refuse("--backend", "aio", needles=["--backend aio", "uring", "posix"])
        self.refuse("--colour", needles=["--colour", "--help"])
        self.refuse("extra", needles=["extra", "--help"])
        self.refuse("--size", needles=["--size", "exactly one value", "--help"])
        self.refuse("--size", "1G", "--size", "2G", needles=["--size", "exactly one value"])
        self.refuse("--verify=3", needles=["--verify", "takes no value"])

    def test_paths(self):
        self.refuse("--path", self.path("nowhere"), needles=["--path", "nowhere", "no such"])
        self.refuse("--path", "", needles=["--path"])
        file = self.make_file()
        self.refuse("--path", file, needles=["--path", "is a file", "--file"])
        self.refuse("--path", file + "/x", needles=["--path", "not a folder"])
        self.refuse("--path", "/proc", "--size", "1M", needles=["/proc"])

    def test_no_permission(self):
        closed = self.path("closed")
        os.mkdir(closed, 0o555)
        if os.geteuid() != 0:
            self.refuse("--path", closed, needles=["--path", "no permission"])
            return
        # As root the permission bits mean nothing: ask as somebody else.
        os.chmod(self.folder, 0o755)
        reachable = subprocess.run(
            ["su", "-s", "/bin/sh", "nobody", "-c", f"test -x '{AIO_BENCH}'"], capture_output=True)
        if reachable.returncode != 0:
            self.skipTest("as root, and there is no user nobody who can start the program")
        result = subprocess.run(
            ["su", "-s", "/bin/sh", "nobody", "-c", f"'{AIO_BENCH}' --path '{closed}' --size 1M"],
            capture_output=True, text=True)
        self.before = ["closed"]
        self.assert_refused(result, "--path", "no permission")

    def test_stripes(self):
        two = ("--path", self.folder, "--path", self.folder)
        self.refuse("--weights", "2:1", needles=["--weights 2:1", "several --path"])
        self.refuse(*two, "--weights", "1", needles=["--weights 1"])
        for value in ("1:0", "1:65", "1:x", "", ":", "1:2:3"):
            self.refuse(*two, "--weights", value, needles=["--weights", value])
        self.refuse(*two, "--stripe-size", "1000", needles=["--stripe-size 1000", "4096"])
        self.refuse("--stripe-size", "1M", needles=["--stripe-size", "several --path"])

    def test_json(self):
        self.refuse("--json", self.folder, needles=["--json", "is a folder"])
        self.refuse("--json", self.path("no/x.json"), needles=["--json", "no folder"])
        self.refuse("--json", "", needles=["--json"])
        precious = self.make_file("precious.json")
        before = sha256(precious)
        self.refuse("--json", precious, needles=["--json", "not an earlier result"])
        self.assertEqual(sha256(precious), before)

    def test_sweep_and_verify_together(self):
        self.refuse("--sweep", "--verify", needles=["--verify", "--sweep"])
        self.refuse("--sweep", "--mode", "all", needles=["--mode all", "--sweep"])
        self.refuse("--out", "x.json", needles=["--out", "--sweep"])
        with open(self.path("ds.json"), "w", encoding="utf-8") as file:
            json.dump({"aio": {}, "fp16": {}}, file)
        self.refuse("--sweep", "--out", self.path("ds.json"), needles=["--out", "earlier result"])

    def test_file(self):
        file = self.make_file()
        self.refuse("--file", self.path("nowhere"), needles=["--file", "no such file"])
        self.refuse("--file", self.folder, needles=["--file", "is a folder"])
        self.refuse("--file", "/dev/null", needles=["--file", "regular file"])
        self.refuse("--file", self.make_file("empty", 0), needles=["--file", "empty"])
        self.refuse("--file", self.make_file("tiny", 100), "--block-size", "4K",
                    needles=["larger than the file"])
        self.refuse("--file", file, "--size", "8M", needles=["--size 8M", "4M"])
        self.refuse("--file", file, "--path", self.folder, needles=["--file", "--path"])
        self.refuse("--path", self.folder, "--overwrite", needles=["--overwrite", "--file"])


class Results(AioBenchTest):
    def test_json_of_one_mode(self):
        for mode in MODES:
            with self.subTest(mode=mode):
                begin = time.monotonic()
                result = measure("--path", self.folder, "--size", "8M", "--mode", mode, "--json",
                                 self.path("out.json"), "--seconds", "0.1", "--runs", "2",
                                 "--block-size", "64K", "--queue-depth", "4", "--threads", "2")
                self.assertEqual(result.returncode, 0, result.stderr)
                with open(self.path("out.json"), encoding="utf-8") as file:
                    data = json.load(file)
                self.assertIsInstance(data["version"], str)
                self.assertLessEqual({"cpu", "cores", "ram_bytes", "kernel", "paths"},
                                     set(data["machine"]))
                self.assertEqual(data["size_bytes"], 8 << 20)
                self.assertEqual(len(data["runs"]), 2)
                self.assertLess(sum(one["seconds"] for one in data["runs"]),
                                time.monotonic() - begin)
                self.assertEqual(
                    set(data["median"]),
                    {"mode", "read_gb_per_s", "write_gb_per_s", "iops", "p50_us", "p99_us",
                     "p999_us", "cpu_s_per_gb"})
                for one in data["runs"]:
                    self.assertLessEqual(set(data["median"]), set(one))
                    self.assertEqual((one["mode"], one["block_size"], one["queue_depth"],
                                      one["threads"]), (mode, 65536, 4, 2))
                    self.assertIn(one["backend"], ("uring", "posix"))
                    self.assertIsInstance(one["direct"], bool)
                    self.assertIsInstance(one["registered_buffers"], bool)
                    self.assertGreater(one["iops"], 0)
                    self.assertLessEqual(one["p50_us"], one["p99_us"])
                    self.assertLessEqual(one["p99_us"], one["p999_us"])
                    self.assertGreaterEqual(one["seconds"], 0.1)
                    moved = one["read_bytes"] + one["write_bytes"]
                    self.assertAlmostEqual(
                        one["read_gb_per_s"] + one["write_gb_per_s"], moved / one["seconds"] / 1e9)
                    self.assertEqual(one["read_gb_per_s"] > 0, mode != "write")
                    self.assertEqual(one["write_gb_per_s"] > 0, mode in ("write", "mixed"))
        self.assertEqual(os.listdir(self.folder), ["out.json"])

    def test_json_of_all_modes_on_standard_output(self):
        result = measure("--path", self.folder, "--size", "8M", "--mode", "all", "--json", "-",
                         *SHORT)
        self.assertEqual(result.returncode, 0, result.stderr)
        data = json.loads(result.stdout)
        self.assertEqual(set(data["medians"]), {"read", "write", "mixed"})
        self.assertNotIn("median", data)
        self.assertIn("CPU s/GB", result.stderr)

    def test_json_into_a_pipe(self):
        seconds = ["--seconds", "2", *SHORT[2:]]  # with a sanitizer a transfer takes 0.15
        result = subprocess.run(
            ["/bin/sh", "-c", shlex.join(command("--path", self.folder, "--size", "4M", *seconds,
                                                 "--json", "/dev/stdout")) + " | cat"],
            capture_output=True, text=True)
        self.assertEqual(json.loads(result.stdout)["median"]["mode"], "read")

    def test_table(self):
        result = measure("--path", self.folder, "--size", "8M", "--seconds", "0.1", "--runs", "3")
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        self.assertIn("aio_bench ", lines[0])
        self.assertEqual(sum(line.startswith("read ") for line in lines), 4)
        self.assertIn("median", lines[-1])
        for word in ("GB/s", "IOPS", "p50", "p99.9", "CPU s/GB"):
            self.assertIn(word, result.stdout)
        self.assertNotIn("\r", result.stderr, "a progress line where there is no terminal")

    def test_odd_size_is_cut_to_whole_blocks_and_said(self):
        result = measure("--path", self.folder, "--size", (4 << 20) + 5000, *SHORT)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("4194304", result.stderr)

    def test_striped(self):
        for name in "ab":
            os.mkdir(self.path(name))
        for weights in ("2:1", "auto"):
            result = measure("--path", self.path("a"), "--path", self.path("b"), "--weights",
                             weights, "--stripe-size", "64K", "--size", "12M", "--mode", "all",
                             "--verify", "--block-size", "256K", *SHORT)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("striped by 64K", result.stdout)
        self.assertEqual(os.listdir(self.path("a")) + os.listdir(self.path("b")), [])

    def test_sweep_writes_a_section_and_replaces_only_its_own(self):
        arguments = ("--path", self.folder, "--size", "16M", "--sweep", "--threads", "1",
                     "--queue-depth", "4", "--seconds", "0.05", "--ramp", "0", "--runs", "1",
                     "--out", self.path("best.json"), "--json", self.path("sweep.json"))
        for _ in range(2):
            result = measure(*arguments)
            self.assertEqual(result.returncode, 0, result.stderr)
        with open(self.path("best.json"), encoding="utf-8") as file:
            section = json.load(file)
        self.assertEqual(set(section), {"aio"})
        self.assertEqual(set(section["aio"]), {"block_size", "queue_depth", "intra_op_parallelism",
                                               "single_submit", "overlap_events"})
        self.assertEqual(section["aio"]["queue_depth"], 4)
        self.assertIn("best: block", result.stdout)
        self.assertIn("earlier result", result.stderr)
        with open(self.path("sweep.json"), encoding="utf-8") as file:
            sweep = json.load(file)
        self.assertEqual(len(sweep["sweep"]["points"]), 7)
        best = max(sweep["sweep"]["points"], key=lambda point: point["gb_per_s"] or 0)
        chosen = next(point for point in sweep["sweep"]["points"]
                      if point["block_size"] == section["aio"]["block_size"])
        self.assertGreaterEqual(chosen["gb_per_s"], 0.98 * best["gb_per_s"])

    def test_no_transfer_is_no_result(self):
        for sweep in ([], ["--sweep", "--queue-depth", "1", "--threads", "1"]):
            with self.subTest(sweep=bool(sweep)):
                result = run("--path", self.folder, "--size", "64M", "--block-size", "64M", *sweep,
                             "--seconds", "0.000001", "--ramp", "0", "--json", self.path("out"),
                             cwd=self.folder)
                self.assertEqual(result.returncode, 1, result.stdout)
                self.assertRegex(result.stderr, "64M.*1e-06 s")
                self.assertNotIn("0.000", result.stdout)
                self.assertEqual(os.listdir(self.folder), [])

    def test_help_teaches(self):
        result = run("--help")
        self.assertEqual(result.returncode, 0)
        for word in ("--path", "--verify", "--sweep", "Examples", "powers of 1024", "[4G"):
            self.assertIn(word, result.stdout)
        self.assertEqual(run("--version").returncode, 0)


if __name__ == "__main__":
    if not os.access(AIO_BENCH, os.X_OK):
        sys.exit(f"no program at {AIO_BENCH}: set AIO_BENCH")
    unittest.main()
