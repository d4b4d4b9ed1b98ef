"""DeepSpeed's interface, for scripts written for it:

    import sluice.deepspeed as deepspeed

    engine, optimizer, _, _ = deepspeed.initialize(model=model, config="ds_config.json")
    for batch in batches:
        loss = engine(**batch).loss
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint("runs/a", client_state={"epoch": 1})

Unsupported names and arguments are refused, with a suggestion of what to use instead.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from .._build import VERSION as __version__
from .._core import RefusedError
from .._setup import read_keys
from ..engine import initialize as initialize_engine
from ..units import UnitPolicy
from . import accelerator, comm, modules, pipe, translate, zero
from .accelerator import get_accelerator
from .comm import init_distributed
from .engine import DeepSpeedEngine
from .facades import EngineOptimizer, EngineSchedule, shadow_optimizer
from .pipe.engine import PipelineEngine, make_engine
from .pipe.module import PipelineModule

__all__ = [
    "DeepSpeedEngine",
    "EngineOptimizer",
    "EngineSchedule",
    "PipelineEngine",
    "PipelineModule",
    "add_config_arguments",
    "accelerator",
    "comm",
    "get_accelerator",
    "init_distributed",
    "initialize",
    "pipe",
    "zero",
    "__version__",
]

modules.register(
    runtime_engine={"DeepSpeedEngine": DeepSpeedEngine},
    runtime_pipe_engine={"PipelineEngine": PipelineEngine},
)
__getattr__ = modules.of_package


def initialize(
    args: argparse.Namespace | None = None,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | Callable | None = None,
    model_parameters: Any = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    distributed_port: int = 29500,
    mpu: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Callable | None = None,
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    mesh_param: Any = None,
    config_params: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    *,
    units: UnitPolicy = "auto",
    **unknown: Any,
) -> tuple[DeepSpeedEngine, EngineOptimizer, Any, Any]:
    """Returns (engine, optimizer, dataloader, lr_scheduler), as DeepSpeed's does.

    Args:
        args: its ``deepspeed_config`` is used if `config` is not given.
        model: any module. A :class:`PipelineModule` gets a :class:`PipelineEngine`.
        optimizer: torch's AdamW or Adam, or a function that makes one from parameters. It replaces
            the configuration's, and the engine does its work. Or None.
        model_parameters: the parameters to train, or groups of them with their own lr and
            weight_decay. It must contain all parameters that require a gradient.
        training_data: a dataset. The third result is then a DataLoader of its micro-batches.
        lr_scheduler: a schedule for that optimizer, or a function of an optimizer, if the
            configuration has none. :func:`sluice.deepspeed.translate.schedule_keys` lists what is
            supported.
        config: a path or a dict, of DeepSpeed's JSON or a run file.
        units: :data:`sluice.UnitPolicy`.

    Raises:
        RefusedError: an argument or a key is not supported; the message names it.
    """
    for name, value in (("mpu", mpu), ("mesh_param", mesh_param), *unknown.items()):
        if value is not None:
            raise RefusedError(f"initialize({name}=...) is not supported: remove it")
    if model is None:
        raise RefusedError("initialize() needs model=, a torch.nn.Module")
    keys = read_config(_one_config(args, config, config_params))
    overrides = translated(model, optimizer, model_parameters, lr_scheduler, keys)
    if isinstance(model, PipelineModule):
        made, place = make_engine(model, keys, overrides)
        pipeline = PipelineEngine(made, place, training_data, collate_fn)
        return pipeline, pipeline.optimizer, pipeline.training_dataloader, pipeline.lr_scheduler
    engine = DeepSpeedEngine(
        initialize_engine(model, keys, units=units, overrides=overrides), training_data, collate_fn
    )
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler


def _one_config(args: Any, config: Any, config_params: Any) -> Any:
    given = [source for source in (config, config_params) if source is not None]
    from_args = getattr(args, "deepspeed_config", None)
    if from_args is not None:
        given.append(from_args)
    if not given:
        raise RefusedError(
            "initialize() needs a configuration: config=, or --deepspeed_config in args"
        )
    if len(given) > 1:
        raise RefusedError(
            "initialize() was given several configurations: one of config, config_params and"
            " args.deepspeed_config"
        )
    return given[0]


def read_config(config: Mapping[str, Any] | str | os.PathLike[str]) -> dict[str, Any]:
    """A copy of its keys, without those that are null. RefusedError if it is not a JSON object."""
    keys = _without_nulls(read_keys(config))
    if "model" in keys:  # of a run file; its names are not this module's
        keys["model"] = {}
    return keys


def _without_nulls(keys: Any) -> Any:
    if not isinstance(keys, dict):
        return keys
    return {name: _without_nulls(value) for name, value in keys.items() if value is not None}


def translated(
    model: nn.Module, optimizer: Any, parameters: Any, schedule: Any, config: Mapping[str, Any]
) -> translate.Keys:
    if not isinstance(model, nn.Module):
        return {}  # the engine refuses it
    params = _section(_section(config, "optimizer"), "params")
    keys: translate.Keys = {}
    if callable(optimizer) and not isinstance(optimizer, torch.optim.Optimizer):
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = optimizer(trained if parameters is None else parameters)
    if optimizer is not None:
        keys.update(translate.optimizer_keys(optimizer, model))
    elif parameters is not None:
        groups = translate.given_groups(
            parameters,
            model,
            lr=_number(params, "lr", 1e-3),
            weight_decay=_number(params, "weight_decay", 0.0),
        )
        if groups is not None:
            keys.update(translate.group_keys(groups))
    if schedule is not None:
        if _section(config, "scheduler").get("type"):
            raise RefusedError("both lr_scheduler= and the configuration have a schedule: remove one")
        if optimizer is None:
            optimizer = shadow_optimizer(_number(params, "lr", 1e-3), model)
            if not _is_schedule(schedule):
                schedule = schedule(optimizer)
            else:
                raise RefusedError(
                    "a schedule is given without its optimizer: give that as well, or a function"
                    " that makes the schedule of one"
                )
        elif not _is_schedule(schedule):
            schedule = schedule(optimizer)
        keys.update(translate.schedule_keys(schedule, optimizer))
    return keys


def _section(keys: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The section, or an empty one if it is no mapping, which the engine refuses."""
    section = keys.get(name)
    return section if isinstance(section, dict) else {}


def _is_schedule(value: Any) -> bool:
    return isinstance(value, torch.optim.lr_scheduler.LRScheduler) or not callable(value)


def _number(params: Mapping[str, Any], name: str, default: float) -> float:
    value = params.get(name, default)
    if value == "auto":
        raise RefusedError(
            f'optimizer.params.{name} is "auto", and model_parameters or lr_scheduler need it: say'
            " it there"
        )
    return float(value)


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds --deepspeed and --deepspeed_config, as DeepSpeed's does."""
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configurations")
    group.add_argument(
        "--deepspeed", default=False, action="store_true", help="train by the configuration"
    )
    group.add_argument("--deepspeed_config", default=None, type=str, help="the configuration, JSON")
    return parser
