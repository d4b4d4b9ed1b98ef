"""Several threads that call one engine: one after the other."""

from __future__ import annotations

import sys
import threading

import torch

from ._core import RefusedError


class Calls:
    """Of an engine: held by the thread whose call it computes, which may make others."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        # A backward pass on a GPU runs in a thread of autograd's, while the one that called
        # backward() holds this and waits for it.
        is_in_backward = torch._C._current_graph_task_id() != -1
        if not self._lock.acquire(blocking=not is_in_backward):
            raise RefusedError(
                "the engine is called within a backward pass (by torch.utils.checkpoint around it,"
                " or by a hook), and its own backward() is waiting for that: checkpoint the"
                " module's blocks instead (gradient_checkpointing_enable()), and call the engine"
                " behind backward()"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Passes:
    """Which thread was the last to enter the forward of a module in training."""

    def __init__(self) -> None:
        self._thread = 0

    def enter(self) -> None:
        self._thread = threading.get_ident()

    @property
    def is_own(self) -> bool:
        return self._thread == threading.get_ident()

    @property
    def has_ended(self) -> bool:
        """A thread that was interrupted may have left a pass without saying so."""
        return self._thread not in sys._current_frames()
