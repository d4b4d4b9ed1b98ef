"""How a module's passes are computed: the interface, and PyTorch's way, by hooks."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from ._setup import check_not_compiled
from ._trained import TrainedModule


class Passes(Protocol):
    """Computes forward and backward of a module in training."""

    way: str  #: engine.way

    def check(self) -> None:
        """Before a micro-batch's first pass: RefusedError where the module cannot be computed."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward, where the engine is called."""

    def begin_backward(self) -> None:
        """Has the units that backward begins with."""

    def backward(self, loss: torch.Tensor, scale: float, retain_graph: bool) -> None:
        """Adds the gradient of `scale` times the loss."""

    def check_gradient(self, parameter: torch.Tensor) -> None:
        """RefusedError where autograd must not compute this parameter's gradient."""

    def close(self) -> None:
        """The module's forward is its own again."""


class HookPasses:
    """By PyTorch: units come and go by hooks of the module."""

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
