"""``deepspeed.zero``: parameters that are created or used outside of the module's passes."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from .. import _engines
from .._core import RefusedError
from ..engine import Engine
from .._deferred_init import DeferredInit, init, materialized

_log = logging.getLogger("sluice")
_NOT_MODIFIED = (
    "was changed within GatheredParameters: pass modifier_rank=0 to write the change back"
)


class Init:
    """``with zero.Init(config_dict_or_path=...):`` around the creation of a model.

    This is :func:`sluice.init`: with NVMe folders in the configuration, parameters need not fit
    into memory. Otherwise they are created in RAM.

    ``dtype`` is the type in which they are created. Other arguments of DeepSpeed's do nothing.
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
            raise RefusedError(
                "zero.Init(module=...) is not supported: pass the module to initialize()"
            )
        self._dtype = dtype if enabled else None
        self._before = torch.get_default_dtype()
        given = config_dict_or_path if config_dict_or_path is not None else config
        self._deferred: DeferredInit | None = None
        if enabled and given is not None:
            from . import read_config

            self._deferred = init(read_config(given))

    def __enter__(self) -> Init:
        self._before = torch.get_default_dtype()
        if self._deferred is not None:
            self._deferred.__enter__()
        else:
            _log.info("zero.Init has no configuration, so parameters are created in RAM")
        if self._dtype is not None:
            torch.set_default_dtype(self._dtype)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        torch.set_default_dtype(self._before)
        if self._deferred is not None:
            self._deferred.__exit__(kind, error, trace)


class GatheredParameters:
    """Makes parameters readable within the context, for a module in training or one created within
    ``zero.Init``. Other tensors are unaffected.

    With ``modifier_rank``, changes in place are written to the masters, and to the 16-bit copies
    that the module computes with. AdamW's moments stay.

    Raises:
        RefusedError: a parameter was changed that must not change, or to values that are not
            finite. It has its old values again.
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

    def __enter__(self) -> GatheredParameters:
        owners = {id(parameter): _engines.find([parameter]) for parameter in self._parameters}
        found = {id(owner): owner for owner in owners.values() if owner is not None}
        if len(found) > 1:
            raise RefusedError(
                "GatheredParameters takes parameters of one engine: gather those of"
                " several engines one after another"
            )
        self._holding = ExitStack()
        if not found:  # they have ordinary values, or are on a drive
            self._holding.enter_context(materialized(self._parameters, changes=self._modifies))
            return self
        engine: Engine = next(iter(found.values()))
        mine = [parameter for parameter in self._parameters if owners[id(parameter)] is not None]
        refusal = "" if self._modifies else _NOT_MODIFIED
        self._holding.enter_context(engine.changing(*mine, refusal=refusal))
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._holding.__exit__(kind, error, trace)
