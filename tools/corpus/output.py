"""The output folder of a preparation: complete, or absent.

Everything is written into a hidden folder in the same place, which is renamed at the end. It
contains train.bin and, if requested, val.bin (little-endian uint16 or uint32 and nothing else); for
each a FILE.bin.json, which engine/data/token_sidecar.h reads; and tokenizer.json if there is one.
Conversations add two files (chat_output.py) and all files of their tokenizer.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
from array import array
from collections import Counter
from pathlib import Path

from corpus.tokenizer_folder import COMPANIONS, MORE_TEMPLATES, TOOL_TEMPLATE_FILE
from toolbox import Failure

NAMES = {f"{side}.bin{suffix}" for side in ("train", "val")
         for suffix in ("", ".json", ".documents", ".mask")} | {
             "tokenizer.json", *(name.split("/")[0] for name in COMPANIONS)}
SOURCES_LISTED = 1000
CHUNK_BYTES = 1 << 20


class OutputFolder:
    """A context; commit() renames `partial` to `path`."""

    def __init__(self, path):
        self.path = Path(os.path.abspath(path))
        self.partial = self.path.with_name(f".{self.path.name}.partial-{os.getpid()}")

    def __enter__(self):
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()
            self.partial.mkdir()
        except OSError as error:
            raise cannot_write(self.path, error) from error
        except BaseException:  # Ctrl-C before the context is entered
            self.__exit__()
            raise
        return self

    def __exit__(self, *unused):
        shutil.rmtree(self.partial, ignore_errors=True)

    def commit(self):
        try:
            for name in sorted(os.listdir(self.partial)):
                _sync(self.partial / name)
            _sync(self.partial)
            if self.path.exists() and os.listdir(self.path):
                self._replace()
            else:
                os.rename(self.partial, self.path)
            _sync(self.path.parent)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def _replace(self):
        why = refusal(self.path, overwrite=True)  # hours may have passed since the check
        if why:
            raise Failure(why)
        old = self.path.with_name(f".{self.path.name}.old-{os.getpid()}")
        os.rename(self.path, old)
        try:
            os.rename(self.partial, self.path)
        except BaseException:
            os.rename(old, self.path)
            raise
        more = old / MORE_TEMPLATES
        with contextlib.suppress(OSError):  # keep files that others have put there
            if more.is_dir() and not more.is_symlink():
                os.unlink(old / TOOL_TEMPLATE_FILE)
                os.rmdir(more)
            for name in NAMES & set(os.listdir(old)):
                os.unlink(old / name)
            os.rmdir(old)

    def _remove_leftovers(self):
        """Removes the folders of preparations that were killed: their processes no longer exist."""
        pattern = re.compile(rf"\.{re.escape(self.path.name)}\.partial-(\d+)")
        for name in os.listdir(self.path.parent):
            match = pattern.fullmatch(name)
            if match and not os.path.exists(f"/proc/{match[1]}"):
                shutil.rmtree(self.path.parent / name, ignore_errors=True)


def refusal(path, overwrite):
    """The reason why `path` cannot be written to, or None."""
    path = Path(path)
    if path.is_symlink():
        return f"{path} is a link, and nothing is written through one: name what it leads to"
    if not path.exists():
        return None
    if not path.is_dir():
        return f"{path} is a file, and a folder is needed"
    names = set(os.listdir(path))
    if not names <= NAMES:
        return f"{path} has other things in it ({sorted(names - NAMES)[0]}): choose a new folder"
    more = path / MORE_TEMPLATES
    if more.is_symlink() or more.is_dir() and set(os.listdir(more)) != {
            TOOL_TEMPLATE_FILE.split("/")[1]}:
        return f"{more} has other things in it: choose a new folder"
    if names and not any(_is_prepared(path, name) for name in names):
        return (f"{path} holds no data of a preparation (train.bin and its train.bin.json), but "
                f"{sorted(names)[0]}: choose a new folder")
    if names and not overwrite:
        return f"{path} has data in it already: choose a new folder, or pass --overwrite"
    return None


def _is_prepared(folder, name):
    """Whether it describes a file of tokens: then a preparation wrote the folder."""
    try:
        with open(folder / name, "rb", opener=_itself) as handle:
            return name.endswith(".bin.json") and b'"sluice-tokens"' in handle.read(CHUNK_BYTES)
    except OSError:
        return False


def _itself(path, flags):
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


class TokenWriter:
    """Writes one .bin file, and counts its tokens."""

    version = 1
    suffixes = ("",)  # suffixes of its files

    def __init__(self, path, vocabulary):
        self.path = path
        self.documents = 0
        self.counts = Counter()
        self.width = 2 if vocabulary.size <= 1 << 16 else 4
        self._handle = open(path, "w+b")

    def append(self, raw, counts, documents):
        try:
            self._handle.write(raw)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self.counts.update(counts)
        self.documents += documents

    @property
    def tokens(self):
        return sum(self.counts.values())

    def give_tail(self, other, fraction, end_of_text):
        """Moves the last `fraction` of the tokens to `other`. The cut is at the end of a document
        if there is one in the first half of those tokens."""
        total = self.tokens
        wanted = max(1, round(total * fraction))
        cut = total - wanted
        for first, chunk in self._chunks(cut, total - wanted // 2):
            if end_of_text in chunk:
                cut = first + chunk.index(end_of_text) + 1
                break
        for _, chunk in self._chunks(cut, total):
            counts = Counter(chunk)
            documents = counts[end_of_text] if end_of_text is not None else 0
            other.append(chunk.tobytes(), counts, documents)
            self.counts.subtract(counts)
            self.documents -= documents
        self._handle.truncate(cut * self.width)

    def exchange_files(self, other):
        """Exchanges the files that were written for the two sides."""
        for suffix in self.suffixes:
            mine, its = f"{self.path}{suffix}", f"{other.path}{suffix}"
            os.rename(mine, mine + ".spare")
            os.rename(its, mine)
            os.rename(mine + ".spare", its)
        self.path, other.path = other.path, self.path

    def discard(self):
        self.close()
        for suffix in self.suffixes:
            os.remove(f"{self.path}{suffix}")

    def close(self):
        self._handle.close()

    def particulars(self):
        """Fields of the sidecar that only this kind of file has."""
        return {}

    def _chunks(self, begin, end):
        """(first token's number, tokens) of [begin, end)."""
        self._handle.flush()
        while begin < end:
            count = min(end - begin, CHUNK_BYTES // self.width)
            self._handle.seek(begin * self.width)
            chunk = array("H" if self.width == 2 else "I")
            chunk.frombytes(self._handle.read(count * self.width))
            yield begin, chunk
            begin += count

    def finish(self, vocabulary_description, vocab_size, corpus, options, preparation):
        """Closes the file and writes its sidecar; returns the sidecar's contents. preparation:
        statistics of the whole input, of which this file may be only a part."""
        try:
            self.close()
            description = {
                "format": "sluice-tokens",
                "version": self.version,
                "dtype": "uint16" if self.width == 2 else "uint32",
                "tokens": self.tokens,
                "vocab_size": vocab_size,
                "documents": self.documents,
                **self.particulars(),
                "unigram_entropy_nats": entropy_nats(self.counts),
                "sha256": _sha256(self.path),
                "tokenizer": vocabulary_description,
                "made_with": options,
                "preparation": preparation,
                "source_count": len(corpus.read),
                "source_bytes": sum(source.get("bytes", 0) for source in corpus.read),
                "sources": corpus.read[:SOURCES_LISTED],
            }
            text = json.dumps(description, indent=1) + "\n"
            Path(f"{self.path}.json").write_text(text, encoding="utf-8")
            return description
        except OSError as error:
            raise cannot_write(self.path, error) from error


def entropy_nats(counts):
    """The loss of predicting each token by its frequency alone: a baseline."""
    total = sum(counts.values())
    shares = (counts[token] / total for token in sorted(counts) if counts[token] > 0)
    return -math.fsum(share * math.log(share) for share in shares) if total else 0.0


def _sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        for raw in iter(lambda: handle.read(CHUNK_BYTES), b""):
            digest.update(raw)
    return digest.hexdigest()


def _sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot_write(path, error):
    return Failure(f"writing {path} failed: {error.strerror or error}")
