"""Calls of one engine by several threads: they run one at a time."""

from __future__ import annotations

import sys
import threading

import torch

from ._core import RefusedError


class Calls:
    """A lock of an engine, held by the thread whose call runs. That thread may make nested
    calls."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        # On a GPU, backward runs in a thread of autograd, while the thread that called backward()
        # holds the lock and waits.
        is_in_backward = torch._C._current_graph_task_id() != -1
        if not self._lock.acquire(blocking=not is_in_backward):
            raise RefusedError(
                "the engine was called during its own backward(), by torch.utils.checkpoint around"
                " the engine or by a hook: checkpoint the module's blocks instead"
                " (gradient_checkpointing_enable()), and call the engine after backward()"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Passes:
    """Tracks which thread entered the module's forward last."""

    def __init__(self) -> None:
        self._thread = 0

    def enter(self) -> None:
        self._thread = threading.get_ident()

    @property
    def is_own(self) -> bool:
        return self._thread == threading.get_ident()

    @property
    def has_ended(self) -> bool:
        """Whether that thread has ended: an interrupted one may not have left its pass."""
        return self._thread not in sys._current_frames()
