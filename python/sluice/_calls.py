"""Calls of a module that the engine's own units compute: what they return, and what happens when
autograd's backward reaches them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from ._core import MicroBatchPass
from ._micro_batch import MicroBatch, Passed


class Loss(torch.autograd.Function):
    """Runs the engine's backward pass as a node of autograd's graph."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, call: Call) -> torch.Tensor:  # type: ignore[override]
        ctx.call = call
        return call.passed.loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:  # type: ignore[override]
        ctx.call.passes.loss_backward(ctx.call, gradient)
        return None, None


class Logits(torch.autograd.Function):
    """Logits in autograd's graph. The units have no gradient for them, so backward repeats the call
    by hooks."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, anchor: torch.Tensor, logits: torch.Tensor, call: Call
    ) -> torch.Tensor:
        ctx.call = call
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:  # type: ignore[override]
        ctx.call.passes.repeat(ctx.call, gradient, "logits")
        return None, None, None


def own_copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


class CallPasses(Protocol):
    """Computes the passes of a call."""

    def loss_backward(self, call: Call, gradient: torch.Tensor) -> None:
        """Computes the backward pass of the call, given the gradient of its loss."""

    def repeat(self, call: Call, gradient: torch.Tensor, name: str) -> None:
        """Computes the call again by hooks, and the backward pass of its output `name`."""


class Call:
    """A training call between its forward and backward passes."""

    def __init__(
        self,
        passes: CallPasses,
        batch: MicroBatch,
        passed: MicroBatchPass,
        number: int,
        args: tuple,
        kwargs: dict[str, Any],
        generation: int,
    ):
        self.passes = passes
        self.batch, self.passed, self.number = batch, passed, number
        self.args, self.kwargs = args, kwargs
        self.generation = generation  # counts changes of the parameters' values
        self.was_passed = False
        self.is_retained = False  # backward(retain_graph=True): another backward pass may follow

    def passed_with(self, scale: float) -> Passed:
        """Copies the call's tensors, which the script may overwrite."""
        kwargs = {key: own_copy(value) for key, value in self.kwargs.items()}
        args = tuple(own_copy(value) for value in self.args)
        return Passed(self.batch, self.number, args, kwargs, scale)


def calls_in(node: Any) -> list[Any]:
    """The nodes of a graph that belong to calls computed by units."""
    kinds = (Loss._backward_cls, Logits._backward_cls)  # type: ignore[attr-defined]
    found: list[Any] = []
    seen = {id(node): node}  # holds the node, so that no other gets its id
    left = [node]
    while left:
        operation = left.pop()
        if isinstance(operation, kinds):
            found.append(operation)
            continue
        for after, _ in operation.next_functions:
            if after is not None and id(after) not in seen:
                seen[id(after)] = after
                left.append(after)
    return found


class Output(dict):
    """What a call returns: ``loss``, and ``logits``, which are computed on first access. Items are
    read like those of transformers' outputs: by attribute, key or index."""

    def __init__(self, loss: torch.Tensor, logits: Callable[[], torch.Tensor] | None):
        super().__init__(loss=loss)
        self._make = logits

    def __getattr__(self, name: str) -> Any:
        if name in ("loss", "logits"):
            return self[name]
        if name in ("past_key_values", "hidden_states", "attentions", "cross_attentions"):
            return None
        raise AttributeError(name)

    def __missing__(self, key: str) -> torch.Tensor:
        if key != "logits" or self._make is None:
            raise KeyError(key)
        self[key] = self._make()
        self._make = None
        return self[key]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (key == "logits" and self._make is not None)

    def __iter__(self) -> Iterator[str]:
        return iter(["loss", "logits"] if "logits" in self else ["loss"])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default

    def keys(self) -> Any:
        return list(self)

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def to_tuple(self) -> tuple:
        return tuple(self.values())

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int) and key in (0, -len(self)):
            return self["loss"]
        if isinstance(key, (int, slice)):
            return self.to_tuple()[key]
        return super().__getitem__(key)
