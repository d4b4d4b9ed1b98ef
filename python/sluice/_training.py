"""A module in training: its parts, their start and end, and the switch to hooks."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

from torch import nn

from . import _core, _deferred_init, _engines, ranks
from ._checkpoints import Checkpoints
from ._core import Family, RefusedError
from ._hooks import HookPasses
from ._monitors import Monitors
from ._native import NativePasses, choose, units_of
from ._records import Record, parse_trace
from ._resident import ResidentWatch
from ._setup import check_module, read_config
from ._steps import Steps
from ._trained import TrainedModule
from ._values import Values
from .units import Unit, UnitPolicy, divide

_log = logging.getLogger("sluice")


class Training:
    """The parts of an engine. Each uses only those before it:

    - ``trained``: the module, its native run, and which of its units are in memory
    - ``record``: the run's folder
    - ``steps``: micro-batches and their gradients, by passes of one kind or another
    - ``values``, ``checkpoints``: what is read and written between steps
    """

    def __init__(
        self,
        model: nn.Module,
        config: Mapping[str, Any] | str | os.PathLike[str],
        units: UnitPolicy,
        overrides: Mapping[str, Any] | None,
        run_dir: str | os.PathLike[str] | None,
        trace: tuple[int, int] | str | None,
        among: ranks.StageRanks | None,
    ):
        check_module(model)
        is_empty = _deferred_init.fill_meta(model)
        divided = divide(model, units)
        joined = ranks.join() if among is None else among.data
        family, self.reason = choose(model, units, joined.world)
        resolved = read_config(config, overrides, run_dir, joined.world, family)
        if resolved.uses_gpu:
            ranks.choose_gpu(joined)
        traced = parse_trace(trace, resolved.given_run_dir)
        self._noted_slow = False
        self.config = resolved
        stages = None if among is None else among.stages
        self.trained = TrainedModule(model, resolved, joined, is_empty, stages)
        try:
            self._begin(
                divided if family is None else units_of(model, family),
                family,
                units == "engine",
                traced,
            )
        except BaseException as error:  # the others wait for this rank
            if not self.trained.all_refuse:
                self.trained.abort(error)
            raise
        self.record.watch()

    def _begin(self, units: list[Unit], family: Family | None, must: bool, trace: str) -> None:
        trained, directory = self.trained, self.config.given_run_dir
        trained.begin_run(units, family)
        keys = trained.keys()
        self.record = Record(trained, directory, trace)
        resident = ResidentWatch(keys, trained.ranks)
        is_first = trained.ranks.rank == 0 and (trained.stages is None or trained.stages.rank == 0)
        self.monitors = Monitors(keys if is_first else {}, directory or None)
        self.steps = Steps(
            trained, self.record, self.monitors, resident, self.config.steps_per_print
        )
        self.values = Values(trained, self.steps, self.record)
        self.checkpoints = Checkpoints(trained, self.steps, self.record)
        trained.run.initialise(
            lambda unit: [managed.parameter.detach() for managed in trained.units[unit].parameters]
        )
        self._take_over(
            None
            if family is None
            else NativePasses(trained, self.steps, self.record, family, must, self._to_hooks)
        )

    def _take_over(self, native: NativePasses | None) -> None:
        trained = self.trained
        trained.take_over(self.steps.on_gradient, self.values.gather_into)
        self.steps.passes = HookPasses(trained) if native is None else native
        if native is not None:
            native.attach()
            _log.info("the engine's own units compute %s", type(trained.module).__name__)
        else:
            _log.info("PyTorch computes the module, with the engine's hooks: %s", self.reason)
            self._note_slow_products()

    def _note_slow_products(self) -> None:
        precision = self.config.precision
        is_fast = self.trained.device.type != "cpu" or _core.has_fast_products(precision)
        if self._noted_slow or is_fast:
            return
        self._noted_slow = True
        _log.warning(
            "this processor multiplies %s numbers slowly, so PyTorch takes many times as long as in"
            " fp32. Train in fp32 (remove %s.enabled), or use the engine's units, which multiply"
            " through fp32 (engine.backend_reason says why they are not used)",
            precision,
            precision,
        )

    @property
    def native(self) -> NativePasses | None:
        passes = self.steps.passes
        return passes if isinstance(passes, NativePasses) else None

    # ---- switching to hooks

    def _to_hooks(self, reason: str) -> None:
        """Moves the state through a checkpoint in a temporary folder, and computes a step that has
        begun again from its beginning."""
        trained, step = self.trained, self.steps.so_far()
        again = ", beginning with this step's micro-batches" if step.passed else ""
        _log.warning(
            "from now on PyTorch computes the module, with the engine's hooks: %s%s", reason, again
        )
        trained.run.wait_for_saves()
        self.record.note_saves()  # separate from the results of the save below
        folder = tempfile.mkdtemp(prefix="sluice-to-hooks-", dir=trained.scratch)
        try:
            trained.residency.end_backward()
            trained.run.abandon_step()
            path = trained.run.save(folder, trained.pack(None))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        try:
            self._go_by_hooks(path, reason)
        except BaseException:
            if self.native is None:
                _log.error(
                    "the engine's state was saved in %s: load it with load_checkpoint()", folder
                )
            else:  # the units continue
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)
        self.steps.go_on_by_hooks(step)

    def _go_by_hooks(self, checkpoint: str, reason: str) -> None:
        """Continues from the checkpoint with the module's own forward. If that is impossible, for
        example for lack of memory, the units take over again and RefusedError is raised."""
        trained, native, before = self.trained, self.native, self.trained.residency
        assert native is not None
        self.record.let_go()
        self._take_apart()
        try:
            self._go_on(checkpoint, divide(trained.module, "hooks"), None)
            self.reason = reason
        except Exception as error:
            trained.drop_run()  # incomplete
            self._go_on(checkpoint, units_of(trained.module, native.family), native)
            raise RefusedError(
                f"the engine's units do not support this: {reason}. Hooks cannot take over either:"
                f" {error}. Training can continue with the units, from the last step"
            ) from error
        finally:
            trained.residency.generation = before.generation
            if trained.residency is not before:
                before.go_on_in(trained.residency)

    def _go_on(self, checkpoint: str, units: list[Unit], before: NativePasses | None) -> None:
        trained = self.trained
        trained.begin_run(units, None if before is None else before.family)
        self.steps.begin_run()
        self.values.forget_gathered()
        self.record.follow()
        trained.run.load([checkpoint], lambda _: None)
        self._take_over(None if before is None else before.again())

    def _take_apart(self) -> None:
        self.steps.passes.close()
        self.steps.passes = HookPasses(self.trained)
        self.trained.take_apart()

    # ---- ends

    def close(self, how: str, reason: str) -> None:
        trained, is_open = self.trained, self.trained.is_open  # false: no room for hooks
        trained.residency.check_thread()
        try:
            if is_open:
                # A rank that fails does not wait for the others, which are elsewhere.
                if how == "completed" or trained.ranks.world == 1:
                    trained.run.wait_for_saves()
                self.record.note_saves()
            self.record.close(how, reason)
            self.monitors.close()
        finally:
            if is_open:
                self._take_apart()
            for handle in trained.outer_handles:
                handle.remove()
            _engines.remove(trained.module)
            trained.owner = None
        if how == "completed":
            self.record.raise_failed()

    def leave_to_parent(self) -> None:
        self.record.leave_to_parent()
        self.trained.leave_to_parent()
        _engines.remove(self.trained.module)
