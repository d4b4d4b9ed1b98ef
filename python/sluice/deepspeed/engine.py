"""DeepSpeedEngine: sluice.Engine with the interface that scripts for DeepSpeed use."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch.utils.data import DataLoader, DistributedSampler

from .. import ranks
from .._core import RefusedError
from .._files import replacing
from ..engine import Engine, StepResult
from . import checkpoints, comm
from .facades import EngineOptimizer, EngineSchedule
from .weights import begin_anew

_log = logging.getLogger("sluice")

# Attributes of DeepSpeed's engine that this one lacks, with what to use instead.
_REFUSED = {
    "train_batch": "it belongs to pipelines: call engine(batch), backward() and step()",
    "eval_batch": "it belongs to pipelines: call engine(batch) under torch.no_grad()",
    "set_train_batch_size": "the configuration sets the batch size: make another engine",
    "set_train_micro_batch_size": "the configuration sets the batch size: make another engine",
    "set_lr": "the scheduler sets the learning rate: change it in the configuration",
    "no_sync": "gradient_accumulation_steps sets the accumulation",
    "save_fp16_model": "call save_16bit_model()",
    "compile": "compile the forward of the model's blocks before initialize()",
    "allreduce_gradients": "step() sums the gradients of all ranks",
    "offload_states": "the configuration sets where states are stored",
    "reload_states": "the configuration sets where states are stored",
}


class _RankSampler(DistributedSampler):
    """Changes the order in each epoch, without a call of set_epoch()."""

    def __iter__(self) -> Iterator[int]:
        indices = super().__iter__()
        self.set_epoch(self.epoch + 1)
        return indices


class NotSupportedError(RefusedError, AttributeError):
    """An attribute of DeepSpeed's engine that this one lacks; hasattr() returns False for it."""


class DeepSpeedEngine:
    """Made by :func:`sluice.deepspeed.initialize`. Other attributes are the module's."""

    def __init__(self, engine: Engine, data: Any = None, collate: Callable | None = None):
        self.engine = engine  #: the :class:`sluice.Engine`
        engine.steps_per_print = 0  # logged here, in DeepSpeed's format
        self.module = engine.module
        self.local_rank = ranks.local_rank()
        self.global_rank = engine.rank
        self.world_size = engine.world_size
        config = engine.config
        self.config: dict[str, Any] = config
        self.optimizer = EngineOptimizer(engine)
        has_schedule = config["scheduler"]["type"] != "constant"
        self.lr_scheduler = EngineSchedule(engine, self.optimizer) if has_schedule else None
        self.training_dataloader = None if data is None else self.deepspeed_io(data, None, collate)
        self._is_boundary: bool | None = None

    def __getattr__(self, name: str) -> Any:
        if name in _REFUSED:
            raise NotSupportedError(f"sluice's engine has no {name}(): {_REFUSED[name]}")
        if "module" not in self.__dict__:
            raise AttributeError(name)
        try:
            return getattr(self.module, name)
        except AttributeError:
            raise AttributeError(
                f"neither sluice's engine for DeepSpeed's scripts nor {type(self.module).__name__}"
                f" has {name!r}"
            ) from None

    # ---- a micro-batch

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.engine(*args, **kwargs)

    forward = __call__

    def backward(
        self,
        loss: torch.Tensor,
        release_loss: bool = False,
        retain_graph: bool = False,
        scale_wrt_gas: bool = True,
    ) -> torch.Tensor:
        """Returns the loss. `scale_wrt_gas`: whether to divide it by
        gradient_accumulation_steps()."""
        self.engine.backward(loss, retain_graph, averages=scale_wrt_gas)
        return loss

    def step(self, lr_kwargs: Mapping[str, Any] | None = None, *, is_last: bool = False) -> None:
        """Ends the micro-batch, and the step if it was the step's last. `is_last` ends the step
        early, for an epoch that ends within an accumulation."""
        if lr_kwargs:
            raise RefusedError(
                "step(lr_kwargs=...) is not supported: the configuration sets the schedule"
            )
        if self._is_boundary is False and not is_last and self.engine.is_boundary:
            raise RefusedError(
                f"a step has at most {self.gradient_accumulation_steps()} micro-batches, and"
                " set_gradient_accumulation_boundary(False) requests more: raise"
                " gradient_accumulation_steps"
            )
        done = self.engine.step(is_last=is_last or self._is_boundary is True)
        if done is not None:
            self._say(done)

    def _say(self, done: StepResult) -> None:
        if done.step % self.config["steps_per_print"] == 0:
            _log.info(
                "step=%d, skipped=%d, lr=%s, loss=%g",
                done.step,
                self.skipped_steps,
                self.get_lr(),
                done.loss,
            )

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the next step() changes the parameters."""
        return self.engine.is_boundary if self._is_boundary is None else self._is_boundary

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Sets it for the next step() and later ones. True ends a step before it has all of its
        micro-batches."""
        self._is_boundary = is_boundary

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does nothing: a step's gradients are dropped after it."""

    def train(self, mode: bool = True) -> DeepSpeedEngine:
        self.module.train(mode)
        return self

    def eval(self) -> DeepSpeedEngine:
        return self.train(False)

    # ---- for training loops

    @property
    def global_steps(self) -> int:
        return self.engine.global_step

    @property
    def skipped_steps(self) -> int:
        return self.engine.global_step - self.engine.applied_step

    @property
    def global_samples(self) -> int:
        return self.global_steps * self.train_batch_size()

    @property
    def micro_steps(self) -> int:
        done = self.global_steps * self.gradient_accumulation_steps()
        return done + self.engine.micro_batches_done

    @property
    def device(self) -> torch.device:
        return self.engine.device

    def train_batch_size(self) -> int:
        return int(self.config["train_batch_size"])

    def train_micro_batch_size_per_gpu(self) -> int:
        return int(self.config["train_micro_batch_size_per_gpu"])

    def gradient_accumulation_steps(self) -> int:
        return self.engine.micro_batches

    def gradient_clipping(self) -> float:
        return float(self.config["gradient_clipping"])

    def get_global_grad_norm(self) -> float | None:
        """The gradient norm of the last step, before clipping; None before the first."""
        return None if self.engine.last_step is None else self.engine.last_step.grad_norm

    def get_lr(self) -> list[float]:
        """The learning rates of the next step, by group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def zero_optimization_stage(self) -> int:
        return int(self.config["zero_optimization"]["stage"])

    def zero_optimization(self) -> bool:
        return self.zero_optimization_stage() > 0

    def fp16_enabled(self) -> bool:
        return self.engine.dtype == torch.float16

    def bfloat16_enabled(self) -> bool:
        return self.engine.dtype == torch.bfloat16

    def was_step_applied(self) -> bool:
        """Whether the last step() changed the parameters."""
        last = self.engine.last_step
        return last is not None and not last.skipped and self.engine.micro_batches_done == 0

    def deepspeed_io(
        self, dataset: Any, batch_size: int | None = None, collate_fn: Callable | None = None
    ) -> DataLoader:
        """A loader of a dataset's micro-batches, in an order drawn from torch's generator. Each of
        several ranks has its own batches (a DistributedSampler)."""
        is_iterable = isinstance(dataset, torch.utils.data.IterableDataset)
        sampler = None
        if self.world_size > 1:
            if is_iterable:
                raise RefusedError(
                    "training_data is an iterable, so all ranks would get the same rows: make a"
                    " DataLoader that gives each rank its own"
                )
            sampler = _RankSampler(dataset, self.world_size, self.global_rank)
        return DataLoader(
            dataset,
            batch_size=batch_size or self.train_micro_batch_size_per_gpu(),
            shuffle=None if is_iterable or sampler else True,
            sampler=sampler,
            collate_fn=collate_fn,
        )

    # ---- checkpoints

    def save_checkpoint(
        self,
        save_dir: str | os.PathLike[str],
        tag: Any = None,
        client_state: Mapping[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Saves into SAVE_DIR/TAG, by default global_stepN, and writes the tag into SAVE_DIR/latest
        once it is durable. A checkpoint of the same tag is replaced.

        `client_state` is returned by :meth:`load_checkpoint`. Frozen parameters are never saved.

        Raises:
            RefusedError: JSON cannot hold `client_state`, or a step has begun.
            Error: the checkpoint could not be written.
        """
        tag = checkpoints.check_tag(f"global_step{self.global_steps}" if tag is None else tag)
        state = checkpoints.check_client_state(dict(client_state or {}))
        checkpoints.save(self.engine, os.fspath(save_dir), tag, state, save_latest)
        return True

    def load_checkpoint(
        self,
        load_dir: str | os.PathLike[str],
        tag: Any = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Callable | None = None,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Continues from a checkpoint.

        Without a tag, loads the one that LOAD_DIR/latest names. If that file does not exist,
        nothing is loaded and the result is (None, None). `load_module_only` loads the weights alone
        and begins at step 0; they pass through a temporary file.

        Returns:
            The checkpoint's folder, and its client_state.

        Raises:
            RefusedError: the checkpoint is of another module or configuration. Nothing has changed.
            Error: the tag has no complete checkpoint, or it is damaged.
        """
        if custom_load_fn is not None:
            raise RefusedError(
                "custom_load_fn is not supported: load weights with engine.load_weights()"
            )
        if not load_module_only and not (load_optimizer_states and load_lr_scheduler_states):
            raise RefusedError(
                "load_optimizer_states and load_lr_scheduler_states cannot be False: pass"
                " load_module_only=True to load the weights only and begin at step 0"
            )
        if load_module_only and self.world_size > 1:
            raise RefusedError(
                "load_module_only=True works with one rank only: load the weights before"
                " initialize(), with module.load_state_dict()"
            )
        folder = checkpoints.find(os.fspath(load_dir), tag)
        if folder is None:
            return None, None
        path, state = self.engine.load_checkpoint(folder)
        if load_module_only:
            begin_anew(self.engine)
        return path, state or {}

    def save_16bit_model(
        self,
        save_dir: str | os.PathLike[str],
        save_filename: str = "pytorch_model.bin",
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Saves the module's state_dict in the type that it computes with, or in fp32 if that is
        neither bf16 nor fp16. The file is for torch.load, or safetensors if its name ends so. All
        ranks must call it; the first one writes."""
        state = self.module.state_dict()
        if exclude_frozen_parameters:
            frozen = {
                name
                for name, parameter in self.module.named_parameters()
                if not parameter.requires_grad
            }
            state = {name: value for name, value in state.items() if name not in frozen}
        path = os.path.join(save_dir, save_filename)
        comm.on_first_rank(self.engine, lambda: self._write_model(state, path))
        return True

    def _write_model(self, state: Mapping[str, torch.Tensor], path: str) -> None:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with replacing(path) as fresh:
            if path.endswith(".safetensors"):
                self._save_safetensors(state, fresh)
            else:
                torch.save(dict(state), fresh)

    def _save_safetensors(self, state: Mapping[str, torch.Tensor], path: str) -> None:
        try:
            from safetensors.torch import save_file
        except ImportError as error:
            raise RefusedError(f"{path} needs the package safetensors: {error}") from error
        seen: dict[int, str] = {}
        for name, value in state.items():  # tied parameters are one
            seen.setdefault(value.data_ptr() if value.numel() else id(value), name)
        save_file({name: state[name].contiguous() for name in seen.values()}, path)

    def load_state_dict(self, state: Mapping[str, torch.Tensor], strict: bool = True) -> None:
        """Begins again from these weights, at step 0."""
        self.engine.load_weights(state)

    def destroy(self) -> None:
        """Frees memory and drives. The module's parameters have no values afterwards."""
        self.engine.close()

    def to(self, *_: Any, **__: Any) -> NoReturn:
        raise RefusedError("the engine's configuration sets the module's device and dtype")

    half = bfloat16 = float = cuda = cpu = to
