"""Reads records from files: lines of JSON, the elements of a JSON list, rows of CSV."""

import codecs
import csv
import hashlib
import io
import itertools
import json

from corpus.encodings import Utf8Reader, check_decodable, of_file
from toolbox import Failure, read_json

READ_BYTES = 1 << 20
LONGEST_LINE_BYTES = 1 << 28  # for JSON-lines


def json_lines(source, digest, report=None, encoding=None):
    """(where, line, bytes read so far) of every line that is not blank."""
    _check_other_encoding(source, encoding)
    with Utf8Reader(source, digest, encoding) as reader:
        handle, number, is_empty = io.BufferedReader(reader, READ_BYTES), 0, True
        tell_encoding(source, reader, encoding, report)
        while True:
            line = handle.readline(LONGEST_LINE_BYTES)
            if not line:
                break
            number += 1
            where = f"{source.name}:{number}"
            if len(line) == LONGEST_LINE_BYTES and not line.endswith(b"\n"):
                raise Failure(f"{where} has more than {LONGEST_LINE_BYTES >> 20} MiB, so this is "
                              "hardly JSON-lines; pass --format text if it is text")
            if line.strip():
                is_empty = False
                yield where, line, reader.at_bytes
    if is_empty and report:
        report.skip(source.name, "it is empty")


def tell_encoding(source, reader, given, report):
    if report and not given and reader.encoding != "utf-8":
        report.note(f"{source.name} is read as {reader.encoding.upper()}")


def _check_other_encoding(source, encoding):
    """Checks a file of JSON: in UTF-8, only damaged rows are skipped."""
    if source.path.is_file() and (encoding or of_file(source)) != "utf-8":
        check_decodable(source, encoding)


def csv_rows(source, digest, report, encoding=None):
    """(where, {column: cell}, bytes read so far) of every row after the header row."""
    csv.field_size_limit(LONGEST_LINE_BYTES)
    check_decodable(source, encoding)
    with Utf8Reader(source, digest, encoding) as reader:
        text = io.TextIOWrapper(io.BufferedReader(reader, READ_BYTES), "utf-8-sig", newline="")
        tell_encoding(source, reader, encoding, report)
        first = _first_line(text)
        if not first:
            report.skip(source.name, "it is empty")
            return
        separator = max(",;\t", key=first.count)
        lines = _Lines(itertools.chain([first], text))
        rows = csv.reader(lines, delimiter=separator)
        try:
            number, names = 1, next(rows)
        except csv.Error as error:
            raise Failure(f"the first row of {source.name} is not CSV ({error})") from error
        if lines.ended:
            raise Failure(f"the first row of {source.name} has a quote that nothing closes")
        named = [name for name in names if name]
        if len(set(named)) < len(named):
            raise Failure(f"two columns of {source.name} have the same name: {', '.join(names)}")
        while True:
            number += 1
            where = f"{source.name}, row {number}"
            try:
                cells = next(rows, None)
            except csv.Error as error:
                report.skip(where, f"not CSV ({error})")
                continue
            if cells is None:
                break
            if lines.ended:  # the reader wanted another line, so the cell may have swallowed rows
                report.skip(where, "it has a quote that nothing closes, up to the file's end")
            elif cells and len(cells) != len(names):
                report.skip(where, f"it has {len(cells)} cells, and the first row names "
                                   f"{len(names)}")
            elif cells:
                yield where, dict(zip(names, cells)), reader.at_bytes
        if number == 2:
            report.skip(source.name, "it has no rows but the first, which names the columns")


def _first_line(text):
    """The first line that is not blank, or ""."""
    while True:
        line = text.readline(LONGEST_LINE_BYTES)
        if not line or line.strip():
            return line


class _Lines:
    """An iterator that records whether it was asked for more lines than it has."""

    def __init__(self, lines):
        self._lines = lines
        self.ended = False

    def __iter__(self):
        return self

    def __next__(self):
        line = next(self._lines, None)
        if line is None:
            self.ended = True
            raise StopIteration
        return line


def json_list(source, digest, report=None, encoding=None):
    """(where, element as bytes, bytes read so far) of every element of a file with one JSON
    list."""
    _check_other_encoding(source, encoding)
    decoder, text, number, failed = json.JSONDecoder(), "", 0, None
    # Bytes that are not UTF-8 are kept unchanged: the parser of the row reports them.
    as_text = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    with Utf8Reader(source, digest, encoding) as reader:
        handle = io.BufferedReader(reader, READ_BYTES)
        tell_encoding(source, reader, encoding, report)
        place = None  # the next element's position in `text`; None until the list has begun
        while True:
            # Read at least as much again, so that a long element is not parsed too often.
            raw = handle.read(max(READ_BYTES, len(text) - (place or 0)))
            text = text[place or 0:] + as_text.decode(raw, final=not raw)
            if place is None:
                text = text.lstrip("\ufeff" + _JSON_SPACE)
                if raw and not text:
                    continue
                text = text.removeprefix("[")
            place = 0
            while True:
                begin = _behind_space(text, place)
                if text[begin:begin + 1] == "]":
                    rest = handle.read()
                    if text[begin + 1:].strip(_JSON_SPACE) or rest.strip():
                        raise Failure(f"{source.name} goes on behind the end of its list, after "
                                      f"{number} rows: save it as one list, or as JSON-lines")
                    return
                try:
                    _, end = decoder.raw_decode(text, begin)
                except (ValueError, RecursionError) as error:
                    failed = error
                    break
                after = _behind_space(text, end)
                if text[after:after + 1] not in (",", "]"):
                    failed = "there is no comma behind it"
                    break
                number += 1
                yield (f"{source.name}, row {number}",
                       text[begin:end].encode(errors="surrogateescape"), reader.at_bytes)
                place = after + (text[after] == ",")
            if not raw or len(text) - place > LONGEST_LINE_BYTES:
                raise Failure(f"{source.name}, row {number + 1} of its list: {failed}. Nothing "
                              "from there on can be read: mend it, or save it as JSON-lines")


_JSON_SPACE = " \t\r\n"


def _behind_space(text, place):
    while text[place:place + 1] in _JSON_SPACE and place < len(text):
        place += 1
    return place


def is_json_list(source, encoding=None):
    """Whether a regular file is a list of rows, by its first bytes. A line of JSON-lines may be a
    list, too, but of turns. False for a pipe, which would lose those bytes."""
    try:
        with Utf8Reader(source, hashlib.sha256(), encoding) as reader:
            head = io.BufferedReader(reader, READ_BYTES).read(READ_BYTES).decode(errors="replace")
    except (OSError, UnicodeError):
        return False  # the reader of lines will report the error
    head = head.lstrip("\ufeff" + _JSON_SPACE)
    if not head.startswith("["):
        return False
    line = head.split("\n", 1)[0]
    try:
        row = read_json(line)
    except ValueError:
        return True
    return not (row and isinstance(row[0], dict) and ("role" in row[0] or "from" in row[0]))
