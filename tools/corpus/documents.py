"""Reads documents from files, folders and data sets, as a stream of fragments.

A text file is one document; so is a line of JSON-lines, and a row of Parquet or of a data set. Long
documents come in fragments of about a million characters, cut at the end of a line, so memory is
bounded. The cuts depend only on the text.

Text is UTF-8, or an encoding that encodings.py detects. A damaged character becomes U+FFFD, is
counted and reported. A source that the user names may be a pipe.

Some sources are skipped, named and counted:
- files that cannot be read, are not regular, or have an encoding that was not given;
- text files with NUL bytes (binaries);
- lines that are not JSON or lack the key;
- rows without text.
"""

import codecs
import contextlib
import fnmatch
import hashlib
import io
import os
import stat
from collections import Counter, namedtuple
from pathlib import Path

from corpus.encodings import (NotText, Utf8Reader, check_decodable, check_utf8, not_utf8,
                              of_file)
from corpus.records import READ_BYTES, csv_rows, json_lines, tell_encoding
from corpus.source import Source, place_in
from toolbox import Failure, read_json

FRAGMENT_CHARACTERS = 1 << 20
DEFAULT_GLOBS = ("*.txt", "*.md", "*.rst", "*.jsonl", "*.ndjson", "*.parquet")
FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".csv": "csv",
           ".tsv": "csv"}

# side: "train" or "val" if the data set determines it, else None.
Fragment = namedtuple("Fragment", "text begins_document ends_document side done_bytes")
# encoding: that of all files, or None; renamed: key in the rows of conversations -> key here.
ReadOptions = namedtuple("ReadOptions", "encoding renamed", defaults=(None, {}))


class Corpus:
    """A list of sources that can be read any number of times, always in the same order."""

    def __init__(self, sources, json_key="text", column="text", options=ReadOptions()):
        self.sources = sources
        self._options = options
        self.total_bytes = sum(source.size_bytes for source in sources)
        self.read = []  # by the last pass: {"name", "bytes", "sha256"}
        self._json_key = json_key
        self._column = column

    def fragments(self, report):
        self.read = []
        before_bytes = 0
        for source in self.sources:
            digest = hashlib.sha256()
            texts = self._texts(source, digest, report)
            begun, ends = False, True
            try:
                for text, begins, ends, at_bytes in texts:
                    begun = True
                    yield Fragment(text, begins, ends, None, before_bytes + at_bytes)
            except (OSError, UnicodeError, NotText) as error:
                report.skip(("the rest of " if begun else "") + source.name,
                            why_unread(error, source))
                if not ends:  # the drive failed: keep what was read, and end it here
                    yield Fragment("", False, True, None, before_bytes)
            else:
                self.read.append({"name": source.name, "bytes": source.size_bytes,
                                  "sha256": digest.hexdigest()})
            before_bytes += source.size_bytes

    def _texts(self, source, digest, report):
        if source.format == "parquet":
            return _parquet(source, self._column, digest, report)
        if source.format == "jsonl":
            return _json_lines(source, self._json_key, digest, report, self._options.encoding)
        if source.format == "csv":
            return _csv(source, self._column, digest, report, self._options.encoding)
        return _text_file(source, digest, report, self._options.encoding)


def why_unread(error, source):
    if isinstance(error, UnicodeError):
        if source.format in ("parquet", "arrow"):
            return "it is damaged: text in it is not UTF-8"
        why = getattr(error, "reason", error)
        return f"it is damaged, or in another encoding ({why}); name that with --encoding"
    return getattr(error, "strerror", None) or " ".join(str(error).split())


def _why_not_loaded(reference, error):
    what = f"the data set {reference}"
    if isinstance(error, ConnectionError):
        offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
        why = "HF_HUB_OFFLINE is set" if offline else "the hub cannot be reached"
        return (f"{what} is not in the cache of the package datasets, and {why}: load it once where "
                "there is a network and copy the cache (HF_HOME), or prepare files")
    if type(error).__name__ == "DatasetNotFoundError":
        if "gated" in str(error):
            return (f"{what} is gated: accept its terms on its page, then log in with "
                    "`hf auth login` or set HF_TOKEN")
        return (f"there is no data set {reference.partition(':')[0]} on the hub. If it is private, "
                "log in with `hf auth login` or set HF_TOKEN")
    return f"{what} could not be loaded: {error}"


class HubDataset:
    """A Hugging Face data set: NAME[:CONFIG[:SPLIT]]. Without SPLIT, its train split is for
    training and its validation split, if there is one, for validation."""

    total_bytes = None

    def __init__(self, reference, column="text"):
        import datasets  # pylint: disable=import-outside-toplevel
        name, config, split = (reference.split(":") + ["", ""])[:3]
        self._name = reference
        self._column = column
        try:
            loaded = datasets.load_dataset(name, config or None)
        except Exception as error:  # the package raises exceptions of any kind
            raise Failure(_why_not_loaded(reference, error)) from error
        if split and split not in loaded or not split and "train" not in loaded:
            raise Failure(f"the data set {reference} has no split '{split or 'train'}'; it has "
                          f"{', '.join(loaded)}")
        self._parts = [(None, loaded[split or "train"])]
        if not split and "validation" in loaded:
            self._parts = [("train", loaded["train"]), ("val", loaded["validation"])]
        for _, part in self._parts:
            if column not in part.column_names:
                raise Failure(f"the data set {reference} has no column '{column}'; it has "
                              f"{', '.join(part.column_names)} (--column)")
        self.has_validation = len(self._parts) == 2
        self.read = [{"name": f"hf:{reference}", "rows": sum(len(part) for _, part in self._parts)}]

    def fragments(self, report):
        done_bytes = 0
        for side, part in self._parts:
            for row in part:
                text = row[self._column]
                if not isinstance(text, str):
                    report.skip(self._name, f"a row whose '{self._column}' is not text")
                    continue
                done_bytes += len(text)
                for piece, begins, ends in _cut(_without_surrogates(text, self._name, report)):
                    yield Fragment(piece, begins, ends, side, done_bytes)


def find_sources(arguments, globs, fixed_format, report):
    """Sources for files and folders (recursively), sorted within each folder. Reports the files of
    folders that are skipped."""
    sources = []
    for argument in arguments:
        path = Path(argument)
        if path.is_dir():
            left_out = LeftOut()
            found = sorted(_walk(path, globs or DEFAULT_GLOBS, left_out))
            left_out.tell(path, globs or DEFAULT_GLOBS, report)
            if not found:
                raise Failure(f"no file in {path} matches {' '.join(globs or DEFAULT_GLOBS)}: say "
                              "which by --glob")
            sources += [_source(name, inner, fixed_format, root)
                        for name, root, inner in found]
        elif path.exists():
            sources.append(_source(path.name, path, fixed_format))
        else:
            raise Failure(f"{path} does not exist")
    return sources


def standard_library(folder):
    """The .py files of Python's standard library, without tests and installed packages."""
    left_out = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__",
                "lib-dynload"}
    names = sorted(name for name, *_ in _walk(Path(folder), ("*.py",))
                   if not left_out & set(Path(name).parts))
    if not names:
        raise Failure(f"Python's standard library has no sources in {folder}: some systems ship "
                      "it without; give text files instead")
    return [_source(name, Path(folder) / name, "text") for name in names]


class LeftOut:
    """The contents of a folder that are skipped."""

    def __init__(self):
        self.endings = Counter()  # suffixes without a pattern -> files
        self.hidden = 0           # hidden folders
        self.links = 0            # links to folders
        self.unreadable = []      # (folder or file, why)

    def tell(self, folder, globs, report):
        if self.endings:
            most = ", ".join(f"{count} {ending}" for ending, count in self.endings.most_common(5))
            more = ", ..." if len(self.endings) > 5 else ""
            report.note(f"{sum(self.endings.values())} files in {folder} match none of "
                        f"{' '.join(globs)} and are left out ({most}{more}): --glob takes others")
        if self.hidden:
            report.note(f"{self.hidden} hidden folders in {folder} are left out")
        if self.links:
            report.note(f"{self.links} links to folders in {folder} are not followed")
        for name, why in self.unreadable:
            report.skip(name, why)


def _walk(folder, globs, left_out=None):
    """(name, folder that it is in, path)."""
    is_of_user = left_out is not None  # Python's own folders may have links to anywhere
    left_out = left_out or LeftOut()

    def unreadable(error):
        left_out.unreadable.append((error.filename, error.strerror or str(error)))
    for where, folders, files in os.walk(folder, onerror=unreadable):
        left_out.hidden += sum(name.startswith(".") for name in folders)
        folders[:] = [name for name in folders if not name.startswith(".")]
        left_out.links += sum(os.path.islink(os.path.join(where, name)) for name in folders)
        for name in files:
            path = os.path.join(where, name)
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in globs):
                relative = os.path.relpath(path, folder)
                follows = is_of_user and os.path.islink(path)
                if follows and not os.path.exists(path):
                    left_out.unreadable.append((path, "it is a link that leads nowhere"))
                    continue
                place = place_in(folder, relative) if follows else (folder, folder / relative)
                if place is None:
                    left_out.unreadable.append((path, "it is a link that leads out of the folder: "
                                                      "name what it leads to, if you want it"))
                elif _is_special(path):  # opening a pipe would wait for its writer
                    left_out.unreadable.append((path, "it is not a regular file"))
                else:
                    yield relative, *place
            else:
                left_out.endings[os.path.splitext(name)[1] or name] += 1


def _is_special(path):
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False  # the reader will report the error


def _source(name, path, fixed_format, folder=None):
    try:
        size_bytes = path.stat().st_size
    except OSError:
        size_bytes = 0  # the reader will report the error
    source = Source(str(name), path, size_bytes, fixed_format, folder)
    return source._replace(format=fixed_format or FORMATS.get(source.suffix, "text"))


# --- one source ----------------------------------------------------------------------------------

def _text_file(source, digest, report, encoding):
    """(fragment, begins its document, ends it, bytes read so far)."""
    replaced_before = _replaced.count
    if source.path.is_file():
        if encoding is None and of_file(source) == "utf-8":
            check_utf8(source)
        elif encoding != "utf-8":  # an explicit UTF-8 means: replace damaged bytes by U+FFFD
            check_decodable(source, encoding)
    decoder = codecs.getincrementaldecoder("utf-8")(_replaced.NAME)
    with Utf8Reader(source, digest, encoding) as reader:
        handle = io.BufferedReader(reader, READ_BYTES)
        tell_encoding(source, reader, encoding, report)
        pending, begins, wide = "", True, 0
        while True:
            raw = handle.read(READ_BYTES)
            if begins and not pending and b"\0" in raw[:8192]:
                report.skip(source.name, "it has NUL bytes, so it is not text")
                return
            text = decoder.decode(raw, final=not raw)
            wide += 0 if text.isascii() else len(text) - len(text.encode("ascii", "ignore"))
            pending += text
            if begins and pending.startswith("\ufeff"):
                pending = pending[1:]
            if not raw:
                break
            while len(pending) > FRAGMENT_CHARACTERS:
                cut = _cut_position(pending)
                yield pending[:cut], begins, False, reader.at_bytes
                pending, begins = pending[cut:], False
        at_bytes = reader.at_bytes
    wrong = _replaced.count - replaced_before
    if wrong > wide - wrong and encoding is None:  # a pipe could not be checked before
        raise Failure(f"{source.name}: {not_utf8(wrong)}")
    if _replaced.count > replaced_before:
        report.replaced(source.name, _replaced.count - replaced_before)
    if pending or not begins:
        yield pending, begins, True, at_bytes
    else:
        report.skip(source.name, "it is empty")


def _json_lines(source, key, digest, report, encoding):
    for where, line, at_bytes in json_lines(source, digest, report, encoding):
        try:
            record = read_json(line)
        except ValueError as error:
            report.skip(where, f"not JSON ({error})")
            continue
        text = record.get(key) if isinstance(record, dict) else None
        if not isinstance(text, str):
            report.skip(where, f"no text under '{key}' (--json-key)")
            continue
        for piece, begins, ends in _cut(_without_surrogates(text, where, report)):
            yield piece, begins, ends, at_bytes


def _csv(source, column, digest, report, encoding):
    for where, row, at_bytes in csv_rows(source, digest, report, encoding):
        if column not in row:
            raise Failure(f"{source.name} has no column '{column}'; it has {', '.join(row)} "
                          "(--column; --format text takes the file as it is)")
        if not row[column]:
            report.skip(where, f"no text in '{column}'")
            continue
        for piece, begins, ends in _cut(row[column]):
            yield piece, begins, ends, at_bytes


@contextlib.contextmanager
def digested(source, digest):
    """The open file; all of it goes into the digest."""
    with source.open() as handle:
        for raw in iter(lambda: handle.read(READ_BYTES), b""):
            digest.update(raw)
        handle.seek(0)
        yield handle


def _parquet(source, column, digest, report):
    import pyarrow  # pylint: disable=import-outside-toplevel
    from pyarrow import parquet  # pylint: disable=import-outside-toplevel
    with digested(source, digest) as handle:
        try:
            table = parquet.ParquetFile(handle)
        except pyarrow.ArrowInvalid as error:
            report.skip(source.name, f"not a Parquet file ({error})")
            return
        names = table.schema_arrow.names
        if column not in names:
            raise Failure(f"{source.name} has no column '{column}'; it has {', '.join(names)} "
                          "(--column)")
        rows, all_rows = 0, max(1, table.metadata.num_rows)
        batches = table.iter_batches(batch_size=256, columns=[column])
        while (batch := next_batch(batches)) is not None:
            for text in batch.column(0).to_pylist():
                rows += 1
                if not isinstance(text, str):
                    report.skip(f"{source.name}, row {rows}", f"no text in '{column}'")
                    continue
                for piece, begins, ends in _cut(_without_surrogates(text, source.name, report)):
                    yield piece, begins, ends, source.size_bytes * rows // all_rows


def next_batch(batches):
    """The next item, or None after the last. Raises NotText if the file is damaged."""
    import pyarrow  # pylint: disable=import-outside-toplevel
    try:
        return next(batches, None)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
        raise NotText(f"it is damaged ({' '.join(str(error).split())})") from error


# --- text ----------------------------------------------------------------------------------------

def _cut_position(text):
    """Where to end a fragment of a longer text: after a line, else after a word."""
    for end in ("\n", " "):
        cut = text.rfind(end, FRAGMENT_CHARACTERS // 2, FRAGMENT_CHARACTERS) + 1
        if cut > 0:
            return cut
    return FRAGMENT_CHARACTERS


def _cut(text):
    begins = True
    while len(text) > FRAGMENT_CHARACTERS:
        cut = _cut_position(text)
        yield text[:cut], begins, False
        text, begins = text[cut:], False
    yield text, begins, True


class _Replaced:
    """An error handler for decoders that replaces bytes by U+FFFD and counts them."""

    NAME = "sluice-replace"

    def __init__(self):
        self.count = 0
        codecs.register_error(self.NAME, self)

    def __call__(self, error):
        self.count += 1
        return "\ufffd", error.end


_replaced = _Replaced()


def _without_surrogates(text, name, report):
    """JSON can have lone surrogates, which are not Unicode text."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        clean = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        report.replaced(name, 1)
        return clean
