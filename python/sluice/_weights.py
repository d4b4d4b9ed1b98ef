"""Weights as tensors: of checkpoints, of safetensors files, of folders for Hugging Face's
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
_SHARD_BYTES = 5 * 10**9  # as `sluice export` splits them


class _SavesWeights(Protocol):
    """An engine."""

    def save_weights(self, path: str, dtype: str) -> None: ...


def _torch_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None or isinstance(dtype, torch.dtype):
        if dtype is not None and dtype not in DTYPES.values():
            raise RefusedError(f"dtype is {dtype}: there are {', '.join(DTYPES)}")
        return dtype
    if dtype not in DTYPES:
        raise RefusedError(f'dtype is "{dtype}": there are {", ".join(DTYPES)}')
    return DTYPES[dtype]


def load(
    path: str | os.PathLike[str],
    *,
    checkpoint: str | int = "",
    dtype: str | torch.dtype | None = None,
) -> dict[str, torch.Tensor]:
    """Weights by name, on the CPU; each byte of a checkpoint is verified. No pickle is read.

    Args:
        path: a run's folder, of the command line or of an :class:`Engine`, or one of its
            checkpoints; or a safetensors file, its index, or a folder as `save_pretrained()` makes
            it.
        checkpoint: of a run's folder: a step, or its name; else the newest.
        dtype: of the tensors; else fp32 for a checkpoint's masters, and a file's own.
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
        what: a dict of tensors, a module, or an :class:`Engine` (its masters): becomes a
            safetensors file. Or a run's folder, or one checkpoint of it: becomes a folder for
            Hugging Face's libraries, as `sluice export` makes it.
        path: the file, which is replaced; or the folder, which must not be there, or be empty.
        dtype: "fp32", "bf16" or "fp16"; else that of the tensors, fp32 of masters, and of a folder
            that of the model that the run began with, or fp32.
        max_shard_bytes: splits what is larger; 0 never does. Of a folder 5 GB unless given.
        checkpoint: of a run's folder: a step, or its name; else the newest.
        tokenizer: of a folder: a tokenizer.json, or "bytes"; else the one of the run.
        merged, base: of adapters, as `sluice export` has them.
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
            raise RefusedError(f"{name} is of a run's folder, and tensors are to be saved")
    if hasattr(what, "save_weights"):  # an engine, whose masters are not the module's numbers
        what.save_weights(target, dtype or "fp32")
        return
    state = what.state_dict() if isinstance(what, nn.Module) else what
    if not isinstance(state, Mapping):
        raise RefusedError(
            f"save() writes tensors by name, modules, engines and checkpoints, and was given a"
            f" {type(what).__name__}"
        )
    wanted = _torch_dtype(dtype)
    tensors: list[tuple[str, torch.Tensor]] = []
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            raise RefusedError(f"{name} is a {type(tensor).__name__}, and no tensor")
        tensors.append((name, tensor if wanted is None else tensor.to(wanted)))
    # Wide ones first, as the format's alignment wants it.
    tensors.sort(key=lambda it: -it[1].element_size())
    _core.save_weights(tensors, target, max_shard_bytes or 0)
