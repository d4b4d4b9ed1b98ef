"""Whether a process stays within its run's RAM budget, including what the script itself
allocates."""

from __future__ import annotations

import logging
import os
from typing import Any

from ._core import RankContext, Ranks

_log = logging.getLogger("sluice")
_GIB = 2**30


def resident_bytes() -> int:
    """Resident memory of this process, including mapped file pages."""
    with open("/proc/self/statm", encoding="ascii") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class ResidentWatch:
    """Warns once if more is resident than ``budget.cpu_gib`` gives each rank of the host. The plan
    covers the run's parts and typical use by Python, not the script's own data."""

    def __init__(self, config: dict[str, Any], ranks: Ranks | RankContext):
        gib = config.get("budget", {}).get("cpu_gib")
        self._budget_bytes = None if gib is None else gib * _GIB / ranks.local_world
        self._ranks_of_host = ranks.local_world

    def look(self) -> None:
        if self._budget_bytes is None:
            return
        over = resident_bytes() - self._budget_bytes
        if over <= 0:
            return
        _log.warning(
            "this process uses %.2f GiB of RAM, and budget.cpu_gib allows %.2f: the script itself"
            " (data, a copy of the model) takes more than the plan allows for Python. To stay"
            " within the budget, lower budget.cpu_gib by %.2f",
            (self._budget_bytes + over) / _GIB,
            self._budget_bytes / _GIB,
            over * self._ranks_of_host / _GIB,
        )
        self._budget_bytes = None
