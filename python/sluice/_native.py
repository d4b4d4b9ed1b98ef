"""A module's passes by the engine's own units, if it belongs to a family that has them. Parameters,
optimizer and checkpoints are the same as by hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch import nn

from ._calls import Call, Logits, Loss, Output, calls_in
from ._core import Family, FamilyPass, MicroBatchPass, RefusedError
from ._families import NotOfAFamily, blocks_of, family_of, find_hook, padding_row
from ._micro_batch import MicroBatch, NotByUnits, Passed, micro_batch
from ._module_changes import Snapshot
from ._records import Record
from ._steps import Steps
from ._trained import TrainedModule
from .units import ManagedParameter, Unit, UnitPolicy

_BY_HOOKS = 'units="hooks" computes it by PyTorch'
_CALL = "_sluice_call"  # set on a loss: its node, and the call that returned it


def choose(model: nn.Module, policy: UnitPolicy, world: int) -> tuple[Family | None, str]:
    """The family whose units compute a module, or None and the reason. RefusedError if the policy
    is "engine" and there is no such family."""
    if policy == "hooks":
        return None, 'units="hooks" asks for PyTorch'
    if not isinstance(policy, str) or policy not in ("auto", "engine"):
        return None, "units= names the modules that are fetched as a whole"
    try:
        if world > 1 and policy == "auto":  # a single rank cannot switch to hooks
            raise NotOfAFamily('several ranks train: only units="engine" uses its units then')
        return family_of(model), ""
    except NotOfAFamily as error:
        if policy == "engine":
            raise RefusedError(f'units="engine" is not possible: {error}') from error
        return None, str(error)


def units_of(model: nn.Module, family: Family) -> list[Unit]:
    """The family's units: embedding, blocks, head."""
    parameters = dict(model.named_parameters())
    blocks = blocks_of(model)
    units = []
    for number, (name, described) in enumerate(family.units):
        is_block = 0 < number <= len(blocks)
        unit = Unit(name, blocks[number - 1] if is_block else None)
        for index, (parameter, _) in enumerate(described):
            unit.parameters.append(
                ManagedParameter(parameter, parameters[parameter], number, index, True)
            )
        units.append(unit)
    return units


class NativePasses:
    """Passes by the engine's own units, for a module of a family that has them."""

    way = "engine"

    def __init__(
        self,
        trained: TrainedModule,
        steps: Steps,
        record: Record,
        family: Family,
        must: bool,
        to_hooks: Callable[[str], None],
    ):
        """
        Args:
            must: refuses what the units do not support. Otherwise PyTorch takes over by hooks.
            to_hooks: switches to hooks, for the reason given.
        """
        self._trained = trained
        self._steps = steps
        self._record = record
        self.family = family
        self._must = must
        self._to_hooks = to_hooks
        self._passes = FamilyPass(trained.run, family, padding_row(trained.module))
        self._anchor = torch.zeros((), device=trained.device, requires_grad=True)
        self._known: frozenset[int] = frozenset()
        self._counted = -1  # handles
        #: Whether an evaluation is asked for logits (a Trainer may not be).
        self.wants_logits = True

    def again(self) -> NativePasses:
        """A new object for the module's next run, which the units compute again."""
        passes = NativePasses(
            self._trained, self._steps, self._record, self.family, True, self._to_hooks
        )
        passes.wants_logits = self.wants_logits
        return passes

    @property
    def _is_current(self) -> bool:
        return self._steps.passes is self

    def check(self) -> None:
        """Does nothing: :meth:`_check_module` checks while a GPU computes."""

    # ---- the module's own call

    def attach(self) -> None:
        """Routes every call of the module through the engine, whichever code makes it."""
        module = self._trained.module
        original = module.forward

        @wraps(original)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._call(args, kwargs) if self._is_current else original(*args, **kwargs)

        self._original = original
        self._parts = list(module.modules())
        self._snapshot = Snapshot(module)
        module.forward = forward  # type: ignore[method-assign]

    def close(self) -> None:
        self._trained.module.__dict__.pop("forward", None)
        del self._passes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._record.forward(args, kwargs):
            return self._call(args, kwargs)

    def _call(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        with self._trained.calls:  # calls of the module itself also take the lock
            return self._call_alone(args, kwargs)

    def _call_alone(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        trained = self._trained
        has_gradient = torch.is_grad_enabled()
        named = self._named(args, kwargs)
        is_loss = named.get("labels") is not None
        if not is_loss and (not has_gradient or not trained.module.training):
            return self._original(*args, **kwargs)  # inference
        if not has_gradient and trained.ranks.world > 1:
            return self._original(*args, **kwargs)  # another rank may need hooks
        trained.residency.check_memory()
        try:
            changed = self._snapshot.changed()
            if changed is not None:
                raise NotByUnits(changed)
            return self._forward(
                micro_batch(named, self.family, trained.module.config, trained.device),
                has_gradient,
                args,
                kwargs,
            )
        except NotByUnits as error:
            return self._otherwise(str(error), has_gradient, args, kwargs)

    def _otherwise(self, reason: str, has_gradient: bool, args: tuple, kwargs: dict) -> Any:
        if not has_gradient:
            return self._original(*args, **kwargs)
        if self._must:
            raise RefusedError(f"the engine's units do not support this: {reason}. {_BY_HOOKS}")
        self._to_hooks(reason)
        self._steps.begin_pass()
        return self._trained.module(*args, **kwargs)

    def _check_module(self) -> None:
        """Checks what may have changed since the family was chosen."""
        trained = self._trained
        if self._counted != len(trained.outer_handles):
            self._known = frozenset(
                [*trained.hook_ids(), *(handle.id for handle in self._record.handles)]
            )
            self._counted = len(trained.outer_handles)
        hooked = find_hook(trained.module, self._known)
        if hooked is not None:
            raise NotByUnits(f"{hooked} has hooks")
        for managed in trained.managed.values():
            own = managed.parameter._post_accumulate_grad_hooks  # one is the engine's
            if managed.parameter._backward_hooks or len(own or ()) > 1:
                raise NotByUnits(f"{managed.name} has hooks")
        training = trained.module.training
        number = -1
        for number, (name, part) in enumerate(trained.module.named_modules()):
            if number >= len(self._parts) or part is not self._parts[number]:
                raise NotByUnits(f"{name} was replaced")
            if number > 0 and "forward" in part.__dict__:
                raise NotByUnits(f"the forward of {name} was replaced")
            if self.family.dropout > 0 and part.training != training:
                raise NotByUnits(f"{name} is in another mode than the module")
            if isinstance(part, nn.Dropout) and part.p != self.family.dropout:
                raise NotByUnits(f"the dropout of {name} was changed")
        if number + 1 != len(self._parts):
            raise NotByUnits("a part of the module was removed")

    def _named(self, args: tuple, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if not args:
            return dict(kwargs)
        names = [name for name in _argument_names(self._original) if name != "self"]
        return {**dict(zip(names, args)), **kwargs}

    def _pass(self, batch: MicroBatch, has_gradient: bool, number: int) -> MicroBatchPass:
        """`number`: of this pass, within its micro-batch."""
        self._trained.residency.release_all()
        drops = self._trained.module.training and self.family.dropout > 0
        with torch.no_grad():
            return self._passes.forward(
                batch.tokens,
                batch.targets,
                batch.divisor,
                batch.documents,
                has_gradient,
                drops,
                self._keeps(),
                number,
            )

    def _forward(self, batch: MicroBatch, has_gradient: bool, args: tuple, kwargs: dict) -> Output:
        number = self._steps.next_pass() if has_gradient else 0
        passed = self._pass(batch, has_gradient, number)
        self._check_module()  # while a GPU computes
        changed = self._snapshot.changed_on_gpu()
        if changed is not None:
            raise NotByUnits(changed)
        generation = self._trained.residency.generation
        call = Call(self, batch, passed, number, args, kwargs, generation)
        if not has_gradient:
            wanted = (lambda: self._logits(call, False)) if self.wants_logits else None
            return Output(passed.loss, wanted)
        loss = Loss.apply(self._anchor, call)
        setattr(loss, _CALL, (loss.grad_fn, call))
        return Output(loss, lambda: self._logits(call, True))

    def _keeps(self) -> bool:
        recompute = self._trained.keys()["placement"]["recompute"]
        if recompute != "auto":
            return recompute == "off"
        blocks = blocks_of(self._trained.module)
        return not any(getattr(block, "gradient_checkpointing", False) for block in blocks)

    def _logits(self, call: Call, has_gradient: bool) -> torch.Tensor:
        if self._trained.residency.generation != call.generation:
            raise RefusedError(
                "outputs.logits are computed when they are asked for, and the parameters have"
                " changed since: ask before engine.step()"
            )
        if not has_gradient and self._is_current:
            return self._passes.logits(call.passed)
        if self._is_current and (self._must or self.family.dropout == 0):
            return Logits.apply(self._anchor, self._passes.logits(call.passed), call)
        # Their gradient could not be computed later: dropout would draw another mask.
        if self._is_current:
            self._to_hooks("outputs.logits are asked for in training, with dropout")
        with torch.set_grad_enabled(has_gradient):
            self._steps.begin_pass()
            return self._by_hooks(call)["logits"]

    def _by_hooks(self, call: Call) -> Any:
        return self._trained.module(*call.args, **call.kwargs)

    # ---- backward

    def begin_backward(self) -> None:
        self._trained.residency.release_all()
        self._trained.residency.in_backward = True

    def backward(self, loss: torch.Tensor, scale: float, retain_graph: bool) -> None:
        """Bypasses autograd if the loss is the one that a call returned."""
        node, call = getattr(loss, _CALL, (None, None))
        is_own = call is not None and loss.grad_fn is node and not loss._backward_hooks
        calls = [node] if is_own else calls_in(loss.grad_fn)
        kind = Loss._backward_cls  # type: ignore[attr-defined]
        is_loss = isinstance(calls[0], kind) if len(calls) == 1 else not calls
        if any(operation.call.was_passed and not operation.call.is_retained for operation in calls):
            raise RefusedError(
                "backward() already ran for this loss: call it with retain_graph=True to be able to"
                " call it again"
            )
        reason = "" if is_loss else "a loss is made of outputs.logits, or of several calls"
        can_go = not self._must and self.family.dropout == 0
        if is_loss and self._steps.has_passed:
            if self._trained.run.can_have_several_passes:
                self._expect_several()
            else:  # with dropout, earlier passes would be repeated with another mask
                reason, can_go = "a micro-batch has several backward passes", not self._must
        if reason:
            if not can_go:
                raise RefusedError(f"the engine's units do not support this: {reason}. {_BY_HOOKS}")
            self._to_hooks(reason)
            self._steps.begin_pass()
            self._steps.begin_backward()
        for operation in calls:
            operation.call.is_retained |= retain_graph
        if is_own and not reason:
            self._run_backward(call, scale)
        else:
            loss.backward(torch.full_like(loss, scale), retain_graph=retain_graph)

    def _expect_several(self) -> None:
        """Repeats the step: until now, gradients counted as complete after a micro-batch's first
        pass."""
        trained = self._trained
        if trained.run.has_several_passes:
            return
        step = self._steps.so_far()
        trained.run.abandon_step()
        trained.run.expect_several_passes()

        def compute(micro_batch_pass: Passed) -> None:
            self._passes.backward(
                self._pass(micro_batch_pass.batch, True, micro_batch_pass.number),
                micro_batch_pass.scale,
            )

        self._steps.repeat(step, compute)
        trained.residency.in_backward = True

    def loss_backward(self, call: Call, gradient: torch.Tensor) -> None:
        if self._is_current:
            self._run_backward(call, float(gradient))
        else:
            self.repeat(call, gradient, "loss")

    def repeat(self, call: Call, gradient: torch.Tensor, name: str) -> None:
        self._trained.residency.check_in_backward()
        self._check_generation(call)
        with torch.enable_grad():
            value = self._by_hooks(call)[name]
        value.backward(gradient)

    def _run_backward(self, call: Call, scale: float) -> None:
        self._trained.residency.check_in_backward()
        self._check_generation(call)
        if call.was_passed and call.is_retained:
            call.passed = self._pass(call.batch, True, call.number)
        try:
            self._passes.backward(call.passed, scale)
        except ValueError as error:
            raise RefusedError(str(error)) from error
        call.was_passed = True
        self._steps.add_passed(call.passed_with(scale))

    def _check_generation(self, call: Call) -> None:
        if self._trained.residency.generation != call.generation:
            raise RefusedError(
                "the loss was computed before the parameters changed: a step, or loading, was in"
                " between"
            )

    def check_gradient(self, parameter: torch.Tensor) -> None:
        parameter.grad = None
        self._trained.residency.check_in_backward()
        in_eval = (
            ". The module is in eval() mode (from_pretrained() leaves it so), in which a call"
            " without labels is inference: call engine.train() before training"
        )
        raise RefusedError(
            "a loss that was not computed by calling the engine (or its module in training) with"
            f" labels has a gradient here: {_BY_HOOKS}"
            + ("" if self._trained.module.training else in_eval)
        )


def _argument_names(forward: Any) -> list[str]:
    code = getattr(forward, "__wrapped__", forward)
    while hasattr(code, "__wrapped__"):
        code = code.__wrapped__
    code = getattr(code, "__func__", code).__code__
    return list(code.co_varnames[: code.co_argcount])
