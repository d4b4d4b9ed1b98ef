"""Runs a program within a time limit; shows progress, and describes the machine."""

import contextlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TAIL_BYTES = 16_000


def last_words(output):
    """The line that gives the reason: Python's last one, or step_bench's own message."""
    lines = [line.strip() for line in output.strip().splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("step_bench:") or "Error" in line]
    return (told or lines or ["no words"])[-1][:300]


def stop(process):
    """Kills the process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_limited(command, limit_s, show):
    """(exit code or None after a time-out, the end of its output, seconds)."""
    begin = time.monotonic()
    with tempfile.TemporaryFile() as said:
        # Start a session, so that all of its processes can be killed with it.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            while process.poll() is None and time.monotonic() - begin < limit_s:
                show(time.monotonic() - begin)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)
        finally:
            timed_out = process.poll() is None
            stop(process)
        said.seek(max(0, said.seek(0, os.SEEK_END) - TAIL_BYTES))
        text = said.read().decode("utf-8", "replace")
    return None if timed_out else process.returncode, text, time.monotonic() - begin


class Progress:
    """One line that is rewritten on a terminal, or a plain line for each run."""

    def __init__(self):
        self.on = sys.stderr.isatty()

    def show(self, text):
        if self.on:
            width = shutil.get_terminal_size().columns - 1
            print("\r\033[K" + text[:width], end="", file=sys.stderr, flush=True)

    def say(self, text):
        print(("\r\033[K" if self.on else "") + text, file=sys.stderr, flush=True)


def first_line(command):
    """The first line that the command prints; None if it fails."""
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True,
                              check=True).stdout.strip().splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


def machine():
    cpu = "unknown"
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        match = re.search(r"model name\s*:\s*(.+)", file.read())
        cpu = match[1] if match else cpu
    return {"cpu": cpu, "cores": len(os.sched_getaffinity(0)),
            "ram_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "kernel": f"{platform.system()} {platform.release()}",
            "gpu": first_line(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])}
