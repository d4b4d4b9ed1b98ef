"""How a module's passes are computed: the interface, and PyTorch's implementation by hooks."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from ._setup import check_not_compiled
from ._trained import TrainedModule


class Passes(Protocol):
    """Computes the forward and backward passes of a module in training."""

    way: str  #: engine.backend

    def check(self) -> None:
        """Called before the first pass of a micro-batch. RefusedError if the module cannot be
        computed."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward pass, when the engine is called."""

    def begin_backward(self) -> None:
        """Acquires the units that backward needs first."""

    def backward(self, loss: torch.Tensor, scale: float, retain_graph: bool) -> None:
        """Adds the gradient of `scale` times the loss."""

    def check_gradient(self, parameter: torch.Tensor) -> None:
        """RefusedError if autograd must not compute this parameter's gradient."""

    def close(self) -> None:
        """Restores the module's own forward."""


class HookPasses:
    """Passes by PyTorch: hooks of the module acquire and release units."""

    way = "hooks"

    def __init__(self, trained: TrainedModule):
        self._trained = trained

    def check(self) -> None:
        check_not_compiled(self._trained.module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._trained.module(*args, **kwargs)

    def begin_backward(self) -> None:
        self._trained.run.begin_backward()
        self._trained.residency.begin_backward()

    def backward(self, loss: torch.Tensor, scale: float, retain_graph: bool) -> None:
        loss.backward(torch.full_like(loss, scale), retain_graph=retain_graph)

    def check_gradient(self, parameter: torch.Tensor) -> None:
        pass

    def close(self) -> None:
        pass
