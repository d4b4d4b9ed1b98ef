"""Calls of a module whose passes are the engine's units': what they return, and what happens when
autograd comes back to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ._core import MicroBatchPass, RefusedError
from ._micro_batch import MicroBatch

if TYPE_CHECKING:
    from .fast import Fast


class Loss(torch.autograd.Function):
    """The engine's backward as autograd's."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, call: Call) -> torch.Tensor:  # type: ignore[override]
        ctx.call = call
        return call.passed.loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:  # type: ignore[override]
        ctx.call.loss_backward(gradient)
        return None, None


class _Logits(torch.autograd.Function):
    """Values whose gradient the units do not have, and which must not be lost in silence."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, anchor: torch.Tensor, logits: torch.Tensor, call: Call
    ) -> torch.Tensor:
        ctx.call = call
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:  # type: ignore[override]
        ctx.call.repeat(gradient, "logits")
        return None, None, None


@dataclass(frozen=True)
class Passed:
    """What one backward pass by units was computed of."""

    batch: MicroBatch
    number: int  # of the passes of its micro-batch
    args: tuple
    kwargs: dict[str, Any]
    scale: float


def own_copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


class Call:
    """A call in training, between forward and backward."""

    def __init__(
        self,
        fast: Fast,
        batch: MicroBatch,
        passed: MicroBatchPass,
        number: int,
        args: tuple,
        kwargs: dict[str, Any],
    ):
        self.batch, self.passed, self.number = batch, passed, number
        self._fast = fast
        self._args, self._kwargs = args, kwargs
        self._engine = fast._engine
        self.generation = self._engine._keeper._generation
        self.was_passed = False
        self.is_retained = False  # backward(retain_graph=True): another backward may come

    def _by_hooks(self) -> Any:
        return self._engine.module(*self._args, **self._kwargs)

    def passed_with(self, scale: float) -> Passed:
        """The script may use its tensors again."""
        kwargs = {key: own_copy(value) for key, value in self._kwargs.items()}
        args = tuple(own_copy(it) for it in self._args)
        return Passed(self.batch, self.number, args, kwargs, scale)

    @property
    def is_fast(self) -> bool:
        return self._engine._fast is self._fast

    def logits(self, has_gradient: bool) -> torch.Tensor:
        fast, engine = self._fast, self._engine
        if engine._keeper._generation != self.generation:
            raise RefusedError(
                "outputs.logits are computed when they are asked for, and the parameters have"
                " changed since: ask before engine.step()"
            )
        if not has_gradient and self.is_fast:
            return fast._passes.logits(self.passed)
        if self.is_fast and (fast._must or fast.family.dropout == 0):
            return _Logits.apply(fast._anchor, fast._passes.logits(self.passed), self)
        # Their gradient could not be had later: dropout would be another one.
        if self.is_fast:
            fast.to_hooks("outputs.logits are asked for in training, with dropout")
        with torch.set_grad_enabled(has_gradient):
            engine._begin_pass()
            return self._by_hooks()["logits"]

    def loss_backward(self, gradient: torch.Tensor) -> None:
        if self.is_fast:
            self._fast.run_backward(self, float(gradient))
        else:
            self.repeat(gradient, "loss")

    def repeat(self, gradient: torch.Tensor, name: str) -> None:
        """The call once more by hooks, whose backward this one becomes."""
        self._engine._keeper.check_in_backward()
        self.check_generation()
        with torch.enable_grad():
            value = self._by_hooks()[name]
        value.backward(gradient)

    def check_generation(self) -> None:
        if self._engine._keeper._generation != self.generation:
            raise RefusedError(
                "the loss was computed before the parameters changed: a step, or loading, was in"
                " between"
            )


def calls_in(node: Any) -> list[Any]:
    """The nodes of a graph that are of calls by units."""
    kinds = (Loss._backward_cls, _Logits._backward_cls)  # type: ignore[attr-defined]
    found: list[Any] = []
    seen = {id(node): node}  # held, so that no other one gets its id
    left = [node]
    while left:
        it = left.pop()
        if isinstance(it, kinds):
            found.append(it)
            continue
        for after, _ in it.next_functions:
            if after is not None and id(after) not in seen:
                seen[id(after)] = after
                left.append(after)
    return found


class Output(dict):
    """What a call returns: ``loss``, and ``logits``, which are computed when they are asked for.
    As transformers' outputs: by attribute, key or place."""

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
