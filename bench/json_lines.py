"""Results in a file, one JSON line each, so that an interrupted program keeps what it measured."""

import json
import os


class NotResults(Exception):
    """The file is not a file of results; described in one sentence."""


def read_lines(path):
    """(records, their bytes); an incomplete last line is ignored."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    records = []
    for number, line in enumerate(data[:whole].splitlines(), 1):
        try:
            records.append(json.loads(line))
            if not isinstance(records[-1], dict):
                raise ValueError
        except ValueError:
            raise NotResults(f"{path}, line {number}: is not a result of this program; choose "
                             "another name or remove it") from None
    return records, whole


class JsonLines:
    """The records of a file, which is created when the first one is added."""

    def __init__(self, path):
        self.path = path
        self.records, self.bytes = read_lines(path) if path.exists() else ([], 0)

    def add(self, record):
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        with open(self.path, "ab") as file:
            file.truncate(self.bytes)  # drop an incomplete last line
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self.records.append(record)
        self.bytes += len(line)
