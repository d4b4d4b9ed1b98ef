"""Shared by the project's Python tools: messages, exit codes and the number of jobs."""

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GIB = 1 << 30
PR_SET_PDEATHSIG = 1

EXIT_FAILURE = 1  # something on this machine, or in the code, is wrong
EXIT_USAGE = 2    # the command line makes no sense


class Failure(Exception):
    """A step that cannot continue. Its text says what happened and what to do about it."""


class Parser(argparse.ArgumentParser):
    """Reports a bad command line in one sentence, with exit code 2."""

    def __init__(self, **keywords):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter,
                         allow_abbrev=False, **keywords)

    def error(self, message):
        print(f"{self.prog}: {message}; {self.prog} --help explains every option",
              file=sys.stderr)
        sys.exit(EXIT_USAGE)


def positive_count(text):
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a count of 1 or more")
    return int(text)


def end_with_parent(parent=None):
    """Makes the kernel end this process with its parent.

    parent: the pid, if known. The parent may have ended before this call."""
    parent = parent or os.getppid()  # may be 1: in a container any process can have that number
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def say(message):
    print(f"==> {message}", flush=True)


def main_guard(program, main):
    """Runs main(), turning failures into a sentence and an exit code."""
    try:
        sys.exit(main())
    except Failure as failure:
        sys.stdout.flush()
        print(f"{program}: {failure}", file=sys.stderr)
        sys.exit(EXIT_FAILURE)
    except KeyboardInterrupt:
        print(f"\n{program}: stopped; run it again to continue where it was", file=sys.stderr)
        sys.exit(130)


MOST_NESTING = 64  # for JSON from outside; the bound of aio/bounded_json.h


def read_json(text):
    """The result of json.loads(). Raises ValueError also for a value nested deeper than
    MOST_NESTING levels:
    code that copies or writes it recurses."""
    too_deep = ValueError(f"nested deeper than {MOST_NESTING} levels")
    try:
        value = json.loads(text)
    except RecursionError:
        raise too_deep from None
    brackets = (b"[", b"{") if isinstance(text, (bytes, bytearray)) else ("[", "{")
    if sum(map(text.count, brackets)) <= MOST_NESTING:
        return value
    level = [value]
    for _ in range(MOST_NESTING):
        level = [inner for outer in level if isinstance(outer, (dict, list))
                 for inner in (outer.values() if isinstance(outer, dict) else outer)
                 if isinstance(inner, (dict, list))]
        if not level:
            return value
    raise too_deep


def cache_folder():
    """The folder for files that outlive a build folder, shared by all clones of this user."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "sluice"


@contextlib.contextmanager
def lock(path, what):
    """Allows one set-up at a time in the folder; the kernel unlocks it when the process ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = open(path, "w", encoding="ascii")
    except OSError as error:
        raise Failure(f"cannot write {path} ({error.strerror}); set-up needs a folder of yours, "
                      "on a disk with room") from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another set-up that is {what}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def available_memory_bytes():
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        for line in meminfo:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 2 * GIB


def default_jobs():
    """One compiler for each core that has 2 GiB of free memory."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, available_memory_bytes() // (2 * GIB)))
