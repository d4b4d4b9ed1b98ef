"""The ranks of a run: processes started by torchrun, DeepSpeed's launcher, mpirun or srun, each
with its own GPU.

They connect when the first engine is made. All ranks run the same script. Each makes the same
module, which gets the first rank's values, and trains on its own batches (as with a
``DistributedSampler``).
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
from dataclasses import dataclass
from typing import Any

import torch

from ._core import RankContext, Ranks, RefusedError, read_launch


@dataclass(frozen=True)
class StageRanks:
    """The ranks that a stage of a pipeline trains with."""

    data: Ranks  #: those of the stage, which share its layers and its batches
    stages: Ranks  #: those with this rank's part of the data, by stage


_joined: Ranks | None = None
_PIECE = 1 << 19  # bytes; half of what a rank may give to all_gather() at a time


def join() -> Ranks:
    """This process's ranks, from its launcher's variables. The first call waits for the others."""
    global _joined
    if _joined is None:
        _joined = Ranks(_environment())
    return _joined


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return environment
    # torch.distributed listens on the launcher's port, so rank 0 has to choose another one.
    if torch.cuda.is_available() and torch.distributed.get_backend() == "nccl":
        choose_gpu(of_launcher())  # the broadcast below uses it
    chosen: list[Any] = [None, None]
    if torch.distributed.get_rank() == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            chosen = [free.getsockname()[1], secrets.token_hex(32)]
    torch.distributed.broadcast_object_list(chosen, src=0)
    environment.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    environment["MASTER_PORT"] = str(chosen[0])
    if "SLUICE_SECRET_FILE" not in environment:
        environment.setdefault("SLUICE_SECRET", chosen[1])
    return environment


def of_launcher() -> RankContext:
    """The contents of the launcher's variables, without connecting to other ranks."""
    return read_launch(dict(os.environ))


def rank() -> int:
    return of_launcher().rank if _joined is None else _joined.rank


def world_size() -> int:
    return of_launcher().world if _joined is None else _joined.world


def local_rank() -> int:
    return of_launcher().local_rank if _joined is None else _joined.local_rank


def choose_gpu(ranks: Ranks | RankContext) -> None:
    """Selects the GPU whose number is this rank's number on its host."""
    if ranks.world == 1:
        return
    gpus = torch.cuda.device_count()
    if gpus == 1 and ranks.local_world > 1 and "CUDA_VISIBLE_DEVICES" in os.environ:
        return  # each rank sees only its own GPU
    if ranks.local_rank >= gpus:
        raise RefusedError(
            f"rank {ranks.rank} has no GPU: this host has {gpus} and runs {ranks.local_world}"
            ' ranks. Start fewer ranks, or set run.device to "cpu"'
        )
    torch.cuda.set_device(ranks.local_rank)


def require_same(ranks: Ranks, what: dict[str, str | dict[str, Any]]) -> None:
    """Compares values by name between ranks.

    Raises:
        RefusedError: a value differs. All ranks raise it; the message has the value's name, and for
            a mapping the first key that differs.
    """
    for name, value in what.items():
        text = value if isinstance(value, str) else json.dumps(value)
        digests = ranks.all_gather(hashlib.sha256(text.encode()).hexdigest())
        other = next(
            (number for number, digest in enumerate(digests) if digest != digests[0]), None
        )
        if other is None:
            continue
        detail = ""
        if not isinstance(value, str):
            texts = gather_long(ranks, text)
            detail = _first_difference(json.loads(texts[0]), json.loads(texts[other]), other)
        raise RefusedError(f"{name} between rank 0 and rank {other}{detail}")


def gather_long(ranks: Ranks, text: str) -> list[str]:
    """Gathers ASCII text of any length."""
    longest = max(int(length) for length in ranks.all_gather(str(len(text))))
    pieces = [ranks.all_gather(text[at : at + _PIECE]) for at in range(0, longest, _PIECE)]
    return ["".join(parts) for parts in zip(*pieces)] if pieces else [""] * ranks.world


def _first_difference(first: dict[str, Any], other: dict[str, Any], rank: int) -> str:
    for key in (*first, *(key for key in other if key not in first)):
        here, there = (
            json.dumps(values[key]) if key in values else "missing" for values in (first, other)
        )
        if here != there:
            at = max(len(os.path.commonprefix([here, there])) - 20, 0) if len(here) > 200 else 0
            here, there = here[at : at + 200], there[at : at + 200]
            return f": {key} is {here} on rank 0, and {there} on rank {rank}"
    return ", in the order of its modules"
