"""Shared by end-to-end tests: folders, corpora, and the sluice program, run as a user would.

The program is the environment's SLUICE.
"""

import array
import json
import os
import random
import re
import resource
import sys
import tempfile
import threading
import unittest
from pathlib import Path

SLUICE = os.path.abspath(os.environ.get("SLUICE", "build/bin/sluice"))
WAIT_S = 120  # for an output or the end of a program: far more than either needs
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def corpus(count, seed):
    """Tokens below 61, each followed by one of two: a pattern to learn."""
    draw = random.Random(seed)
    last, tokens = 1, array.array("H")
    for _ in range(count):
        last = (last * 5 + 3 + draw.randrange(2)) % 61
        tokens.append(last)
    return tokens


def bytes_of(text):
    """The bytes of "1.5G", the form of sizes in the preflight table."""
    number, unit = re.fullmatch(r"([\d.]+)([KMGT]?)", text).groups()
    return float(number) * UNITS[unit]


class Outcome:
    """The output of a program, and its peak of resident memory."""

    def __init__(self, stdout, stderr, peak_bytes):
        self.stdout = stdout
        self.stderr = stderr
        self.peak_bytes = peak_bytes

    def planned(self, line):
        """The size in a line of the preflight table; 0 without such a line."""
        found = re.search(rf"^ +{re.escape(line)} +([\d.]+[KMGT]?)\b", self.stderr, re.MULTILINE)
        return bytes_of(found.group(1)) if found else 0


class Running:
    """A process whose standard error is a pipe, and the text that came from it so far."""

    def __init__(self, process):
        self.process = process
        self.text = ""
        self._said = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            with self._said:
                self.text += line
                self._said.notify_all()
        with self._said:
            self._said.notify_all()

    def _wait_until(self, said, what):
        with self._said:
            self._said.wait_for(lambda: said() or not self._reader.is_alive(), WAIT_S)
            if not said():
                raise AssertionError(f"it did not say {what}:\n{self.text}")

    def wait_for(self, text, times=1):
        self._wait_until(lambda: self.text.count(text) >= times, f"{text!r} {times} times")

    def wait_for_match(self, pattern):
        self._wait_until(lambda: re.search(pattern, self.text), f"what matches {pattern}")

    def wait_for_more_steps(self, count=3):
        """Waits for `count` further steps; with run.log_every of 1, each is a line."""
        self.wait_for("\nstep ", self.text.count("\nstep ") + count)

    def send(self, *numbers):
        for number in numbers:
            self.process.send_signal(number)

    def end(self):
        """Waits for the process; returns its exit code."""
        self.process.wait(WAIT_S)
        self._reader.join()
        self.process.stderr.close()
        return self.process.returncode


class SluiceRuns(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-e2e-", dir=os.getcwd())
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name)
        (self.path / "nvme").mkdir()

    def group(self, limit_bytes):
        """Creates a control group with that limit of memory; returns the file of its processes."""
        for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                            ("/sys/fs/cgroup", "memory.max")):
            folder = Path(root) / f"sluice-test-{os.getpid()}"
            try:
                folder.mkdir()
                self.addCleanup(folder.rmdir)
                (folder / limit).write_text(str(int(limit_bytes)))
                return folder / "cgroup.procs"
            except OSError:
                continue
        self.skipTest("no control group with a limit of memory can be made here: it needs root")

    def sluice(self, *arguments):
        """Runs it to success. The peak is the program's own, but never less than this process's."""
        with open(self.path / "stdout", "w+", encoding="utf-8") as stdout, \
             open(self.path / "stderr", "w+", encoding="utf-8") as stderr:
            actions = [(os.POSIX_SPAWN_DUP2, stdout.fileno(), 1),
                       (os.POSIX_SPAWN_DUP2, stderr.fileno(), 2)]
            words = [SLUICE, *map(str, arguments)]
            child = os.posix_spawn(SLUICE, words, os.environ, file_actions=actions)
            _, status, usage = os.wait4(child, 0)
            stdout.seek(0)
            stderr.seek(0)
            outcome = Outcome(stdout.read(), stderr.read(), usage.ru_maxrss * 1024)
        self.assertEqual(os.waitstatus_to_exitcode(status), 0, " ".join(words) + outcome.stderr)
        return outcome

    def tokens(self, name, count, seed):
        tokens = corpus(count, seed)
        if sys.byteorder == "big":
            tokens.byteswap()
        (self.path / name).write_bytes(tokens.tobytes())
        return tokens

    def write_run(self, run, name="run.json"):
        (self.path / name).write_text(json.dumps(run), encoding="utf-8")
        return self.path / name

    def metrics(self, name):
        lines = (self.path / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]


def own_peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
