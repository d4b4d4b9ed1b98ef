"""The steps of a module in training: micro-batches, their gradients, and the results of steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ._core import NonFiniteGradientError, RefusedError
from ._hooks import Passes
from ._learning import LearningWatch
from ._micro_batch import Passed
from ._monitors import Monitors
from ._records import Record
from ._resident import ResidentWatch
from ._trained import TrainedModule

_log = logging.getLogger("sluice")


@dataclass(frozen=True)
class StepResult:
    """The result of a step."""

    step: int  #: number of the step, from 1; skipped steps count
    loss: float  #: mean over the step's micro-batches
    grad_norm: float  #: before clipping, without the loss scale
    learning_rate: float  #: of parameters without a group of their own
    loss_scale: float  #: the scale that was used; 1 without fp16
    skipped: bool  #: the gradient was not finite, and no weight has changed
    warning: str  #: why, if run.non_finite_step let the step pass


@dataclass
class StepSoFar:
    """What has to be computed again in a new run, which does not have it."""

    passed: list[list[Passed]]
    ended: int  # completed micro-batches
    losses: list[torch.Tensor]
    new_micro_batch: bool
    tokens: int


class Steps:
    """Computes micro-batches and ends steps, with passes by units or by hooks."""

    passes: Passes

    def __init__(
        self,
        trained: TrainedModule,
        record: Record,
        monitors: Monitors,
        resident: ResidentWatch,
        steps_per_print: int,
    ):
        self._trained = trained
        self._record = record
        self._monitors = monitors
        self._resident = resident
        self._learning = LearningWatch(trained)
        self.steps_per_print = steps_per_print  # 0: never
        self.last: StepResult | None = None
        self._adds_gradients = False
        self.begin_run()

    def begin_run(self) -> None:
        """Called before the first step of a run."""
        count = len(self._trained.units)
        self._arrived = [0] * count  # gradients that are in p.grad
        # How often each unit handed over its whole gradient in a micro-batch. If that is once in
        # the first micro-batch, the same is expected of later ones, and the first handover
        # completes the gradient. Sums that stay in RAM gain nothing from this.
        self._parts = [0] * count
        self._is_single = [False] * count
        self._learns_parts = self._trained.run.keeping_costs and not self._adds_gradients
        self._losses: list[torch.Tensor] = []  # of the step's micro-batches
        # The step's backward passes by units, by micro-batch. They may have to be repeated.
        self._passed: list[list[Passed]] = []
        self._passes_begun = 0  # by units, in this micro-batch
        self._new_micro_batch = True

    # ---- a pass

    def call(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        args = tuple(self.as_computed(value) for value in args)
        kwargs = {key: self.as_computed(value) for key, value in kwargs.items()}
        try:
            self.begin_pass()
            return self.passes(*args, **kwargs)
        except BaseException as error:
            self._trained.residency.release_all()
            self._trained.fail(error)
            raise

    def begin_pass(self) -> None:
        """Called before the module's forward, whether the engine or the module itself was
        called."""
        trained = self._trained
        trained.check_values()
        if torch.is_autocast_enabled(trained.device.type):
            raise RefusedError(
                "autocast cannot be used: it keeps 16-bit copies of parameters after the engine has"
                ' released them. Remove it, and set "bf16": {"enabled": true}, with which the'
                " module itself computes in 16 bits"
            )
        if not torch.is_grad_enabled():
            trained.residency.begin_evaluation()
        elif self._new_micro_batch:
            self.passes.check()
            self._monitors.begin_step()
            self._learning.look_at_rate()
            self._record.begin_micro_batch()
            trained.residency.begin_micro_batch()
            self._new_micro_batch = False

    def as_computed(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        dtype = self._trained.dtype if value.is_floating_point() else value.dtype
        return value.to(self._trained.device, dtype)

    # ---- backward

    def backward(self, loss: torch.Tensor, retain_graph: bool, averages: bool) -> None:
        trained = self._trained
        of_rank = trained.run.micro_batches if averages else 1
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise RefusedError("backward() takes the loss, a tensor of one element")
        if not loss.requires_grad:
            raise RefusedError(
                "the loss does not require a gradient: it was computed under torch.no_grad(), or"
                " from frozen parameters only"
            )
        scale = trained.run.loss_scale / (of_rank * trained.ranks.world)
        self._compute_backward(lambda: self.passes.backward(loss, scale, retain_graph))
        value = loss.detach() if averages else loss.detach() * trained.run.micro_batches
        if len(self._losses) == trained.run.micro_batch:
            self._losses.append(value.clone())
        else:
            self._losses[-1] = self._losses[-1] + value

    def backward_from(
        self, outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> None:
        self._compute_backward(lambda: torch.autograd.backward(outputs, gradients))
        self._losses.append(torch.zeros((), device=self._trained.device))

    def _compute_backward(self, compute: Callable[[], None]) -> None:
        try:
            self.begin_backward()
            compute()
            self._hand_over_all()
        except BaseException as error:
            self._trained.fail(error)
            self.forget()
            raise
        finally:
            self._trained.residency.end_backward()

    def expect_added_gradients(self) -> None:
        """Call it before the first step if add_gradients() will be called: no unit's gradient is
        complete then before the micro-batch ends."""
        self._adds_gradients, self._learns_parts = True, False

    def add_gradients(self, gradients: Mapping[int, torch.Tensor]) -> None:
        """Adds these to the gradients of the current micro-batch, by the parameter's id."""
        managed = self._trained.managed
        for unit in {managed[key].unit for key in gradients}:
            of_unit = self._trained.units[unit].parameters
            of_parameters = [gradients.get(id(it.parameter)) for it in of_unit]
            self._trained.run.add(unit, of_parameters, False)

    def begin_backward(self) -> None:
        trained = self._trained
        if trained.residency.in_backward:
            raise RefusedError("backward() was called during backward()")
        if trained.run.is_complete:  # a step was interrupted after its last micro-batch
            self.forget()
        if len(self._losses) > trained.run.micro_batch:  # already had a backward pass
            self._learns_parts = False
        self.passes.begin_backward()

    def abandon(self) -> None:
        self._trained.residency.end_backward()
        self.forget()

    def forget(self) -> None:
        """Forgets the micro-batches since the last step."""
        for managed in self._trained.managed.values():
            managed.parameter.grad = None
        count = len(self._trained.units)
        self._arrived = [0] * count
        self._parts = [0] * count
        self._is_single = [False] * count
        self._losses.clear()
        self._passed.clear()
        self._passes_begun = 0
        self._new_micro_batch = True
        self._record.forget_step()
        self._trained.run.abandon_step()

    def on_gradient(self, parameter: torch.Tensor) -> None:
        """The hook of a parameter whose gradient is complete."""
        self.passes.check_gradient(parameter)
        residency = self._trained.residency
        if not residency.in_backward:
            parameter.grad = None
            residency.check_in_backward()
        unit = self._trained.managed[id(parameter)].unit
        self._arrived[unit] += 1
        if self._arrived[unit] >= self._trained.units[unit].trained_count:
            self._hand_over(unit)

    def _hand_over_all(self) -> None:
        for unit, arrived in enumerate(self._arrived):
            if arrived > 0:
                self._hand_over(unit)

    def _hand_over(self, unit: int) -> None:
        of_unit = self._trained.units[unit]
        gradients = []
        for managed in of_unit.parameters:
            gradient = managed.parameter.grad if managed.trained else None
            if gradient is not None and gradient.layout != torch.strided:
                gradient = gradient.to_dense()
            gradients.append(gradient)
        self._trained.run.add(unit, gradients, self._is_single[unit] and self._learns_parts)
        for managed in of_unit.parameters:
            managed.parameter.grad = None
        self._parts[unit] += 1 if self._arrived[unit] == of_unit.trained_count else 2
        self._arrived[unit] = 0

    # ---- passes by units, which may have to be repeated

    def next_pass(self) -> int:
        """The number of a new pass within its micro-batch."""
        self._passes_begun += 1
        return self._passes_begun - 1

    @property
    def has_passed(self) -> bool:
        """Whether the micro-batch has had a backward pass."""
        return len(self._passed) > self._trained.run.micro_batch

    def add_passed(self, passed: Passed) -> None:
        number = self._trained.run.micro_batch
        while len(self._passed) <= number:
            self._passed.append([])
        self._passed[number].append(passed)

    def so_far(self) -> StepSoFar:
        return StepSoFar(
            self._passed,
            self._trained.run.micro_batch,
            self._losses,
            self._new_micro_batch,
            self._record.tokens,
        )

    def repeat(self, step: StepSoFar, compute: Callable[[Passed], None]) -> None:
        """Computes the step so far in a new run, which does not have it."""
        begun = self._passes_begun
        self._losses = []
        if any(len(passes) > 1 for passes in step.passed):
            self._learns_parts = False
        try:
            for number, passes in enumerate(step.passed):
                self._trained.residency.begin_micro_batch()
                for passed in passes:
                    compute(passed)
                if number < step.ended:
                    self._end_micro_batch()
        except BaseException:
            self._trained.residency.end_backward()
            self.forget()
            raise
        self._losses, self._new_micro_batch = step.losses, step.new_micro_batch
        self._record.tokens = step.tokens
        self._passed, self._passes_begun = step.passed, begun

    def go_on_by_hooks(self, step: StepSoFar) -> None:
        """Computes the step so far again by hooks, in another run."""
        self._losses, self._new_micro_batch = step.losses, step.new_micro_batch
        self._record.tokens = step.tokens
        if not step.new_micro_batch:  # otherwise the next pass does it
            self._record.begin_micro_batch()
        self.repeat(step, self._compute_by_hooks)
        self._passed = []

    def _compute_by_hooks(self, passed: Passed) -> None:
        with torch.enable_grad():
            loss = self._trained.module(*passed.args, **passed.kwargs)["loss"]
        self.begin_backward()
        loss.backward(torch.full_like(loss, passed.scale))
        self._hand_over_all()
        self._trained.residency.end_backward()

    # ---- the end

    def _end_micro_batch(self) -> None:
        self._is_single = [parts == 1 for parts in self._parts]
        self._parts = [0] * len(self._trained.units)
        self._passes_begun = 0
        self._trained.residency.end_micro_batch()
        self._trained.run.end_micro_batch()

    def step(self, is_last: bool, of_last_stage: Sequence[float] | None = None) -> StepResult | None:
        trained = self._trained
        if len(self._losses) == trained.run.micro_batch:
            raise RefusedError(
                "step() was called without a backward() in this micro-batch: call"
                " engine.backward(loss) first"
            )
        self._new_micro_batch = True
        try:
            self._end_micro_batch()
            while is_last and not trained.run.is_complete:
                trained.run.end_micro_batch()
                self._losses.append(torch.zeros_like(self._losses[0]))
        except BaseException as error:
            trained.fail(error)
            self.forget()
            raise
        if not trained.run.is_complete:
            return None
        self._check_parameters()
        losses = list(of_last_stage or map(float, self._losses))
        self._losses.clear()
        self._passed.clear()
        trained.residency.release_all()
        try:
            outcome = self._record.take_step(losses)
        except NonFiniteGradientError:  # raised on all ranks
            raise
        except BaseException as error:
            trained.fail(error)
            raise
        finally:  # also after a Ctrl-C meanwhile
            trained.residency.step_taken()
        if outcome.warning:
            _log.warning(outcome.warning)
        self._learning.look_at_norm(outcome)
        self._resident.look()
        self.last = StepResult(
            step=trained.run.global_step,
            loss=outcome.loss,
            grad_norm=outcome.grad_norm,
            learning_rate=outcome.learning_rate,
            loss_scale=outcome.loss_scale,
            skipped=outcome.skipped,
            warning=outcome.warning,
        )
        self._report(self.last)
        return self.last

    def _report(self, done: StepResult) -> None:
        known = {
            "step": done.step,
            "loss": done.loss,
            "lr": done.learning_rate,
            "grad_norm": done.grad_norm,
            "loss_scale": done.loss_scale,
            "skipped": done.skipped,
        }
        self._monitors.step(self._record.last or known)
        every = self.steps_per_print if self._trained.ranks.rank == 0 else 0
        if every and done.step % every == 0:
            _log.info(
                "step %d: loss %g, lr %g, norm %g",
                done.step,
                done.loss,
                done.learning_rate,
                done.grad_norm,
            )

    def _check_parameters(self) -> None:
        try:
            self._trained.residency.check_memory()
        except RefusedError:
            self.forget()
            raise
        for name, parameter in self._trained.module.named_parameters():
            known = self._trained.managed.get(id(parameter))
            if known is None:
                what = (
                    f"parameter {name} was added after sluice.initialize(): add all parameters"
                    " before that call"
                )
            elif known.trained != parameter.requires_grad:
                what = (
                    f"requires_grad of {name} was changed after sluice.initialize(): set it before"
                    " that call, or make another engine"
                )
            else:
                continue
            self.forget()
            raise RefusedError(what)
