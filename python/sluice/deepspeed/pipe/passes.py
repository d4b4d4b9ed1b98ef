"""The passes of a stage, and the messages between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..._core import RefusedError
from ...engine import Engine, StepResult
from .messages import Form, Link, tensors_of
from .module import PipelineModule, Received
from .schedule import Pass, Work, one_forward_one_backward
from .tied_exchange import TiedExchange


@dataclass
class _InFlight:
    """A micro-batch between its forward and its backward pass."""

    inputs: Any
    outputs: Any
    form: Form | None  # of what was sent to the next stage
    loss: torch.Tensor | None


def _cloned(inputs: Any) -> Any:
    """Inputs that a layer may change in place, which is impossible for leaves with a gradient."""
    if isinstance(inputs, tuple):
        return tuple(_cloned(item) for item in inputs)
    needs = isinstance(inputs, torch.Tensor) and inputs.requires_grad
    return inputs.clone() if needs else inputs


class StagePasses:
    """Computes this stage's passes of a batch. `batch`: the micro-batches, (inputs, labels) each, on
    the first and the last stage."""

    def __init__(
        self,
        module: PipelineModule,
        engine: Engine,
        previous: Link | None,
        following: Link | None,
        tied: TiedExchange,
    ):
        self._module = module
        self._engine = engine
        self._previous = previous
        self._following = following
        self._tied = tied
        self._flying: dict[int, _InFlight] = {}

    def as_computed(self, value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return tuple(self.as_computed(item) for item in value)
        if not isinstance(value, torch.Tensor):
            return value
        dtype = self._engine.dtype if value.is_floating_point() else value.dtype
        return value.to(self._engine.device, dtype)

    def labels_of(self, value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(self.labels_of(item) for item in value)
        return value.to(self._engine.device) if isinstance(value, torch.Tensor) else value

    # ---- training

    def train(self, batch: Sequence[Any], of_all: Any) -> StepResult:
        """`of_all`: a function from this stage's losses to those of the last stage."""
        self._flying.clear()
        self._tied.forget()
        self._tied.refresh()
        count, module = self._engine.micro_batches, self._module
        plan = list(one_forward_one_backward(module.stage_id, module.num_stages, count))
        losses: list[float] = []
        received: list[torch.Tensor] | None = None
        inputs = None if self._previous is None else self._previous.to_previous(None, True)
        for at, work in enumerate(plan):
            following = plan[at + 1] if at + 1 < len(plan) else None
            if work.kind is Pass.FORWARD:
                given = batch[work.micro_batch][0] if inputs is None else inputs[0]
                flying = self._forward(work.micro_batch, given, batch)
                if flying.loss is not None:
                    losses.append(float(flying.loss.detach()))
            else:
                gradients = self._backward(work.micro_batch, received)
            # What the pass made is sent before anything is awaited from the other side.
            if work.kind is Pass.FORWARD:
                received = self._to_next(work, following)
                inputs = self._to_previous(None, following)
                continue
            inputs = self._to_previous(gradients, following)
            if self._ends_lane(work.micro_batch):
                self._tied.exchange(sends=True, receives=False)
            received = self._to_next(work, following)
        result = self._engine.step(of_last_stage=of_all(losses))
        assert result is not None
        self._tied.values_changed()
        return result

    def _forward(self, number: int, inputs: Any, batch: Sequence[Any]) -> _InFlight:
        module, engine = self._module, self._engine
        module.micro_batch = self._number_in_run(number)
        outputs = engine(self._as_received(_cloned(inputs)))
        loss = None
        if self._following is None:
            loss = self._loss(outputs, batch[number][1])
        form = None if self._following is None else Form.of(outputs)
        self._flying[number] = _InFlight(inputs, outputs, form, loss)
        return self._flying[number]

    def _as_received(self, inputs: Any) -> Any:
        is_number = isinstance(inputs, torch.Tensor) and inputs.is_floating_point()
        return Received(inputs) if is_number and inputs.dtype != self._engine.dtype else inputs

    def _number_in_run(self, number: int) -> int:
        of_all = self._engine.micro_batches * self._engine.world_size
        return self._engine.global_step * of_all + self._engine.number_in_step(number)

    def _loss(self, outputs: Any, labels: Any) -> torch.Tensor:
        if self._module.loss_fn is not None:
            outputs = self._module.loss_fn(outputs, self.labels_of(labels))
        if not isinstance(outputs, torch.Tensor) or outputs.numel() != 1:
            raise RefusedError(
                "the last layer returns no loss (a tensor of one element), and PipelineModule has no"
                " loss_fn: pass loss_fn=, a function of outputs and labels"
                if self._module.loss_fn is None
                else "loss_fn returned no loss: it must return a tensor of one element"
            )
        return outputs

    def _backward(
        self, number: int, gradients: list[torch.Tensor] | None
    ) -> list[torch.Tensor] | None:
        """Returns the gradients of the inputs, for the previous stage."""
        flying = self._flying.pop(number)
        if flying.loss is not None:
            self._engine.backward(flying.loss)
        else:
            outputs = [it for it in tensors_of(flying.outputs) if it.requires_grad]
            self._engine.backward_from(outputs, gradients or [])
        if self._ends_lane(number):
            self._tied.exchange(sends=False, receives=True)
        if number + 1 < self._engine.micro_batches:
            self._engine.step()
        if self._previous is None:
            return None
        leaves = [it for it in tensors_of(flying.inputs) if it.requires_grad]
        return [torch.zeros_like(it) if it.grad is None else it.grad for it in leaves]

    def _ends_lane(self, number: int) -> bool:
        return (number + 1) % self._engine.micro_batches_of_a_lane == 0

    # ---- messages

    def _to_next(self, work: Work, following: Work | None) -> list[torch.Tensor] | None:
        """Sends what the pass made to the next stage, and receives what the following pass needs
        from there."""
        if self._following is None:
            return None
        sent = self._flying[work.micro_batch].outputs if work.kind is Pass.FORWARD else None
        wanted = None
        if following is not None and following.kind is Pass.BACKWARD:
            wanted = self._flying[following.micro_batch].form
        if sent is None and wanted is None:
            return None
        return self._following.to_next(sent, wanted)

    def _to_previous(
        self, gradients: list[torch.Tensor] | None, following: Work | None
    ) -> tuple[Any, Form] | None:
        if self._previous is None:
            return None
        receives = following is not None and following.kind is Pass.FORWARD
        if gradients is None and not receives:
            return None
        return self._previous.to_previous(gradients, receives)

    # ---- evaluation

    @torch.no_grad()
    def evaluate(
        self, batch: Sequence[Any], count: int, computes_loss: bool
    ) -> tuple[list[Any], list[Any]]:
        """Losses (or outputs, without them) and outputs of the micro-batches, on the last stage."""
        self._tied.refresh()
        results, outputs_of_all = [], []
        for number in range(count):
            if self._previous is None:
                inputs = batch[number][0]
            else:
                received = self._previous.to_previous(None, True)
                assert received is not None
                inputs = received[0]
            outputs = self._engine(self._as_received(inputs))
            if self._following is not None:
                self._following.to_next(outputs, None)
                continue
            outputs_of_all.append(outputs)
            results.append(
                self._loss(outputs, batch[number][1]).detach() if computes_loss else outputs
            )
        return results, outputs_of_all
