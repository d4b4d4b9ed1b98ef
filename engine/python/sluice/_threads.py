"""Several threads that call one engine: one after the other."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


def alone(method: Method) -> Method:
    """Of an engine: other threads wait until the call returns. A call may make others."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._calls:
            return method(self, *args, **kwargs)

    return call  # type: ignore[return-value]


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
