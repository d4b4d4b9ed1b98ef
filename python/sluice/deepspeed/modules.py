"""DeepSpeed's modules by name (``deepspeed.ops.adam``, ``deepspeed.accelerator``, ...), with the
names that scripts import from them. A missing name says what to use instead.

Each has only a few names, so :func:`register` makes the modules from a table.
"""

from __future__ import annotations

import enum
import logging
import sys
import types
from collections.abc import Iterable
from typing import Any

import torch

from .._core import RefusedError
from . import accelerator, comm, pipe, zero
from .loaders import RepeatingLoader
from .pipe.module import set_random_seed

_PACKAGE = __package__ or "sluice.deepspeed"
_log = logging.getLogger("sluice")


class MissingError(RefusedError, ImportError):
    """A name of DeepSpeed's that this package lacks. Importing it says what to use instead."""


# ---- ops.adam


class _Adam:
    """Takes DeepSpeed's arguments and makes one of torch's optimizers, whose work the engine
    does."""

    def __new__(
        cls,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        adamw_mode: bool = True,
        adam_w_mode: bool = True,
        **_: Any,  # options for how DeepSpeed computes it
    ) -> torch.optim.Optimizer:  # type: ignore[misc]
        if not bias_correction:
            raise RefusedError(
                f"{cls.__name__}(bias_correction=False) is not supported: the"
                " engine's AdamW corrects the bias"
            )
        kind = torch.optim.AdamW if adamw_mode and adam_w_mode else torch.optim.Adam
        return kind(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)


class DeepSpeedCPUAdam(_Adam):
    """torch's AdamW, or its Adam with ``adamw_mode=False``. Pass it to initialize()."""

    def __new__(  # type: ignore[misc]
        cls, model_params: Any, *args: Any, **kwargs: Any
    ) -> torch.optim.Optimizer:
        return super().__new__(cls, model_params, *args, **kwargs)


class FusedAdam(_Adam):
    """torch's AdamW, or its Adam with ``adam_w_mode=False``. Pass it to initialize()."""

    def __new__(
        cls,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
    ) -> torch.optim.Optimizer:  # type: ignore[misc]
        return super().__new__(
            cls, params, lr, bias_correction, betas, eps, weight_decay, amsgrad, adam_w_mode
        )


# ---- utils


def log_dist(message: str, ranks: Iterable[int] | None = None, level: int = logging.INFO) -> None:
    """Logs a message on these ranks, or on all if -1 is among them or none is given."""
    wanted = list(ranks or [-1])
    if -1 in wanted or comm.get_rank() in wanted:
        _log.log(level, "[Rank %d] %s", comm.get_rank(), message)


def set_z3_leaf_modules(model: torch.nn.Module, leaf_module_classes: Any) -> list[Any]:
    """Does nothing: the module's blocks are fetched as a whole, or ``initialize(units=...)``."""
    return []


def see_memory_usage(message: str, force: bool = False) -> None:
    if force:
        used = accelerator.get_accelerator().memory_allocated()
        _log.info("%s: %.2f GiB of the accelerator's memory", message, used / 2**30)


# ---- runtime.zero


class ZeroParamStatus(enum.Enum):
    """Values of a parameter's ``ds_status``. Parameters here have neither that nor ``ds_id``."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


_ADAMS = {"DeepSpeedCPUAdam": DeepSpeedCPUAdam, "FusedAdam": FusedAdam}
_LOGGING = {"log_dist": log_dist, "logger": _log}
_ZERO = {"GatheredParameters": zero.GatheredParameters, "Init": zero.Init}

_PIPE = {name: getattr(pipe, name) for name in ("PipelineModule", "LayerSpec", "TiedLayerSpec")}
_TOPOLOGY = {
    "PipeDataParallelTopology": pipe.PipeDataParallelTopology,
    "PipelineParallelGrid": pipe.topology.PipelineParallelGrid,
    "ProcessTopology": pipe.ProcessTopology,
}
_AXES = "layers are not divided among ranks: PipeDataParallelTopology has stages and data ranks"
_MASTERS = "masters are written by engine.engine.save_weights(path), as safetensors"
_CHECKPOINTED = "call torch.utils.checkpoint, or the model's gradient_checkpointing_enable()"
_EXPERTS = "use a model that has its own experts (as in transformers)"
_ADAM_ALONE = (
    "the engine has AdamW and Adam: pass torch's, or use the configuration's optimizer section"
)
_PROFILED = "`sluice profile` counts operations"
_OPTIMIZER = "use the optimizer that initialize() returns"
_SCHEDULES = (
    "describe the schedule in the configuration's scheduler section, or pass one from transformers'"
    " get_scheduler() as lr_scheduler"
)

#: By module: its names, and what to use instead of others ("": other names are unknown).
_MODULES: dict[str, tuple[dict[str, Any], str]] = {
    "checkpointing": ({}, _CHECKPOINTED),
    "inference": ({}, "call the model under torch.no_grad(), with or without an engine"),
    "moe": ({}, _EXPERTS),
    "moe.layer": ({}, _EXPERTS),
    "moe.utils": ({}, "pass all parameters to initialize() unchanged"),
    "ops": ({}, _ADAM_ALONE),
    "ops.adagrad": ({}, _ADAM_ALONE),
    "ops.adam": (_ADAMS, _ADAM_ALONE),
    "ops.adam.cpu_adam": ({"DeepSpeedCPUAdam": DeepSpeedCPUAdam}, ""),
    "ops.adam.fused_adam": ({"FusedAdam": FusedAdam}, ""),
    "ops.lamb": ({}, _ADAM_ALONE),
    "ops.lion": ({}, _ADAM_ALONE),
    "ops.op_builder": ({}, "nothing is compiled at run time: remove the call"),
    "ops.sparse_attention": ({}, "the engine computes the model's own attention"),
    "ops.transformer": ({}, "the engine computes the model's own layers"),
    "profiling": ({}, _PROFILED),
    "profiling.flops_profiler": ({}, _PROFILED),
    "runtime": ({}, "import its names from sluice.deepspeed"),
    "runtime.activation_checkpointing": ({}, _CHECKPOINTED),
    "runtime.activation_checkpointing.checkpointing": ({}, _CHECKPOINTED),
    "runtime.config": (
        {},
        "pass the configuration to initialize(); engine.config is the resolved one",
    ),
    "runtime.dataloader": ({"RepeatingLoader": RepeatingLoader}, ""),
    "runtime.engine": ({}, ""),
    "runtime.lr_schedules": ({}, _SCHEDULES),
    "runtime.pipe": (_PIPE, ""),
    "runtime.pipe.engine": ({}, ""),
    "runtime.pipe.module": (_PIPE, ""),
    "runtime.pipe.topology": (_TOPOLOGY, _AXES),
    "runtime.utils": (
        {"see_memory_usage": see_memory_usage, "set_random_seed": set_random_seed},
        "set gradient_clipping in the configuration: the engine clips",
    ),
    "runtime.zero": (_ZERO, "only zero.Init and zero.GatheredParameters are available"),
    "runtime.zero.config": ({}, "zero_optimization is a section of the configuration"),
    "runtime.zero.partition_parameters": ({**_ZERO, "ZeroParamStatus": ZeroParamStatus}, ""),
    "runtime.zero.stage_1_and_2": ({}, _OPTIMIZER),
    "runtime.zero.stage3": ({}, _OPTIMIZER),
    "runtime.zero.utils": ({}, ""),
    "sequence": ({}, "sequences are not divided among GPUs"),
    "utils": (
        {
            **_LOGGING,
            "RepeatingLoader": RepeatingLoader,
            "set_z3_leaf_modules": set_z3_leaf_modules,
        },
        "",
    ),
    "utils.logging": (_LOGGING, ""),
    "utils.zero_to_fp32": ({}, f"checkpoints have the engine's own format: {_MASTERS}"),
}

#: By name: what to use instead.
_INSTEAD = {
    "init_inference": _MODULES["inference"][1],
    "OnDevice": "create the model on the CPU",
    "tp_model_init": "tensors are not divided among GPUs",
    "utils.groups": "groups of ranks are not supported: sluice.deepspeed.comm has rank and world"
    " size",
    "utils.safe_get_full_fp32_param": _MASTERS,
    "utils.safe_get_full_grad": "the engine holds a step's gradients, and drops them after the"
    " step; engine.get_global_grad_norm() is their norm",
    "utils.safe_get_full_optimizer_state": "moments can only be read from the files of"
    " engine.save_checkpoint()",
    "utils.safe_set_full_fp32_param": "change it within zero.GatheredParameters(modifier_rank=0)",
}


def _missing(module: str, name: str) -> Any:
    below = sys.modules.get(f"{_PACKAGE}.{module}.{name}")
    if below is not None:
        return below
    sentence = _INSTEAD.get(f"{module}.{name}") or _MODULES[module][1]
    if not sentence or name.startswith("__"):
        raise AttributeError(f"module '{_PACKAGE}.{module}' has no attribute {name!r}")
    raise MissingError(f"{_PACKAGE}.{module} has no {name}: {sentence}")


def register(**more: dict[str, Any]) -> None:
    """Makes the modules importable. `more`: additional names, by module ("_" for a dot)."""
    for name, (names, _) in _MODULES.items():
        full = f"{_PACKAGE}.{name}"
        module = types.ModuleType(full, f"DeepSpeed's {name}: see {__name__}.")
        module.__path__ = []  # may contain modules
        module.__dict__.update(names, **more.get(name.replace(".", "_"), {}))
        module.__getattr__ = lambda key, name=name: _missing(name, key)  # type: ignore[method-assign]
        sys.modules[full] = module


def of_package(name: str) -> Any:
    """An attribute of sluice.deepspeed that is not defined in the package itself."""
    sentence = _INSTEAD.get(name) or (_MODULES[name][1] if name in ("checkpointing", "moe") else "")
    if sentence:
        raise MissingError(f"{_PACKAGE} has no {name}: {sentence}")
    if name in _MODULES:
        return sys.modules[f"{_PACKAGE}.{name}"]
    raise AttributeError(f"module '{_PACKAGE}' has no attribute {name!r}")
