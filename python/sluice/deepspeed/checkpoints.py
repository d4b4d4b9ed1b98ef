"""Checkpoints in folders by tag, with a file `latest`, as DeepSpeed writes them.

DIR/latest              the tag that was saved last
DIR/TAG/checkpoints/    the engine's own checkpoint
DIR/TAG/sluice-tag.json the name of the tag's checkpoint in that folder

Saving a tag again replaces the checkpoint that sluice-tag.json names. Nothing else in the folder is
removed: files of others and unreadable files stay.
"""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path
from typing import Any

from .._core import Error, RefusedError
from .._files import write_durably
from ..engine import Engine
from . import comm

_log = logging.getLogger("sluice")
LATEST = "latest"
_MANIFEST = "checkpoint.json"
_PARTS = "checkpoints"
_MARK = "sluice-tag.json"
_FORMAT = "sluice-tag"
_MOST_MARK = 1 << 16  # bytes


def check_tag(tag: Any) -> str:
    name = str(tag)
    if name in ("", ".", "..", LATEST) or Path(name).name != name or "\n" in name:
        raise RefusedError(f"tag {name!r} cannot be the name of a folder in the checkpoint folder")
    return name


def check_client_state(state: Any) -> Any:
    """RefusedError if JSON would not preserve it."""
    try:
        again = json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise RefusedError(f"client_state cannot be written as JSON: {error}") from error
    if again != state:
        raise RefusedError(
            "client_state cannot be stored exactly: JSON turns tuples into lists, and keys into"
            " strings. Use lists, and strings as keys"
        )
    return state


def save(
    engine: Engine,
    directory: str,
    tag: str,
    client_state: Any = None,
    save_latest: bool = True,
    within_step: bool = False,
) -> str:
    """Returns the checkpoint's folder, DIR/TAG/checkpoints/step-N. `latest` is written last."""
    where = os.path.join(directory, tag)
    if os.path.islink(where):
        raise RefusedError(
            f"{where} is a symbolic link, which a save does not follow: use another tag"
        )
    folder = engine.save_checkpoint(  # written to `latest` below
        where, client_state, background=False, within_step=within_step
    )
    comm.on_first_rank(engine, lambda: _settle(engine, directory, tag, folder, save_latest))
    return folder


def _settle(engine: Engine, directory: str, tag: str, folder: str, save_latest: bool) -> None:
    """Makes `folder` the tag's checkpoint, and removes the one that it replaces."""
    before = _named_by(os.path.join(directory, tag))
    text = json.dumps({"format": _FORMAT, "version": 1, "checkpoint": os.path.basename(folder)})
    write_durably(os.path.join(directory, tag, _MARK), text + "\n")
    if save_latest:
        write_durably(os.path.join(directory, LATEST), tag)
    if before is None or before == Path(folder) or not before.exists():
        return
    try:
        engine.remove_checkpoint(before)
    except Error as error:
        _log.warning("tag %s was saved again; its former checkpoint was kept: %s", tag, error)
    else:
        _log.info("tag %s was saved again; its former checkpoint %s was removed", tag, before)


def _named_by(folder: str) -> Path | None:
    """The checkpoint that DIR/TAG/sluice-tag.json names. None if the file is missing or
    unreadable."""
    try:
        with open(os.path.join(folder, _MARK), encoding="utf-8") as file:
            mark = json.loads(file.read(_MOST_MARK))
    except (OSError, ValueError, RecursionError):
        return None
    name = mark.get("checkpoint") if isinstance(mark, dict) else None
    is_ours = isinstance(name, str) and mark.get("format") == _FORMAT
    if not is_ours or not re.fullmatch(r"step-[0-9]{9,18}", name):
        return None
    return Path(os.path.abspath(folder), _PARTS, name)


def tags(directory: str) -> list[str]:
    """Tags with a complete checkpoint, the oldest first."""
    found = {manifest.parents[2] for manifest in Path(directory).glob(f"*/{_PARTS}/*/{_MANIFEST}")}
    return [folder.name for folder in sorted(found, key=lambda folder: folder.stat().st_mtime)]


def find(directory: str, tag: Any) -> str | None:
    """The folder of a tag, or of the latest one. None if no tag is given and there is no `latest`.

    Raises:
        Error: the tag has no complete checkpoint; the message names those that exist.
    """
    named_where = ""
    if tag is None:
        latest = os.path.join(directory, LATEST)
        try:
            tag = Path(latest).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            _log.warning(
                "there is no %s: pass the tag of the checkpoint to load%s",
                latest,
                _and_known(directory),
            )
            return None
        named_where = f", which {latest} names,"
    folder = os.path.join(directory, check_tag(tag))
    named = _named_by(folder)
    if named is not None and (named / _MANIFEST).exists():
        return os.fspath(named)
    if any(Path(folder).glob(f"{_PARTS}/*/{_MANIFEST}")):
        return folder
    if any(Path(folder).glob("*_model_states.pt")):
        raise RefusedError(
            f"{folder} was written by DeepSpeed: convert it to weights with its zero_to_fp32.py,"
            " and load these with engine.load_weights()"
        )
    what = "has no complete checkpoint" if os.path.isdir(folder) else "does not exist"
    raise Error(f"{folder}{named_where} {what}{_and_known(directory)}")


def _and_known(directory: str) -> str:
    known = tags(directory)
    return f"; existing tags: {', '.join(known)}" if known else ""
