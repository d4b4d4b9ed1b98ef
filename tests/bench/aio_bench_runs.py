"""Runs of aio_bench, which is the environment's AIO_BENCH."""

import hashlib
import os
import shutil
import subprocess
import tempfile
import unittest

AIO_BENCH = os.path.abspath(os.environ.get("AIO_BENCH", "build/bin/aio_bench"))
SHORT = ["--seconds", "0.1", "--ramp", "0.02", "--runs", "1"]
MODES = ["read", "write", "mixed", "randread"]


def command(*arguments):
    return [AIO_BENCH, *map(str, arguments)]


def run(*arguments, cwd=None, timeout=120):
    return subprocess.run(command(*arguments), cwd=cwd, timeout=timeout, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True)


def measure(*arguments):
    """Runs it with --seconds in the arguments, and, where the machine is too slow for that, with
    more of them, as the program advises."""
    arguments = list(arguments)
    seconds = arguments.index("--seconds") + 1
    while True:
        result = run(*arguments)
        if result.returncode != 1 or "give more --seconds" not in result.stderr or \
           float(arguments[seconds]) > 10:
            return result
        arguments[seconds] = str(float(arguments[seconds]) * 10)


def uring_works(folder):
    return measure("--path", folder, "--size", "1M", "--block-size", "4K", "--backend", "uring",
                   *SHORT).returncode == 0


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


class Mounted:
    """A file system of its own for a test, where this machine allows one."""

    def __init__(self, folder, kind, options):
        self.folder = folder
        self.mounted = os.geteuid() == 0 and subprocess.run(
            ["mount", "-t", kind, "-o", options, kind, folder],
            capture_output=True).returncode == 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.mounted:
            subprocess.run(["umount", self.folder], check=True)


class AioBenchTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="aio_bench_test_", dir=os.getcwd())
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def assert_refused(self, result, *needles):
        self.assertEqual(result.returncode, 2, result.stderr + result.stdout)
        lines = result.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertTrue(lines[0].startswith("aio_bench: "), lines[0])
        self.assertEqual(result.stdout, "")
        for needle in needles:
            self.assertIn(needle, lines[0])
        self.assertEqual(os.listdir(self.folder), self.before)

    def refuse(self, *arguments, needles):
        self.before = os.listdir(self.folder)
        if not any(a in ("--path", "--file") for a in arguments):
            arguments = ("--path", self.folder, *arguments)
        with self.subTest(arguments=arguments):
            self.assert_refused(run(*arguments, cwd=self.folder), *needles)

    def make_file(self, name="file", size=4 << 20):
        with open(self.path(name), "wb") as file:
            file.write(os.urandom(size))
        return self.path(name)
