"""Engine: trains a module whose parameters and optimizer state it manages."""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import nn

from . import _engines, _forks
from ._core import Error
from ._engine_facts import EngineFacts
from ._steps import StepResult
from ._training import Training
from .ranks import StageRanks
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
    """Makes an engine that trains `model`. You continue to call, evaluate and save the module as
    before.

    Args:
        model: any module, with values or made within :func:`sluice.init`. The engine takes over its
            parameters, which become views of memory that exists only while the module runs.
            Parameters that require no gradient are frozen: they are streamed in the same way,
            without optimizer state.
        config: a run file or a DeepSpeed JSON, as its path or as a dict. The sections model and
            data of a run file do not apply here.
        units: which modules are fetched as a whole, and what computes them:
            :data:`sluice.UnitPolicy`.
        overrides: dotted keys that take precedence: ``{"run.seed": 7}``.
        run_dir: the run's folder (run.dir), for metrics.jsonl, events.jsonl and config.json, which
            `sluice report` and `sluice diff` read, and for checkpoints. Without it, only files that
            you request are written.
        trace: the steps of a timeline in the folder's trace.json: (first, last).

    Raises:
        RefusedError: the module or the configuration is not supported; the message says what to
            change.
        Error: memory, a drive or a file is not available.
    """
    return Engine(model, config, units=units, overrides=overrides, run_dir=run_dir, trace=trace)


def _alone(method: _Method) -> _Method:
    """Other threads wait until the call returns. The call may make nested calls."""

    @functools.wraps(method)
    def call(self: Engine, *args: Any, **kwargs: Any) -> Any:
        with self._trained.calls:
            return method(self, *args, **kwargs)

    return call  # type: ignore[return-value]


class Engine(EngineFacts):
    """A module in training, made by :func:`initialize`.

    A step has ``gradient_accumulation_steps`` micro-batches, each of which ends with :meth:`step`::

        loss = engine(**batch).loss     # forward
        engine.backward(loss)           # once or several times: gradients add up
        engine.step()                   # AdamW, once the step has all of its micro-batches

    The engine remains usable after an exception. If forward failed, another micro-batch takes the
    place of the failed one, or :meth:`abandon` begins the step again. If backward failed, the
    step's micro-batches are dropped, and the next one is its first.
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
        among: StageRanks | None = None,
    ):
        super().__init__(Training(model, config, units, overrides, run_dir, trace, among))
        #: The module in training.
        self.module = model
        self._trained.owner = self
        _engines.add(model, self)
        _forks.watch(self._leave_to_parent)

    # ---- steps

    @_alone
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module's forward. Tensor arguments are moved to :attr:`device`, and those of
        floating-point numbers converted to :attr:`dtype`.

        Raises what the module raises. RefusedError under autocast, or if a parameter was changed in
        place.
        """
        return self._steps.call(args, kwargs)

    @_alone
    def backward(
        self, loss: torch.Tensor, retain_graph: bool = False, *, averages: bool = True
    ) -> None:
        """Adds the gradient of `loss`, a tensor of one element, to the step's.

        A step's gradient is that of the mean of its micro-batches' losses, over all ranks. `loss`
        is therefore divided by their number (by the number of ranks alone if `averages` is False)
        and multiplied by fp16's loss scale. Several calls before :meth:`step` add up.
        """
        with self._training.record.timing("backward"):
            self._steps.backward(loss, retain_graph, averages)

    @_alone
    def backward_from(
        self, outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> None:
        """Adds the gradient that follows from those of the module's outputs. They have the loss's
        scale. A stage of a pipeline that does not compute the loss calls it."""
        with self._training.record.timing("backward"):
            self._steps.backward_from(outputs, gradients)

    @_alone
    def add_gradients(self, gradients: Mapping[nn.Parameter, torch.Tensor]) -> None:
        """Adds to the current micro-batch's gradients, between :meth:`backward` and :meth:`step`.
        :meth:`expect_added_gradients` must have been called."""
        self._steps.add_gradients({id(it): gradient for it, gradient in gradients.items()})

    @_alone
    def expect_added_gradients(self) -> None:
        """Call it before the first step if :meth:`add_gradients` will be called."""
        self._steps.expect_added_gradients()

    @_alone
    def abandon(self) -> None:
        """Drops the micro-batches since the last step, as after an exception. Call it if you catch
        an exception between :meth:`backward` and :meth:`step`."""
        self._steps.abandon()

    @_alone
    def step(
        self, is_last: bool = False, *, of_last_stage: Sequence[float] | None = None
    ) -> StepResult | None:
        """Ends the micro-batch. After a step's last one: computes the norm, clips, runs AdamW, and
        returns the step's result. Returns None after other micro-batches.

        `is_last` ends the step early, for example at the end of an epoch. Missing micro-batches
        count with a loss of 0. `of_last_stage`: the losses of all of the step's micro-batches, in a
        pipeline, whose other stages do not compute them.

        A parameter without any gradient in a step has a gradient of zero: its moments fade, and it
        decays.

        Raises:
            NonFiniteGradientError: the step's gradient is not finite, and the configuration does
                not skip such steps. No weight has changed.
        """
        return self._steps.step(is_last, of_last_stage)

    def follow_module(self) -> None:
        """For code that calls the module instead of the engine, as a Trainer does. The module's
        forward then does what a call of the engine does, and tensors are moved to
        :attr:`device`."""

        def begin(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
            self._steps.begin_pass()
            return (
                tuple(self._steps.as_computed(value) for value in args),
                {key: self._steps.as_computed(value) for key, value in kwargs.items()},
            )

        handle = self.module.register_forward_pre_hook(begin, prepend=True, with_kwargs=True)
        self._trained.outer_handles.append(handle)

    @contextmanager
    def without_logits(self) -> Iterator[None]:
        """Within this context, evaluation by the engine's own units returns only the loss."""
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
        """Within this context you can read these parameters of the module, and those that are
        fetched with them.

        They must not be changed: if one was, RefusedError is raised afterwards. If more units are
        needed than fit next to the passes, their parameters are copied to memory of their own.
        """
        with self._training.values.gathered(parameters):
            yield

    @contextmanager
    def changing(self, *parameters: nn.Parameter, refusal: str = "") -> Iterator[None]:
        """Like :meth:`gathered`, but changes in place are written to the masters afterwards, unless
        an exception ends the block. AdamW's moments stay.

        Raises:
            RefusedError: a change is not allowed or not finite. With `refusal`, any change is
                refused, and the message is the names and that text. Parameters have their old
                values.
        """
        with self._training.values.changing(parameters, refusal):
            yield

    @_alone
    def state_dict(self) -> dict[str, torch.Tensor]:
        """The module's state_dict, with copies of all parameters in :attr:`dtype` on the CPU. Tied
        parameters are one tensor."""
        return self.module.state_dict()

    @_alone
    def follow_state_dict(self) -> None:
        """Takes part in another rank's state_dict() without keeping the result."""
        self._training.values.follow_state_dict()

    @_alone
    def load_weights(self, state: Mapping[str, torch.Tensor]) -> None:
        """Begins again from these values, by the module's names: AdamW's moments are zero, and the
        step is 0.

        `state` may omit names of tied parameters, and may have names that the module lacks.
        """
        self._training.values.load(state)

    @_alone
    def save_weights(self, path: str | os.PathLike[str], dtype: str = "fp32") -> None:
        """Writes all trained parameters to one safetensors file: the masters in "fp32", or rounded
        to "bf16" or "fp16"."""
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
        which must be JSON-serializable, between steps. Returns the checkpoint's folder,
        DIR/checkpoints/step-N, once it is durable.

        Frozen parameters are not saved: they are the module's, as it was when the engine was made.

        Args:
            directory: DIR; default: the run's folder.
            background: returns once the state is copied, which takes 12 bytes per parameter, and
                writes it while training continues. The checkpoint is durable after :meth:`wait`,
                :meth:`close` or the next save. None: follows run.checkpoint_background.
            within_step: also allows a save between micro-batches, before the step's last one. Their
                gradients are not saved, and the step continues.

        Raises:
            Error: this save, or the background save before it, could not be written. Earlier
                checkpoints stay.
        """
        return self._training.checkpoints.save(directory, client_state, background, within_step)

    @_alone
    def wait(self) -> None:
        """Waits until no checkpoint is being written.

        Raises:
            Error: a background save has failed since the last call.
        """
        self._training.checkpoints.wait()

    @_alone
    def load_checkpoint(self, path: str | os.PathLike[str] | None = None) -> tuple[str, Any]:
        """Continues from a checkpoint, with the same bits as a run that never stopped.

        Args:
            path: a checkpoint's folder, or a folder that was passed to :meth:`save_checkpoint`,
                whose newest checkpoint is loaded. Default: the run's folder.

        Returns:
            The checkpoint's folder and the client_state that was saved.

        Raises:
            RefusedError: the checkpoint is of another module or configuration. Nothing has changed.
            Error: the checkpoint cannot be read, or is damaged.
        """
        return self._training.checkpoints.load(path)

    @_alone
    def load_stages(self, paths: Sequence[str], stage: int | None) -> Any:
        """Continues from the checkpoints of a pipeline's stages, of any number. `stage`: the one
        that has the layers of this engine's module, or None if it was cut elsewhere. Returns the
        client_state."""
        return self._training.checkpoints.load_stages(paths, stage)

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Removes a checkpoint's folder, if the checkpoint is complete.

        Raises:
            Error: it cannot be removed.
        """
        self._trained.run.remove_checkpoint(os.fspath(path))

    # ---- for training loops

    def train(self, mode: bool = True) -> Engine:
        self.module.train(mode)
        return self

    def eval(self) -> Engine:
        return self.train(False)

    # ---- end

    def close(self, *, keep_values: bool = False) -> None:
        """Frees memory and drives. The module's parameters have no values afterwards, unless
        `keep_values` is set: otherwise call state_dict() before.

        Args:
            keep_values: gives the module values of its own, in :attr:`dtype` on the CPU.

        Raises:
            Error: a background save has failed. The engine is closed nevertheless.
        """
        values = self.state_dict() if keep_values else {}
        managed = list(self._trained.managed.values())
        try:
            self._close("completed", "")
        finally:
            for parameter in managed if keep_values else ():
                parameter.parameter.data = values[parameter.name]

    def _close(self, how: str, reason: str) -> None:
        if self._trained.is_forked:
            return
        with self._trained.calls:
            self._training.close(how, reason)

    def _leave_to_parent(self) -> None:
        self._training.leave_to_parent()

    def fail(self, error: BaseException) -> None:
        """Ends the other ranks, which wait for this one, with the error's text."""
        self._trained.fail(error)

    def failure(self) -> str:
        """Why another rank has failed; empty if none has."""
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
    """Closes open engines at exit, so that their files on drives are removed."""
    for engine in _engines.all_open():
        with suppress(Error):  # of a background save; it was logged
            engine.close()
