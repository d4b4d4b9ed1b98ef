"""aio_bench's files: on other file systems, verified, existing ones, and after an interrupt."""

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
from pathlib import Path

from aio_bench_runs import (AIO_BENCH, AioBenchTest, MODES, Mounted, SHORT, command, measure, run,
                            sha256, uring_works)


class OwnFileSystems(AioBenchTest):
    def test_read_only(self):
        with Mounted(self.folder, "tmpfs", "ro,size=1m") as mount:
            if not mount.mounted:
                self.skipTest("mounting needs root and a mount namespace that allows it")
            result = run("--path", self.folder, "--size", "64K", "--block-size", "4K")
            self.before = []
            self.assert_refused(result, "--path", "read-only")
            result = run("--path", "/dev/shm", "--size", "64K", "--block-size", "4K",
                         "--json", self.path("x.json"))
            self.assert_refused(result, "--json", "read-only")

    def test_full_disk(self):
        with Mounted(self.folder, "tmpfs", "size=8m") as mount:
            if not mount.mounted:
                self.skipTest("mounting needs root and a mount namespace that allows it")
            self.before = []
            self.assert_refused(run("--path", self.folder, "--size", "16M"), "--size 16M",
                                self.folder, "8M are free")
            with open(self.path("filler"), "wb") as filler:
                filler.write(bytes(7 << 20))
            self.before = ["filler"]
            self.assert_refused(run("--path", self.folder, "--size", "4M"), "1M are free")

    def test_full_loop_mounted_disk(self):
        image = tempfile.NamedTemporaryFile(dir=os.getcwd(), prefix="aio_bench_image_")
        self.addCleanup(image.close)
        image.truncate(24 << 20)
        made = shutil.which("mkfs.ext4") and os.geteuid() == 0 and subprocess.run(
            ["mkfs.ext4", "-q", "-F", "-m", "0", image.name], capture_output=True).returncode == 0
        if not made or subprocess.run(["mount", "-o", "loop", image.name, self.folder],
                                      capture_output=True).returncode != 0:
            self.skipTest("no loop mount here: it needs root, mkfs.ext4 and a loop device")
        try:
            free = os.statvfs(self.folder)
            whole = free.f_bavail * free.f_frsize // 4096 * 4096
            # All that is free and no more: the file system's own bookkeeping no longer fits.
            result = measure("--path", self.folder, "--size", whole, "--block-size", "4K", *SHORT)
            self.assertIn(result.returncode, (0, 2), result.stderr)
            if result.returncode == 2:
                self.assertIn("no room", result.stderr)
            self.before = ["lost+found"]
            self.assert_refused(run("--path", self.folder, "--size", "64M"), "are free")
        finally:
            subprocess.run(["umount", self.folder], check=True)

    def test_memory_file_system_works_buffered_and_says_so_once(self):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            result = measure("--path", folder, "--size", "4M", "--mode", "all", *SHORT)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(result.stderr.count("page cache"), 1, result.stderr)
            self.assertIn("buffered", result.stdout)
            self.assertEqual(os.listdir(folder), [])


class Verify(AioBenchTest):
    def check(self, backend):
        for mode in MODES:
            with self.subTest(mode=mode, backend=backend):
                result = measure("--path", self.folder, "--size", "5M", "--mode", mode, "--verify",
                                 "--backend", backend, "--block-size", "64K", "--queue-depth", "8",
                                 "--json", "-", "--seconds", "0.1", "--runs", "2")
                self.assertEqual(result.returncode, 0, result.stderr)
                for one in json.loads(result.stdout)["runs"]:
                    self.assertEqual(one["backend"], backend)
                    self.assertGreaterEqual(one["verified_bytes"],
                                            (5 << 20) if mode in ("write", "mixed") else 65536)
                self.assertIn("verified", result.stderr)
                self.assertEqual(os.listdir(self.folder), [])

    def test_posix(self):
        self.check("posix")

    def test_uring(self):
        if not uring_works(self.folder):
            self.skipTest("io_uring is refused here")
        self.check("uring")

    def test_catches_a_byte_changed_behind_its_back(self):
        file = self.make_file(size=64 << 20)
        process = subprocess.Popen(
            command("--file", file, "--verify", "--overwrite", "--mode", "read", "--seconds", "60",
                    "--ramp", "0.02", "--runs", "1"),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            # The table's heading comes when the pattern is written and the measured run begins.
            for line in process.stdout:
                if line.startswith("mode"):
                    break
            descriptor = os.open(file, os.O_RDWR)
            old = os.pread(descriptor, 1, 40_000_001)
            os.pwrite(descriptor, bytes([old[0] ^ 1]), 40_000_001)
            os.fsync(descriptor)
            os.close(descriptor)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
            process.communicate()
        self.assertEqual(process.returncode, 1, errors)
        for word in ("wrong data", file, "40000001", "expected", "got"):
            self.assertIn(word, errors)


class ExistingFile(AioBenchTest):
    def test_reads_never_change_it(self):
        file = self.make_file(size=(2 << 20) + 12345)
        before = sha256(file), os.stat(file).st_mtime_ns
        for mode in ("read", "randread"):
            result = measure("--file", file, "--mode", mode, "--block-size", "64K", *SHORT)
            self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual((sha256(file), os.stat(file).st_mtime_ns), before)

    def test_reads_a_file_that_may_not_be_written(self):
        file = self.make_file()
        os.chmod(file, 0o444)
        self.assertEqual(measure("--file", file, *SHORT).returncode, 0)

    def test_writes_need_overwrite(self):
        file = self.make_file()
        before = sha256(file), os.stat(file).st_mtime_ns
        self.refuse("--file", file, "--mode", "write", needles=["--file", "--overwrite"])
        self.refuse("--file", file, "--mode", "mixed", needles=["--file", "--overwrite"])
        self.refuse("--file", file, "--mode", "all", needles=["--file", "--overwrite"])
        self.refuse("--file", file, "--verify", needles=["--file", "--overwrite", "--verify"])
        self.refuse("--file", file, "--sweep", needles=["--file", "--overwrite"])
        self.assertEqual((sha256(file), os.stat(file).st_mtime_ns), before)
        result = measure("--file", file, "--mode", "write", "--overwrite", *SHORT)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotEqual(sha256(file), before[0])
        self.assertEqual(os.stat(file).st_size, 4 << 20)

    def test_leaves_what_lies_behind_size_alone(self):
        file = self.make_file()
        with open(file, "rb") as data:
            tail = data.read()[2 << 20:]
        result = measure("--file", file, "--size", "2M", "--mode", "mixed", "--overwrite",
                         "--verify", *SHORT)
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(file, "rb") as data:
            self.assertEqual(data.read()[2 << 20:], tail)


class Interrupted(AioBenchTest):
    def start(self, *arguments):
        def default_sigint():
            # A shell's background job ignores SIGINT; the program must not inherit that here.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        return subprocess.Popen(command("--path", self.folder, *arguments),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                preexec_fn=default_sigint)

    def wait_until_it_fills(self, process):
        """A loaded machine may not have begun with the program yet. Its file, which has no name,
        comes after it has begun to take signals."""
        def has_file():
            try:
                return any(os.readlink(link).startswith(str(self.folder))
                           for link in Path(f"/proc/{process.pid}/fd").iterdir())
            except FileNotFoundError:  # closed meanwhile
                return False

        while process.poll() is None and not has_file():
            time.sleep(0.01)

    def stop(self, process, number):
        begin = time.monotonic()
        process.send_signal(number)
        output, errors = process.communicate(timeout=20)
        self.assertEqual(process.returncode, 130, errors)
        self.assertLess(time.monotonic() - begin, 5)
        self.assertIn("interrupted", output + errors)
        self.assertEqual(os.listdir(self.folder), [])
        return output

    def test_while_measuring(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process = self.start("--size", "8M", "--seconds", "0.2", "--runs", "1000")
            for line in process.stdout:
                if line.startswith("read "):
                    break
            self.stop(process, number)

    def test_while_filling_and_in_a_sweep(self):
        process = self.start("--size", "1G", "--seconds", "60")
        self.wait_until_it_fills(process)
        self.stop(process, signal.SIGINT)
        process = self.start("--size", "16M", "--sweep", "--seconds", "1")
        self.wait_until_it_fills(process)
        time.sleep(1)
        self.stop(process, signal.SIGINT)

    def test_the_kill_that_nobody_can_catch_leaves_nothing_either(self):
        process = self.start("--size", "64M", "--seconds", "60")
        self.wait_until_it_fills(process)
        process.kill()
        process.communicate()
        self.assertEqual(os.listdir(self.folder), [])


if __name__ == "__main__":
    if not os.access(AIO_BENCH, os.X_OK):
        sys.exit(f"no program at {AIO_BENCH}: set AIO_BENCH")
    unittest.main()
