"""Reads a run's folder: steps, events, configuration, and whether it still trains."""

import json
import math
import os
import time
from pathlib import Path

from .outputs import Failure
from .records import parse, plain_text, record_of
from .tail import Tail, open_file, parts_of

KINDS = {"begin", "checkpoint", "warning", "end"}
MOST_LINES = 20_000  # per call
MOST_PARAMETERS = 1000
MOST_VALUE = 400  # characters
MOST_CONFIG = 16 << 20
QUIET_S = 60  # no process trains, and no line has arrived
GONE_S = 3  # the training process is gone


class Run:
    def __init__(self, path):
        self.path = Path(path)
        if self.path.is_dir():
            self.folder = self.path
            self.metrics = Tail(str(self.path / "metrics.jsonl"))
            self.event_lines = Tail(str(self.path / "events.jsonl"))
        else:
            self.folder = None
            self.metrics = Tail(os.path.realpath(self.path))  # the user may name a link
            self.event_lines = None
        self.events = []  # all so far
        self.bad_lines = 0
        self._had_lock = False
        self._free_since = None
        self._last_news = time.monotonic()
        self._has_said_quiet = False

    def check_there(self):
        if self.folder is None and not self.path.exists():
            raise Failure(f"{self.path} does not exist: pass the folder of a run (sluice train"
                          " --out), or a metrics.jsonl")
        if self.folder is not None and not any(
                (self.folder / name).exists() for name in ("config.json", "lock")) and not parts_of(
                    self.metrics.path):
            raise Failure(f"{self.path} is not the folder of a run (sluice train --out): it has"
                          " neither metrics.jsonl nor config.json")

    # ---- steps and events

    def read_events(self):
        """Reads new events. Returns whether there were any."""
        if self.event_lines is None:
            return False
        before = len(self.events)
        while True:
            lines, restarted = self.event_lines.poll()
            if restarted:  # files only grow: the same events again, or another run's
                self.events = []
            for line in lines:
                found = parse(line) if line else None
                if found is not None and found.get("event") in KINDS and isinstance(
                        found.get("step"), int):
                    self.events.append(found)
                elif line:
                    self.bad_lines += 1
            if self.event_lines.at_end:
                break
        if len(self.events) != before:
            self._last_news = time.monotonic()
        return len(self.events) != before

    def read_steps(self):
        """Reads up to MOST_LINES records. Also returns whether they are the run's first ones
        again."""
        records, restarted = [], False
        while len(records) < MOST_LINES:
            lines, again = self.metrics.poll()
            if again:
                records, restarted = [], True
            records += self._records_of(lines)
            if self.metrics.at_end:
                break
        if records or restarted:
            self._last_news = time.monotonic()
        return records, restarted

    def rest(self):
        """The last line if it lacks its line break but is otherwise complete."""
        return self._records_of(self.metrics.rest(), may_be_torn=True)

    def _records_of(self, lines, may_be_torn=False):
        records = []
        for line in lines:
            found = parse(line) if line else None
            record = record_of(found) if found is not None else None
            if record is not None:
                records.append(record)
            elif line and not may_be_torn:
                self.bad_lines += 1
        return records

    def identity(self):
        """Identifies the run among others in the same folder; None if there are no events."""
        for event in self.events:
            if event["event"] == "begin":
                return f"began {event.get('unix_s')}"
        return None

    # ---- configuration

    def parameters(self):
        """Dotted keys of config.json, and the last begin event's model and machine."""
        found = {}
        if self.folder is not None:
            try:
                with os.fdopen(open_file(self.folder / "config.json"), encoding="utf-8") as file:
                    flatten(json.loads(file.read(MOST_CONFIG)), "", found)
            except (OSError, ValueError, RecursionError, Failure):
                pass
        for event in reversed(self.events):
            if event["event"] == "begin":
                for key in ("model", "machine", "ranks", "build", "tokens_per_step"):
                    if key in event:
                        flatten(event[key], f"run.{key}", found)
                break
        return found

    # ---- whether it still trains

    def ending(self):
        """(how, reason) if the run has ended, otherwise None."""
        for event in reversed(self.events):
            if event["event"] == "end":
                return plain_text(event.get("how", "")), plain_text(event.get("reason", ""))
            if event["event"] == "begin":
                return None
        return None

    def is_left(self, say):
        """Whether the training process is gone without having recorded an end."""
        is_held = _is_locked(self.folder / "lock") if self.folder is not None else None
        now = time.monotonic()
        if is_held:
            self._had_lock = True
            self._free_since = None
            return False
        if not self._had_lock or is_held is None:
            if now - self._last_news > QUIET_S and not self._has_said_quiet:
                self._has_said_quiet = True
                say(f"{self.path} has not changed for {QUIET_S} s, and no process on this machine"
                    " trains there; waiting for it (Ctrl-C stops)")
            return False
        if self._free_since is None:
            self._free_since = now
        return now - self._free_since > GONE_S


def _is_locked(path):
    """None if unknown. The lock is not taken, which would block a run that starts."""
    try:
        inode = os.stat(path).st_ino
        with open("/proc/locks", encoding="ascii", errors="replace") as locks:
            return any(word.count(":") == 2 and word.endswith(f":{inode}")
                       for line in locks for word in line.split())
    except OSError:
        return None


def flatten(value, path, found, depth=0):
    if len(found) >= MOST_PARAMETERS:
        return
    if isinstance(value, dict) and value and depth < 16:
        for key, inner in value.items():
            flatten(inner, f"{path}.{key}" if path else str(key), found, depth + 1)
        return
    if isinstance(value, float) and not math.isfinite(value):
        value = str(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        value = str(value) if abs(value) < 10**100 else "large"
    if not isinstance(value, (bool, int, float)):
        try:
            text = value if isinstance(value, str) else json.dumps(value)
        except RecursionError:
            text = "nested too deep"
        value = plain_text(text)[:MOST_VALUE]
    found[plain_text(path)[:250]] = value
