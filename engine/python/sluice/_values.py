"""The numbers of a module in training: read, copied, set anew."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from . import _client
from ._core import Ranks, RefusedError, Run
from ._threads import alone

if TYPE_CHECKING:
    from ._records import Record
    from ._steps import StepResult
    from .keeper import Keeper
    from .units import ManagedParameter, Unit

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Values:
    """The part of an :class:`Engine` that gives and takes values."""

    module: nn.Module
    last_step: StepResult | None
    _frozen_sample: str
    _is_empty: bool
    _gathered: tuple[weakref.ref, dict[int, torch.Tensor]] | None
    _keeps_copies = True  # of what is gathered
    _keeper: Keeper
    _managed: dict[int, ManagedParameter]
    _ranks: Ranks
    _record: Record
    _run: Run
    _units: list[Unit]

    def _abandon(self) -> None:
        raise NotImplementedError

    def _check_values(self) -> None:
        raise NotImplementedError

    def _fail(self, error: BaseException) -> None:
        raise NotImplementedError

    @alone
    def _gather(self, unit: int) -> list[torch.Tensor]:
        """Copies of a unit's parameters, on the CPU."""
        self._check_values()
        with self._keeper.holding([unit]):
            return [
                it.parameter.detach().to("cpu", copy=True) for it in self._units[unit].parameters
            ]

    def _gather_into(
        self, module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any
    ) -> None:
        """Behind a module's own part of state_dict(): copies in place of views that are empty by
        then."""
        if self._gathered is None or self._gathered[0]() is not state:
            self._gathered = (weakref.ref(state), {})
        copies = self._gathered[1]
        for name, parameter in module._parameters.items():
            known = self._managed.get(id(parameter)) if parameter is not None else None
            if known is None or prefix + name not in state:
                continue
            if id(parameter) not in copies:
                for it, copy in zip(self._units[known.unit].parameters, self._gather(known.unit)):
                    copies[id(it.parameter)] = copy if self._keeps_copies else copy.new_empty(0)
            state[prefix + name] = copies[id(parameter)]

    @contextmanager
    def gathered(self, *parameters: nn.Parameter) -> Iterator[None]:
        """Within it these parameters of the module can be read, and those that are fetched with
        them.

        Not changed: RefusedError behind it, where one was. Where units are on NVMe, few may be
        gathered at a time.
        """
        self._check_values()
        units = sorted({self._number_of(it) for it in parameters})
        with self._calls, self._keeper.holding(units):
            yield

    def _number_of(self, parameter: nn.Parameter) -> int:
        known = self._managed.get(id(parameter))
        if known is None:
            raise RefusedError("gathered() wants parameters of the module that is trained")
        return known.unit

    @alone
    def state_dict(self) -> dict[str, torch.Tensor]:
        """The module's, with copies of all parameters in :attr:`dtype` on the CPU; tied ones are
        one tensor."""
        return self.module.state_dict()

    @alone
    def follow_state_dict(self) -> None:
        """Takes part in the state_dict() of another rank, and keeps nothing of it."""
        self._keeps_copies = False
        try:
            self.module.state_dict()
        finally:
            self._keeps_copies = True

    @alone
    def load_weights(self, state: Mapping[str, torch.Tensor]) -> None:
        """Begins anew from these values, by the module's names: AdamW's moments are zero again, and
        the step is 0.

        Names of parameters that are tied, or that `state` has beyond those of the module, are not
        needed.
        """
        names: dict[int, set[str]] = {}
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), set()).add(name)
        values: dict[int, torch.Tensor] = {}
        for it in self._managed.values():
            found = sorted(names.get(id(it.parameter), set()) & state.keys())
            if not found:
                raise RefusedError(f"the weights have no {it.name}")
            if state[found[0]].shape != it.parameter.shape:
                raise RefusedError(
                    f"{found[0]} has the shape {tuple(state[found[0]].shape)} in the weights, and "
                    f"{tuple(it.parameter.shape)} in the module"
                )
            values[id(it.parameter)] = state[found[0]]
        self._abandon()
        self._keeper.release_all()
        self._run.initialise(
            lambda unit: [values[id(it.parameter)].detach() for it in self._units[unit].parameters]
        )
        self._is_empty = False
        self.last_step = None
        self._frozen_sample = _client.sample_of(
            ((it, values[id(it.parameter)]) for it in self._managed.values() if not it.trained),
            whole=True,
        )
        self._record.begin_anew()
        self._keeper.attach()
        self._keeper.step_taken()
        for name, buffer in self.module.named_buffers():
            if name in state:
                buffer.copy_(state[name])

    @alone
    def _change(self, changes: list[tuple[ManagedParameter, torch.Tensor, torch.Tensor]]) -> None:
        """Parameters, their new values, and what they were: masters change where these differ."""
        if self._ranks.world > 1:
            refused = RefusedError(
                "parameters are changed on one rank, of several that have their masters: change"
                " them before the engine is made, the same on all"
            )
            self._fail(refused)
            raise refused
        self._keeper.release_all()
        self._run.change([(it.unit, it.index, now, before) for it, now, before in changes])
        self._keeper.step_taken()
        if not all(it.trained for it, _, _ in changes):
            self._frozen_sample = _client.sample(self._frozen(), whole=True)

    def _frozen(self) -> Iterator[ManagedParameter]:
        """One unit's after the other, in memory."""
        for number, unit in enumerate(self._units):
            frozen = [it for it in unit.parameters if not it.trained]
            if frozen:
                with self._keeper.holding([number]):
                    yield from frozen

    @alone
    def save_weights(self, path: str | os.PathLike[str], dtype: str = "fp32") -> None:
        """All trained parameters as one safetensors file: their masters, "fp32", or rounded to
        "bf16" or "fp16"."""
        if dtype not in _DTYPES:
            raise RefusedError(f'dtype is "{dtype}": there are {", ".join(_DTYPES)}')
        self._check_values()
        self._keeper.check_memory()
        self._keeper.release_all()
        self._run.save_weights(os.fspath(path), dtype)


def _refuse_load(module: nn.Module, *_: Any) -> None:
    raise RefusedError(
        "the engine has the module's parameters: load them by engine.load_weights(state_dict)"
    )
