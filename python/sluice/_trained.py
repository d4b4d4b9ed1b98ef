"""A module in training, with the native run that has its parameters."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from . import _client, _core, _deferred_init, _forks, ranks
from ._build import VERSION
from ._copies import NotCopied, allow, forbid
from ._core import Config, Family, Ranks, RefusedError, Run
from ._residency import Closed, Residency
from ._setup import parameters_of
from ._tensors import DTYPES
from ._threads import Calls
from .units import ManagedParameter, Unit, checkpointed_share

_log = logging.getLogger("sluice")


def _flat(keys: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in keys.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _refuse_load(module: nn.Module, *_: Any) -> None:
    raise RefusedError(
        "the engine has the module's parameters: load them by engine.load_weights(state_dict)"
    )


class TrainedModule(NotCopied):
    """A module, its units, the run that has their parameters, and the state of residency.

    An engine has one for its whole life. :meth:`begin_run` and :meth:`take_over` switch it to
    another run and other units when the module's passes are to be computed in another way.
    """

    run: Run
    units: list[Unit]
    managed: dict[int, ManagedParameter]  # by the parameter's id
    residency: Residency
    device: torch.device  # where the module computes
    dtype: torch.dtype  # what it computes with
    frozen_sample: str  # a fingerprint of frozen parameters

    def __init__(
        self,
        module: nn.Module,
        config: Config,
        ranks: Ranks,
        is_empty: bool,
        stages: Ranks | None = None,
    ):
        self.module = module
        self.config = config
        self.ranks = ranks
        #: The ranks with this rank's part of the data, if the module is a stage of a pipeline.
        self.stages = stages
        #: Whether parameters have no values yet: they were made by sluice.init(values=False).
        self.is_empty = is_empty
        #: Whether a refusal is raised on all ranks.
        self.all_refuse = False
        self.calls = Calls()
        self.handles: list[RemovableHandle] = []
        self.outer_handles: list[RemovableHandle] = []  # hooks of a Trainer, for example
        #: The engine: it lives as long as its hooks of the module.
        self.owner: object = None

    # ---- begin and end

    def begin_run(self, units: list[Unit], family: Family | None) -> None:
        self.units = units
        self.managed = {
            id(managed.parameter): managed for unit in units for managed in unit.parameters
        }
        frozen = [managed for managed in self.managed.values() if not managed.trained]
        self.all_refuse = True
        if self.ranks.world > 1:
            self._require_same()
        self.all_refuse = False
        scattered = [
            managed.parameter for managed in frozen if not managed.parameter.is_contiguous()
        ]
        with _deferred_init.materialized(scattered):
            self.frozen_sample = _client.sample(frozen, whole=not self.is_empty)
        _deferred_init.flush(self.module)
        checkpointed = checkpointed_share(self.module, self.units)
        if family is not None:
            self.run = Run(self.config, family, self.ranks, _core.speeds_path(), checkpointed)
        else:
            self.run = Run(
                self.config,
                parameters_of(self.units),
                self.ranks,
                _core.speeds_path(),
                int(time.time()),
                checkpointed,
                self.stages,
            )
        for note in [*self.run.notes, *self.run.assumptions]:
            _log.info(note)
        self.dtype = DTYPES[self.config.precision]
        self._say_types()
        self.device = (
            torch.device("cuda", torch.cuda.current_device())
            if self.run.on_gpu
            else torch.device("cpu")
        )
        self.handles = []

    def take_over(
        self,
        on_gradient: Callable[[torch.Tensor], None],
        gather_into: Callable[[nn.Module, dict[str, Any], str, Any], None],
    ) -> None:
        """Makes the module's parameters views of the run's memory.

        Args:
            on_gradient: called when a parameter's gradient is complete.
            gather_into: the hook that runs after a module's own part of state_dict().
        """
        for number, unit in enumerate(self.units):
            if not unit.parameters:
                continue
            for managed, view in zip(unit.parameters, self.run.views(number)):
                managed.parameter.grad = None
                managed.parameter.data = view
                if managed.trained:
                    self.handles.append(
                        managed.parameter.register_post_accumulate_grad_hook(on_gradient)
                    )
        if self.run.on_gpu:
            for part in self.module.modules():
                for name, buffer in part._buffers.items():
                    if buffer is not None:
                        part._buffers[name] = buffer.to(self.device)
        forbid(self.module)
        for part in self.module.modules():
            if any(True for _ in part.parameters(recurse=False)):
                self.handles.append(
                    part.register_state_dict_post_hook(lambda *args: gather_into(*args))
                )
                self.handles.append(part.register_load_state_dict_pre_hook(_refuse_load))
        self.residency = Residency(self.run, self.module, self.units, self.ranks)

    def take_apart(self) -> None:
        """Drops all references to the run. The module's parameters have no values afterwards."""
        self.residency.close()
        for handle in self.handles:
            handle.remove()
        allow(self.module)
        self.drop_run()

    def drop_run(self) -> None:
        self.run = cast(Run, Closed())

    @property
    def is_open(self) -> bool:
        return not isinstance(self.run, Closed)

    @property
    def is_forked(self) -> bool:
        """Whether the run belongs to the process from which this one was forked."""
        return isinstance(self.run, _forks.Forked)

    def leave_to_parent(self) -> None:
        _forks.keep_forever(self.run)
        self.calls = Calls()  # one of the parent's threads may have held the lock
        self.run = cast(Run, _forks.Forked("the engine"))
        self.residency.leave(self.run)

    # ---- services for the engine's parts

    def keys(self) -> dict[str, Any]:
        """The resolved configuration, in the form of a run file."""
        return json.loads(self.config.json())

    @property
    def scratch(self) -> str | None:
        """The folder for temporary files: next to the run's folder."""
        return os.path.dirname(self.config.run_dir) or None

    def check_values(self) -> None:
        if self.is_empty:
            raise RefusedError(
                "the module was made by sluice.init(values=False), and has no values yet: call"
                " load_checkpoint() or load_weights()"
            )

    def fail(self, error: BaseException) -> None:
        """Ends the other ranks, which wait for this one."""
        if self.ranks.world > 1:
            self.abort(error)

    def abort(self, error: BaseException) -> None:
        self.ranks.abort(f"rank {self.ranks.rank}: {type(error).__name__}: {error}")

    def hook_ids(self) -> Iterator[int]:
        """Ids of the module hooks that belong to the engine or the objects around it."""
        for handle in (*self.handles, *self.outer_handles, *self.residency.handles):
            yield handle.id

    def pack(self, client_state: Any) -> str:
        """The state of the module that Python adds to a checkpoint."""
        return _client.pack(self.module, client_state, self.frozen_sample, self.ranks)

    def _say_types(self) -> None:
        """Logs the parameters' types if the configuration computes in another one."""
        found = sorted({str(managed.parameter.dtype)[6:] for managed in self.managed.values()})
        is_narrower = self.dtype == torch.float32 and found != ["float32"]
        if self.ranks.rank != 0 or (len(found) == 1 and not is_narrower):
            return
        _log.warning(
            "the module's parameters are %s, and all of them are trained in %s: bf16.enabled and"
            " fp16.enabled in the configuration choose the type",
            " and ".join(found),
            str(self.dtype)[6:],
        )

    def _require_same(self) -> None:
        """Checks what must be equal on all ranks, before any values are taken over."""
        keys = self.keys()
        keys["run"].pop("dir", None)
        described = {
            managed.name: {
                "shape": list(managed.parameter.shape),
                "type": str(managed.parameter.dtype)[6:],
                "trained": managed.trained,
                "unit": unit.name,
            }
            for unit in self.units
            for managed in unit.parameters
        }
        ranks.require_same(
            self.ranks,
            {
                "the version of Sluice differs": VERSION,
                "the run's folder (run_dir) differs": self.config.given_run_dir,
                "the configuration differs": dict(_flat(keys)),
                "the module's parameters differ": described,
                "the module's units differ": json.dumps([unit.name for unit in self.units]),
                "the use of sluice.init(values=False) differs": str(self.is_empty),
            },
        )
        if not self.is_empty:
            _client.take_first_ranks_values(self.ranks, list(self.managed.values()), self.module)
