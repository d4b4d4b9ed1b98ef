"""Checkpoints of a pipeline, which any number of stages can load: parameters are named by the number
of their layer.

DIR/latest                             the tag that was saved last
DIR/TAG/sluice-pipeline.json           the checkpoint of each stage; written once all are durable
DIR/TAG/stage-N-of-S/checkpoints/      the checkpoints of a stage's engine
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._core import Error, RefusedError
from ..._files import write_durably
from ..checkpoints import LATEST, check_client_state, check_tag
from .module import PipelineModule

if TYPE_CHECKING:
    from .engine import PipelineEngine

_log = logging.getLogger("sluice")
_MARK = "sluice-pipeline.json"
_FORMAT = "sluice-pipeline"
_MOST_MARK = 1 << 20  # bytes
_PATH = re.compile(r"stage-[0-9]{1,6}-of-[0-9]{1,6}/checkpoints/step-[0-9]{9,18}")


def save(
    engine: PipelineEngine,
    directory: str,
    tag: Any,
    client_state: Mapping[str, Any] | None,
    save_latest: bool,
) -> None:
    place = engine.place
    tag = check_tag(f"global_step{engine.global_steps}" if tag is None else tag)
    state = check_client_state(dict(client_state or {}))
    where = os.path.join(directory, tag)
    if os.path.islink(where):
        raise RefusedError(
            f"{where} is a symbolic link, which a save does not follow: use another tag"
        )
    own = f"stage-{place.stage}-of-{place.stages}"
    mark = _read(where)
    before = [] if mark is None else mark["stages"]
    try:
        folder = engine.engine.save_checkpoint(os.path.join(where, own), state, background=False)
        named = place.texts(f"{own}/checkpoints/{os.path.basename(folder)}")
        place.world.all_gather("")  # all stages are durable
        if place.world.rank == 0:
            fresh = {"format": _FORMAT, "version": 1, "stages": named, "parts": _parts(engine)}
            write_durably(os.path.join(where, _MARK), json.dumps(fresh) + "\n")
            if save_latest:
                write_durably(os.path.join(directory, LATEST), tag)
        place.world.all_gather("")
    except BaseException as error:
        place.fail(error)
        raise
    if place.data.rank != 0:
        return
    for path in before:
        if path.startswith(own + "/") and path not in named:
            _remove(engine, os.path.join(where, path))


def _remove(engine: PipelineEngine, path: str) -> None:
    try:
        engine.engine.remove_checkpoint(path)
    except Error as error:
        _log.warning("%s, which was saved again, was kept: %s", path, error)


def load(
    engine: PipelineEngine, directory: str, tag: Any
) -> tuple[str | None, dict[str, Any] | None]:
    place = engine.place
    if tag is None:
        latest = os.path.join(directory, LATEST)
        try:
            tag = Path(latest).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            _log.warning("there is no %s: pass the tag of the checkpoint to load", latest)
            return None, None
    where = os.path.join(directory, check_tag(tag))
    mark = _read(where)
    if mark is None:
        raise Error(
            f"{where} has no complete checkpoint of a pipeline: it has no {_MARK}"
            if os.path.isdir(where)
            else f"{where} does not exist"
        )
    named, parts = mark["stages"], mark.get("parts")
    if parts is not None and parts[-1] != _parts(engine)[-1]:
        raise RefusedError(
            f"{where} is of a pipeline of {parts[-1]} layers, and this one has {_parts(engine)[-1]}"
        )
    is_cut_alike = len(named) == place.stages and parts in (None, _parts(engine))
    try:
        state = engine.engine.load_stages(
            [os.path.join(where, it) for it in named], place.stage if is_cut_alike else None
        )
        place.world.all_gather("")  # no stage trains before all have loaded
    except BaseException as error:
        place.fail(error)
        raise
    return where, state or {}


def _parts(engine: PipelineEngine) -> list[int]:
    module = engine.module
    assert isinstance(module, PipelineModule)
    return module.parts


def _read(where: str) -> dict[str, Any] | None:
    """The contents of DIR/TAG/sluice-pipeline.json: "stages", the checkpoints by stage, and "parts",
    the bounds of their layers (earlier versions wrote none). None if the file is missing.

    Raises:
        Error: it is damaged.
    """
    path = os.path.join(where, _MARK)
    try:
        with open(path, encoding="utf-8") as file:
            mark = json.loads(file.read(_MOST_MARK))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise Error(f"{path} cannot be read: {error}") from error
    stages = mark.get("stages") if isinstance(mark, dict) else None
    is_ours = isinstance(stages, list) and stages and mark.get("format") == _FORMAT
    if not is_ours or not all(isinstance(it, str) and _PATH.fullmatch(it) for it in stages):
        raise Error(f"{path} is damaged: it does not name the stages' checkpoints")
    parts = mark.get("parts", [0] * (len(stages) + 1))
    if not isinstance(parts, list) or [type(it) for it in parts] != [int] * (len(stages) + 1):
        raise Error(f"{path} is damaged: it does not say which layers the stages have")
    return mark
