"""What a Trainer does only on several ranks: refusals, equal initial values, and ending all ranks
when one fails.

Accelerate distributes the batches. Small numbers (losses, token counts, predictions) go through
torch.distributed, as with the plain Trainer. The model's values and gradients go through the
engine.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed, nn

from . import ranks
from ._core import Error, NonFiniteGradientError, RefusedError, is_spilled
from .engine import Engine

_log = logging.getLogger("sluice")
_TOLD = "_sluice_told"  # set on an exception whose reason the other ranks have


def check(args: Any) -> None:
    """RefusedError if ranks cannot train with these TrainingArguments."""
    launched = ranks.of_launcher().world
    if launched != args.world_size:
        raise RefusedError(
            f"the launcher started {launched} processes, but TrainingArguments were made for"
            f" {args.world_size}: " + _how_to_start(args)
        )
    if launched == 1:
        return
    if not args.accelerator_config.even_batches:
        raise RefusedError(
            "accelerator_config even_batches=False gives some ranks fewer batches, and the others"
            " would wait for them: remove it, or set dataloader_drop_last=True"
        )
    if args.save_on_each_node:
        raise RefusedError(
            "TrainingArguments(save_on_each_node=...) is not supported, because all ranks write one"
            " checkpoint: set output_dir to a folder that all hosts share"
        )


def _how_to_start(args: Any) -> str:
    if not torch.cuda.is_available() and not args.use_cpu:
        return "without GPUs they train together with use_cpu=True"
    return (
        "start the script with torchrun or accelerate launch (on several hosts: srun torchrun ...),"
        " or set RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT as"
        " they do"
    )


def take_first_ranks_values(module: nn.Module, args: Any) -> None:
    """Gives all ranks the first rank's parameters and buffers, as DistributedDataParallel does.
    Ranks may have drawn different random numbers for a new head or adapters."""
    if args.world_size == 1:
        return
    own = _fingerprints(module)
    of_all: list[dict[str, str]] = [{}] * args.world_size
    distributed.all_gather_object(of_all, own)
    if any(fingerprints.keys() != own.keys() for fingerprints in of_all):
        return  # the engine's comparison of ranks refuses this
    others = [
        name
        for name in own
        if any(fingerprints[name] != of_all[0][name] for fingerprints in of_all)
    ]
    tensors = dict(_values(module))
    for name in others:
        there = tensors[name].to(args.device)  # a device that the process group's backend supports
        distributed.broadcast(there, src=0)
        tensors[name].copy_(there)
    if others and args.process_index == 0:
        _log.warning(
            "%d tensors of the module differed between ranks; all ranks now use rank 0's values"
            " (%s%s)",
            len(others),
            ", ".join(others[:3]),
            ", ..." if len(others) > 3 else "",
        )


def _values(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that have values. The engine compares those that sluice.init() has on drives."""
    for named in (module.named_parameters(), module.named_buffers()):
        for name, value in named:
            if not (value.is_meta or value.is_complex() or is_spilled(value)):
                yield name, value.detach()


def _fingerprints(module: nn.Module) -> dict[str, str]:
    """Fingerprints of all bytes, by name."""

    def of(value: torch.Tensor) -> str:
        data = value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        digest = hashlib.blake2b(data, digest_size=16)
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        return digest.hexdigest()

    return {name: of(value) for name, value in _values(module)}


@contextmanager
def ends_all(engine: Engine | None) -> Iterator[None]:
    """Ends the other ranks if this block raises: they would wait for this rank."""
    if engine is None or engine.world_size == 1:
        yield
        return
    try:
        yield
    except NonFiniteGradientError:  # raised on all ranks
        raise
    except BaseException as error:
        if getattr(error, _TOLD, False):  # an inner call has done it
            raise
        reason = _reason_of_others(engine, error)
        if reason:
            raise Error(reason) from error
        engine.fail(error)
        setattr(error, _TOLD, True)
        raise


def _reason_of_others(engine: Engine, error: BaseException) -> str:
    """The failure of another rank that made torch.distributed raise; empty if there is none."""
    if not isinstance(error, RuntimeError) or isinstance(error, Error):
        return ""
    for _ in range(20):
        reason = engine.failure()
        if reason:
            return reason
        time.sleep(0.05)
    return ""
