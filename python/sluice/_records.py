"""What an engine writes to its run's folder: configuration, metrics, events and a trace. Also the
results of checkpoints written in the background."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from . import _core, _forks
from ._core import Error, RefusedError
from ._trained import TrainedModule

_log = logging.getLogger("sluice")
_PHASES = ("forward", "backward", "update")


def parse_trace(trace: tuple[int, int] | str | None, directory: str) -> str:
    text = trace or "" if trace is None or isinstance(trace, str) else f"{trace[0]}:{trace[1]}"
    if not text:
        return ""
    if not directory:
        raise RefusedError("a trace is written into the run's folder: also give run_dir")
    _core.check_trace(text)
    return text


def _tensors(args: tuple, kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, dict):
            yield from _tensors((), value)


def count_tokens(args: tuple, kwargs: dict[str, Any]) -> int:
    """The tokens of a micro-batch: the elements of input_ids, or of the first integer tensor of two
    or more dimensions. Without either, the number of rows."""
    named = kwargs.get("input_ids")
    if isinstance(named, torch.Tensor):
        return named.numel()
    first: torch.Tensor | None = None
    for tensor in _tensors(args, kwargs):
        is_whole = not tensor.is_floating_point() and not tensor.is_complex()
        if is_whole and tensor.dtype != torch.bool and tensor.dim() >= 2:
            return tensor.numel()
        first = tensor if first is None else first
    return first.shape[0] if first is not None and first.dim() > 0 else 0


class Record:
    """The records of an engine. Nothing is kept without a folder."""

    def __init__(self, trained: TrainedModule, directory: str, trace: str):
        self._trained = trained
        self.directory = directory
        self._keeps = bool(directory) and trained.ranks.rank == 0
        self._kept: _core.Record | None = None
        #: Hooks of the module.
        self.handles: list[RemovableHandle] = []
        self._depth = 0  # nested calls of the module
        self._trace = trace
        self._began = 0  # when the step began; 0: it has not begun
        self._forward_began = 0
        self._ns = dict.fromkeys(_PHASES, 0)
        self.tokens = 0  # of the step's micro-batches
        self._last_traced = 0
        self._failed: list[str] = []
        if not self._keeps:
            return
        if trace:
            self._last_traced = self._trained.run.start_trace(trace)
        self._trained.run.own_directory(directory)

    def watch(self) -> None:
        """Starts recording, once nothing can be refused any more."""
        if not self._keeps:
            return
        module = self._trained.module
        self.handles = [
            module.register_forward_pre_hook(self._before_forward, prepend=True, with_kwargs=True),
            module.register_forward_hook(self._after_forward, always_call=True),
        ]

    # ---- a step

    @property
    def last(self) -> dict[str, Any]:
        """The metrics of the last step; empty if nothing is kept."""
        return {} if self._kept is None else self._kept.last

    def begin_micro_batch(self) -> None:
        """Opens the record if it is not open, so that failures come before any computation."""
        if not self._keeps:
            return
        if self._kept is None:
            self._kept = _core.Record(self._trained.run, self._trained.config, self.directory)
        if self._began == 0:
            self._began = time.monotonic_ns()
            if self._last_traced:
                self._trained.run.begin_traced_step(self._trained.run.global_step + 1, self._began)

    @contextmanager
    def forward(self, args: tuple, kwargs: dict[str, Any]) -> Iterator[None]:
        """Records a call that bypasses the module's own hooks."""
        self._before_forward(self._trained.module, args, kwargs)
        try:
            yield
        finally:
            self._after_forward(self._trained.module, args, None)

    def _before_forward(self, module: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        self._forward_began = time.monotonic_ns()
        if torch.is_grad_enabled():
            self.tokens += count_tokens(args, kwargs)

    def _after_forward(self, module: Any, args: tuple, output: Any) -> None:
        self._depth = max(self._depth - 1, 0)
        if self._depth == 0 and torch.is_grad_enabled():
            self.add("forward", self._forward_began)

    @contextmanager
    def timing(self, phase: str) -> Iterator[None]:
        """Times its block as a phase of the step."""
        began = time.monotonic_ns()
        try:
            yield
        finally:
            self.add(phase, began)

    def add(self, phase: str, began: int) -> None:
        if not self._keeps:
            return
        now = time.monotonic_ns()
        self._ns[phase] += now - began
        if self._last_traced:
            self._trained.run.add_span(_PHASES.index(phase), began, now)

    def take_step(self, losses: list[float]) -> _core.StepOutcome:
        began = time.monotonic_ns()
        try:
            outcome = self._trained.run.step(losses)
        except BaseException:
            self.forget_step()
            raise
        self.add("update", began)
        self.note_saves()
        if self._kept is None:
            return outcome
        step = self._trained.run.global_step
        seconds = {phase: 1e-9 * ns for phase, ns in self._ns.items()}
        self._kept.step(
            outcome,
            step,
            self.tokens,
            self._began or began,
            time.monotonic_ns(),
            seconds["forward"],
            seconds["backward"],
            seconds["update"],
        )
        self.forget_step()
        if self._last_traced and step >= self._last_traced:
            self._write_trace()
        return outcome

    def forget_step(self) -> None:
        self._began = 0
        self.tokens = 0
        self._ns = dict.fromkeys(_PHASES, 0)

    def _write_trace(self) -> None:
        self._last_traced = 0
        if self._kept is None:
            return
        try:
            self._kept.write_trace()
            _log.info("trace: %s/trace.json (open it in ui.perfetto.dev)", self.directory)
        except Error as error:
            _log.warning("the trace was not written: %s", error)

    # ---- checkpoints

    def note_saves(self) -> None:
        """Collects the saves that have ended. A failure is a warning now, and an exception in the
        next call that concerns checkpoints."""
        for saved in self._trained.run.finished_saves():
            if self._kept is not None:
                self._kept.checkpoint(saved)
            if saved.error is None:
                _log.info("saved %s; training paused for %.2f s", saved.path, saved.stopped_s)
                if saved.removed:
                    _log.info("run.keep_last removed %s", ", ".join(saved.removed))
                continue
            text = f"the checkpoint of step {saved.step} was not saved: {saved.error}"
            _log.warning(text)
            self._failed.append(text)

    def raise_failed(self) -> None:
        failed, self._failed = self._failed, []
        if failed:
            raise Error("; ".join(failed))

    def forget_failed(self) -> None:
        self._failed = []

    # ---- ends

    def let_go(self) -> None:
        """Called when another run takes over from this one."""
        self._end("interrupted", "")

    def follow(self) -> None:
        """Called when the module has another run."""
        if not self._keeps:
            return
        self._trained.run.own_directory(self.directory)
        if self._last_traced:
            self._last_traced = self._trained.run.start_trace(self._trace)

    def begin_anew(self) -> None:
        """Called when a checkpoint was loaded: recording continues after its step."""
        self.forget_step()
        self._end("interrupted", "")

    def close(self, how: str = "completed", reason: str = "") -> None:
        for handle in self.handles:
            handle.remove()
        self.handles = []
        if self._last_traced:
            self._write_trace()
        self._end(how, reason)

    def leave_to_parent(self) -> None:
        if self._kept is not None:
            _forks.keep_forever(self._kept)
        self._kept = None
        self._keeps = False
        self.directory = ""

    def _end(self, how: str, reason: str) -> None:
        kept, self._kept = self._kept, None
        if kept is None:
            return
        kept.end(how, reason)
        for sentence in kept.missing():
            _log.warning(sentence)
