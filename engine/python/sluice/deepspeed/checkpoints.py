"""Checkpoints in folders by tag, with a file `latest`, as DeepSpeed's users know them.

DIR/latest              the tag that was saved last
DIR/TAG/checkpoints/    the engine's own checkpoint, one
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from .._core import Error, RefusedError
from ..engine import Engine
from . import comm

_log = logging.getLogger("sluice")
_LATEST = "latest"
_MANIFEST = "checkpoint.json"
_PARTS = "checkpoints"


def check_tag(tag: Any) -> str:
    name = str(tag)
    if name in ("", ".", "..", _LATEST) or Path(name).name != name or "\n" in name:
        raise RefusedError(f"tag {name!r} is no name of a folder in the checkpoints' directory")
    return name


def check_client_state(state: Any) -> Any:
    """RefusedError where it would come back as something else than it is."""
    try:
        again = json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise RefusedError(f"client_state cannot be written as JSON: {error}") from error
    if again != state:
        raise RefusedError(
            "client_state would come back changed: JSON has lists, no tuples, and names of entries"
            " that are strings"
        )
    return state


def save(engine: Engine, directory: str, tag: str, client_state: Any, save_latest: bool) -> str:
    """Returns the checkpoint's folder, DIR/TAG/checkpoints/step-N. `latest` changes last."""
    folder = engine.save_checkpoint(
        os.path.join(directory, tag), client_state, background=False  # `latest` names it next
    )
    comm.on_first_rank(engine, lambda: _tidy(directory, tag, folder, save_latest))
    return folder


def _tidy(directory: str, tag: str, folder: str, save_latest: bool) -> None:
    for other in sorted(Path(folder).parent.iterdir()):
        if other != Path(folder) and other.is_dir():  # of the same tag, and replaced
            (other / _MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(other, ignore_errors=True)
    if save_latest:
        write_durably(os.path.join(directory, _LATEST), tag)


def write_durably(path: str, text: str) -> None:
    beside = f"{path}.{os.getpid()}.new"
    with open(beside, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    handle = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def tags(directory: str) -> list[str]:
    """Those with a whole checkpoint, the oldest first."""
    found = {it.parents[2] for it in Path(directory).glob(f"*/{_PARTS}/*/{_MANIFEST}")}
    return [it.name for it in sorted(found, key=lambda it: it.stat().st_mtime)]


def find(directory: str, tag: Any) -> str | None:
    """The folder of a tag, or of the latest one; None: there is no `latest` to say which.

    Raises:
        Error: there is no whole checkpoint of that tag; names those that there are.
    """
    said = ""
    if tag is None:
        latest = os.path.join(directory, _LATEST)
        try:
            tag = Path(latest).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            _log.warning(
                "there is no %s: to load a checkpoint of a directory without it, say which tag%s",
                latest,
                _and_known(directory),
            )
            return None
        said = f", which {latest} names,"
    folder = os.path.join(directory, check_tag(tag))
    if any(Path(folder).glob(f"{_PARTS}/*/{_MANIFEST}")):
        return folder
    if any(Path(folder).glob("*_model_states.pt")):
        raise RefusedError(
            f"{folder} was written by DeepSpeed: its zero_to_fp32.py makes weights of it, which"
            " engine.load_weights() takes"
        )
    what = "has no whole checkpoint" if os.path.isdir(folder) else "is not there"
    raise Error(f"{folder}{said} {what}{_and_known(directory)}")


def _and_known(directory: str) -> str:
    known = tags(directory)
    return f"; there are {', '.join(known)}" if known else ""
