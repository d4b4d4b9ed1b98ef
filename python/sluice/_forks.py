"""What a forked process must not touch: the engine's threads, queues and pinned memory belong to
the parent process."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable

from ._core import RefusedError, leave_exit_handlers_to_parent

_living: set[weakref.WeakMethod[Callable[[], None]]] = set()
_was_used = False


class Forked:
    """Replaces the engine's native objects in a forked process."""

    def __init__(self, what: str):
        self.__dict__["_what"] = what

    def __getattr__(self, name: str) -> object:
        raise RefusedError(
            f"{self._what} was created before this process was forked, so it belongs to the parent"
            " process. Create it in the process that uses it: after the fork, or with the"
            ' multiprocessing start method "spawn"'
        )


def watch(leave_to_parent: Callable[[], None]) -> None:
    """Calls this method in every process forked from this one, as long as its object lives."""
    _living.add(weakref.WeakMethod(leave_to_parent, _living.discard))
    note_use()


def note_use() -> None:
    """Records that this process has threads of the engine from now on."""
    global _was_used
    _was_used = True


def keep_forever(native: object) -> None:
    """Keeps the object alive: its destructor would wait for threads that did not survive the fork,
    and remove the parent's files."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))


def _after_fork() -> None:
    for reference in list(_living):
        leave_to_parent = reference()
        if leave_to_parent is not None:
            leave_to_parent()
    _living.clear()
    if _was_used:
        leave_exit_handlers_to_parent()


os.register_at_fork(after_in_child=_after_fork)
