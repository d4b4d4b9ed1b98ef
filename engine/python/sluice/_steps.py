"""The steps of a module in training: micro-batches, their gradients, and what a step did."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ._core import NonFiniteGradientError, Ranks, RefusedError, Run
from ._records import timed
from ._setup import _check_not_compiled
from ._threads import alone

if TYPE_CHECKING:
    from ._monitors import Monitors
    from ._records import Record
    from ._resident import ResidentWatch
    from ._calls import Passed
    from .fast import Fast
    from .keeper import Keeper
    from .units import ManagedParameter, Unit

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


class Steps:
    """The part of an :class:`Engine` that computes micro-batches and ends steps."""

    module: nn.Module
    device: torch.device
    dtype: torch.dtype
    last_step: StepResult | None
    _fast: Fast | None
    _keeper: Keeper
    _managed: dict[int, ManagedParameter]
    _monitors: Monitors
    _ranks: Ranks
    _record: Record
    _resident: ResidentWatch
    _run: Run
    _steps_per_print: int
    _units: list[Unit]

    def _check_values(self) -> None:
        raise NotImplementedError

    def _fail(self, error: BaseException) -> None:
        raise NotImplementedError

    def _start_steps(self) -> None:
        """Before the first one, and where they go on by hooks."""
        self._arrived = [0] * len(self._units)  # gradients that are in p.grad
        # Of a micro-batch, by unit: how often its gradient was handed over, each time all of it.
        # Once in the first micro-batch: it is expected so in others, and complete then. Where sums
        # stay in RAM there is nothing to gain by that.
        self._parts = [0] * len(self._units)
        self._is_single = [False] * len(self._units)
        self._learns_parts = self._run.keeping_costs
        self._losses: list[torch.Tensor] = []  # of the step's micro-batches
        # Of the step, by micro-batch: backward passes by units, which may have to be repeated.
        self._passed: list[list[Passed]] = []
        self._passes_begun = 0  # of the micro-batch, by units
        self._new_micro_batch = True

    @alone
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

    @alone
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
            self._hand_over_all()
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

    @alone
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
        self._passed.clear()
        self._passes_begun = 0
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

    def _hand_over_all(self) -> None:
        for unit, arrived in enumerate(self._arrived):
            if arrived > 0:
                self._hand_over(unit)

    def _repeat(
        self, passed: list[list[Passed]], ended: int, compute: Callable[[Passed], None]
    ) -> None:
        """The step so far, in a run that has forgotten it: `ended` micro-batches, and what the next
        one has."""
        losses, is_new, tokens = self._losses, self._new_micro_batch, self._record.tokens
        begun = self._passes_begun
        self._losses = []
        if any(len(it) > 1 for it in passed):
            self._learns_parts = False
        try:
            for number, passes in enumerate(passed):
                self._keeper.begin_micro_batch()
                for it in passes:
                    compute(it)
                if number < ended:
                    self._end_micro_batch()
        except BaseException:
            self._keeper.end_backward()
            self._abandon()
            raise
        self._losses, self._new_micro_batch, self._record.tokens = losses, is_new, tokens
        self._passed, self._passes_begun = passed, begun

    def _compute_by_hooks(self, passed: Passed) -> None:
        with torch.enable_grad():
            loss = self.module(*passed.args, **passed.kwargs)["loss"]
        self._begin_backward()
        loss.backward(torch.full_like(loss, passed.scale))
        self._hand_over_all()
        self._keeper.end_backward()

    def _end_micro_batch(self) -> None:
        self._is_single = [parts == 1 for parts in self._parts]
        self._parts = [0] * len(self._units)
        self._passes_begun = 0
        self._keeper.end_micro_batch()
        self._run.end_micro_batch()

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

    @alone
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
        try:
            self._end_micro_batch()
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
        self._passed.clear()
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
        self._resident.look()
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
        every = self._steps_per_print if self._ranks.rank == 0 else 0
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
        try:
            self._keeper.check_memory()
        except RefusedError:
            self._abandon()
            raise
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
