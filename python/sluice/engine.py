"""Engine: trains a module, whose parameters and optimizer state the engine keeps."""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import nn

from . import _engines, _forks
from ._copies import NotCopied
from ._core import Error
from ._steps import StepResult
from ._training import Training
from .units import UnitPolicy

_Method = TypeVar("_Method", bound=Callable[..., Any])


def initialize(
    model: nn.Module,
    config: Mapping[str, Any] | str | os.PathLike[str],
    *,
    units: UnitPolicy = "auto",
    overrides: Mapping[str, Any] | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    trace: tuple[int, int] | str | None = None,
) -> Engine:
    """An engine that trains `model`, which stays the module that it is: call it, evaluate it, save
    it as before.

    Args:
        model: any module, with values or made within :func:`sluice.init`. Its parameters are the
            engine's from now on: they are views of memory that is there only while the module runs.
            Those that require no gradient are frozen: they come and go, and have no state.
        config: a run file or a DeepSpeed JSON, as its path or as a dict. Of a run file the sections
            model and data mean nothing here.
        units: which modules are fetched as a whole, and who computes them:
            :data:`sluice.UnitPolicy`.
        overrides: keys of the configuration with dots, which win: ``{"run.seed": 7}``.
        run_dir: the run's folder (run.dir): gets metrics.jsonl, events.jsonl and config.json, which
            `sluice report` and `sluice diff` read, and checkpoints. Without one nothing is written
            but what is asked for.
        trace: steps of a timeline in the folder's trace.json: (first, last).

    Raises:
        RefusedError: the module or the configuration cannot be trained so; the sentence says what
            to change.
        Error: memory, a drive or a file could not be had.
    """
    return Engine(model, config, units=units, overrides=overrides, run_dir=run_dir, trace=trace)


def _alone(method: _Method) -> _Method:
    """Other threads wait until the call returns. A call may make others."""

    @functools.wraps(method)
    def call(self: Engine, *args: Any, **kwargs: Any) -> Any:
        with self._trained.calls:
            return method(self, *args, **kwargs)

    return call  # type: ignore[return-value]


class Engine(NotCopied):
    """A module in training. Made by :func:`initialize`.

    A step has ``gradient_accumulation_steps`` micro-batches, each of which ends with :meth:`step`::

        loss = engine(**batch).loss     # forward
        engine.backward(loss)           # once or several times: gradients add up
        engine.step()                   # AdamW, once the step has all of its micro-batches

    After an exception the engine can go on. In forward, another micro-batch takes the place of the
    one that failed, or :meth:`abandon` begins the step anew. In backward, the micro-batches of the
    step are forgotten, and the next one is its first.
    """

    def __init__(
        self,
        model: nn.Module,
        config: Mapping[str, Any] | str | os.PathLike[str],
        *,
        units: UnitPolicy = "auto",
        overrides: Mapping[str, Any] | None = None,
        run_dir: str | os.PathLike[str] | None = None,
        trace: tuple[int, int] | str | None = None,
    ):
        self._training = Training(model, config, units, overrides, run_dir, trace)
        self._trained = self._training.trained
        self._steps = self._training.steps
        #: The module that is trained.
        self.module = model
        self._trained.owner = self
        _engines.add(model, self)
        _forks.watch(self._leave_to_parent)

    # ---- steps

    @_alone
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward. Tensors among the arguments come to :attr:`device`, those of
        floating-point numbers in :attr:`dtype`.

        Raises what the module raises; RefusedError under autocast, or where a parameter was changed
        in place.
        """
        return self._steps.call(args, kwargs)

    @_alone
    def backward(
        self, loss: torch.Tensor, retain_graph: bool = False, *, averages: bool = True
    ) -> None:
        """Adds the gradient of `loss`, a tensor of one element, to the step's.

        A step's gradient is that of the mean of its micro-batches' losses, of all ranks: `loss` is
        divided by their number (if `averages` is False by that of ranks alone), and multiplied by
        the loss scale of fp16. Several calls before :meth:`step` add up.
        """
        with self._training.record.timing("backward"):
            self._steps.backward(loss, retain_graph, averages)

    @_alone
    def abandon(self) -> None:
        """Forgets the micro-batches since the last step, as after an exception: for who catches one
        between :meth:`backward` and :meth:`step`."""
        self._steps.abandon()

    @_alone
    def step(self, is_last: bool = False) -> StepResult | None:
        """Ends the micro-batch. Behind the last one of a step: norm, clipping, AdamW; and what the
        step did.

        `is_last`: the step ends with this one, before it has all of its micro-batches (an epoch is
        over): those that are missing count as ones of loss 0.

        A parameter without any gradient in a step has one of zero: its moments fade, and it decays.

        Raises:
            NonFiniteGradientError: the step's gradient is not finite, and the configuration does
                not skip such steps. No weight has changed.
        """
        return self._steps.step(is_last)

    def follow_module(self) -> None:
        """For who calls the module and not the engine, as a Trainer does: the module's forward then
        begins what a call of the engine begins, with tensors that come to :attr:`device`."""

        def begin(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
            self._steps.begin_pass()
            return (
                tuple(self._steps.as_computed(it) for it in args),
                {key: self._steps.as_computed(it) for key, it in kwargs.items()},
            )

        handle = self.module.register_forward_pre_hook(begin, prepend=True, with_kwargs=True)
        self._trained.outer_handles.append(handle)

    @contextmanager
    def without_logits(self) -> Iterator[None]:
        """Within it an evaluation by the engine's own units has its loss alone."""
        native = self._training.native
        if native is None:
            yield
            return
        native.wants_logits = False
        try:
            yield
        finally:
            native.wants_logits = True

    # ---- values

    @contextmanager
    def gathered(self, *parameters: nn.Parameter) -> Iterator[None]:
        """Within it these parameters of the module can be read, and those that are fetched with
        them.

        Not changed: RefusedError behind it, where one was. Where more units are asked for than
        there is room for beside the passes, they are copied, each to memory of its own.
        """
        with self._training.values.gathered(parameters):
            yield

    @contextmanager
    def changing(self, *parameters: nn.Parameter, refusal: str = "") -> Iterator[None]:
        """Like :meth:`gathered`, and what is changed in place is written to the masters behind it,
        unless it ends by an exception. AdamW's moments stay.

        Raises:
            RefusedError: what was changed must not be, or is not finite; or the names of what was
                changed and `refusal`, where that is given. Parameters have their old values.
        """
        with self._training.values.changing(parameters, refusal):
            yield

    @_alone
    def state_dict(self) -> dict[str, torch.Tensor]:
        """The module's, with copies of all parameters in :attr:`dtype` on the CPU; tied ones are
        one tensor."""
        return self.module.state_dict()

    @_alone
    def follow_state_dict(self) -> None:
        """Takes part in the state_dict() of another rank, and keeps nothing of it."""
        self._training.values.follow_state_dict()

    @_alone
    def load_weights(self, state: Mapping[str, torch.Tensor]) -> None:
        """Begins anew from these values, by the module's names: AdamW's moments are zero again, and
        the step is 0.

        Names of parameters that are tied, or that `state` has beyond those of the module, are not
        needed.
        """
        self._training.values.load(state)

    @_alone
    def save_weights(self, path: str | os.PathLike[str], dtype: str = "fp32") -> None:
        """All trained parameters as one safetensors file: their masters, "fp32", or rounded to
        "bf16" or "fp16"."""
        self._training.values.save(path, dtype)

    # ---- checkpoints

    @_alone
    def save_checkpoint(
        self,
        directory: str | os.PathLike[str] | None = None,
        client_state: Any = None,
        *,
        background: bool | None = None,
        within_step: bool = False,
    ) -> str:
        """Saves masters, moments, the step, buffers, torch's random generators and `client_state`,
        which JSON can hold, between steps. Durable when it returns the checkpoint's folder,
        DIR/checkpoints/step-N.

        Frozen parameters are not in it: they are the module's, as it was when the engine was made.

        Args:
            directory: DIR; else the run's folder.
            background: returns once the state is copied, 12 bytes a parameter, and writes it while
                training goes on; None: as run.checkpoint_background says, where that is true.
                Durable after :meth:`wait`, :meth:`close` or the next save.
            within_step: also between micro-batches, before the step's last one: what they have
                added is not in it, and the step goes on.

        Raises:
            Error: what could not be written, now or by the background save before this one;
                checkpoints before it stay.
        """
        return self._training.checkpoints.save(directory, client_state, background, within_step)

    @_alone
    def wait(self) -> None:
        """Until no checkpoint is being written.

        Raises:
            Error: one since the last call was not saved.
        """
        self._training.checkpoints.wait()

    @_alone
    def load_checkpoint(self, path: str | os.PathLike[str] | None = None) -> tuple[str, Any]:
        """Goes on where a checkpoint was made, with the bits of a run that never stopped.

        Args:
            path: a checkpoint's folder, or a directory that was given to :meth:`save_checkpoint`:
                its newest; else the run's folder.

        Returns:
            The checkpoint's folder and the client_state that was saved.

        Raises:
            RefusedError: it is of another module or configuration. Nothing has changed.
            Error: it cannot be read, or is damaged.
        """
        return self._training.checkpoints.load(path)

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Removes a checkpoint's folder, if it is whole.

        Raises:
            Error: it cannot be removed.
        """
        self._trained.run.remove_checkpoint(os.fspath(path))

    # ---- what a loop asks for

    @property
    def way(self) -> str:
        """ "engine" where its own units compute the module's passes, "hooks" where PyTorch does."""
        return self._steps.passes.way

    @property
    def way_reason(self) -> str:
        """Why it is hooks; empty where it is not."""
        return self._training.reason

    @property
    def config(self) -> dict[str, Any]:
        """The configuration as it was resolved, in the form of a run file."""
        return self._trained.keys()

    @property
    def device(self) -> torch.device:
        """Where the module computes."""
        return self._trained.device

    @property
    def dtype(self) -> torch.dtype:
        """What the module computes with: torch.float32, bfloat16 or float16."""
        return self._trained.dtype

    @property
    def last_step(self) -> StepResult | None:
        """What the last step did; None before the first."""
        return self._steps.last

    @property
    def in_backward(self) -> bool:
        """Whether :meth:`backward` is going on."""
        return self._trained.residency.in_backward

    def has(self, parameter: torch.Tensor) -> bool:
        """Whether it is a parameter of the module."""
        return id(parameter) in self._trained.managed

    @property
    def applied_step(self) -> int:
        """Steps whose update was applied."""
        return self._trained.run.applied_step

    @property
    def rank(self) -> int:
        """This process's, of :attr:`world_size`."""
        return self._trained.ranks.rank

    @property
    def world_size(self) -> int:
        """Processes that train together, each on batches of its own."""
        return self._trained.ranks.world

    @property
    def loss_scale(self) -> float:
        """Of the next step; 1 without fp16."""
        return self._trained.run.loss_scale

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step: gradient_accumulation_steps."""
        return self._trained.run.micro_batches

    @property
    def micro_batch_size(self) -> int:
        """train_micro_batch_size_per_gpu: rows that a script is asked to give at a time."""
        return self._trained.config.micro_batch

    @property
    def micro_batches_done(self) -> int:
        """Of the step that has begun."""
        return self._trained.run.micro_batch

    @property
    def steps_per_print(self) -> int:
        """After how many steps one is logged; 0: never."""
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
        """Steps taken, skipped ones included."""
        return self._trained.run.global_step

    @property
    def learning_rate(self) -> float:
        """Of the next step."""
        return self._trained.run.learning_rate

    @property
    def units(self) -> list[str]:
        """The names of what is fetched as a whole; the first is all that is outside of blocks."""
        return [unit.name for unit in self._trained.units]

    @property
    def run_dir(self) -> str | None:
        """The run's folder, if it has one."""
        return self._training.record.directory or None

    @property
    def predicted_step_s(self) -> float | None:
        """Where something was left to the planner ("auto"): what it predicts of a step."""
        return self._trained.run.predicted_step_s

    @property
    def memory(self) -> dict[str, Any]:
        """Bytes by tier ("host", "gpu", "nvme") and purpose, as the plan has them; without what
        autograd keeps."""
        return self._trained.run.memory

    def train(self, mode: bool = True) -> Engine:
        self.module.train(mode)
        return self

    def eval(self) -> Engine:
        return self.train(False)

    # ---- ends

    def close(self, *, keep_values: bool = False) -> None:
        """Gives the memory and the drives back. The module's parameters are gone: take state_dict()
        before, or keep them.

        Args:
            keep_values: the module has values of its own behind it, in :attr:`dtype` on the CPU.

        Raises:
            Error: a checkpoint that was written in the background was not saved. The engine is
                closed.
        """
        values = self.state_dict() if keep_values else {}
        managed = list(self._trained.managed.values())
        try:
            self._close("completed", "")
        finally:
            for it in managed if keep_values else ():
                it.parameter.data = values[it.name]

    def _close(self, how: str, reason: str) -> None:
        if self._trained.is_forked:
            return
        with self._trained.calls:
            self._training.close(how, reason)

    def _leave_to_parent(self) -> None:
        self._training.leave_to_parent()

    def fail(self, error: BaseException) -> None:
        """Ends the other ranks, which are waiting for this one, with the error's text."""
        self._trained.fail(error)

    def failure(self) -> str:
        """Why another rank has ended; empty where none has."""
        return self._trained.ranks.failure()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
            return
        self.fail(error)
        if isinstance(error, KeyboardInterrupt):
            self._close("interrupted", "")
        else:
            self._close("failed", str(error) or type(error).__name__)


@atexit.register
def _close_engines() -> None:
    """What they have on drives is of no use to anybody then."""
    for engine in _engines.all_open():
        with suppress(Error):  # of a checkpoint: it was said
            engine.close()
