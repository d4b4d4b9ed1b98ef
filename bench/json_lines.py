"""Results in a file, a line of JSON each, so that what ends early keeps what it measured."""

import json
import os


class NotResults(Exception):
    """The file holds something else: one sentence."""


def read_lines(path):
    """(the records, the bytes that they take): a last line that was cut short is left out."""
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
    """The records of a file, which is created with the first one."""

    def __init__(self, path):
        self.path = path
        self.records, self.bytes = read_lines(path) if path.exists() else ([], 0)

    def add(self, record):
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        with open(self.path, "ab") as file:
            file.truncate(self.bytes)  # of a line that was cut short
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self.records.append(record)
        self.bytes += len(line)
