"""Engine: trains a module, whose parameters and optimizer state the engine keeps."""

from __future__ import annotations

import atexit
import json
import logging
import os
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from . import _client, _core, _forks, making, ranks
from ._build import VERSION
from ._checkpoints import Checkpoints
from ._core import Error, Family, NonFiniteGradientError, RefusedError, Run
from ._monitors import Monitors
from ._records import Record, parse_trace, timed
from ._setup import _check_module, _check_not_compiled, _engines, _read_config, parameters_of
from ._values import _DTYPES, Values, _refuse_load
from .fast import Fast, choose, units_of
from .keeper import Closed, Keeper
from .units import ManagedParameter, Unit, UnitPolicy, divide

_log = logging.getLogger("sluice")


@dataclass(frozen=True)
class StepResult:
    """What a step did."""

    step: int  #: its number, from 1; skipped ones count
    loss: float  #: mean over the step's micro-batches
    grad_norm: float  #: before clipping, without the loss scale
    learning_rate: float  #: of parameters without a group of their own
    loss_scale: float  #: that was used; 1 without fp16
    skipped: bool  #: its gradient was not finite, and no weight has changed
    warning: str  #: a sentence where run.non_finite_step let it pass


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


class Engine(Values, Checkpoints):
    """A module in training. Made by :func:`initialize`.

    A step has ``gradient_accumulation_steps`` micro-batches, each of which ends with :meth:`step`::

        loss = engine(**batch).loss     # forward
        engine.backward(loss)           # once or several times: gradients add up
        engine.step()                   # AdamW, once the step has all of its micro-batches

    After an exception in forward or backward the engine can go on: the micro-batches of the step
    that was going on are forgotten, and the next one is its first.
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
        _check_module(model)
        #: The module that is trained.
        self.module = model
        self._is_empty = making.give_stand_ins(model)
        divided = divide(model, units)
        self._ranks = ranks.join()
        family, self._way_reason = choose(model, units, self._ranks.world)
        self._config = _read_config(config, overrides, run_dir, self._ranks.world, family)
        if self._config.uses_gpu:
            ranks.choose_gpu(self._ranks)
        steps = parse_trace(trace, self._config.given_run_dir)
        self._scratch = os.path.dirname(self._config.run_dir) or None
        self._outer_handles: list[RemovableHandle] = []  # of those around it: a Trainer's
        try:
            self._make_run(divided if family is None else units_of(model, family), family)
            self._steps_per_print = self._config.steps_per_print  # 0: it is not asked for
            self._record = Record(self, self._config.given_run_dir, steps)
            is_first = self._ranks.rank == 0
            self._monitors = Monitors(
                self.config if is_first else {}, self._config.given_run_dir or None
            )
            self._run.initialise(
                lambda unit: [it.parameter.detach() for it in self._units[unit].parameters]
            )
            self._begin(None if family is None else Fast(self, family, units == "engine"))
        except BaseException as error:  # the others are waiting for this one
            if not self._all_refuse:
                self._ranks.abort(f"rank {self._ranks.rank}: {type(error).__name__}: {error}")
            raise
        self._record.watch()
        _engines[model] = weakref.ref(self)
        _forks.watch(self)

    def _make_run(self, units: list[Unit], family: Family | None) -> None:
        self._units: list[Unit] = units
        self._managed: dict[int, ManagedParameter] = {
            id(it.parameter): it for unit in self._units for it in unit.parameters
        }
        frozen = [it for it in self._managed.values() if not it.trained]
        with making.served(it.parameter for it in frozen if not it.parameter.is_contiguous()):
            self._frozen_sample = _client.sample(frozen)
        self._all_refuse = True
        if self._ranks.world > 1:
            with making.served(it.parameter for it in self._managed.values()):
                self._require_same()
        self._all_refuse = False
        making.settle(self.module)
        if family is not None:
            self._run = Run(self._config, family, self._ranks, _core.speeds_path())
        else:
            self._run = Run(
                self._config,
                parameters_of(self._units),
                self._ranks,
                _core.speeds_path(),
                int(time.time()),
            )
        for note in [*self._run.notes, *self._run.assumptions]:
            _log.info(note)
        #: What the module computes with: torch.float32, bfloat16 or float16.
        self.dtype: torch.dtype = _DTYPES[self._config.precision]
        #: Where it computes.
        self.device = (
            torch.device("cuda", torch.cuda.current_device())
            if self._run.on_gpu
            else torch.device("cpu")
        )
        #: What the last step did; None before the first.
        self.last_step: StepResult | None = None
        self._arrived = [0] * len(self._units)  # gradients that are in p.grad
        # Of a micro-batch, by unit: how often its gradient was handed over, each time all of it.
        # Once in the first micro-batch: it is expected so in others, and complete then. On the CPU
        # there is nothing to gain by that.
        self._parts = [0] * len(self._units)
        self._is_single = [False] * len(self._units)
        self._learns_parts = self._run.on_gpu
        self._losses: list[torch.Tensor] = []  # of the step's micro-batches
        self._new_micro_batch = True
        self._gathered: tuple[weakref.ref, dict[int, torch.Tensor]] | None = None
        self._handles: list[RemovableHandle] = []

    def _begin(self, fast: Fast | None) -> None:
        self._take_over()
        self._keeper = Keeper(self._run, self.module, self._units)
        self._fast = fast
        if fast is not None:
            fast.attach()
        if self.way == "engine":
            _log.info("the engine's own units compute %s", type(self.module).__name__)
        else:
            _log.info("PyTorch computes the module, by hooks: %s", self._way_reason)

    def _take_apart(self) -> None:
        """What holds the run, which goes with it; the module's parameters are gone."""
        if self._fast is not None:
            self._fast.detach()
            self._fast = None
        self._keeper.close()
        for handle in self._handles:
            handle.remove()
        self._run = cast(Run, Closed())

    def _go_by_hooks(self, checkpoint: str, reason: str) -> None:
        """Goes on from there, with the module's own forward."""
        last, generation = self.last_step, self._keeper._generation
        self._record.let_go()
        self._take_apart()
        self._way_reason = reason
        self._make_run(divide(self.module, "hooks"), None)
        self._record.follow(self._run)
        self._run.load(checkpoint, lambda _: None)
        self._begin(None)
        self.last_step, self._keeper._generation = last, generation

    def _require_same(self) -> None:
        """What every rank has to have alike, before anything is taken."""
        keys = json.loads(self._config.json())
        keys["run"].pop("dir", None)
        described = [
            (unit.name, [(it.name, list(it.parameter.shape), it.trained) for it in unit.parameters])
            for unit in self._units
        ]
        ranks.require_same(
            self._ranks,
            {
                "the version of Sluice is another": VERSION,
                "the run's folder (run_dir) is another": self._config.given_run_dir,
                "the configuration is another": _client.digest(json.dumps(keys)),
                "the module has other parameters": _client.digest(json.dumps(described)),
                "the module has other values (set the same seed before it is made, or load the same"
                " weights)": "" if self._is_empty else _client.sample(self._managed.values()),
            },
        )

    def _take_over(self) -> None:
        for number, unit in enumerate(self._units):
            if not unit.parameters:
                continue
            for it, view in zip(unit.parameters, self._run.views(number)):
                it.parameter.grad = None
                it.parameter.data = view
                if it.trained:
                    self._handles.append(
                        it.parameter.register_post_accumulate_grad_hook(self._on_gradient)
                    )
        if self._run.on_gpu:
            for part in self.module.modules():
                for name, buffer in part._buffers.items():
                    if buffer is not None:
                        part._buffers[name] = buffer.to(self.device)
        for part in self.module.modules():
            if any(True for _ in part.parameters(recurse=False)):
                self._handles.append(
                    part.register_state_dict_post_hook(lambda *it: self._gather_into(*it))
                )
                self._handles.append(part.register_load_state_dict_pre_hook(_refuse_load))

    # ---- a micro-batch

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward. Tensors among the arguments come to :attr:`device`, those of
        floating-point numbers in :attr:`dtype`.

        Raises what the module raises; RefusedError under autocast, or where a parameter was changed
        in place.
        """
        args = tuple(self._as_computed(it) for it in args)
        kwargs = {key: self._as_computed(it) for key, it in kwargs.items()}
        try:
            self._begin_pass()
            if self._fast is None:
                return self.module(*args, **kwargs)
            with self._record.forward(args, kwargs):
                return self._fast(*args, **kwargs)
        except BaseException as error:
            self._keeper.release_all()
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        """Of several ranks the others are waiting for this one."""
        if self._ranks.world > 1:
            self._ranks.abort(f"rank {self._ranks.rank}: {type(error).__name__}: {error}")

    def _check_values(self) -> None:
        if self._is_empty:
            raise RefusedError(
                "the module was made by sluice.init(values=False), and has no values yet: call"
                " load_checkpoint() or load_weights()"
            )

    def _begin_pass(self) -> None:
        """Before the module's forward, whoever calls it."""
        self._check_values()
        if torch.is_autocast_enabled(self.device.type):
            raise RefusedError(
                "autocast keeps 16-bit copies of parameters from forward to backward, past their"
                ' unit\'s release: leave it out, and set "bf16": {"enabled": true}, with which the'
                " module computes in 16 bits itself"
            )
        if not torch.is_grad_enabled():
            self._keeper.begin_evaluation()
        elif self._new_micro_batch:
            if self._fast is None:
                _check_not_compiled(self.module)
            self._monitors.begin_step()
            self._record.begin_micro_batch()
            self._keeper.begin_micro_batch()
            self._new_micro_batch = False

    def _as_computed(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(self.device, self.dtype if value.is_floating_point() else value.dtype)

    @timed("backward")
    def backward(
        self, loss: torch.Tensor, retain_graph: bool = False, *, averages: bool = True
    ) -> None:
        """Adds the gradient of `loss`, a tensor of one element, to the step's.

        A step's gradient is that of the mean of its micro-batches' losses, of all ranks: `loss` is
        divided by their number (if `averages` is False by that of ranks alone), and multiplied by
        the loss scale of fp16. Several calls before :meth:`step` add up.
        """
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise RefusedError("backward() wants the loss, a tensor of one element")
        if not loss.requires_grad:
            raise RefusedError(
                "the loss has no gradient: it was computed under torch.no_grad(), or of frozen"
                " parameters alone"
            )
        try:
            self._begin_backward()
            of_rank = self._run.micro_batches if averages else 1
            scale = self._run.loss_scale / (of_rank * self._ranks.world)
            if self._fast is None:
                loss.backward(torch.full_like(loss, scale), retain_graph=retain_graph)
            else:
                self._fast.backward(loss, scale, retain_graph)
            for unit, arrived in enumerate(self._arrived):
                if arrived > 0:
                    self._hand_over(unit)
        except BaseException as error:
            self._fail(error)
            self._abandon()
            raise
        finally:
            self._keeper.end_backward()
        value = loss.detach() if averages else loss.detach() * self._run.micro_batches
        if len(self._losses) == self._run.micro_batch:
            self._losses.append(value.clone())
        else:
            self._losses[-1] = self._losses[-1] + value

    def _begin_backward(self) -> None:
        if self._keeper.in_backward:
            raise RefusedError("backward() is called within backward()")
        if self._run.is_complete:  # a step was cut short behind its last micro-batch
            self._abandon()
        if len(self._losses) > self._run.micro_batch:  # there was one before in this micro-batch
            self._learns_parts = False
        if self._fast is not None:
            self._keeper.release_all()
            self._keeper.in_backward = True
            return
        self._run.begin_backward()
        self._keeper.begin_backward()

    def abandon(self) -> None:
        """Forgets the micro-batches since the last step, as after an exception: for who catches one
        between :meth:`backward` and :meth:`step`."""
        self._keeper.end_backward()
        self._abandon()

    def _abandon(self) -> None:
        for it in self._managed.values():
            it.parameter.grad = None
        self._arrived = [0] * len(self._units)
        self._parts = [0] * len(self._units)
        self._is_single = [False] * len(self._units)
        self._losses.clear()
        self._new_micro_batch = True
        self._record.forget_step()
        self._run.abandon_step()

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        if self._fast is not None:
            self._fast.refuse_gradient(parameter)
        if not self._keeper.in_backward:
            parameter.grad = None
            self._keeper.check_in_backward()
        unit = self._managed[id(parameter)].unit
        self._arrived[unit] += 1
        if self._arrived[unit] >= self._units[unit].trained_count:
            self._hand_over(unit)

    def _hand_over(self, unit: int) -> None:
        gradients = []
        for it in self._units[unit].parameters:
            gradient = it.parameter.grad if it.trained else None
            if gradient is not None and gradient.layout != torch.strided:
                gradient = gradient.to_dense()
            gradients.append(gradient)
        self._run.add(unit, gradients, self._is_single[unit] and self._learns_parts)
        for it in self._units[unit].parameters:
            it.parameter.grad = None
        self._parts[unit] += 1 if self._arrived[unit] == self._units[unit].trained_count else 2
        self._arrived[unit] = 0

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
        if len(self._losses) == self._run.micro_batch:
            raise RefusedError("step() ends a micro-batch, and there was no backward() in this one")
        self._new_micro_batch = True
        self._is_single = [parts == 1 for parts in self._parts]
        self._parts = [0] * len(self._units)
        self._keeper.end_micro_batch()
        try:
            self._run.end_micro_batch()
            while is_last and not self._run.is_complete:
                self._run.end_micro_batch()
                self._losses.append(torch.zeros_like(self._losses[0]))
        except BaseException as error:
            self._fail(error)
            self._abandon()
            raise
        if not self._run.is_complete:
            return None
        self._check_parameters()
        losses = [float(loss) for loss in self._losses]
        self._losses.clear()
        self._keeper.release_all()
        try:
            outcome = self._record.take_step(losses)
        except NonFiniteGradientError:  # of all ranks
            raise
        except BaseException as error:
            self._fail(error)
            raise
        finally:  # also where Ctrl-C came meanwhile
            self._keeper.step_taken()
        if outcome.warning:
            _log.warning(outcome.warning)
        self.last_step = StepResult(
            step=self._run.global_step,
            loss=outcome.loss,
            grad_norm=outcome.grad_norm,
            learning_rate=outcome.learning_rate,
            loss_scale=outcome.loss_scale,
            skipped=outcome.skipped,
            warning=outcome.warning,
        )
        self._monitors.step(
            self._record.last
            or {
                "step": self.last_step.step,
                "loss": outcome.loss,
                "lr": outcome.learning_rate,
                "grad_norm": outcome.grad_norm,
                "loss_scale": outcome.loss_scale,
                "skipped": outcome.skipped,
            }
        )
        every = self._steps_per_print if self.rank == 0 else 0
        if every and self.last_step.step % every == 0:
            _log.info(
                "step %d: loss %g, lr %g, norm %g",
                self.last_step.step,
                outcome.loss,
                outcome.learning_rate,
                outcome.grad_norm,
            )
        return self.last_step

    def _check_parameters(self) -> None:
        for name, parameter in self.module.named_parameters():
            known = self._managed.get(id(parameter))
            if known is None:
                what = (
                    f"parameter {name} was made after sluice.initialize(), which knows nothing of"
                    " it: make all parameters before"
                )
            elif known.trained != parameter.requires_grad:
                what = (
                    f"requires_grad of {name} was changed after sluice.initialize(): set it before,"
                    " or make another engine"
                )
            else:
                continue
            self._abandon()
            raise RefusedError(what)

    # ---- what a loop asks for

    @property
    def way(self) -> str:
        """ "engine" where its own units compute the module's passes, "hooks" where PyTorch does."""
        return "hooks" if self._fast is None else "engine"

    @property
    def way_reason(self) -> str:
        """Why it is hooks; empty where it is not."""
        return self._way_reason

    @property
    def config(self) -> dict[str, Any]:
        """The configuration as it was resolved, in the form of a run file."""
        return json.loads(self._config.json())

    @property
    def applied_step(self) -> int:
        """Steps whose update was applied."""
        return self._run.applied_step

    @property
    def rank(self) -> int:
        """This process's, of :attr:`world_size`."""
        return self._ranks.rank

    @property
    def world_size(self) -> int:
        """Processes that train together, each on batches of its own."""
        return self._ranks.world

    @property
    def loss_scale(self) -> float:
        """Of the next step; 1 without fp16."""
        return self._run.loss_scale

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step: gradient_accumulation_steps."""
        return self._run.micro_batches

    @property
    def micro_batch_size(self) -> int:
        """train_micro_batch_size_per_gpu: rows that a script is asked to give at a time."""
        return self._config.micro_batch

    @property
    def is_boundary(self) -> bool:
        """Whether the next :meth:`step` is the last one of its step."""
        return self._run.micro_batch + 1 == self._run.micro_batches

    @property
    def global_step(self) -> int:
        """Steps taken, skipped ones included."""
        return self._run.global_step

    @property
    def learning_rate(self) -> float:
        """Of the next step."""
        return self._run.learning_rate

    @property
    def units(self) -> list[str]:
        """The names of what is fetched as a whole; the first is all that is outside of blocks."""
        return [unit.name for unit in self._units]

    @property
    def run_dir(self) -> str | None:
        """The run's folder, if it has one."""
        return self._record.directory or None

    @property
    def predicted_step_s(self) -> float | None:
        """Where something was left to the planner ("auto"): what it predicts of a step."""
        return self._run.predicted_step_s

    @property
    def memory(self) -> dict[str, Any]:
        """Bytes by tier ("host", "gpu", "nvme") and purpose, as the plan has them; without what
        autograd keeps."""
        return self._run.memory

    def train(self, mode: bool = True) -> Engine:
        self.module.train(mode)
        return self

    def eval(self) -> Engine:
        return self.train(False)

    def close(self) -> None:
        """Gives the memory and the drives back. The module's parameters are gone: take state_dict()
        before.

        Raises:
            Error: a checkpoint that was written in the background was not saved. The engine is
                closed.
        """
        self._close("completed", "")

    def _close(self, how: str, reason: str) -> None:
        if isinstance(self._run, _forks.Forked):
            return
        is_open = not isinstance(self._run, Closed)  # not where it could not go on by hooks
        try:
            if is_open:
                self._run.wait_for_saves()
                self._record.note_saves()
            self._record.close(how, reason)
            self._monitors.close()
        finally:
            if is_open:
                self._take_apart()
            for handle in self._outer_handles:
                handle.remove()
            _engines.pop(self.module, None)
            self._record._run = self._run
        if how == "completed":
            self._record.raise_failed()

    def _leave_to_parent(self) -> None:
        _forks.keep_forever(self._run)
        self._record.leave_to_parent()
        self._run = self._keeper._run = self._record._run = cast(Run, _forks.Forked("the engine"))
        _engines.pop(self.module, None)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
            return
        self._fail(error)
        if isinstance(error, KeyboardInterrupt):
            self._close("interrupted", "")
        else:
            self._close("failed", str(error) or type(error).__name__)


@atexit.register
def _close_engines() -> None:
    """What they have on drives is of no use to anybody then."""
    for reference in list(_engines.values()):
        engine = reference()
        if engine is not None:
            with suppress(Error):  # of a checkpoint: it was said
                engine.close()
