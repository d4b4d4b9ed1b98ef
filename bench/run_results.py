"""The file of results that compare_deepspeed writes."""

import json

from target_rows import ROWS, whole_pairs


class UserError(Exception):
    """A user error, described in one sentence."""


class Results:
    """The runs and their file, which is complete after each of them."""

    def __init__(self, path, boot, facts):
        """facts: what a new file records in addition to the runs."""
        self.path = path
        self.boot = boot
        self.data = {"version": 1, **facts, "runs": []}
        if self.path.exists():
            self.data = read_results(self.path)

    @property
    def runs(self):
        return self.data["runs"]

    def forget(self, failed_of=()):
        """Removes incomplete pairs of other machines, and failed runs of the rows `failed_of`."""
        whole = {(name, *pair) for name in ROWS for pair in whole_pairs(self.runs, name)}
        self.data["runs"] = [r for r in self.runs if r["boot"] == self.boot
                             or (r["row"], r["pair"], r["boot"]) in whole]
        self.data["runs"] = [r for r in self.runs if r["ok"] or r["row"] not in failed_of]

    def has(self, name, pair, side):
        return any((r["row"], r["pair"], r["side"]) == (name, pair, side) for r in self.runs)

    def add(self, record):
        self.runs.append({**record, "boot": self.boot})
        self.save()

    def save(self):
        temporary = self.path.with_name(self.path.name + ".part")
        temporary.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")
        temporary.replace(self.path)


def read_results(path):
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] == 1 and isinstance(data["runs"], list) and "machine" in data:
            return data
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise UserError(f"{path}: is not a result of this program; choose another name or remove it")


def merge(paths):
    """Replaces failed runs by successful ones."""
    merged = read_results(paths[0])
    runs = {}
    for path in paths:
        for record in read_results(path)["runs"]:
            key = (record["row"], record["pair"], record["side"], record["boot"])
            if record["ok"] or key not in runs:
                runs[key] = record
    return {**merged, "runs": list(runs.values())}
