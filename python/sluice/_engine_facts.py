"""What an engine tells training loops of itself."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from ._copies import NotCopied
from ._steps import StepResult
from ._training import Training


class EngineFacts(NotCopied):
    """The properties of an engine. None of them changes anything but :attr:`steps_per_print`."""

    def __init__(self, training: Training):
        self._training = training
        self._trained = training.trained
        self._steps = training.steps

    @property
    def backend(self) -> str:
        """ "engine" if the engine's own units compute the module, "hooks" if PyTorch does."""
        return self._steps.passes.way

    @property
    def backend_reason(self) -> str:
        """Why :attr:`backend` is "hooks"; empty otherwise."""
        return self._training.reason

    @property
    def way(self) -> str:
        """The old name of :attr:`backend`."""
        warnings.warn("engine.way is now engine.backend", DeprecationWarning, stacklevel=2)
        return self.backend

    @property
    def way_reason(self) -> str:
        """The old name of :attr:`backend_reason`."""
        warnings.warn(
            "engine.way_reason is now engine.backend_reason", DeprecationWarning, stacklevel=2
        )
        return self.backend_reason

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, in the form of a run file."""
        return self._trained.keys()

    @property
    def device(self) -> torch.device:
        """The device on which the module computes."""
        return self._trained.device

    @property
    def dtype(self) -> torch.dtype:
        """The type that the module computes with: torch.float32, bfloat16 or float16."""
        return self._trained.dtype

    @property
    def last_step(self) -> StepResult | None:
        """The result of the last step; None before the first."""
        return self._steps.last

    @property
    def in_backward(self) -> bool:
        """Whether :meth:`backward` is running."""
        return self._trained.residency.in_backward

    def has(self, parameter: torch.Tensor) -> bool:
        """Whether it is a parameter of the module."""
        return id(parameter) in self._trained.managed

    @property
    def applied_step(self) -> int:
        """The number of steps whose update was applied."""
        return self._trained.run.applied_step

    @property
    def rank(self) -> int:
        """The rank of this process, below :attr:`world_size`."""
        return self._trained.ranks.rank

    @property
    def world_size(self) -> int:
        """The number of processes that train together, each on its own batches."""
        return self._trained.ranks.world

    @property
    def loss_scale(self) -> float:
        """The loss scale of the next step; 1 without fp16."""
        return self._trained.run.loss_scale

    @property
    def micro_batches(self) -> int:
        """Micro-batches per step: gradient_accumulation_steps."""
        return self._trained.run.micro_batches

    @property
    def micro_batch_size(self) -> int:
        """train_micro_batch_size_per_gpu: rows per micro-batch, which the script has to provide."""
        return self._trained.config.micro_batch

    @property
    def micro_batches_of_a_lane(self) -> int:
        """How many consecutive micro-batches are added up as one lane (run.lanes)."""
        return self._trained.run.micro_batches_of_a_lane

    def number_in_step(self, micro_batch: int) -> int:
        """The number of one of this rank's micro-batches among those of all ranks."""
        return self._trained.run.number_in_step(micro_batch)

    @property
    def micro_batches_done(self) -> int:
        """Completed micro-batches of the current step."""
        return self._trained.run.micro_batch

    @property
    def steps_per_print(self) -> int:
        """The number of steps between log messages; 0: never."""
        return self._steps.steps_per_print

    @steps_per_print.setter
    def steps_per_print(self, steps: int) -> None:
        self._steps.steps_per_print = steps

    @property
    def is_boundary(self) -> bool:
        """Whether the next :meth:`step` is the last one of its step."""
        return self._trained.run.micro_batch + 1 == self._trained.run.micro_batches

    @property
    def global_step(self) -> int:
        """Completed steps, including skipped ones."""
        return self._trained.run.global_step

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return self._trained.run.learning_rate

    @property
    def units(self) -> list[str]:
        """The names of the units, which are fetched as a whole. The first contains all parameters
        outside of blocks."""
        return [unit.name for unit in self._trained.units]

    @property
    def run_dir(self) -> str | None:
        """The run's folder, or None."""
        return self._training.record.directory or None

    @property
    def predicted_step_s(self) -> float | None:
        """The planner's prediction of a step's time; None if nothing was left to it ("auto")."""
        return self._trained.run.predicted_step_s

    @property
    def memory(self) -> dict[str, Any]:
        """Bytes by tier ("host", "gpu", "nvme") and purpose, as planned. What autograd keeps is not
        included."""
        return self._trained.run.memory
