"""The open engines, by module."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

# Engines that are not closed. This module does not import their class.
_open: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Any]] = weakref.WeakKeyDictionary()


def add(module: nn.Module, engine: Any) -> None:
    _open[module] = weakref.ref(engine)


def remove(module: nn.Module) -> None:
    _open.pop(module, None)


def all_open() -> list[Any]:
    engines = [reference() for reference in list(_open.values())]
    return [engine for engine in engines if engine is not None]


def is_trained(module: nn.Module) -> bool:
    return module in _open and _open[module]() is not None


def find(parameters: Iterable[torch.Tensor]) -> Any:
    """The first engine that has any of these parameters, or None."""
    wanted = list(parameters)
    return next(
        (engine for engine in all_open() if any(engine.has(parameter) for parameter in wanted)),
        None,
    )
