"""Loaders of data that scripts for DeepSpeed use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class RepeatingLoader:
    """A loader that starts again at its end."""

    def __init__(self, loader: Any):
        self.loader = loader
        self._rows = iter(loader)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._rows)
        except StopIteration:
            self._rows = iter(self.loader)
            return next(self._rows)
