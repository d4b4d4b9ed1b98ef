"""Refuses to copy or pickle an engine or a module in training."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import nn

from ._core import RefusedError


def _refuse(*_: Any) -> NoReturn:
    raise RefusedError(
        "a module that has an engine cannot be copied or pickled (copy.deepcopy,"
        " torch.save(module)), because the engine owns its parameters. Save engine.state_dict()"
        " with torch.save(), or load it into a copy of the module that was made before"
        " sluice.initialize()"
    )


class NotCopied:
    """A base of the engine's objects that a module's hooks hold: parts of the module are not copied
    either."""

    __deepcopy__ = _refuse
    __reduce_ex__ = _refuse


_NAMES = ("__deepcopy__", "__reduce_ex__")  # looked up in the object before its class


def forbid(module: nn.Module) -> None:
    for part in module.modules():
        for name in _NAMES:
            part.__dict__[name] = _refuse


def allow(module: nn.Module) -> None:
    for part in module.modules():
        for name in _NAMES:
            part.__dict__.pop(name, None)
