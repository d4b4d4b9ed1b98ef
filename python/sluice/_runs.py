"""Runs of configurations, as `sluice train` has them, and their metrics."""

from __future__ import annotations

import atexit
import json
import logging
import os
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, cast

from . import _core, _forks
from ._core import Error, RefusedError
from ._monitors import Monitors
from ._plans import Source, config_options
from ._progress import Progress

_log = logging.getLogger("sluice")
_runs: weakref.WeakSet[Run] = weakref.WeakSet()


class Run:
    """A run of a configuration, of a model that Sluice knows: `sluice train` in a script.

    ::

        for metrics in sluice.Run("run.json", out="runs/a"):
            print(metrics["step"], metrics["loss"])

    Each turn of the loop is a step: `metrics` is its line of metrics.jsonl. Leaving the loop ends
    the run as Ctrl-C does, between two steps: the last one is saved, where the configuration wants
    checkpoints, and ``resume=True`` continues from there with the same bits. The folder is the
    command line's: `sluice report`, `eval` and `export` take it.

    What the command line prints goes to the logger "sluice", as information.

    Args:
        config: a run file, as its path or as a dict.
        out: the run's folder (run.dir).
        deepspeed: a DeepSpeed configuration beside the run file.
        steps, epochs: of the whole run (run.steps, run.epochs).
        resume: True continues from the newest checkpoint in the folder; a name, from that one;
            where there is none yet, it begins.
        set_aside_later: with a name, sets the checkpoints after that one aside.
        overwrite: replaces the run in a folder that is not empty.
        init_from: begins with the weights of a safetensors file or folder.
        save_weights, dtype, force: the final weights as a safetensors file, "fp32", "bf16" or
            "fp16"; `force` replaces one.
        trace: steps of a timeline in trace.json: (first, last).
        any_tokenizer: goes on although data and model have different tokenizers.
        overrides: keys with dots, which win.
        progress: shows a bar.

    Raises:
        RefusedError: before anything is changed, what cannot be run so.
        NonFiniteGradientError, Error: from the loop, with where the run can continue.
    """

    def __init__(
        self,
        config: Source | None = None,
        *,
        out: str | os.PathLike[str] | None = None,
        deepspeed: str | os.PathLike[str] | None = None,
        steps: int | None = None,
        epochs: float | None = None,
        resume: bool | str = False,
        set_aside_later: bool = False,
        overwrite: bool = False,
        init_from: str | os.PathLike[str] | None = None,
        save_weights: str | os.PathLike[str] | None = None,
        dtype: str = "fp32",
        force: bool = False,
        trace: tuple[int, int] | str | None = None,
        any_tokenizer: bool = False,
        overrides: Mapping[str, Any] | None = None,
        progress: bool = True,
    ):
        if overwrite and resume:
            raise RefusedError("overwrite=True would remove the run that resume continues")
        if init_from is not None and resume:
            raise RefusedError("init_from and resume: the weights are those of the checkpoint")
        if steps is not None and epochs is not None:
            raise RefusedError("steps and epochs both say how long the run is: give one")
        more: dict[str, Any] = {
            "set_aside_later": bool(set_aside_later),
            "overwrite": bool(overwrite),
            "dtype": dtype,
            "force": bool(force),
            "any_tokenizer": bool(any_tokenizer),
        }
        for key, value in (("out", out), ("init_from", init_from), ("save_weights", save_weights)):
            if value is not None:
                more[key] = os.fspath(value)
        for key, number in (("steps", steps), ("epochs", epochs)):
            if number is not None:
                more[key] = str(number)
        if resume:
            more["resume"] = "newest" if resume is True else os.fspath(resume)
        if trace is not None:
            more["trace"] = trace if isinstance(trace, str) else f"{trace[0]}:{trace[1]}"
        self._training: _core.Training | None = None  # where what follows raises
        self._training = _core.Training(config_options(config, deepspeed, overrides), more)
        self._say(self._training)
        #: The run's folder.
        self.folder: str = self._training.folder
        #: Of the whole run.
        self.steps: int = self._training.steps
        #: Of the last step; None before the first.
        self.metrics: dict[str, Any] | None = None
        #: Of a step; of all sequences in it.
        self.tokens_per_step: int = self._training.tokens_per_step
        #: Of a step; None where nothing was left to the planner.
        self.predicted_step_s: float | None = self._training.predicted_step_s
        self._step = self._training.begun_after
        self._monitors = Monitors(json.loads(self._training.config), self.folder)
        _forks.watch(self._leave_to_parent)
        _runs.add(self)
        self._bar = Progress(self.steps, self._step, shown=progress)

    @property
    def step(self) -> int:
        """The last one done, of this run or of the one that it continues."""
        return self._step

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            while (metrics := self._next()) is not None:
                yield metrics
        finally:
            self.stop()

    def train(self) -> dict[str, Any] | None:
        """All steps that are left; the last one's metrics."""
        for _ in self:
            pass
        return self.metrics

    def _next(self) -> dict[str, Any] | None:
        training = self._training
        if training is None:
            return None
        try:
            metrics = training.next()
        except BaseException:
            self._finish()
            raise
        self._say(training)
        if metrics is None:
            self._finish()
            return None
        self.metrics = metrics
        self._step = metrics["step"]
        self._monitors.step(metrics)
        self._bar.advance(loss=metrics["loss"], lr=metrics["lr"], tok_s=metrics["tokens_per_s"])
        return metrics

    def stop(self) -> None:
        """Ends the run, between two steps: the last one is saved, where checkpoints are wanted.
        Nothing where it has ended."""
        if self._training is None or isinstance(self._training, _forks.Forked):
            return
        try:
            self._training.stop()
        finally:
            self._finish()

    close = stop

    def _leave_to_parent(self) -> None:
        if self._training is not None:
            _forks.keep_forever(self._training)
            self._monitors = Monitors({}, None)  # the parent's are its own
            self._training = cast("_core.Training", _forks.Forked("the run"))
            _runs.discard(self)

    def _finish(self) -> None:
        training, self._training = self._training, None
        if training is None:
            return
        self._bar.close()
        missing = training.missing()
        try:
            self._monitors.close()
            self._say(training)
        finally:
            training.close()
        if missing:
            raise Error("; ".join(missing))

    def _say(self, training: _core.Training) -> None:
        for line in training.said().splitlines():
            if line.strip():
                _log.info(line)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@atexit.register
def _stop_runs() -> None:
    """What they have done is not to be lost."""
    for run in list(_runs):
        run.stop()


def metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The steps of a run, as its metrics.jsonl has them, for `pandas.DataFrame(...)`.

    Every dict has the same keys, with None where a step has nothing; a number that was not finite
    is nan. `sluice metrics --keys` documents them.

    Args:
        folder: a run's folder, or a metrics.jsonl. A run that still trains has what it has.
    """
    path = os.fspath(folder)
    if os.path.isdir(path):
        path = os.path.join(path, "metrics.jsonl")
    return list(_core.read_metrics(path))
