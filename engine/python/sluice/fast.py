"""The fast way: passes of a module by the engine's own units, where it is of a family that has
them. Parameters, optimizer and checkpoints are what they are by hooks."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from . import _client
from ._calls import Call, Loss, Output, Passed, calls_in
from ._core import Family, FamilyPass, MicroBatchPass, RefusedError
from ._families import NotOfAFamily, blocks_of, family_of, find_hook, padding_row
from ._micro_batch import MicroBatch, NotByUnits, micro_batch
from ._module_changes import Snapshot
from .units import ManagedParameter, Unit, UnitPolicy

if TYPE_CHECKING:
    from .engine import Engine

_log = logging.getLogger("sluice")
_BY_HOOKS = 'units="hooks" computes it by PyTorch'


def choose(model: nn.Module, policy: UnitPolicy, world: int) -> tuple[Family | None, str]:
    """The family by whose units a module is computed, or none and why. RefusedError where the
    policy is "engine" and there is none."""
    if policy == "hooks":
        return None, 'units="hooks" asks for PyTorch'
    if not isinstance(policy, str) or policy not in ("auto", "engine"):
        return None, "units= says what is fetched as a whole"
    try:
        if world > 1 and policy == "auto":  # one rank alone cannot go on by hooks
            raise NotOfAFamily('several ranks train: units="engine" has them by its units')
        return family_of(model), ""
    except NotOfAFamily as error:
        if policy == "engine":
            raise RefusedError(f'units="engine" is not possible: {error}') from error
        return None, str(error)


def units_of(model: nn.Module, family: Family) -> list[Unit]:
    """As the family has them: embedding, blocks, head."""
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


class Fast:
    """What an engine has where its module's passes are the units'."""

    def __init__(self, engine: Engine, family: Family, must: bool):
        self._engine = engine
        self.family = family
        self._must = must  # otherwise what the units do not compute goes by hooks from there on
        self._passes = FamilyPass(engine._run, family, padding_row(engine.module))
        self._anchor = torch.zeros((), device=engine.device, requires_grad=True)
        self._known: frozenset[int] = frozenset()
        self._counted = -1  # handles
        #: Whether an evaluation is asked for logits (a Trainer may not be).
        self.wants_logits = True

    def to_hooks(self, reason: str) -> None:
        to_hooks(self._engine, reason)

    def again(self) -> Fast:
        """For the engine's next run, by the units alone."""
        fast = Fast(self._engine, self.family, must=True)
        fast.wants_logits = self.wants_logits
        return fast

    # ---- the module's own call

    def attach(self) -> None:
        """The module's own call, by whoever it comes, is the engine's."""
        module = self._engine.module
        original = module.forward

        @wraps(original)
        def forward(*args: Any, **kwargs: Any) -> Any:
            fast = self._engine._fast
            return original(*args, **kwargs) if fast is not self else fast(*args, **kwargs)

        self._original = original
        self._parts = list(module.modules())
        self._snapshot = Snapshot(module)
        module.forward = forward  # type: ignore[method-assign]

    def detach(self) -> None:
        self._engine.module.__dict__.pop("forward", None)
        del self._passes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._engine._calls:  # the module's own call as well
            return self._call(args, kwargs)

    def _call(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        engine = self._engine
        has_gradient = torch.is_grad_enabled()
        named = self._named(args, kwargs)
        is_loss = named.get("labels") is not None
        if not is_loss and (not has_gradient or not engine.module.training):
            return self._original(*args, **kwargs)  # inference
        if not has_gradient and engine.world_size > 1:
            return self._original(*args, **kwargs)  # a rank may have what the units do not compute
        engine._keeper.check_memory()
        try:
            changed = self._snapshot.changed()
            if changed is not None:
                raise NotByUnits(changed)
            return self._forward(
                micro_batch(named, self.family, self._engine.module.config, self._engine.device),
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
            raise RefusedError(f"the engine's units do not compute this: {reason}. {_BY_HOOKS}")
        to_hooks(self._engine, reason)
        self._engine._begin_pass()
        return self._engine.module(*args, **kwargs)

    def _check_module(self) -> None:
        """What may have changed since the family was chosen."""
        engine = self._engine
        if self._counted != len(engine._outer_handles):
            handles = [
                *engine._handles,
                *engine._outer_handles,
                *engine._keeper._handles,
                *engine._record.handles,
            ]
            self._known = frozenset(it.id for it in handles)
            self._counted = len(engine._outer_handles)
        hooked = find_hook(engine.module, self._known)
        if hooked is not None:
            raise NotByUnits(f"{hooked} has hooks")
        for it in engine._managed.values():
            own = it.parameter._post_accumulate_grad_hooks  # one is the engine's
            if it.parameter._backward_hooks or len(own or ()) > 1:
                raise NotByUnits(f"{it.name} has hooks")
        training = engine.module.training
        number = -1
        for number, (name, part) in enumerate(engine.module.named_modules()):
            if number >= len(self._parts) or part is not self._parts[number]:
                raise NotByUnits(f"{name} was replaced")
            if number > 0 and "forward" in part.__dict__:
                raise NotByUnits(f"the forward of {name} was replaced")
            if self.family.dropout > 0 and part.training != training:
                raise NotByUnits(f"{name} is in another mode than the module")
            if isinstance(part, nn.Dropout) and part.p != self.family.dropout:
                raise NotByUnits(f"the dropout of {name} was changed")
        if number + 1 != len(self._parts):
            raise NotByUnits("a part of it was taken away")

    def _named(self, args: tuple, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if not args:
            return dict(kwargs)
        names = [it for it in _argument_names(self._original) if it != "self"]
        return {**dict(zip(names, args)), **kwargs}

    def _pass(self, batch: MicroBatch, has_gradient: bool, number: int) -> MicroBatchPass:
        """`number`: of the passes of its micro-batch."""
        self._engine._keeper.release_all()
        drops = self._engine.module.training and self.family.dropout > 0
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
        engine, number = self._engine, 0
        if has_gradient:
            number = engine._passes_begun
            engine._passes_begun += 1
        passed = self._pass(batch, has_gradient, number)
        self._check_module()  # while a GPU computes
        changed = self._snapshot.changed_on_gpu()
        if changed is not None:
            raise NotByUnits(changed)
        call = Call(self, batch, passed, number, args, kwargs)
        if not has_gradient:
            return Output(passed.loss, (lambda: call.logits(False)) if self.wants_logits else None)
        loss = Loss.apply(self._anchor, call)
        loss._sluice_call = (loss.grad_fn, call)
        return Output(loss, lambda: call.logits(True))

    def _keeps(self) -> bool:
        recompute = self._engine.config["placement"]["recompute"]
        if recompute != "auto":
            return recompute == "off"
        blocks = blocks_of(self._engine.module)
        return not any(getattr(it, "gradient_checkpointing", False) for it in blocks)

    # ---- backward

    def backward(self, loss: torch.Tensor, scale: float, retain_graph: bool) -> None:
        """Of `scale` times the loss; past autograd where it is one that a call has returned."""
        node, call = getattr(loss, "_sluice_call", (None, None))
        is_own = call is not None and loss.grad_fn is node and not loss._backward_hooks
        calls = [node] if is_own else calls_in(loss.grad_fn)
        kind = Loss._backward_cls  # type: ignore[attr-defined]
        is_loss = isinstance(calls[0], kind) if len(calls) == 1 else not calls
        if any(it.call.was_passed and not it.call.is_retained for it in calls):
            raise RefusedError(
                "the loss's backward has been: backward(loss, retain_graph=True) keeps it for another"
            )
        engine = self._engine
        reason = "" if is_loss else "a loss is made of outputs.logits, or of several calls"
        can_go = not self._must and self.family.dropout == 0
        if is_loss and len(engine._passed) > engine._run.micro_batch:
            if engine._run.can_have_several_passes:
                self._expect_several()
            else:  # with dropout, the passes before are repeated with another one
                reason, can_go = "a micro-batch has several backward passes", not self._must
        if reason:
            if not can_go:
                raise RefusedError(f"the engine's units do not compute this: {reason}. {_BY_HOOKS}")
            to_hooks(engine, reason)
            engine._begin_pass()
            engine._begin_backward()
        for it in calls:
            it.call.is_retained |= retain_graph
        if is_own and not reason:
            self.run_backward(call, scale)
        else:
            loss.backward(torch.full_like(loss, scale), retain_graph=retain_graph)

    def _expect_several(self) -> None:
        """Until now, sums were complete after a micro-batch's first pass."""
        engine = self._engine
        run = engine._run
        if run.has_several_passes:
            return
        passed, ended = engine._passed, run.micro_batch
        run.abandon_step()
        run.expect_several_passes()

        def compute(it: Passed) -> None:
            self._passes.backward(self._pass(it.batch, True, it.number), it.scale)

        engine._repeat(passed, ended, compute)
        engine._keeper.in_backward = True

    def run_backward(self, call: Call, scale: float) -> None:
        engine = self._engine
        engine._keeper.check_in_backward()
        call.check_generation()
        if call.was_passed and call.is_retained:
            call.passed = self._pass(call.batch, True, call.number)
        number = engine._run.micro_batch
        try:
            self._passes.backward(call.passed, scale)
        except ValueError as error:
            raise RefusedError(str(error)) from error
        call.was_passed = True
        while len(engine._passed) <= number:
            engine._passed.append([])
        engine._passed[number].append(call.passed_with(scale))

    def refuse_gradient(self, parameter: torch.Tensor) -> None:
        parameter.grad = None
        self._engine._keeper.check_in_backward()
        in_eval = (
            ". The module is in eval() mode (from_pretrained() leaves it so), in which a call"
            " without labels is inference: call engine.train() before training"
        )
        raise RefusedError(
            "a loss that was not computed by calling the engine (or its module in training) with"
            f" labels has a gradient here: {_BY_HOOKS}"
            + ("" if self._engine.module.training else in_eval)
        )


def _argument_names(forward: Any) -> list[str]:
    code = getattr(forward, "__wrapped__", forward)
    while hasattr(code, "__wrapped__"):
        code = code.__wrapped__
    code = getattr(code, "__func__", code).__code__
    return list(code.co_varnames[: code.co_argcount])


def to_hooks(engine: Engine, reason: str) -> None:
    """The engine goes on by hooks: its state passes through a checkpoint in a temporary folder, and
    a step that has begun is computed once more from its beginning."""
    run = engine._run
    passed, ended, losses = engine._passed, run.micro_batch, engine._losses
    is_new, tokens = engine._new_micro_batch, engine._record.tokens
    again = ", beginning with this step's micro-batches" if passed else ""
    _log.warning("from here on PyTorch computes the module, by hooks: %s%s", reason, again)
    run.wait_for_saves()
    engine._record.note_saves()  # and not of the one that follows
    folder = tempfile.mkdtemp(prefix="sluice-to-hooks-", dir=engine._scratch)
    try:
        engine._keeper.end_backward()
        run.abandon_step()
        client = _client.pack(engine.module, None, engine._frozen_sample, engine._ranks)
        path = run.save(folder, client)
        del run
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    try:
        engine._go_by_hooks(path, reason)
    except BaseException:
        if engine._fast is None:
            _log.error("the engine's state is in %s: load_checkpoint() takes it", folder)
        else:  # it goes on by the units
            shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    engine._losses, engine._new_micro_batch, engine._record.tokens = losses, is_new, tokens
    if not is_new:  # else the next pass does
        engine._record.begin_micro_batch()
    engine._repeat(passed, ended, engine._compute_by_hooks)
    engine._passed = []
