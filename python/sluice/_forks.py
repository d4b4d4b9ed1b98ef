"""What a forked process must not touch: threads, queues and pinned memory of the engine stay behind
in the process that made them."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable

from ._core import RefusedError, leave_exit_handlers_to_parent

_living: set[weakref.WeakMethod[Callable[[], None]]] = set()
_was_used = False


class Forked:
    """In place of what the engine has, in a forked process."""

    def __init__(self, what: str):
        self.__dict__["_what"] = what

    def __getattr__(self, name: str) -> object:
        raise RefusedError(
            f"{self._what} was made before this process was forked, and belongs to the one that"
            " made it: make it in the process that uses it (multiprocessing: the start method"
            ' "spawn", or make it behind the fork)'
        )


def watch(leave_to_parent: Callable[[], None]) -> None:
    """Has this method called in a process that is forked from this one, while its object lives."""
    _living.add(weakref.WeakMethod(leave_to_parent, _living.discard))
    note_use()


def note_use() -> None:
    """This process has threads of the engine's from now on."""
    global _was_used
    _was_used = True


def keep_forever(native: object) -> None:
    """Its end would wait for threads that the fork has left behind, and remove files that are the
    parent's."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))


def _behind_fork() -> None:
    for reference in list(_living):
        leave_to_parent = reference()
        if leave_to_parent is not None:
            leave_to_parent()
    _living.clear()
    if _was_used:
        leave_exit_handlers_to_parent()


os.register_at_fork(after_in_child=_behind_fork)
