"""Tensors nested in other values, and dtypes by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):  # outputs of transformers are dicts, too
        for it in value.values():
            yield from tensors_in(it)
    elif isinstance(value, (list, tuple)):
        for it in value:
            yield from tensors_in(it)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for it in dataclasses.fields(value):
            yield from tensors_in(getattr(value, it.name, None))
