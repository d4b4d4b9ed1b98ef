#!/usr/bin/env python3
"""Runs the cases of a GoogleTest program in one process, and says what became of each.

usage: run_cases.py [--filter=PATTERN] [--shard=K/N] [--outcomes=FILE] [--case-timeout=SECONDS]
                    PROGRAM [WORD...]

Prints what failed and skipped cases printed, and a line of counts. A case that crashes, ends the
process or runs for longer than the limit has failed; those behind it run in another process.
--shard=2/3: the second, the fifth and every third case from there on.

FILE gets a line for each case: "passed", "failed" or "skipped", its seconds and its name, with tabs
between them. Before that it gets one that says "running", so that a reader knows which case it was
if this program itself is killed.
"""

import argparse
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

MARK = re.compile(r"\[ *(RUN|OK|SKIPPED|FAILED) *\] ([^\s,]+\.[^\s,]+)")
COUNT = re.compile(r"^\[==========\] Running (\d+) tests? from ")
OUTCOMES = {"OK": "passed", "SKIPPED": "skipped", "FAILED": "failed"}
# What a sanitizer prints that reports and carries on; the process then fails only at its end.
REPORT = "WARNING: ThreadSanitizer"
SECONDS_TO_DRAIN = 5
LINES_KEPT = 5000  # of what a case printed


def parse_options():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--filter", default="*")
    parser.add_argument("--shard")
    parser.add_argument("--outcomes", default=os.devnull)
    parser.add_argument("--case-timeout", type=float, default=300)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        parser.error("which program?")
    return options


class Lines:
    """What a process prints, line by line, with a time limit."""

    def __init__(self, process):
        self._lines = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()

    def _read(self, stream):
        for line in stream:
            self._lines.put(line)
        self._lines.put(None)

    def next(self, seconds):
        """A line, "" after so many seconds, or None at the end."""
        try:
            return self._lines.get(timeout=max(0, seconds))
        except queue.Empty:
            return ""


class Cases:
    """What became of each case."""

    def __init__(self, file):
        self._file = file
        self.outcomes = {}

    def set(self, name, outcome, seconds=0.0):
        self.outcomes[name] = outcome
        self._file.write(f"{outcome}\t{seconds:.2f}\t{name}\n")
        self._file.flush()

    def failed(self):
        return [name for name, outcome in self.outcomes.items() if outcome == "failed"]


class Run:
    """One process of the program: it ends by itself, by a crash or by the time limit of a case."""

    def __init__(self, command, case_timeout, cases):
        self._case_timeout = case_timeout
        self._cases = cases
        self._current, self._printed, self._begin = None, [], time.monotonic()
        self._reported = []  # cases during which a sanitizer reported something
        self.announced = None
        self.ran = 0
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              stdin=subprocess.DEVNULL, text=True, errors="replace",
                              start_new_session=True) as process:
            try:
                self._follow(process)
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self.status = process.wait()
        self._end()

    def complete(self):
        return self.announced is not None and self.ran >= self.announced

    def _follow(self, process):
        lines, gone_since = Lines(process), None
        while True:
            left = self._case_timeout - (time.monotonic() - self._begin)
            if left <= 0:
                self._printed.append(f"still running after {self._case_timeout:.0f} s: stopped\n")
                return
            line = lines.next(min(left, 1))
            if line is None:
                return
            if line:
                self._take(line)
            elif process.poll() is not None:  # a child of it may still hold the pipe
                gone_since = gone_since or time.monotonic()
                if time.monotonic() - gone_since > SECONDS_TO_DRAIN:
                    return

    def _take(self, line):
        count = COUNT.match(line)
        if count:
            self.announced = int(count[1])
        mark = MARK.search(line)
        self._printed.append(line)
        del self._printed[:-LINES_KEPT]
        if REPORT in line:
            self._reported.append(self._current)
        if not mark:
            return
        word, name = mark.groups()
        if word == "RUN" and self._current is None:
            self._current, self._printed, self._begin = name, [line], time.monotonic()
            self._cases.set(name, "running")
        elif word != "RUN" and name == self._current:
            self._close(OUTCOMES[word])

    def _close(self, outcome):
        if outcome != "passed":
            print("".join(self._printed), end="", flush=True)
        self._cases.set(self._current, outcome, time.monotonic() - self._begin)
        self._current, self._printed, self._begin = None, [], time.monotonic()
        self.ran += 1

    def _end(self):
        if self._current is not None:
            how = (f"signal {-self.status}" if self.status < 0 else f"exit status {self.status}")
            self._printed.append(f"\n{self._current}: the process ended with {how} during this "
                                 "case\n")
            self._close("failed")
        elif self.status != 0 and not self._cases.failed():
            print("".join(self._printed), end="")
            for name in filter(None, self._reported):
                self._cases.set(name, "failed")
                print(f"{name}: ThreadSanitizer reported something during this case")


def listed(options):
    """The names of the cases that are to run."""
    text = subprocess.run([*options.command, "--gtest_list_tests",
                           f"--gtest_filter={options.filter}"],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          check=True).stdout
    names, suite = [], None
    for line in text.splitlines():
        word = line.split("#")[0].rstrip()
        if line.startswith("  "):
            names.append(suite + word.strip())
        elif word.endswith("."):
            suite = word
    if options.shard is None:
        return names
    number, count = map(int, options.shard.split("/"))
    return names[number - 1::count]


def run_all(options, cases):
    """Whether the program ran all of its cases and only complains about those that failed."""
    def run(pattern):
        return Run([*options.command, "--gtest_color=no", "--gtest_print_time=0",
                    f"--gtest_filter={pattern}"], options.case_timeout, cases)

    sound = True
    if options.shard is None:
        first = run(options.filter)
        sound = first.status == 0 or bool(cases.failed())
        if first.complete() or first.ran == 0:
            return first.complete() and sound
    while True:
        left = [name for name in listed(options) if name not in cases.outcomes]
        if not left:
            return sound
        if cases.outcomes:
            print(f"{len(left)} cases did not run in that process and run in another", flush=True)
        again = run(":".join(left))
        if again.ran == 0 or again.status != 0 and not cases.failed():
            return False


def main():
    options = parse_options()
    os.makedirs(os.path.dirname(options.outcomes) or ".", exist_ok=True)
    with open(options.outcomes, "w", encoding="utf-8") as file:
        cases = Cases(file)
        good = run_all(options, cases)
    counts = Counter(cases.outcomes.values())
    for name in cases.failed():
        print(f"failed: {name}")
    if not good:
        print(f"failed: the program {options.command[-1]} itself")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 0 if good and not cases.failed() else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
