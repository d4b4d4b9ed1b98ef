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
from typing import Any, cast

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from . import _client, _core, _forks, making, ranks
from ._build import VERSION
from ._checkpoints import Checkpoints
from ._copies import NotCopied, allow, forbid
from ._core import Error, Family, RefusedError, Run
from ._monitors import Monitors
from ._records import Record, parse_trace
from ._resident import ResidentWatch
from ._setup import _check_module, _engines, _read_config, parameters_of
from ._steps import StepResult, Steps
from ._threads import Calls
from ._values import _DTYPES, Values, _refuse_load
from .fast import Fast, choose, units_of
from .keeper import Closed, Keeper
from .units import ManagedParameter, Unit, UnitPolicy, checkpointed_share, divide

_log = logging.getLogger("sluice")


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


class Engine(Steps, Values, Checkpoints, NotCopied):
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
        self._noted_slow = False
        divided = divide(model, units)
        self._ranks = ranks.join()
        family, self._way_reason = choose(model, units, self._ranks.world)
        self._config = _read_config(config, overrides, run_dir, self._ranks.world, family)
        if self._config.uses_gpu:
            ranks.choose_gpu(self._ranks)
        steps = parse_trace(trace, self._config.given_run_dir)
        self._scratch = os.path.dirname(self._config.run_dir) or None
        self._outer_handles: list[RemovableHandle] = []  # of those around it: a Trainer's
        self._said_who_clips = False
        self._calls = Calls()
        try:
            self._make_run(divided if family is None else units_of(model, family), family)
            self._steps_per_print = self._config.steps_per_print  # 0: it is not asked for
            self._record = Record(self, self._config.given_run_dir, steps)
            self._resident = ResidentWatch(self.config, self._ranks)
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
        self._all_refuse = True
        if self._ranks.world > 1:
            self._require_same()
        self._all_refuse = False
        with making.served(it.parameter for it in frozen if not it.parameter.is_contiguous()):
            self._frozen_sample = _client.sample(frozen, whole=not self._is_empty)
        making.settle(self.module)
        checkpointed = checkpointed_share(self.module, self._units)
        if family is not None:
            self._run = Run(self._config, family, self._ranks, _core.speeds_path(), checkpointed)
        else:
            self._run = Run(
                self._config,
                parameters_of(self._units),
                self._ranks,
                _core.speeds_path(),
                int(time.time()),
                checkpointed,
            )
        for note in [*self._run.notes, *self._run.assumptions]:
            _log.info(note)
        #: What the module computes with: torch.float32, bfloat16 or float16.
        self.dtype: torch.dtype = _DTYPES[self._config.precision]
        self._say_types()
        #: Where it computes.
        self.device = (
            torch.device("cuda", torch.cuda.current_device())
            if self._run.on_gpu
            else torch.device("cpu")
        )
        #: What the last step did; None before the first.
        self.last_step: StepResult | None = None
        self._start_steps()
        self._gathered: tuple[weakref.ref, dict[int, torch.Tensor]] | None = None
        self._handles: list[RemovableHandle] = []

    def _say_types(self) -> None:
        """Where the configuration's type makes something else of the module's."""
        found = sorted({str(it.parameter.dtype)[6:] for it in self._managed.values()})
        is_narrower = self.dtype == torch.float32 and found != ["float32"]
        if self._ranks.rank != 0 or (len(found) == 1 and not is_narrower):
            return
        _log.warning(
            "the module's parameters are %s, and all of it is trained in %s: bf16.enabled and"
            " fp16.enabled of the configuration choose the type",
            " and ".join(found),
            str(self.dtype)[6:],
        )

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
            self._note_slow_products()

    def _note_slow_products(self) -> None:
        precision = self._config.precision
        if self.device.type != "cpu" or self._noted_slow or _core.has_fast_products(precision):
            return
        self._noted_slow = True
        _log.warning(
            "this processor has no fast product of %s numbers, and PyTorch, which computes the"
            " module, takes many times as long as in fp32: train in fp32 (leave out %s.enabled), or"
            " let the engine's units compute, which multiply through fp32 (engine.way_reason says"
            " why they do not)",
            precision,
            precision,
        )

    def _take_apart(self) -> None:
        """What holds the run, which goes with it; the module's parameters are gone."""
        if self._fast is not None:
            self._fast.detach()
            self._fast = None
        self._keeper.close()
        for handle in self._handles:
            handle.remove()
        allow(self.module)
        self._run = cast(Run, Closed())

    def _go_by_hooks(self, checkpoint: str, reason: str) -> None:
        """Goes on from there, with the module's own forward. RefusedError where that cannot be (it
        takes more memory): then by the units again, which refuse what they do not compute."""
        fast = cast(Fast, self._fast)
        before = self._keeper
        last, generation = self.last_step, before._generation
        self._record.let_go()
        self._take_apart()
        try:
            self._go_on(checkpoint, divide(self.module, "hooks"), None)
            self._way_reason = reason
        except Exception as error:
            self._run = cast(Run, Closed())  # half made
            self._go_on(checkpoint, units_of(self.module, fast.family), fast)
            raise RefusedError(
                f"the engine's units do not compute this: {reason}. Nor can it go on by hooks:"
                f" {error}. It goes on by the units, from the last step"
            ) from error
        finally:
            self.last_step, self._keeper._generation = last, generation
            if self._keeper is not before:
                before.go_on_in(self._keeper)

    def _go_on(self, checkpoint: str, units: list[Unit], before: Fast | None) -> None:
        family = None if before is None else before.family
        self._make_run(units, family)
        self._record.follow(self._run)
        self._run.load(checkpoint, lambda _: None)
        self._begin(None if before is None else before.again())

    def _require_same(self) -> None:
        """What every rank has to have alike, before anything is taken."""
        keys = json.loads(self._config.json())
        keys["run"].pop("dir", None)
        described = [
            (
                unit.name,
                [
                    (it.name, list(it.parameter.shape), str(it.parameter.dtype), it.trained)
                    for it in unit.parameters
                ],
            )
            for unit in self._units
        ]
        ranks.require_same(
            self._ranks,
            {
                "the version of Sluice is another": VERSION,
                "the run's folder (run_dir) is another": self._config.given_run_dir,
                "the configuration is another": _client.digest(json.dumps(keys)),
                "the module has other parameters": _client.digest(json.dumps(described)),
                "sluice.init(values=False) was used otherwise": str(self._is_empty),
            },
        )
        if not self._is_empty:
            _client.take_first_ranks_values(
                self._ranks, list(self._managed.values()), self.module
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
        forbid(self.module)
        for part in self.module.modules():
            if any(True for _ in part.parameters(recurse=False)):
                self._handles.append(
                    part.register_state_dict_post_hook(lambda *it: self._gather_into(*it))
                )
                self._handles.append(part.register_load_state_dict_pre_hook(_refuse_load))

    # ---- what its parts need

    def _check_values(self) -> None:
        if self._is_empty:
            raise RefusedError(
                "the module was made by sluice.init(values=False), and has no values yet: call"
                " load_checkpoint() or load_weights()"
            )

    def _fail(self, error: BaseException) -> None:
        """Of several ranks the others are waiting for this one."""
        if self._ranks.world > 1:
            self._ranks.abort(f"rank {self._ranks.rank}: {type(error).__name__}: {error}")

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
        with self._calls:
            self._close_alone(how, reason)

    def _close_alone(self, how: str, reason: str) -> None:
        self._keeper.check_thread()
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
        self._calls = Calls()  # one of the parent's threads may have held it
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
