"""``deepspeed.zero``: parameters that are made, or used, outside of the module's passes."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from .. import engine as engines
from .._core import RefusedError
from ..engine import Engine
from ..making import Making, init, served
from ..units import ManagedParameter

_log = logging.getLogger("sluice")


class Init:
    """``with zero.Init(config_dict_or_path=...):`` around the making of a model.

    It is :func:`sluice.init`: parameters need not fit into memory, where a configuration is given
    that has NVMe folders. Else they are made in RAM.

    ``dtype`` is what they are made in; other arguments, DeepSpeed's own, do nothing.
    """

    def __init__(
        self,
        module: nn.Module | None = None,
        *_: Any,
        config_dict_or_path: Any = None,
        config: Any = None,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        **__: Any,
    ):
        if module is not None:
            raise RefusedError("zero.Init(module=...): give the module to initialize() instead")
        self._dtype = dtype if enabled else None
        self._before = torch.get_default_dtype()
        given = config_dict_or_path if config_dict_or_path is not None else config
        self._making: Making | None = None
        if enabled and given is not None:
            from . import read_config

            self._making = init(read_config(given))

    def __enter__(self) -> Init:
        self._before = torch.get_default_dtype()
        if self._making is not None:
            self._making.__enter__()
        else:
            _log.info("zero.Init without a configuration: parameters are made in RAM")
        if self._dtype is not None:
            torch.set_default_dtype(self._dtype)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        torch.set_default_dtype(self._before)
        if self._making is not None:
            self._making.__exit__(kind, error, trace)


def _engine_of(parameter: torch.Tensor) -> Engine | None:
    for reference in list(engines._engines.values()):
        engine = reference()
        if engine is not None and id(parameter) in engine._managed:
            return engine
    return None


class GatheredParameters:
    """Within it, parameters of a module that is trained, or was made within ``zero.Init``, can be
    read; other tensors are left alone.

    With ``modifier_rank``, what was changed in place is written to the masters, and to the 16-bit
    copies that the module computes with. AdamW's moments stay.

    Raises:
        RefusedError: a parameter was changed that must not be, or to what is not finite: it has its
            old value again.
    """

    def __init__(
        self,
        params: torch.Tensor | nn.Module | Iterable[torch.Tensor],
        modifier_rank: int | None = None,
        fwd_module: nn.Module | None = None,
        enabled: bool = True,
    ):
        if isinstance(params, torch.Tensor):
            params = [params]
        elif isinstance(params, nn.Module):
            params = params.parameters()
        self._parameters = list(params) if enabled else []
        self._modifies = modifier_rank is not None
        self._engine: Engine | None = None

    def __enter__(self) -> GatheredParameters:
        owners = {id(it): _engine_of(it) for it in self._parameters}
        found = {id(it): it for it in owners.values() if it is not None}
        if len(found) > 1:
            raise RefusedError("GatheredParameters of several engines at once: one after another")
        self._holding = ExitStack()
        if not found:  # they are where they have always been, or on a drive
            self._holding.enter_context(served(self._parameters, changes=self._modifies))
            return self
        self._engine = next(iter(found.values()))
        mine = [it for it in self._parameters if owners[id(it)] is not None]
        self._holding.enter_context(self._engine.gathered(*mine))
        units = {self._engine._managed[id(it)].unit for it in mine}
        self._before = [
            (it, it.parameter.detach().clone(), it.parameter._version)
            for it in self._engine._managed.values()
            if it.unit in units
        ]
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._engine is None:
            self._holding.__exit__(kind, error, trace)
            return
        keeper = self._engine._keeper
        changed: list[tuple[ManagedParameter, torch.Tensor, torch.Tensor]] = [
            (it, it.parameter.detach().clone(), value)
            for it, value, version in self._before
            if it.parameter._version != version
            or not keeper.is_attached(it)  # by parameter.data = tensor, which stays the script's
            or not torch.equal(it.parameter, value)
        ]
        keeper.attach(*{it.unit for it, _, _ in self._before})
        for it, _, value in changed:
            it.parameter.data.copy_(value)
        keeper.note_versions()
        self._holding.__exit__(kind, error, trace)
        if kind is None and changed:
            self._write(self._engine, changed)

    def _write(
        self, engine: Engine, changed: list[tuple[ManagedParameter, torch.Tensor, torch.Tensor]]
    ) -> None:
        if not self._modifies:
            names = ", ".join(it.name for it, _, _ in changed[:3])
            names += ", ..." if len(changed) > 3 else ""
            raise RefusedError(
                f"{names} changed within GatheredParameters: give modifier_rank=0 to write it back"
            )
        engine._change([(it, now.cpu(), before.cpu()) for it, now, before in changed])
