"""CSV files: DIR/metrics.csv, one row per step, and DIR/events.csv."""

import csv
import math
import os

from .outputs import Output, open_new, open_to_add
from .records import NAMES, plain_text

FIRST = ["step", "tokens", "unix_s"]
EVENT_COLUMNS = ["event", "step", "unix_s", "text"]


class CsvFiles(Output):
    """The state contains each file's length, so that anything after it can be cut off."""

    kind = "CSV"
    files = ("metrics.csv", "events.csv", "config.csv")

    def __init__(self, folder):
        super().__init__(folder)
        self.metrics = self.folder / "metrics.csv"
        self.events = self.folder / "events.csv"
        self._columns = []

    def _begin(self, parameters):
        self._columns = [*FIRST, *NAMES.values()]
        self._replace(self.metrics, [self._columns])
        self._replace(self.events, [EVENT_COLUMNS])
        self._replace(self.folder / "config.csv", [["key", "value"], *parameters.items()])
        self._note_sizes()

    def _resume(self):
        sizes = self.state.get("bytes")
        if not sizes:
            return False
        for path in (self.metrics, self.events):
            kept = sizes.get(path.name, 0)
            if not path.exists() or path.stat().st_size < kept:
                return False
            os.truncate(path, kept)
        with open(self.metrics, encoding="utf-8", newline="") as file:
            self._columns = next(csv.reader(file), [])
        return self._columns[:len(FIRST)] == FIRST

    def _rewind(self, step):
        self._rewrite(lambda rows: (row for row in rows if not _is_from(row, step)))

    def _write(self, records):
        others = sorted({name for record in records for name in record.values}
                        - set(self._columns))
        if others:
            self._columns += others
            self._rewrite(lambda rows: (row + [""] * len(others) for row in rows))
        rows = []
        for record in records:
            known = {"step": record.step, "tokens": record.tokens, "unix_s": record.unix_s,
                     **record.values}
            rows.append([_shown(known.get(name)) for name in self._columns])
        self._append(self.metrics, rows)

    def _note(self, events):
        rows = []
        for event in events:
            text = event.get("text") or event.get("failed") or " ".join(
                str(event[key]) for key in ("how", "reason", "bytes") if key in event)
            rows.append([event["event"], event["step"], _shown(event.get("unix_s")),
                         plain_text(text)])
        self._append(self.events, rows)

    # ---- files

    def _append(self, path, rows):
        with open_to_add(path, newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
            file.flush()
            os.fsync(file.fileno())
        self._note_sizes()

    def _replace(self, path, rows):
        staged = path.with_name(path.name + ".new")
        with open_new(staged, newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
            file.flush()
            os.fsync(file.fileno())
        os.replace(staged, path)

    def _rewrite(self, change):
        """Rewrites metrics.csv with its current columns, and its rows changed by `change`."""
        def rows():
            with open(self.metrics, encoding="utf-8", newline="") as file:
                lines = csv.reader(file)
                next(lines, None)
                yield self._columns
                yield from change(lines)
        self.state["bytes"] = None  # if interrupted, everything is written again
        self._save()
        self._replace(self.metrics, rows())
        self._note_sizes()
        self._save()

    def _note_sizes(self):
        self.state["bytes"] = {path.name: path.stat().st_size
                               for path in (self.metrics, self.events)}


def _is_from(row, step):
    return not row or not row[0].isdigit() or int(row[0]) >= step


def _shown(value):
    if value is None:
        return ""
    if isinstance(value, float):
        if math.isnan(value):
            return "nan"
        return repr(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    return value
