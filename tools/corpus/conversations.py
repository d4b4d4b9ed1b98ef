"""Reads conversations from files, as rows for messages.py to parse.

Rows come from JSON-lines, files with one JSON list, CSV, Parquet, and folders that save_to_disk()
of the package datasets wrote (Arrow streams, which pyarrow reads alone). A worker process parses
the rows, so parsing is parallel and the batches in flight bound the memory.
"""

import hashlib
import os
from collections import namedtuple
from pathlib import Path

from corpus import documents, records
from corpus.encodings import NotText
from corpus.messages import MEDIA_KEYS, ROW_KEYS, TURN_KEYS, hidden_names
from corpus.source import Source, path_of, place_in
from toolbox import Failure, read_json

GLOBS = ("*.jsonl", "*.ndjson", "*.parquet")

# content: a line of JSON as bytes, or a dict.
Row = namedtuple("Row", "where content size_bytes done_bytes")


class ConversationCorpus:
    """Sources of rows, in order."""

    def __init__(self, sources, options=documents.ReadOptions()):
        self.sources = sources
        self._options = options
        self.total_bytes = sum(source.size_bytes for source in sources)
        self.read = []  # {"name", "bytes", "sha256"}

    def rows(self, report):
        self.read = []
        before_bytes = 0
        for source in self.sources:
            digest = hashlib.sha256()
            rows, begun = _rows(source, digest, report, self._options), False
            try:
                for where, content, size_bytes, at_bytes in rows:
                    begun = True
                    yield Row(where, content, size_bytes, before_bytes + at_bytes)
            except (OSError, UnicodeError, NotText) as error:
                report.skip(("the rest of " if begun else "") + source.name,
                            documents.why_unread(error, source))
            else:
                self.read.append({"name": source.name, "bytes": source.size_bytes,
                                  "sha256": digest.hexdigest()})
            before_bytes += source.size_bytes


def find_sources(arguments, globs, fixed_format, report, encoding=None):
    sources = []
    for argument in arguments:
        path = Path(argument)
        if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
            sources += _saved_dataset(path, report)
        else:
            found = documents.find_sources([argument], globs or GLOBS, fixed_format, report)
            sources += [_of_json(source, fixed_format, encoding) for source in found]
    for source in sources:
        if source.format == "text":
            raise Failure(f"{source.name} is neither JSON nor Parquet nor CSV by its name, and "
                          "no folder of the package datasets: --format says which it is")
    return sources


def _of_json(source, fixed_format, encoding):
    """A .json file is a list of rows, or has one row per line; so does a .jsonl file."""
    is_json = source.suffix == ".json" and source.format == "text"
    if fixed_format or not (is_json or source.format == "jsonl"):
        return source
    is_list = source.path.is_file() and records.is_json_list(source, encoding)
    return source._replace(format="json list" if is_list else "jsonl")


def _saved_dataset(top, report):
    """The Arrow files of a folder that save_to_disk() wrote, or of its train split."""
    folder, chosen = top, ""
    if (top / "dataset_dict.json").is_file():
        splits = _strings(top, "dataset_dict.json", "splits")
        chosen = splits[0] if len(splits) == 1 else "train"
        if chosen not in splits:
            raise Failure(f"{top} has the splits {', '.join(splits)} and none that is called "
                          f"train: name one, as in {top / splits[0] if splits else top}")
        if len(splits) > 1:
            report.note(f"{top} has the splits {', '.join(splits)}: train is taken; name the "
                        f"folder of another, as in {top / splits[-1]}, to take that")
        folder = top / chosen
    state = os.path.join(chosen, "state.json")
    if _json_file(top, state).get("_indices_data_files"):
        raise Failure(f"{folder} was saved by an old version of datasets, with its rows in another "
                      "order than its files: save it again by save_to_disk() of a newer one")
    names = _strings(top, state, "_data_files", "filename")
    if not names:
        raise Failure(f"{top / state} names no data files: save the data set again by "
                      "save_to_disk()")
    sources = [_part(top, os.path.join(chosen, name)) for name in names]
    for name, source in zip(names, sources):
        if not source.path.is_file():
            raise Failure(f"{top / state} names {name}, which is not there: the data set is "
                          "incomplete; copy or save it again")
    return [source._replace(name=f"{folder.name}/{name}", size_bytes=source.path.stat().st_size)
            for name, source in zip(names, sources)]


def _part(top, name):
    """A file of a saved data set."""
    place = place_in(top, name)
    if place is None:
        raise Failure(f"{top / name} is a link, or lies in one, that leads out of {top}: name the "
                      "folder that it leads to")
    folder, path = place
    return Source(name, path, 0, "arrow", folder)


def _strings(top, file, key, inner=None):
    """The names of files or folders that a JSON file lists under `key`."""
    found = _json_file(top, file).get(key) or []
    if inner and isinstance(found, list):
        found = [entry.get(inner) if isinstance(entry, dict) else None for entry in found]
    if not isinstance(found, list) or not all(
            isinstance(name, str) and name == os.path.basename(name) and name not in ("", "..", ".")
            and "\0" not in name for name in found):
        raise Failure(f"'{key}' in {top / file} is no list of names: the file is damaged; save the "
                      "data set again")
    return found


def _json_file(top, file):
    path = top / file
    try:
        with _part(top, file).open() as handle:
            content = read_json(handle.read().decode())
    except OSError as error:
        raise Failure(f"cannot read {path}: {error.strerror}; the data set is incomplete: copy or "
                      "save it again") from error
    except ValueError as error:
        raise Failure(f"{path} is not JSON ({error}): the file is damaged; save the data set "
                      "again") from error
    if not isinstance(content, dict):
        raise Failure(f"{path} is no JSON object: the file is damaged; save the data set again")
    return content


def _rows(source, digest, report, options):
    """(where, content, its size, bytes read so far)."""
    encoding = options.encoding
    if source.format == "jsonl":
        for where, line, at_bytes in records.json_lines(source, digest, report, encoding):
            yield where, line, len(line), at_bytes
        return
    if source.format == "json list":
        for where, row, at_bytes in records.json_list(source, digest, report, encoding):
            yield where, row, len(row), at_bytes
        return
    if source.format == "csv":
        for where, row, at_bytes in records.csv_rows(source, digest, report, encoding):
            # An empty cell means that the row has no such field.
            hidden = hidden_names(row, options.renamed)
            row = {key: cell for key, cell in row.items() if cell and key not in hidden}
            yield where, row, sum(map(len, row.values())), at_bytes
        return
    number = 0
    with documents.digested(source, digest) as handle:
        for batch, all_rows in _record_batches(source, handle, report, options.renamed):
            each_bytes = batch.nbytes // max(1, batch.num_rows)
            decoders = {name: decoder for name, kind in zip(batch.schema.names, batch.schema.types)
                        if (decoder := _json_decoder(kind))}
            for row in batch.to_pylist():
                number += 1
                for name, decoder in decoders.items():
                    row[name] = decoder(row[name])
                yield (f"{source.name}, row {number}", row, each_bytes,
                       source.size_bytes * number // all_rows)


def _record_batches(source, handle, report, renamed):
    """(some rows, number of all rows), with only the columns that make up conversations."""
    import pyarrow  # pylint: disable=import-outside-toplevel
    from pyarrow import ipc, parquet  # pylint: disable=import-outside-toplevel
    try:
        if source.format == "parquet":
            table = parquet.ParquetFile(handle)
            columns = _columns(source, table.schema_arrow.names, renamed)
            batches = table.iter_batches(batch_size=256, columns=columns)
            while (batch := documents.next_batch(batches)) is not None:
                yield _without_media(batch), max(1, table.metadata.num_rows)
            return
        with pyarrow.memory_map(path_of(handle)) as file:
            all_rows = max(1, sum(batch.num_rows for batch in ipc.open_stream(file)))
            file.seek(0)
            stream = ipc.open_stream(file)
            columns = _columns(source, stream.schema.names, renamed)
            for batch in stream:
                for begin in range(0, batch.num_rows, 256):
                    part = batch.select(columns).slice(begin, 256)
                    yield _without_media(part), all_rows
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
        kind = "a Parquet" if source.format == "parquet" else "an Arrow"
        report.skip(source.name, f"not {kind} file ({error})")


def _columns(source, names, renamed):
    hidden = hidden_names(names, renamed)
    columns = [name for name in names
               if renamed.get(name, name) in ROW_KEYS and name not in hidden]
    known = {renamed.get(name, name) for name in columns}
    if not known & {*TURN_KEYS, "instruction"} and not {"prompt", "completion"} <= known:
        raise Failure(f"{source.name} has none of the columns {', '.join(TURN_KEYS)} and "
                      f"instruction; it has {', '.join(names)}: name the one with the "
                      f"conversations, as in --map {names[0] if names else 'NAME'}=messages")
    return columns


def _without_media(batch):
    """Replaces pictures and sounds by whether a row has any."""
    import pyarrow  # pylint: disable=import-outside-toplevel
    for at, name in enumerate(batch.schema.names):
        if name not in MEDIA_KEYS:
            continue
        column = batch.column(at)
        has_any = column.is_valid()
        if pyarrow.types.is_list(column.type) or pyarrow.types.is_large_list(column.type):
            from pyarrow import compute  # pylint: disable=import-outside-toplevel
            has_any = compute.fill_null(compute.greater(compute.list_value_length(column), 0),
                                        False)
        batch = batch.set_column(at, name, has_any)
    return batch


def _json_decoder(kind):
    """Returns a function that parses the JSON text in values of the Arrow type `kind`. None if no
    part of the type is JSON (the type Json of the package datasets)."""
    from pyarrow import types  # pylint: disable=import-outside-toplevel
    if getattr(kind, "extension_name", "") == "arrow.json":
        return lambda text: None if text is None else read_json(text)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = _json_decoder(kind.value_type)
        return inner and (lambda items: items and [inner(item) for item in items])
    if types.is_struct(kind):
        fields = {field.name: decoder for field in kind if (decoder := _json_decoder(field.type))}
        return fields and (lambda value: value and {
            **value, **{name: decoder(value[name]) for name, decoder in fields.items()}})
    return None
