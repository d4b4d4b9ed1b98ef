"""Runs of configurations, as with `sluice train`, and their metrics."""

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
    """A run of a configuration whose model is built into Sluice: `sluice train` in a script.

    ::

        for metrics in sluice.Run("run.json", out="runs/a"):
            print(metrics["step"], metrics["loss"])

    Each iteration is a step, and `metrics` is its line of metrics.jsonl. Leaving the loop ends the
    run between two steps, as Ctrl-C does. The last step is saved if the configuration enables
    checkpoints, and ``resume=True`` continues from it with the same bits. `sluice report`, `eval`
    and `export` take the run's folder.

    What the command line prints is logged to the logger "sluice" at level INFO.

    Args:
        config: a run file, as its path or as a dict.
        out: the run's folder (run.dir).
        deepspeed: a DeepSpeed configuration in addition to the run file.
        steps, epochs: the length of the whole run (run.steps, run.epochs).
        resume: True continues from the newest checkpoint in the folder, and a checkpoint's name
            from that one. If there is no checkpoint yet, the run begins.
        set_aside_later: with a checkpoint's name, sets aside the checkpoints after that one.
        overwrite: replaces the run in a folder that is not empty.
        init_from: begins with the weights of a safetensors file or folder.
        save_weights, dtype, force: writes the final weights to a safetensors file as "fp32", "bf16"
            or "fp16"; `force` replaces an existing file.
        trace: the steps of a timeline in trace.json: (first, last).
        any_tokenizer: continues although data and model have different tokenizers.
        overrides: dotted keys that take precedence.
        progress: shows a bar.

    Raises:
        RefusedError: the run is not possible. Nothing has been changed.
        NonFiniteGradientError, Error: raised from the loop; the message says where the run can
            continue.
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
            raise RefusedError(
                "init_from cannot be combined with resume, which takes the weights"
                " from the checkpoint"
            )
        if steps is not None and epochs is not None:
            raise RefusedError("steps and epochs both set the length of the run: give only one")
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
        self._training: _core.Training | None = None  # set before anything can raise
        self._training = _core.Training(config_options(config, deepspeed, overrides), more)
        self._say(self._training)
        #: The run's folder.
        self.folder: str = self._training.folder
        #: Steps of the whole run.
        self.steps: int = self._training.steps
        #: Metrics of the last step; None before the first.
        self.metrics: dict[str, Any] | None = None
        #: Tokens of a step, over all its sequences.
        self.tokens_per_step: int = self._training.tokens_per_step
        #: Predicted step time; None if nothing was left to the planner.
        self.predicted_step_s: float | None = self._training.predicted_step_s
        self._step = self._training.begun_after
        self._monitors = Monitors(json.loads(self._training.config), self.folder)
        _forks.watch(self._leave_to_parent)
        _runs.add(self)
        self._bar = Progress(self.steps, self._step, shown=progress)

    @property
    def step(self) -> int:
        """The last completed step, including steps of the run that this one continues."""
        return self._step

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            while (metrics := self._next()) is not None:
                yield metrics
        finally:
            self.stop()

    def train(self) -> dict[str, Any] | None:
        """Trains all remaining steps. Returns the last one's metrics."""
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
        """Ends the run between two steps, and saves the last one if checkpoints are enabled. Does
        nothing if the run has ended."""
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
            self._monitors = Monitors({}, None)  # the parent keeps its own
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
    """Stops open runs at exit, so that their progress is saved."""
    for run in list(_runs):
        run.stop()


def metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads the steps of a run from its metrics.jsonl, for `pandas.DataFrame(...)`.

    All dicts have the same keys, with None for values that a step lacks. A number that was not
    finite is nan. `sluice metrics --keys` documents the keys.

    Args:
        folder: a run's folder, or a metrics.jsonl. For a run in progress, returns the steps so far.
    """
    path = os.fspath(folder)
    if os.path.isdir(path):
        path = os.path.join(path, "metrics.jsonl")
    return list(_core.read_metrics(path))
