"""``deepspeed.comm``: the ranks that a launcher started."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .. import ranks

if TYPE_CHECKING:
    from ..engine import Engine


def is_initialized() -> bool:
    return True


def get_rank(group: object = None) -> int:
    return ranks.rank()


def get_local_rank() -> int:
    return ranks.local_rank()


def get_world_size(group: object = None) -> int:
    return ranks.world_size()


def barrier(group: object = None) -> None:
    """Waits until all ranks are here."""
    ranks.join().all_gather("")


def on_first_rank(engine: Engine, work: Callable[[], None]) -> None:
    """The others wait until it is done; where it fails, they end."""
    if engine.rank == 0:
        try:
            work()
        except BaseException as error:
            engine._fail(error)
            raise
    barrier()
