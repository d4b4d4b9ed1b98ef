"""Tensors between neighbouring stages.

Activations are three messages: 8 bytes that say how long their description is, the description if
it differs from the last one, and the values of all tensors. Gradients are values alone, of the
shapes of the activations.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import torch

from ..._core import Ranks, RefusedError

_ALIGNMENT = 16  # bytes
_PLAIN = (bool, int, float, str, type(None))


class Form:
    """What is sent of a stage's outputs: shapes and types of tensors, and other values as they
    are."""

    def __init__(self, text: str):
        self.text = text
        described = json.loads(text)
        self._is_tuple = described["tuple"]
        self._items = described["items"]

    @staticmethod
    def of(outputs: Any) -> Form:
        values = outputs if isinstance(outputs, tuple) else (outputs,)
        items: list[Any] = []
        for number, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                name = str(value.dtype).removeprefix("torch.")
                items.append([list(value.shape), name, value.requires_grad])
            elif isinstance(value, _PLAIN):
                items.append({"value": value})
            else:
                raise RefusedError(
                    f"a stage returned {type(value).__name__} in place {number} of its outputs:"
                    " only tensors, numbers, strings and None are sent to the next stage"
                )
        return Form(json.dumps({"tuple": isinstance(outputs, tuple), "items": items}))

    def tensors(self, *, with_gradients: bool = False) -> list[tuple[list[int], torch.dtype]]:
        return [
            (item[0], getattr(torch, item[1]))
            for item in self._items
            if isinstance(item, list) and (item[2] or not with_gradients)
        ]

    def assemble(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The outputs as the next stage's inputs: leaves that have a gradient if the outputs have."""
        left = iter(tensors)
        values = [
            next(left).requires_grad_(item[2]) if isinstance(item, list) else item["value"]
            for item in self._items
        ]
        return tuple(values) if self._is_tuple else values[0]


def tensors_of(outputs: Any) -> list[torch.Tensor]:
    values = outputs if isinstance(outputs, tuple) else (outputs,)
    return [value for value in values if isinstance(value, torch.Tensor)]


def _offsets(forms: Sequence[tuple[list[int], torch.dtype]]) -> list[tuple[int, int]]:
    """The first and last byte of each tensor in a message."""
    found, end = [], 0
    for shape, dtype in forms:
        begin = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = begin + math.prod(shape) * dtype.itemsize
        found.append((begin, end))
    return found


def _empty(forms: Sequence[tuple[list[int], torch.dtype]]) -> torch.Tensor | None:
    places = _offsets(forms)
    size = places[-1][1] if places else 0
    return torch.empty(size, dtype=torch.uint8, device="cpu") if size > 0 else None


def _pack(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    forms = [(list(it.shape), it.dtype) for it in tensors]
    packed = _empty(forms)
    for tensor, (begin, end) in zip(tensors, _offsets(forms)):
        if packed is not None and end > begin:
            into = packed[begin:end].view(tensor.dtype)
            into.copy_(tensor.detach().reshape(-1))
    return packed


def _unpack(
    packed: torch.Tensor | None,
    forms: Sequence[tuple[list[int], torch.dtype]],
    device: torch.device,
) -> list[torch.Tensor]:
    found = []
    for (shape, dtype), (begin, end) in zip(forms, _offsets(forms)):
        if packed is None or end == begin:
            found.append(torch.empty(shape, dtype=dtype, device=device))
        else:
            found.append(packed[begin:end].view(dtype).reshape(shape).to(device))
    return found


class Link:
    """The messages between this stage and another one. `ranks`: the ranks of all stages with this
    rank's part of the data. Both directions go at once, so that neighbours that send to each other
    do not wait for each other."""

    def __init__(self, ranks: Ranks, other: int, device: torch.device):
        self._ranks = ranks
        self._other = other
        self._device = device
        self._sent: Form | None = None
        self._received: Form | None = None

    def swap(self, sent: torch.Tensor | None, received: torch.Tensor | None) -> None:
        if sent is not None or received is not None:
            self._ranks.send_receive(sent, self._other, received, self._other)

    def to_next(
        self, outputs: Any | None, wanted: Form | None
    ) -> list[torch.Tensor] | None:
        """Sends a stage's outputs, and receives the gradients of those of form `wanted`."""
        if outputs is not None:
            form = Form.of(outputs)
            text = None if self._sent is not None and self._sent.text == form.text else form.text
            self._sent = form
            told = torch.frombuffer(bytearray((text or "").encode()), dtype=torch.uint8) if text else None
            self.swap(torch.tensor([0 if told is None else told.numel()], device="cpu"), None)
            self.swap(told, None)
        forms = [] if wanted is None else wanted.tensors(with_gradients=True)
        gradients = _empty(forms)
        self.swap(None if outputs is None else _pack(tensors_of(outputs)), gradients)
        return None if wanted is None else _unpack(gradients, forms, self._device)

    def to_previous(
        self, gradients: Sequence[torch.Tensor] | None, receives: bool
    ) -> tuple[Any, Form] | None:
        """Sends the gradients of inputs, and receives the next inputs, with their form."""
        if receives:
            size = torch.zeros(1, dtype=torch.int64, device="cpu")
            self.swap(None, size)
            if int(size) > 0:
                text = torch.empty(int(size), dtype=torch.uint8, device="cpu")
                self.swap(None, text)
                self._received = Form(bytes(text.tolist()).decode())
        form = self._received
        assert form is not None or not receives
        inputs = _empty(form.tensors()) if receives and form is not None else None
        self.swap(_pack(gradients or []), inputs)
        if not receives or form is None:
            return None
        return form.assemble(_unpack(inputs, form.tensors(), self._device)), form

    def tell(self, tensors: Sequence[torch.Tensor]) -> None:
        """Sends tensors of shapes that the other stage expects."""
        self.swap(_pack(tensors), None)

    def hear(self, forms: Sequence[tuple[list[int], torch.dtype]]) -> list[torch.Tensor]:
        packed = _empty(forms)
        self.swap(None, packed)
        return _unpack(packed, forms, self._device)
