"""Weights as tensors: from checkpoints, safetensors files and folders for Hugging Face's
libraries."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn

from . import _core
from ._core import RefusedError
from ._tensors import DTYPES

_SHARD_BYTES = 5 * 10**9  # as in `sluice export`


class _SavesWeights(Protocol):
    """The part of an engine that save() needs."""

    def save_weights(self, path: str, dtype: str) -> None: ...


def _torch_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None or isinstance(dtype, torch.dtype):
        if dtype is not None and dtype not in DTYPES.values():
            raise RefusedError(f"dtype is {dtype}: it must be one of {', '.join(DTYPES)}")
        return dtype
    if dtype not in DTYPES:
        raise RefusedError(f'dtype is "{dtype}": it must be one of {", ".join(DTYPES)}')
    return DTYPES[dtype]


def load(
    path: str | os.PathLike[str],
    *,
    checkpoint: str | int = "",
    dtype: str | torch.dtype | None = None,
) -> dict[str, torch.Tensor]:
    """Loads weights by name, on the CPU. Every byte of a checkpoint is verified. No pickle is read.

    Args:
        path: the folder of a run (of the command line or of an :class:`Engine`) or one of its
            checkpoints. Or a safetensors file, its index, or a folder that `save_pretrained()`
            made.
        checkpoint: for a run's folder, a step or a checkpoint's name; default: the newest.
        dtype: of the tensors; default: fp32 for a checkpoint's masters, and the file's own
            otherwise.
    """
    return _core.load_weights(os.fspath(path), str(checkpoint), _torch_dtype(dtype))


def save(
    what: Mapping[str, torch.Tensor] | nn.Module | _SavesWeights | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    dtype: str | None = None,
    max_shard_bytes: int | None = None,
    checkpoint: str | int = "",
    tokenizer: str | os.PathLike[str] = "",
    merged: bool = False,
    base: str | os.PathLike[str] = "",
) -> None:
    """Writes weights for other programs.

    Args:
        what: a dict of tensors, a module, or an :class:`Engine` (its masters), which is written to
            a safetensors file. Or a run's folder, or one of its checkpoints, which becomes a folder
            for Hugging Face's libraries, as with `sluice export`.
        path: the file, which is replaced; or the folder, which must be empty or not exist.
        dtype: "fp32", "bf16" or "fp16". The default is the tensors' own, fp32 for masters, and for
            a folder the type of the model that the run began with, or fp32.
        max_shard_bytes: splits larger files; 0 never does. The default for a folder is 5 GB.
        checkpoint: for a run's folder, a step or a checkpoint's name; default: the newest.
        tokenizer: for a folder, a tokenizer.json or "bytes"; default: the run's.
        merged, base: for adapters, as with `sluice export`.
    """
    target = os.fspath(path)
    if isinstance(what, (str, os.PathLike)):
        _core.export_checkpoint(
            os.fspath(what),
            target,
            str(checkpoint),
            dtype or "",
            _SHARD_BYTES if max_shard_bytes is None else max_shard_bytes,
            os.fspath(tokenizer),
            merged,
            os.fspath(base),
        )
        return
    given: dict[str, Any] = {
        "checkpoint": checkpoint, "tokenizer": tokenizer, "merged": merged, "base": base
    }  # fmt: skip
    for name, value in given.items():
        if value:
            raise RefusedError(f"{name} only applies to a run's folder, not to tensors")
    if hasattr(what, "save_weights"):  # the masters of an engine differ from the module's values
        what.save_weights(target, dtype or "fp32")
        return
    state = what.state_dict() if isinstance(what, nn.Module) else what
    if not isinstance(state, Mapping):
        raise RefusedError(
            "save() takes a dict of tensors, a module, an engine or a checkpoint, not a"
            f" {type(what).__name__}"
        )
    wanted = _torch_dtype(dtype)
    tensors: list[tuple[str, torch.Tensor]] = []
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            raise RefusedError(f"{name} is a {type(tensor).__name__}, not a tensor")
        tensors.append((name, tensor if wanted is None else tensor.to(wanted)))
    # Wide types first, for the alignment of the format.
    tensors.sort(key=lambda named: -named[1].element_size())
    _core.save_weights(tensors, target, max_shard_bytes or 0)
