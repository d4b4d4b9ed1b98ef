"""Files that replace others: complete, durable, and never written through a link."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yields the path of a new file next to `path`, which replaces `path` at the end. If the block
    fails, `path` is unchanged. If `path` is a link, the link is replaced and its target is kept."""
    folder, name = os.path.split(os.path.abspath(path))
    fresh = os.path.join(folder, f".{name}.{secrets.token_hex(8)}.new")
    # O_EXCL: never open a file that already exists.
    made = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        os.close(made)
        yield fresh
        _sync(fresh)
        os.replace(fresh, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh)
        raise
    _sync(folder)


def write_durably(path: str, text: str) -> None:
    with replacing(path) as fresh, open(fresh, "w", encoding="utf-8") as file:
        file.write(text)


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
