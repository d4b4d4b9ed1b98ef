"""``deepspeed.comm``: the ranks that a launcher started. Other names are torch.distributed's.
:func:`init_distributed` makes its process group for the script's own collectives. The engine's
ranks connect by themselves when the engine is made."""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed

from .. import ranks
from ..engine import Engine


_log = logging.getLogger("sluice")


def __getattr__(name: str) -> Any:
    if name.startswith("__") or not hasattr(distributed, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(distributed, name)


def init_distributed(
    dist_backend: str | None = None,
    auto_mpi_discovery: bool = True,
    distributed_port: int = 29500,
    verbose: bool = True,
    timeout: datetime.timedelta | None = None,
    init_method: str | None = None,
    *_: Any,
    **__: Any,
) -> None:
    """Initializes torch.distributed's process group, unless it exists: of the launcher's ranks, or
    of this process alone. Without GPUs the backend is always gloo."""
    if not distributed.is_available() or distributed.is_initialized():
        return
    launch = ranks.of_launcher()
    if not torch.cuda.is_available():
        dist_backend = "gloo"
    given: dict[str, Any] = {"rank": launch.rank, "world_size": launch.world}
    if launch.world == 1:
        given["store"] = distributed.HashStore()
    elif init_method is None and not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        _log.warning(
            "torch.distributed is not initialized, because the launcher has not set MASTER_ADDR and"
            " MASTER_PORT. The engine's ranks do not need it"
        )
        return
    else:
        given["init_method"] = init_method
        if torch.cuda.is_available():
            ranks.choose_gpu(launch)
    if timeout is not None:
        given["timeout"] = timeout
    distributed.init_process_group(dist_backend or "cpu:gloo,cuda:nccl", **given)


def is_initialized() -> bool:
    return True


def get_rank(group: object = None) -> int:
    return ranks.rank()


def get_local_rank() -> int:
    return ranks.local_rank()


def get_world_size(group: object = None) -> int:
    return ranks.world_size()


def barrier(group: object = None) -> None:
    """Waits until all ranks have called it."""
    ranks.join().all_gather("")


def on_first_rank(engine: Engine, work: Callable[[], None]) -> None:
    """Runs `work` on the first rank while the others wait. If it fails, the others end as well."""
    if engine.rank == 0:
        try:
            work()
        except BaseException as error:
            engine.fail(error)
            raise
    barrier()
