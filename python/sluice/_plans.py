"""The memory and step time of a run, and what this machine can do, as in `sluice plan` and `sluice
probe`."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from . import _core
from ._core import RefusedError
from ._setup import read_config, parameters_of
from ._native import choose
from .units import UnitPolicy, checkpointed_share, divide

_log = logging.getLogger("sluice")

_MOST_RANKS = 4096  # GPUs of a host, and hosts
Source = Mapping[str, Any] | str | os.PathLike[str]


class Report(Mapping[str, Any]):
    """A mapping of numbers, in bytes, seconds and tokens. :func:`str` gives the command line's
    table."""

    def __init__(self, values: dict[str, Any], text: str):
        self._values = values
        self._text = text

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<sluice.{type(self).__name__}: {', '.join(self._values)}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # for notebooks
        printer.text(self._text)


class Plan(Report):
    """Where a run's parameters, state and activations are placed, and the predicted step time."""

    @property
    def fits(self) -> bool:
        return self["fits"]

    @property
    def step_s(self) -> float | None:
        """The predicted step time; None if the run does not fit."""
        return self._predicted("step_s")

    @property
    def tokens_per_s(self) -> float | None:
        return self._predicted("tokens_per_s")

    @property
    def bottleneck(self) -> str | None:
        """The resource that is busy for most of the step."""
        return self._predicted("bottleneck")

    @property
    def memory(self) -> dict[str, dict[str, Any]]:
        """By tier ("gpu", "cpu", "nvme"): bytes, budget_bytes and parts."""
        return self["tiers"]

    @property
    def units(self) -> list[dict[str, Any]]:
        """Where each unit's state, parameters and activations are placed."""
        return self["units"]

    @property
    def assumptions(self) -> list[str]:
        """What a module's plan assumes, about what only the module's code determines."""
        return self.get("assumptions", [])

    def _predicted(self, key: str) -> Any:
        return self["prediction"][key] if "prediction" in self else None


class Probe(Report):
    """The measured performance of this machine's memory, drives and GPU, and of a model's units."""


def overrides_of(overrides: Mapping[str, Any] | None) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in (overrides or {}).items()]


def config_options(
    config: Source | None,
    deepspeed: str | os.PathLike[str] | None,
    overrides: Mapping[str, Any] | None,
) -> _core.ConfigOptions:
    is_dict = isinstance(config, Mapping)
    try:
        text = json.dumps(config) if is_dict else ""
    except (TypeError, ValueError) as error:
        raise RefusedError(f"the configuration cannot be written as JSON: {error}") from error
    file = "" if config is None or is_dict else os.fspath(config)  # type: ignore[arg-type]
    return _core.ConfigOptions(
        file, text, os.fspath(deepspeed) if deepspeed is not None else "", overrides_of(overrides)
    )


def plan(
    config: Source | None = None,
    *,
    model: nn.Module | None = None,
    units: UnitPolicy = "auto",
    deepspeed: str | os.PathLike[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    machine: Mapping[str, float] | None = None,
    gpus: int = 1,
    hosts: int = 1,
    refresh: bool = False,
) -> Plan:
    """Plans a configuration as `sluice plan` does, or with `model` a module as
    :func:`sluice.initialize` would train it. The first call measures this machine, which takes
    seconds.

    Args:
        config: a run file, as its path or as a dict; for a module also DeepSpeed's JSON.
        model: the module to train, instead of the configuration's model. It is not changed, and may
            be on the meta device. For modules that PyTorch computes by hooks,
            :attr:`Plan.assumptions` lists what the plan assumes.
        units: as for :func:`sluice.initialize`.
        deepspeed: a DeepSpeed configuration in addition to the run file, as `--deepspeed`.
        overrides: dotted keys that take precedence: ``{"run.seed": 7}``.
        machine: describes another machine: ``{"gpu_gib": 24, "bus_gb_per_s": 22, "tflops": 100}``.
            `sluice plan --help` lists the names.
        gpus, hosts: the ranks to plan for.
        refresh: repeats the measurements that are stored.

    Raises:
        RefusedError: the configuration cannot be used, or the run does not fit. In the latter case
            the message names the nearest setting that does, and the exception's ``plan`` has the
            table.
    """
    for name, count in (("gpus", gpus), ("hosts", hosts)):
        if not isinstance(count, int) or not 1 <= count <= _MOST_RANKS:
            raise RefusedError(
                f"{name} is {count!r}: it must be a whole number from 1 to {_MOST_RANKS}"
            )
    try:
        where = {name: float(value) for name, value in (machine or {}).items()}
    except (TypeError, ValueError) as error:
        raise RefusedError(f"machine takes numbers only: {error}") from error
    if model is not None:
        if deepspeed is not None:
            raise RefusedError(
                "plan() with model takes one configuration: config may be DeepSpeed's JSON as well"
            )
        if config is None:
            raise RefusedError("plan() needs a configuration: config=...")
        if not isinstance(model, nn.Module):
            raise RefusedError(f"model is a {type(model).__name__}, not a torch.nn.Module")
        family, _ = choose(model, units, gpus * hosts)
        resolved = read_config(config, overrides, world=gpus * hosts, family=family)
        divided = divide(model, units, has_values=False)
        more = where, gpus, hosts, refresh, checkpointed_share(model, divided)
        if family is not None:
            found = _core.plan_family(resolved, family, *more)
        else:
            found = _core.plan_module(resolved, parameters_of(divided), *more)
    else:
        found = _core.plan(
            config_options(config, deepspeed, overrides), where, gpus, hosts, refresh
        )
    for warning in found.warnings:
        _log.warning(warning)
    values = json.loads(found.json)
    text = found.text
    if found.assumptions:
        values["assumptions"] = list(found.assumptions)
        text += "\n" + "".join(f"{assumption}\n" for assumption in found.assumptions)
    made = Plan(values, text)
    if not found.fits:
        refused = RefusedError(found.reason)
        refused.plan = made  # type: ignore[attr-defined]
        raise refused
    return made


def probe(
    config: Source | None = None,
    *,
    path: str | os.PathLike[str] | list[str] | None = None,
    deepspeed: str | os.PathLike[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    refresh: bool = False,
) -> Probe:
    """Measures this machine as `sluice probe` does. The first call takes seconds. Results are kept
    for 30 days, in the same place as the command line's.

    Args:
        config: a run file whose drives and model units are measured. Without one, `path` and the
            units of GPT-2 small are.
        path: a folder on a drive, or several: budget.nvme_paths.
        refresh: repeats the measurements that are stored.
    """
    keys = dict(overrides or {})
    if path is not None:
        paths = path if isinstance(path, list) else [path]
        keys["budget.nvme_paths"] = [os.fspath(folder) for folder in paths]
    is_given = config is not None or deepspeed is not None
    found = _core.probe(config_options(config, deepspeed, keys), is_given, refresh)
    if found.warning:
        _log.warning(found.warning)
    return Probe(json.loads(found.json), found.text)
