"""Runs before an engine is made: reads its configuration, and refuses unsupported modules."""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from . import _engines
from ._core import Config, Family, Parameter, RefusedError, strict_config
from .units import Unit

_log = logging.getLogger("sluice")
_numbers = itertools.count()
_warned: set[str] = set()
# Sections of a run file, in addition to DeepSpeed's keys.
_SECTIONS = {"model", "data", "run", "budget", "placement", "recipe"}


def read_keys(config: Mapping[str, Any] | str | os.PathLike[str]) -> dict[str, Any]:
    """The keys of a run file, a DeepSpeed JSON or a mapping, read as by the command line.

    Raises:
        RefusedError: it cannot be read, or is not a JSON object.
    """
    name, text = "the configuration", b""
    if not isinstance(config, (Mapping, str, os.PathLike)):
        raise RefusedError(
            f"the configuration is a {type(config).__name__}: it must be a mapping or a path"
        )
    try:
        if isinstance(config, Mapping):
            text = json.dumps(dict(config)).encode()
        else:
            name = os.fspath(config)
            text = Path(name).read_bytes()
    except OSError as error:
        raise RefusedError(f"the configuration {name} cannot be read: {error.strerror}") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise RefusedError(f"the configuration is not JSON: {error}") from error
    keys = json.loads(strict_config(name, text))
    if not isinstance(keys, dict):
        raise RefusedError(f"{name} is not a JSON object")
    return keys


def read_config(
    config: Mapping[str, Any] | str | os.PathLike[str],
    overrides: Mapping[str, Any] | None,
    run_dir: str | os.PathLike[str] | None = None,
    world: int = 1,
    family: Family | None = None,
) -> Config:
    keys = read_keys(config)
    of_deepspeed = not _SECTIONS & keys.keys()
    # It describes another model, whose parameters have other names.
    if keys.get("model"):
        keys["model"] = {}
        _log.info("the section model is ignored: the module that was passed is trained")
    text = json.dumps(keys)
    overrides = dict(overrides or {})
    asks_length = "data.sequence_length" in overrides or '"sequence_length"' in text
    used: set[str] = set()
    if family is not None:
        used = {"data.sequence_length", "placement.recompute"}
        if asks_length:  # it is checked against the model's
            used.add("model.context")
            overrides["model.context"] = family.context
    resolved = Config(
        text,
        of_deepspeed,
        [f"{key}={json.dumps(value)}" for key, value in overrides.items()],
        world,
    )
    for key, reason in resolved.ignored:
        if key not in used:
            _log.info("%s is ignored: %s", key, reason)
    for warning in resolved.warnings:
        if warning not in _warned:
            _warned.add(warning)
            _log.warning("%s", warning)
    if run_dir is not None:
        resolved.run_dir = os.fspath(run_dir)
    if resolved.run_dir:
        resolved.run_dir = resolved.given_run_dir = os.path.abspath(resolved.run_dir)
    if not resolved.run_dir:  # names the stores on NVMe, so each engine needs its own
        resolved.run_dir = os.path.join(
            os.getcwd(), f"sluice-python-{os.getpid()}-{next(_numbers)}"
        )
    return resolved


def parameters_of(units: list[Unit]) -> list[tuple[str, list[Parameter]]]:
    return [
        (
            unit.name,
            [
                Parameter(managed.name, list(managed.parameter.shape), managed.trained)
                for managed in unit.parameters
            ],
        )
        for unit in units
    ]


def check_module(module: nn.Module) -> None:
    if not isinstance(module, nn.Module):
        raise RefusedError(f"model is a {type(module).__name__}, not a torch.nn.Module")
    if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise RefusedError(
            f"model is wrapped in {type(module).__name__}: pass the module inside it (model.module)"
        )
    if hasattr(module, "_orig_mod"):
        raise RefusedError(
            "model was made by torch.compile, which keeps the addresses of its parameters: pass the"
            " module itself, and compile the forward of its blocks (block.forward ="
            " torch.compile(block.forward))"
        )
    if _engines.is_trained(module):
        raise RefusedError("model already has an engine: close() that engine first")
    check_not_compiled(module)


def check_not_compiled(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if getattr(part, "_compiled_call_impl", None) is not None:
            raise RefusedError(
                f"{name or 'the module'} was compiled by Module.compile(), which bypasses the"
                " engine's hooks: compile its forward instead (module.forward ="
                " torch.compile(module.forward))"
            )
