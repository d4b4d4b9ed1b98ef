"""Conversations out of files: their rows, and the three forms in which a row tells who said what.

Rows come from JSON-lines, files that are one JSON list, Parquet, and folders that the package
datasets wrote by save_to_disk() (Arrow streams, which pyarrow reads alone). A row stays as it was
read until a worker process takes it apart, so parsing is parallel and memory is bounded by the
batches in flight.

What cannot be trained on is left out with one of the reasons below, by the exception LeftOut.
"""

import hashlib
import json
import os
from collections import namedtuple
from pathlib import Path

from corpus import documents
from toolbox import Failure

GLOBS = ("*.jsonl", "*.ndjson", "*.parquet")
FORMS = ("messages", "sharegpt", "alpaca")
TURN_KEYS = ("messages", "conversations", "conversation")
SYSTEM_KEYS = ("system", "system_prompt")
ROW_KEYS = (*TURN_KEYS, "instruction", "input", "output", *SYSTEM_KEYS, "history", "tools")
SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
            "chatgpt": "assistant", "model": "assistant", "system": "system", "tool": "tool",
            "observation": "tool"}

NOT_JSON = "not JSON"
NO_FORM = "in none of the known forms"
NOT_TEXT = "content that is not text"
NO_ASSISTANT = "no assistant turn"
EMPTY_TURN = "an empty assistant turn"
WEIGHED = "a turn that its data weigh ('weight' or 'train')"

# content: a line of JSON as bytes, or a dict.
Row = namedtuple("Row", "where content size_bytes done_bytes")
Conversation = namedtuple("Conversation", "messages tools fingerprint replaced")


class LeftOut(Exception):
    """Why a conversation is not trained on: a reason to count by, and what is particular here."""

    def __init__(self, reason, detail=""):
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class ConversationCorpus:
    """Sources of rows, in order."""

    def __init__(self, sources):
        self.sources = sources
        self.total_bytes = sum(source.size_bytes for source in sources)
        self.read = []  # {"name", "bytes", "sha256"}

    def rows(self, report):
        self.read = []
        before_bytes = 0
        for source in self.sources:
            digest = hashlib.sha256()
            try:
                for where, content, size_bytes, at_bytes in _rows(source, digest, report):
                    yield Row(where, content, size_bytes, before_bytes + at_bytes)
            except OSError as error:
                report.skip(source.name, error.strerror or str(error))
            else:
                self.read.append({"name": source.name, "bytes": source.size_bytes,
                                  "sha256": digest.hexdigest()})
            before_bytes += source.size_bytes


def find_sources(arguments, globs, fixed_format, report):
    sources = []
    for argument in arguments:
        path = Path(argument)
        if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
            sources += _saved_dataset(path, report)
        else:
            found = documents.find_sources([argument], globs or GLOBS, fixed_format, report)
            sources += map(_of_json, found)
    for source in sources:
        if source.format == "text":
            raise Failure(f"{source.name} is neither JSON nor Parquet by its name, and no folder "
                          "of the package datasets: --format says which it is")
    return sources


def _of_json(source):
    """A .json file is a list of rows, or has one in each line."""
    if source.path.suffix.lower() != ".json" or source.format != "text":
        return source
    is_list = source.path.is_file() and documents.is_json_list(source.path)
    return source._replace(format="json list" if is_list else "jsonl")


def _saved_dataset(folder, report):
    """The Arrow files of a folder that save_to_disk() wrote, or of the train split in it."""
    if (folder / "dataset_dict.json").is_file():
        splits = _json_file(folder / "dataset_dict.json").get("splits") or []
        chosen = splits[0] if len(splits) == 1 else "train"
        if chosen not in splits:
            raise Failure(f"{folder} has the splits {', '.join(splits)} and none that is called "
                          f"train: name one, as in {folder / splits[0] if splits else folder}")
        if len(splits) > 1:
            report.note(f"{folder} has the splits {', '.join(splits)}: train is taken; name the "
                        f"folder of another, as in {folder / splits[-1]}, to take that")
        folder = folder / chosen
    state = _json_file(folder / "state.json")
    if state.get("_indices_data_files"):
        raise Failure(f"{folder} was saved by an old version of datasets, with its rows in another "
                      "order than its files: save it again by save_to_disk() of a newer one")
    names = [entry["filename"] for entry in state.get("_data_files") or ()]
    if not names:
        raise Failure(f"{folder}/state.json names no data files: save the data set again by "
                      "save_to_disk()")
    for name in names:
        if os.path.basename(name) != name or documents.leads_out(folder / name, folder):
            raise Failure(f"{folder}/state.json names {name}, which leads out of its folder")
    return [documents.Source(f"{folder.name}/{name}", folder / name,
                             (folder / name).stat().st_size, "arrow") for name in names]


def _json_file(path):
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Failure(f"{path} is not JSON ({error}): save the data set again") from error
    return content if isinstance(content, dict) else {}


def _rows(source, digest, report):
    """(where, content, its size, bytes read so far)."""
    if source.format == "jsonl":
        for where, line, at_bytes in documents.json_lines(source, digest):
            yield where, line, len(line), at_bytes
        return
    if source.format == "json list":
        for where, row, at_bytes in documents.json_list(source, digest):
            yield where, row, len(row), at_bytes
        return
    documents.add_content(digest, source.path)
    number = 0
    for batch, all_rows in _record_batches(source, report):
        each_bytes = batch.nbytes // max(1, batch.num_rows)
        for row in batch.to_pylist():
            number += 1
            yield (f"{source.name}, row {number}", row, each_bytes,
                   source.size_bytes * number // all_rows)


def _record_batches(source, report):
    """(some rows, number of all rows), with only the columns that conversations are made of."""
    import pyarrow  # pylint: disable=import-outside-toplevel
    from pyarrow import ipc, parquet  # pylint: disable=import-outside-toplevel
    try:
        if source.format == "parquet":
            table = parquet.ParquetFile(source.path)
            columns = _columns(source, table.schema_arrow.names)
            for batch in table.iter_batches(batch_size=256, columns=columns):
                yield batch, max(1, table.metadata.num_rows)
            return
        with pyarrow.memory_map(str(source.path)) as file:
            all_rows = max(1, sum(batch.num_rows for batch in ipc.open_stream(file)))
        with pyarrow.memory_map(str(source.path)) as file:
            stream = ipc.open_stream(file)
            columns = _columns(source, stream.schema.names)
            for batch in stream:
                for begin in range(0, batch.num_rows, 256):
                    yield batch.select(columns).slice(begin, 256), all_rows
    except pyarrow.ArrowInvalid as error:
        kind = "a Parquet" if source.format == "parquet" else "an Arrow"
        report.skip(source.name, f"not {kind} file ({error})")


def _columns(source, names):
    columns = [name for name in names if name in ROW_KEYS]
    if not set(columns) & {*TURN_KEYS, "instruction"}:
        raise Failure(f"{source.name} has none of the columns {', '.join(TURN_KEYS)} and "
                      f"instruction; it has {', '.join(names)}: rename the one with the "
                      "conversations")
    return columns


# --- one row -------------------------------------------------------------------------------------

def parse(content, form=None):
    """The conversation of a row, whose form is recognised where `form` does not name it."""
    if isinstance(content, bytes):
        try:
            row = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise LeftOut(NOT_JSON, str(error)) from error
        if not isinstance(row, dict):
            raise LeftOut(NO_FORM, "it is no JSON object")
    else:
        row = _plain(content)
    found = _turns(row)
    if form is None:
        form = _form(row, found)
    if form == "alpaca":
        messages = _alpaca(row)
    else:
        if found is None:
            raise LeftOut(NO_FORM, f"it has no list under {' or '.join(TURN_KEYS)}")
        messages = list(map(_said_by if form == "sharegpt" else _message, found))
        if not messages or messages[0]["role"] != "system":
            messages = _system(row) + messages
    tools = _tools(row.get("tools"))
    _check_assistant(messages)
    try:
        return Conversation(messages, tools, _fingerprint(messages, tools), False)
    except UnicodeEncodeError:  # JSON can hold halves of characters, which are no Unicode text
        messages, tools = _whole_characters(messages), _whole_characters(tools)
        return Conversation(messages, tools, _fingerprint(messages, tools), True)


def _fingerprint(messages, tools):
    """What a conversation is told from others by; the template has no part in it."""
    text = json.dumps([messages, tools], ensure_ascii=False, sort_keys=True)
    text.encode()
    return text


def _plain(value):
    """What Arrow gives, as JSON would have: a column's structs all have the same keys, so a key
    that a row did not have is there and null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def _whole_characters(value):
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {_whole_characters(key): _whole_characters(item) for key, item in value.items()}
    return [_whole_characters(item) for item in value] if isinstance(value, list) else value


def _turns(row):
    for key in TURN_KEYS:
        turns = row.get(key)
        if isinstance(turns, dict) and all(isinstance(column, list) for column in turns.values()):
            # A list of structs that was saved as a struct of lists.
            return [dict(zip(turns, values)) for values in zip(*turns.values())]
        if isinstance(turns, list):
            return turns
    return None


def _form(row, turns):
    if turns is not None:
        for form, key in (("sharegpt", "from"), ("messages", "role")):
            if all(isinstance(turn, dict) and key in turn for turn in turns):
                return form
    elif isinstance(row.get("instruction"), str) and isinstance(row.get("output"), str):
        return "alpaca"
    raise LeftOut(NO_FORM, f"it has {', '.join(map(str, row)) or 'nothing'}" if turns is None else
                  "its turns have neither 'role' and 'content' nor 'from' and 'value'")


def _message(turn):
    if not isinstance(turn, dict) or not isinstance(turn.get("role"), str):
        raise LeftOut(NO_FORM, "a message without 'role'")
    if turn["role"] == "assistant":
        _check_weight(turn)
    message = {key: value for key, value in turn.items() if value is not None}
    if "content" in message:
        message["content"] = _text(message["content"])
    elif turn["role"] != "assistant":
        raise LeftOut(NO_FORM, f"a message of '{turn['role']}' without 'content'")
    return message


def _text(content):
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise LeftOut(NOT_TEXT, f"it is of type {type(content).__name__}")
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise LeftOut(NOT_TEXT, f"a part of type '{kind}', and only text can be trained on")
    return "".join(part["text"] for part in content)


def _said_by(turn):
    """A message of a ShareGPT turn."""
    name = turn.get("from") if isinstance(turn, dict) else None
    if not isinstance(name, str) or name not in SPEAKERS:
        raise LeftOut(NO_FORM, f"a turn from '{name}'; known are {', '.join(SPEAKERS)}")
    if turn.get("value") is None:
        raise LeftOut(NO_FORM, f"a turn from '{name}' without 'value'")
    if SPEAKERS[name] == "assistant":
        _check_weight(turn)
    return {"role": SPEAKERS[name], "content": _text(turn["value"])}


def _check_weight(turn):
    """Every turn of the assistant's counts alike: one that its data want left out, or weighed, is
    not trained on as if they did not."""
    for key in ("weight", "train"):
        if turn.get(key) is not None and turn[key] not in (1, True):
            raise LeftOut(WEIGHED, f"'{key}' is {json.dumps(turn[key])[:40]}")


def _alpaca(row):
    for key in ("instruction", "output"):
        if not isinstance(row.get(key), str):
            raise LeftOut(NO_FORM, f"no text under '{key}'")
    if row.get("history"):
        raise LeftOut(NO_FORM, "earlier turns under 'history' are not read: write them as messages")
    given = row.get("input") or ""
    if not isinstance(given, str):
        raise LeftOut(NO_FORM, "what is under 'input' is not text")
    asked = row["instruction"] + ("\n\n" + given if given.strip() else "")
    return _system(row) + [{"role": "user", "content": asked},
                           {"role": "assistant", "content": row["output"]}]


def _system(row):
    for key in SYSTEM_KEYS:
        text = row.get(key)
        if isinstance(text, str) and text:
            return [{"role": "system", "content": text}]
    return []


def _tools(tools):
    if isinstance(tools, str):  # as many data sets have them: the schemas' types differ
        try:
            tools = json.loads(tools) if tools.strip() else None
        except (ValueError, RecursionError) as error:
            raise LeftOut(NO_FORM, f"'tools' is not JSON: {error}") from error
    if tools is not None and not (isinstance(tools, list) and
                                  all(isinstance(tool, dict) for tool in tools)):
        raise LeftOut(NO_FORM, "'tools' is no list of objects")
    return tools


def _check_assistant(messages):
    turns = [message for message in messages if message["role"] == "assistant"]
    if not turns:
        raise LeftOut(NO_ASSISTANT)
    if any(not turn.get("content", "").strip() and not turn.get("tool_calls") for turn in turns):
        raise LeftOut(EMPTY_TURN)
