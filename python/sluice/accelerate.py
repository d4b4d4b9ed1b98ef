"""Accelerate's Accelerator, with the engine's training:

    from sluice.accelerate import Accelerator

    accelerator = Accelerator(sluice="ds_config.json", gradient_accumulation_steps=4)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()

The loop is the same as with the plain Accelerator. Its backward() ends the micro-batch, and also
the step when gradients are synchronised, as with Accelerate's DeepSpeed plug-in. step() and
zero_grad() do nothing. One call of prepare() must get the model, its optimizer and its schedule.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import accelerate
import torch
from accelerate.utils.deepspeed import DummyOptim, DummyScheduler
from torch import nn

from ._core import RefusedError
from ._trainer_config import TrainerConfig
from .deepspeed import DeepSpeedEngine, EngineSchedule, checkpoints, translated
from .engine import initialize
from .units import UnitPolicy

__all__ = ["Accelerator", "DummyOptim", "DummyScheduler"]

_TAG = "sluice"  # the engine's folder within that of a saved state
_OPTIMIZERS = (torch.optim.Optimizer, DummyOptim)
_SCHEDULES = (torch.optim.lr_scheduler.LRScheduler, DummyScheduler)


class Accelerator(accelerate.Accelerator):
    """Takes the plain Accelerator's arguments, and:

    Args:
        sluice: a configuration, as a path or a dict. Keys that are missing or "auto" come from the
            Accelerator (accumulation, 16 bits) and from the loader (batch sizes).
        units: which modules are fetched as a whole: :data:`sluice.UnitPolicy`.

    The engine trains one model: the first with parameters that require a gradient. The plain
    Accelerator handles other models that are passed to :meth:`prepare`.
    """

    def __init__(
        self,
        *args: Any,
        sluice: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        units: UnitPolicy = "auto",
        mixed_precision: str | None = None,
        **kwargs: Any,
    ):
        if sluice is None:
            raise RefusedError('Accelerator needs a configuration: sluice="ds_config.json"')
        for name in ("deepspeed_plugin", "deepspeed_plugins", "fsdp_plugin", "megatron_lm_plugin"):
            if kwargs.get(name) is not None:
                raise RefusedError(
                    f"Accelerator({name}=...) has no effect here: remove it, since"
                    " sluice= replaces it"
                )
        self._precision = str(mixed_precision or os.environ.get("ACCELERATE_MIXED_PRECISION", "no"))
        if self._precision not in ("no", "bf16", "fp16"):
            raise RefusedError(
                f"mixed_precision={self._precision!r} is not supported: use bf16 or fp16"
            )
        self._source = TrainerConfig(sluice)
        self._policy = units
        #: The engine with DeepSpeed's interface; set by prepare().
        self.engine: DeepSpeedEngine | None = None
        # No autocast: the module itself computes in 16 bits.
        super().__init__(*args, mixed_precision="no", **kwargs)
        self.register_save_state_pre_hook(self._save_engine)
        self.register_load_state_pre_hook(self._load_engine)

    @property
    def mixed_precision(self) -> str:
        return self._precision

    @property
    def _running(self) -> DeepSpeedEngine:
        if self.engine is None:
            raise RefusedError("there is no engine yet: call prepare(model, ...) first")
        return self.engine

    # ---- prepare

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        model = next((value for value in args if _is_trained(value)), None)
        if model is None:
            if any(isinstance(value, (*_OPTIMIZERS, *_SCHEDULES)) for value in args):
                raise RefusedError(
                    "prepare() was called with an optimizer or a schedule and without the trained"
                    " model: pass the model, its optimizer and its schedule in one call"
                )
            return super().prepare(*args, device_placement=device_placement)
        if self.engine is not None:
            raise RefusedError("this Accelerator already trains a model: make another Accelerator")
        made: dict[int, Any] = {}
        for value in args:  # for the loader's batch size
            if isinstance(value, torch.utils.data.DataLoader):
                made[id(value)] = self.prepare_data_loader(value)
        optimizer = _only(args, _OPTIMIZERS, "optimizer")
        schedule = _only(args, _SCHEDULES, "schedule")
        keys = self._complete(
            model, optimizer, schedule, [value for value in args if id(value) in made]
        )
        self.engine = self._make(model, optimizer, schedule, keys)
        made[id(model)] = self.engine
        if optimizer is not None:
            made[id(optimizer)] = self.engine.optimizer
        if schedule is not None:
            made[id(schedule)] = self.engine.lr_scheduler or EngineSchedule(  # a constant rate
                self.engine.engine, self.engine.optimizer
            )
        rest = [value for value in args if id(value) not in made]
        if rest:
            others = super().prepare(*rest)
            for value, other in zip(rest, others if len(rest) > 1 else [others]):
                made[id(value)] = other
        result = tuple(made[id(value)] for value in args)
        return result if len(result) > 1 else result[0]

    def _complete(
        self, model: nn.Module, optimizer: Any, schedule: Any, loaders: list[Any]
    ) -> dict[str, Any]:
        config = self._source
        if config.value("gradient_accumulation_steps") in (None, "auto"):
            config.keys["gradient_accumulation_steps"] = self.gradient_accumulation_steps
        self.gradient_accumulation_steps = int(config.value("gradient_accumulation_steps"))
        self._complete_batch(loaders)
        if config.value("gradient_clipping") == "auto":
            config.keys["gradient_clipping"] = 1.0  # as Accelerate does for DeepSpeed
        for kind in ("fp16", "bf16"):
            if config.value(f"{kind}.enabled") in (None, "auto") and self._precision == kind:
                config.keys[kind] = {**config.keys.get(kind, {}), "enabled": True}
            config.fill(f"{kind}.enabled", self._precision == kind, None)
            if config.value(f"{kind}.enabled") is True:
                self._precision = kind
        if isinstance(optimizer, DummyOptim):
            if not config.has("optimizer"):
                config.keys["optimizer"] = {"type": "AdamW"}
            section = config.keys["optimizer"]
            params = section.setdefault("params", {}) if isinstance(section, dict) else None
            if isinstance(params, dict):  # the engine refuses other types
                params.setdefault("lr", "auto")
                params.setdefault("weight_decay", "auto")
            config.fill("optimizer.params.lr", optimizer.lr, None)
            config.fill("optimizer.params.weight_decay", optimizer.weight_decay, None)
        if isinstance(schedule, DummyScheduler):
            if schedule.lr_scheduler_callable is None and not config.has("scheduler"):
                raise RefusedError(
                    "DummyScheduler needs a schedule in the configuration, which has no scheduler"
                    " section: add one, or pass lr_scheduler_callable"
                )
            lr = config.value("optimizer.params.lr")
            config.fill("scheduler.params.warmup_min_lr", 0, None)
            config.fill("scheduler.params.warmup_max_lr", lr, None)
            warmup = max(1, schedule.warmup_num_steps)
            config.fill("scheduler.params.warmup_num_steps", warmup, None)
            if schedule.total_num_steps is not None:
                share = 1 if self.split_batches else self.num_processes
                steps = -(-schedule.total_num_steps // share)
                config.fill("scheduler.params.total_num_steps", steps, None)
        config.sizes(model)
        return config.keys

    def _complete_batch(self, loaders: list[Any]) -> None:
        config = self._source
        if config.value("train_micro_batch_size_per_gpu") in (None, "auto"):
            sizes = [loader.batch_size for loader in loaders if loader.batch_size is not None]
            if not sizes:
                raise RefusedError(
                    "the micro-batch size is unknown: set train_micro_batch_size_per_gpu in the"
                    " configuration, or pass a data loader with a batch_size to prepare()"
                )
            micro = min(sizes) // (self.num_processes if self.split_batches else 1)
            config.keys["train_micro_batch_size_per_gpu"] = micro
        if config.value("train_batch_size") == "auto":
            del config.keys["train_batch_size"]  # follows from the others

    def _make(
        self, model: nn.Module, optimizer: Any, schedule: Any, keys: dict[str, Any]
    ) -> DeepSpeedEngine:
        parameters = None
        if isinstance(optimizer, DummyOptim):
            optimizer, parameters = None, list(optimizer.params)
        if isinstance(schedule, DummyScheduler):
            schedule = schedule.lr_scheduler_callable
        if schedule is not None and self.num_processes > 1:
            raise RefusedError(
                "with several processes Accelerate would advance the schedule once per process:"
                " describe it in the configuration's scheduler section, in steps of the engine, and"
                " pass a DummyScheduler from sluice.accelerate to prepare()"
            )
        overrides = translated(model, optimizer, parameters, schedule, keys)
        overrides["run.device"] = self.device.type
        return DeepSpeedEngine(initialize(model, keys, units=self._policy, overrides=overrides))

    # ---- a micro-batch

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Calls the engine's backward() and step(). The step ends when gradients are synchronised.
        If that is late, the step's last micro-batch takes the remaining backward passes."""
        running = self._running
        running.backward(loss, **kwargs)
        if self.sync_gradients or not running.engine.is_boundary:
            running.step(is_last=self.sync_gradients)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        """Returns the norm of the step's gradient. The engine has already clipped it to the
        configuration's gradient_clipping; another `max_norm` is refused."""
        clipping = self._running.gradient_clipping()
        if norm_type != 2 or float(max_norm) != clipping:
            raise RefusedError(
                f"clip_grad_norm_({max_norm:g}) differs from the engine's gradient_clipping, which"
                f' is {clipping:g}. The engine clips: set "gradient_clipping": {max_norm:g} in the'
                " configuration"
            )
        return self._running.get_global_grad_norm()

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        raise RefusedError(
            "clip_grad_value_() is not supported: the engine clips by the norm (gradient_clipping)"
        )

    @property
    def optimizer_step_was_skipped(self) -> bool:
        return self._running.optimizer.overflow

    # ---- values

    def unwrap_model(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(model, DeepSpeedEngine):
            return model.module
        return super().unwrap_model(model, *args, **kwargs)

    def get_state_dict(self, model: Any, unwrap: bool = True) -> Any:
        if self.engine is not None and self.unwrap_model(model) is self.engine.module:
            return self.engine.module.state_dict()
        return super().get_state_dict(model, unwrap)

    def _save_engine(self, _models: list[Any], _weights: list[Any], output_dir: str) -> None:
        if self.engine is not None:
            checkpoints.save(
                self.engine.engine, output_dir, _TAG, save_latest=False, within_step=True
            )

    def _load_engine(self, _models: list[Any], input_dir: str) -> None:
        if self.engine is not None:
            self.engine.engine.load_checkpoint(checkpoints.find(input_dir, _TAG))

    def free_memory(self, *objects: Any) -> Any:
        if self.engine is not None:
            self.engine.destroy()
            self.engine = None
        return super().free_memory(*objects)


def _is_trained(value: Any) -> bool:
    return isinstance(value, nn.Module) and any(
        parameter.requires_grad for parameter in value.parameters()
    )


def _only(args: tuple, kinds: tuple[type, ...], what: str) -> Any:
    found = [value for value in args if isinstance(value, kinds)]
    if len(found) > 1:
        raise RefusedError(f"prepare() takes one {what}, not several")
    return found[0] if found else None
