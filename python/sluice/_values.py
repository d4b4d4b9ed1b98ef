"""The values of a module in training: read, copied, set."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from . import _client
from ._core import RefusedError
from ._records import Record
from ._steps import Steps
from ._tensors import DTYPES
from ._trained import TrainedModule
from .units import ManagedParameter

_Change = tuple[ManagedParameter, torch.Tensor, torch.Tensor]  # the new value, and the old one


class _Gathered:
    """Copies of a module's parameters, by id, for a state_dict(). Copies that it contains live as
    long as it does, the others as long as this object."""

    def __init__(self, state: dict[str, Any]):
        waiting: dict[int, torch.Tensor] = {}
        self.waiting = waiting
        self._given: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        self.state = weakref.ref(state, lambda _: waiting.clear())

    def __contains__(self, key: int) -> bool:
        return key in self.waiting or key in self._given

    def take(self, key: int) -> torch.Tensor:
        copy = self._given.get(key)
        if copy is None:
            copy = self._given[key] = self.waiting.pop(key)
        return copy


class Values:
    """Reads and sets a module's values."""

    def __init__(self, trained: TrainedModule, steps: Steps, record: Record):
        self._trained = trained
        self._steps = steps
        self._record = record
        self._gathered: _Gathered | None = None
        self._keeps_copies = True  # of gathered parameters

    # ---- read

    def _gather(self, unit: int) -> list[torch.Tensor]:
        """Copies of a unit's parameters, on the CPU."""
        trained = self._trained
        with trained.calls:
            trained.check_values()
            with trained.residency.holding([unit]):
                return [
                    managed.parameter.detach().to("cpu", copy=True)
                    for managed in trained.units[unit].parameters
                ]

    def gather_into(
        self, module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any
    ) -> None:
        """The hook after a module's own part of state_dict(): replaces views, which are empty by
        then, by copies."""
        if self._gathered is None or self._gathered.state() is not state:
            self._gathered = _Gathered(state)
        gathered = self._gathered
        for name, parameter in module._parameters.items():
            known = self._trained.managed.get(id(parameter)) if parameter is not None else None
            if known is None or prefix + name not in state:
                continue
            if id(parameter) not in gathered:
                of_unit = self._trained.units[known.unit].parameters
                for managed, copy in zip(of_unit, self._gather(known.unit)):
                    kept = copy if self._keeps_copies else copy.new_empty(0)
                    gathered.waiting[id(managed.parameter)] = kept
            state[prefix + name] = gathered.take(id(parameter))

    def forget_gathered(self) -> None:
        self._gathered = None

    def follow_state_dict(self) -> None:
        self._keeps_copies = False
        try:
            self._trained.module.state_dict()
        finally:
            self._keeps_copies = True

    @contextmanager
    def gathered(self, parameters: Iterable[nn.Parameter], times: int = 1) -> Iterator[None]:
        trained = self._trained
        trained.check_values()
        units = sorted({self._unit_of(parameter) for parameter in parameters})
        with trained.calls, trained.residency.holding(units, times):
            yield

    def _unit_of(self, parameter: nn.Parameter) -> int:
        known = self._trained.managed.get(id(parameter))
        if known is None:
            raise RefusedError("gathered() takes parameters of the trained module")
        return known.unit

    # ---- changed

    @contextmanager
    def changing(self, parameters: Iterable[nn.Parameter], refusal: str) -> Iterator[None]:
        parameters = list(parameters)
        managed = self._trained.managed
        changed: list[_Change] = []
        with self.gathered(parameters, times=2 if refusal else 3):  # before, and changed ones
            units = {self._unit_of(parameter) for parameter in parameters}
            before = [
                (known, known.parameter.detach().clone(), known.parameter._version)
                for known in managed.values()
                if known.unit in units
            ]
            try:
                yield
            finally:
                changed = self._take_changes(before)
        if changed and refusal:
            names = ", ".join(managed.name for managed, _, _ in changed[:3])
            raise RefusedError(f"{names}{', ...' if len(changed) > 3 else ''} {refusal}")
        if changed:
            with self._trained.calls:
                self._change([(managed, now.cpu(), was.cpu()) for managed, now, was in changed])

    def _take_changes(
        self, before: list[tuple[ManagedParameter, torch.Tensor, int]]
    ) -> list[_Change]:
        """Returns what has changed, and restores the old values."""
        residency = self._trained.residency
        changed = [
            (managed, managed.parameter.detach().clone(), value)
            for managed, value, version in before
            if managed.parameter._version != version
            or not residency.is_attached(managed)  # parameter.data = tensor replaced it
            or not torch.equal(managed.parameter, value)
        ]
        residency.attach(*{managed.unit for managed, _, _ in before})
        for managed, _, value in changed:
            managed.parameter.data.copy_(value)
        residency.note_versions()
        return changed

    def _change(self, changes: list[_Change]) -> None:
        """Changes the masters where a new value differs from the old one."""
        trained = self._trained
        if trained.ranks.world > 1:
            refused = RefusedError(
                "parameters cannot be changed on one rank, because all ranks hold master weights:"
                " change them before the engine is made, in the same way on all ranks"
            )
            trained.fail(refused)
            raise refused
        trained.residency.release_all()
        trained.run.change(
            [(managed.unit, managed.index, now, before) for managed, now, before in changes]
        )
        trained.residency.step_taken()
        if not all(managed.trained for managed, _, _ in changes):
            trained.frozen_sample = _client.sample(self._frozen(), whole=True)

    def _frozen(self) -> Iterator[ManagedParameter]:
        """Frozen parameters, one unit at a time, in memory."""
        for number, unit in enumerate(self._trained.units):
            frozen = [managed for managed in unit.parameters if not managed.trained]
            if frozen:
                with self._trained.residency.holding([number]):
                    yield from frozen

    # ---- as a whole

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        trained = self._trained
        values = self._values_by_parameter(state)
        self._steps.forget()
        trained.residency.release_all()
        trained.run.initialise(
            lambda unit: [
                values[id(managed.parameter)].detach() for managed in trained.units[unit].parameters
            ]
        )
        trained.is_empty = False
        self._steps.last = None
        trained.frozen_sample = _client.sample_of(
            (
                (managed, values[id(managed.parameter)])
                for managed in trained.managed.values()
                if not managed.trained
            ),
            whole=True,
        )
        self._record.begin_anew()
        trained.residency.attach()
        trained.residency.step_taken()
        for name, buffer in trained.module.named_buffers():
            if name in state:
                buffer.copy_(state[name])

    def _values_by_parameter(self, state: Mapping[str, torch.Tensor]) -> dict[int, torch.Tensor]:
        names: dict[int, set[str]] = {}
        for name, parameter in self._trained.module.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), set()).add(name)
        values: dict[int, torch.Tensor] = {}
        for managed in self._trained.managed.values():
            found = sorted(names.get(id(managed.parameter), set()) & state.keys())
            if not found:
                raise RefusedError(f"the weights lack {managed.name}")
            if state[found[0]].shape != managed.parameter.shape:
                raise RefusedError(
                    f"{found[0]} has shape {tuple(state[found[0]].shape)} in the weights, but"
                    f" {tuple(managed.parameter.shape)} in the module"
                )
            values[id(managed.parameter)] = state[found[0]]
        return values

    def save(self, path: str | os.PathLike[str], dtype: str) -> None:
        trained = self._trained
        if dtype not in DTYPES:
            raise RefusedError(f'dtype is "{dtype}": it must be one of {", ".join(DTYPES)}')
        trained.check_values()
        trained.residency.check_memory()
        trained.residency.release_all()
        trained.run.save_weights(os.fspath(path), dtype)
