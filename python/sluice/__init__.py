"""Sluice: trains PyTorch modules that are larger than the available memory.

    engine = sluice.initialize(model=module, config="run.json")
    for batch in batches:
        loss = engine(**batch).loss
        engine.backward(loss)
        engine.step()

    for metrics in sluice.Run("run.json", out="runs/a"):  # a model built into Sluice
        ...

Parameters and AdamW's state live in RAM, on NVMe or on a GPU, as the configuration places them.
They are brought in unit by unit when they are needed. The placement changes no bit of the result.
"""

import torch

from . import _build

_build.check_torch(torch)

from ._core import Error, NonFiniteGradientError, RefusedError  # noqa: E402
from ._plans import Plan, Probe, plan, probe  # noqa: E402
from ._progress import progress  # noqa: E402
from ._runs import Run, metrics  # noqa: E402
from ._weights import load, save  # noqa: E402
from .engine import Engine, StepResult, initialize  # noqa: E402
from ._deferred_init import init  # noqa: E402
from .units import UnitPolicy  # noqa: E402

__version__ = _build.VERSION
__all__ = [
    "Engine",
    "Error",
    "NonFiniteGradientError",
    "Plan",
    "Probe",
    "RefusedError",
    "Run",
    "StepResult",
    "UnitPolicy",
    "init",
    "initialize",
    "load",
    "metrics",
    "plan",
    "probe",
    "progress",
    "save",
]
