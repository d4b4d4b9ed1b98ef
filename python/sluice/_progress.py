"""Progress of a loop: tqdm's bar if it is installed, in notebooks too, otherwise a line now and
then."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
_SECONDS_BETWEEN_LINES = 10.0


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else str(value)


class _TakesSteps(Protocol):
    """The part of an engine that a bar needs."""

    last_step: Any
    micro_batches: Any


class Progress:
    """The progress of `total` steps, `initial` of which are done."""

    def __init__(self, total: int | None, initial: int = 0, shown: bool = True):
        self._total = total
        self._done = initial
        self._bar: Any = None
        self._shown = shown
        self._last_line = -math.inf
        if not shown:
            return
        try:
            from tqdm.auto import tqdm
        except ImportError:
            return
        self._bar = tqdm(total=total, initial=initial, unit="step", dynamic_ncols=True)

    def advance(self, **values: float) -> None:
        """Counts one more step."""
        self._done += 1
        if not self._shown:
            return
        texts = {name: _number(value) for name, value in values.items()}
        if self._bar is not None:
            self._bar.set_postfix(texts, refresh=False)
            self._bar.update()
            return
        now = time.monotonic()
        if now - self._last_line < _SECONDS_BETWEEN_LINES and self._done != self._total:
            return
        self._last_line = now
        out_of = f"/{self._total}" if self._total is not None else ""
        what = "  ".join(f"{name} {text}" for name, text in texts.items())
        print(f"step {self._done}{out_of}  {what}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._shown = False


def progress(batches: Iterable[T], engine: _TakesSteps, *, total: int | None = None) -> Iterator[T]:
    """Yields `batches`, and shows a bar of the engine's steps::

        for batch in sluice.progress(batches, engine):
            engine.backward(engine(**batch).loss)
            engine.step()

    Args:
        total: the number of steps. The default follows from the length of `batches`, if it has one,
            and the micro-batches of a step.
    """
    if total is None and isinstance(batches, Sized):
        total = len(batches) // engine.micro_batches
    bar = Progress(total)
    seen = engine.last_step
    try:
        for batch in batches:
            yield batch
            last = engine.last_step
            if last is not None and last is not seen:
                seen = last
                bar.advance(loss=last.loss, lr=last.learning_rate, norm=last.grad_norm)
    finally:
        bar.close()
