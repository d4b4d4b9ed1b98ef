"""Decides by hooks which units are in memory: acquired before a module's forward, released after
it, and again in backward."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from . import _engines
from ._copies import NotCopied
from ._core import Error, Ranks, RefusedError, Run, free_ram_bytes
from ._tensors import tensors_in
from ._threads import Passes
from .units import ManagedParameter, Unit, owners

_sequence_nr = torch._C._autograd._get_sequence_nr
_CHANGED = "The parameter now has the changed value: load a checkpoint before you continue"


def _is_view(parameter: torch.Tensor, view: torch.Tensor) -> bool:
    return parameter.device == view.device and parameter.is_set_to(view)


def _free_bytes(device: torch.device) -> int | None:
    if device.type == "cpu":
        return free_ram_bytes()
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


class Closed:
    """Takes the place of a run after its engine is closed."""

    def __getattr__(self, name: str) -> object:
        raise RefusedError("the module's engine is closed, so its parameters no longer have values")


class Residency(NotCopied):
    """Acquires and releases units as the module's passes need them.

    Forward: a unit is held while any module that needs it runs. Backward: a unit is held from the
    first gradient of a tensor that one of its modules made, until another unit's first gradient.
    Autograd visits tensors in reverse order of their creation. The hooks are those of tensors,
    since backward hooks of modules would change bits.

    Every access to a unit that is not held throws (the engine's SlotStorage), also through views
    that autograd has saved. A pass that bypasses the hooks therefore fails with the unit's name,
    and never reads another unit's numbers.
    """

    def __init__(self, run: Run, root: nn.Module, units: list[Unit], ranks: Ranks):
        self._run = run
        self._ranks = ranks
        self._units = units
        self._depth = [0] * len(units)  # running modules that need it
        self._held = [False] * len(units)
        self._blocks: OrderedDict[int, None] = OrderedDict()  # held; most recently used last
        self._frames: list[int] = []  # of running modules: the sequence number when each began
        self._passes = Passes()
        self._versions: list[list[int]] = [[] for _ in units]
        self._views = [
            run.views(unit) if of_unit.parameters else [] for unit, of_unit in enumerate(units)
        ]
        self._copies: dict[int, list[torch.Tensor]] = {}  # of units, in place of their views
        self._most = max(run.most_acquired, 1)
        self._at_once = min(self._most, 2)  # may grow up to _most
        self.in_backward = False
        #: Version of the parameters' values: results of another version are refused.
        self.generation = 0
        self._recorded: list[int] | None = None  # units of the passes since begin_micro_batch()
        self._forward = 0  # how many of these came before backward
        self._order: list[int] = []  # the learned order of a micro-batch
        self._order_forward = 0
        self._position = 0
        #: Hooks of modules.
        self.handles: list[RemovableHandle] = []
        self._next: Residency | None = None
        for module, wanted in owners(root, units):
            self.handles.append(
                module.register_forward_pre_hook(partial(self._before, wanted), prepend=True)
            )
            self.handles.append(
                module.register_forward_hook(partial(self._after, wanted), always_call=True)
            )
        self.note_versions()

    # ---- forward

    def _before(self, wanted: list[int], module: nn.Module, args: tuple) -> None:
        self.check_thread()
        self._passes.enter()
        self._frames.append(_sequence_nr())
        for unit in wanted:
            self._depth[unit] += 1
        for unit in wanted:
            if not self._held[unit]:
                self._acquire(unit)

    def _after(self, wanted: list[int], module: nn.Module, args: tuple, output: object) -> None:
        if not self._passes.is_own:  # refused in _before()
            return
        began = self._frames.pop() if self._frames else 0
        if output is not None and torch.is_grad_enabled():
            for tensor in tensors_in(output):
                self._watch(tensor, wanted, began)
        self._leave(wanted)

    def check_thread(self) -> None:
        if self._frames and not self._passes.is_own and not self._passes.has_ended:
            raise RefusedError(
                "another thread is running this module, whose units are fetched for one pass at a"
                " time. Call the engine instead, whose calls wait for each other, or guard calls of"
                " the module with a lock"
            )

    def _leave(self, wanted: list[int]) -> None:
        for unit in wanted:
            if self._depth[unit] > 0:
                self._depth[unit] -= 1
            if self._depth[unit] == 0 and self._held[unit] and not self.in_backward:
                self._release(unit)
                self._check_versions(unit)

    @contextmanager
    def holding(self, wanted: list[int], times: int = 1) -> Iterator[None]:
        """Gives the parameters of these units their values: in the unit's own memory, or as
        temporary copies if there are more units than fit at a time. The caller has their values
        in memory `times` times then, with its own copies."""
        self.check_thread()
        if len([unit for unit in wanted if unit != 0]) > self._most:
            with self._copied([unit for unit in wanted if unit not in self._copies], times):
                yield
            return
        for unit in wanted:
            self._depth[unit] += 1
        try:
            for unit in wanted:
                if not self._held[unit]:
                    self._acquire(unit)
            yield
        finally:
            self._leave(wanted)

    @contextmanager
    def _copied(self, wanted: list[int], times: int) -> Iterator[None]:
        self._check_room_for_copies(wanted, times)
        try:
            for unit in wanted:
                with self.holding([unit]), torch.inference_mode(False):
                    copies = [
                        managed.parameter.detach().clone()
                        for managed in self._units[unit].parameters
                    ]
                self._copies[unit] = copies
                self.attach(unit)
            yield
        finally:
            self._check_versions(*self._drop_copies(wanted), now="Its old value was restored")

    def _drop_copies(self, units: list[int]) -> list[int]:
        """Attaches these units to the engine's memory again, and returns those that had copies.
        In between, check_memory() refuses them."""
        dropped = [unit for unit in units if unit in self._copies]
        # One assignment: an interrupt finds all of them, or none.
        self._copies = {
            unit: copies for unit, copies in self._copies.items() if unit not in dropped
        }
        if dropped:
            self.attach(*dropped)
        return dropped

    def _check_room_for_copies(self, wanted: list[int], times: int) -> None:
        views = [view for unit in wanted for view in self._views[unit]]
        needed = times * sum(view.numel() * view.element_size() for view in views)
        free = self._free_of_all_ranks(views[0].device) if views else None
        if free is not None and needed > free:
            raise Error(
                f"these {len(wanted)} units need {needed / 2**30:.2f} GiB, and"
                f" {free / 2**30:.2f} GiB of memory are free: gather the parameters of fewer"
                " modules at a time"
            )

    def _free_of_all_ranks(self, device: torch.device) -> int | None:
        """The least free memory of any rank. Ranks gather together, so all must decide alike."""
        free = _free_bytes(device)
        if self._ranks.world == 1:
            return free
        if free is not None and device.type == "cpu":
            free //= max(self._ranks.local_world, 1)
        of_ranks = [
            int(text) for text in self._ranks.all_gather("-1" if free is None else str(free))
        ]
        return min((room for room in of_ranks if room >= 0), default=None)

    def _watch(self, tensor: torch.Tensor, wanted: list[int], began: int) -> None:
        """Hooks a tensor that the module made: its gradient comes before those of the tensors it
        was made from. Tensors that the module only passed on (T5's position_bias) are skipped."""
        node = tensor.grad_fn
        if node is None or node._sequence_nr() < began:
            return
        for unit in wanted:
            tensor.register_hook(partial(self.need, unit, self.generation))

    # ---- backward

    def need(self, unit: int, generation: int, gradient: torch.Tensor) -> None:
        """The hook of a tensor that the unit's module made."""
        if self._next is not None:
            numbers = self._next.units_with(self._units[unit])
            for number in numbers:
                self._next.need(number, generation, gradient)
            return
        self.check_in_backward()
        if generation != self.generation:
            raise RefusedError(
                "backward() of a loss that is out of date: the parameters have changed since it was"
                " computed, by a step or by loading. Compute the loss again"
            )
        if unit in self._blocks:
            self._blocks.move_to_end(unit)
        elif not self._held[unit]:
            self._acquire(unit)

    def check_in_backward(self) -> None:
        if not self.in_backward:
            self._run.loss_scale  # raises if the engine is closed
            if any(engine.in_backward for engine in _engines.all_open()):
                raise RefusedError(
                    "the loss of another engine depends on this engine's module, and a backward"
                    " pass can use one engine only. Make both models parts of one module with one"
                    " engine (a GAN: one loss after the other, each with the other model's output"
                    " detached), or detach() this module's output"
                )
            raise RefusedError(
                "a gradient is computed outside engine.backward(): call engine.backward(loss) in"
                " place of loss.backward(). Not supported: torch.autograd.grad() of the parameters,"
                " and gradients of gradients (create_graph=True, a gradient penalty)"
            )

    def begin_backward(self) -> None:
        self.release_all()
        self._forward = len(self._recorded or ())
        self.in_backward = True
        if self._units[0].parameters:
            self._acquire(0)

    def end_backward(self) -> None:
        self.in_backward = False
        self.release_all()

    # ---- units

    def _acquire(self, unit: int) -> None:
        self.check_memory(unit)
        if unit != 0:
            self._make_room(unit)
        self._run.acquire(unit)
        self._held[unit] = True
        if unit != 0:
            self._blocks[unit] = None
            self._follow(unit)

    def _make_room(self, unit: int) -> None:
        while len(self._blocks) >= self._at_once:
            idle = next((block for block in self._blocks if self._depth[block] == 0), None)
            if idle is not None:
                self._release(idle)
            elif len(self._blocks) < self._most:
                return
            else:
                using = ", ".join(self._units[block].name for block in self._blocks)
                raise Error(
                    f"unit {self._units[unit].name} is needed while {using} is in use, and memory"
                    f" is planned for {self._most} units at a time: choose units that do not call"
                    " each other (units=...), or raise zero_optimization.offload_param.buffer_count"
                )

    def _release(self, unit: int) -> None:
        self._run.release(unit)
        self._held[unit] = False
        self._blocks.pop(unit, None)

    def release_all(self) -> None:
        self.check_thread()
        for unit in range(len(self._units)):  # also if an interrupt came before it was noted
            self._depth[unit] = 0
            self._release(unit)
        self._frames.clear()

    # ---- order

    def begin_micro_batch(self) -> None:
        """Expects this micro-batch to need units in the order that the last one recorded. This is a
        hint: another order only costs time."""
        self._recorded = []
        self._expect(self._order, trains=True)

    def end_micro_batch(self) -> None:
        if self._recorded:
            self._order = self._recorded
            self._order_forward = self._forward
        self._recorded = None

    def begin_evaluation(self) -> None:
        self._expect(self._order[: self._order_forward], trains=False)

    def _expect(self, order: list[int], trains: bool) -> None:
        self._position = 0
        if order:
            self._run.expect(([0] if self._units[0].parameters else []) + order, trains)

    def _follow(self, unit: int) -> None:
        if self._recorded is not None and len(self._recorded) < 64 * len(self._units):
            self._recorded.append(unit)
        order, at = self._order, self._position
        if at < len(order) and order[at] != unit:  # at another position, or absent
            try:
                at = order.index(unit, at)
            except ValueError:
                return
        self._position = at + 1
        if self._position < len(order):
            self._run.prefetch(order[self._position])

    # ---- changes that only the optimizer may make

    def note_versions(self) -> None:
        self._versions = [
            [managed.parameter._version for managed in unit.parameters] for unit in self._units
        ]

    def step_taken(self) -> None:
        """Marks parameters as changed, so that autograd refuses a graph from before the step.
        Copies have the values from before, and are dropped."""
        self._drop_copies(list(self._copies))
        torch.autograd.graph.increment_version(
            [
                managed.parameter
                for unit in self._units
                for managed in unit.parameters
                if managed.trained
            ]
        )
        self.generation += 1
        self.note_versions()

    def _check_versions(self, *units: int, now: str = "") -> None:
        changed = []
        for unit in units:
            for managed, version in zip(self._units[unit].parameters, self._versions[unit]):
                if managed.parameter._version != version:
                    self._versions[unit][managed.index] = managed.parameter._version
                    changed.append(managed)
        if not changed:
            return
        if not now:
            is_copy = all(managed.unit in self._copies for managed in changed)
            now = "Its old value returns when the block ends" if is_copy else _CHANGED
        names = ", ".join(managed.name for managed in changed[:3]) + (
            ", ..." if len(changed) > 3 else ""
        )
        raise RefusedError(
            f"parameter {names} was changed in place, which only the optimizer may do. {now}"
        )

    def check_memory(self, *units: int) -> None:
        """Checks that the parameters of these units, or of all, still use the engine's memory."""
        for unit in units or range(len(self._units)):
            for managed in self._units[unit].parameters:
                if not self.is_attached(managed):
                    raise RefusedError(
                        f"parameter {managed.name} no longer uses the engine's memory, so the"
                        " engine would train other values than the module computes with. The cause"
                        " is `parameter.data = tensor`, vector_to_parameters() or a swap for an"
                        " EMA. Put the former tensor back into `parameter.data`, or call"
                        " engine.load_weights() or load_checkpoint(), which attach the module"
                        " again. To change values, use"
                        " sluice.deepspeed.zero.GatheredParameters(..., modifier_rank=0); evaluate"
                        " averaged weights in a second module"
                    )

    def is_attached(self, managed: ManagedParameter) -> bool:
        return _is_view(managed.parameter, self._memory_of(managed.unit)[managed.index])

    def _memory_of(self, unit: int) -> list[torch.Tensor]:
        return self._copies.get(unit) or self._views[unit]

    def attach(self, *units: int) -> None:
        """Makes the parameters of these units, or of all, use the engine's memory again."""
        for unit in units or range(len(self._units)):
            for managed, view in zip(self._units[unit].parameters, self._memory_of(unit)):
                if not _is_view(managed.parameter, view):
                    managed.parameter.data = view

    def units_with(self, other: Unit) -> list[int]:
        """The units of this object that contain the other unit's parameters."""
        wanted = {id(managed.parameter) for managed in other.parameters}
        return [
            number
            for number, unit in enumerate(self._units)
            if any(id(managed.parameter) in wanted for managed in unit.parameters)
        ]

    def go_on_in(self, after: Residency) -> None:
        """Forwards hooks of graphs that began before the module's units changed."""
        self._next = after

    def close(self) -> None:
        """Drops the run. Remaining graphs keep hooks, and so this object, alive."""
        self.release_all()
        self._drop_copies(list(self._copies))
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        self.leave(cast(Run, Closed()))

    def leave(self, stand_in: Run) -> None:
        """Drops the run and lets `stand_in` take its place."""
        self._run = stand_in
