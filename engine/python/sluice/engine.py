"""Engine: trains a module, whose parameters and optimizer state the engine keeps."""

from __future__ import annotations

import atexit
import itertools
import json
import logging
import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from . import _client
from ._core import Config, Parameter, RefusedError, Run
from ._monitors import Monitors
from .keeper import Closed, Keeper
from .units import ManagedParameter, Unit, UnitPolicy, divide

_log = logging.getLogger("sluice")
_numbers = itertools.count()
# Of a run file, beside DeepSpeed's keys.
_SECTIONS = {"model", "data", "run", "budget", "placement", "recipe"}
# By their modules; those that are not closed.
_engines: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Engine]] = weakref.WeakKeyDictionary()
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


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
) -> Engine:
    """An engine that trains `model`, which stays the module that it is: call it, evaluate it, save
    it as before.

    Args:
        model: any module, with values. Its parameters are the engine's from now on: they are views
            of memory that is there only while the module runs. Those that require no gradient are
            frozen: they come and go, and have no state.
        config: a run file or a DeepSpeed JSON, as its path or as a dict. Of a run file the sections
            model and data mean nothing here.
        units: which modules are fetched as a whole: :data:`sluice.UnitPolicy`.
        overrides: keys of the configuration with dots, which win: ``{"run.seed": 7}``.

    Raises:
        RefusedError: the module or the configuration cannot be trained so; the sentence says what
            to change.
        Error: memory, a drive or a file could not be had.
    """
    return Engine(model, config, units=units, overrides=overrides)


def _read_config(
    config: Mapping[str, Any] | str | os.PathLike[str], overrides: Mapping[str, Any] | None
) -> Config:
    if isinstance(config, Mapping):
        text = json.dumps(config)
    else:
        path = Path(config)
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise RefusedError(
                f"the configuration {path} cannot be read: {error.strerror}"
            ) from error
    try:
        keys = json.loads(text)
        of_deepspeed = isinstance(keys, dict) and not _SECTIONS & keys.keys()
    except ValueError:  # with comments, as DeepSpeed's may be
        of_deepspeed = True
    resolved = Config(
        text,
        of_deepspeed,
        [f"{key}={json.dumps(value)}" for key, value in (overrides or {}).items()],
    )
    for key, reason in resolved.ignored:
        _log.info("%s is ignored: %s", key, reason)
    if not resolved.run_dir:  # names the stores on NVMe, so it has to be this engine's own
        resolved.run_dir = os.path.join(
            os.getcwd(), f"sluice-python-{os.getpid()}-{next(_numbers)}"
        )
    return resolved


def _check_module(module: nn.Module) -> None:
    if not isinstance(module, nn.Module):
        raise RefusedError(f"model is a {type(module).__name__}, and no torch.nn.Module")
    if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise RefusedError(
            f"model is wrapped by {type(module).__name__}: give the module inside of it"
            " (model.module)"
        )
    if hasattr(module, "_orig_mod"):
        raise RefusedError(
            "model was made by torch.compile, and a compiled module keeps addresses of its"
            " parameters: give the module itself, and compile its blocks' forward (block.forward ="
            " torch.compile(block.forward))"
        )
    if module in _engines and _engines[module]() is not None:
        raise RefusedError("model already has an engine: close() that one first")
    _check_not_compiled(module)


def _check_not_compiled(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if getattr(part, "_compiled_call_impl", None) is not None:
            raise RefusedError(
                f"{name or 'the module'} was compiled by Module.compile(), past the engine's hooks:"
                " compile its forward instead (module.forward = torch.compile(module.forward))"
            )


class Engine:
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
    ):
        _check_module(model)
        self._config = _read_config(config, overrides)
        self._units: list[Unit] = divide(model, units)
        self._managed: dict[int, ManagedParameter] = {
            id(it.parameter): it for unit in self._units for it in unit.parameters
        }
        self._frozen_sample = _client.sample(it for it in self._managed.values() if not it.trained)
        self._run = Run(
            self._config,
            [
                (
                    unit.name,
                    [
                        Parameter(it.name, list(it.parameter.shape), it.trained)
                        for it in unit.parameters
                    ],
                )
                for unit in self._units
            ],
        )
        for note in self._run.notes:
            _log.info(note)
        #: The module that is trained.
        self.module = model
        #: What the module computes with: torch.float32, bfloat16 or float16.
        self.dtype: torch.dtype = _DTYPES[self._config.precision]
        #: Where it computes.
        self.device = torch.device("cuda" if self._run.on_gpu else "cpu")
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
        self._run.initialise(
            lambda unit: [it.parameter.detach() for it in self._units[unit].parameters]
        )
        self._take_over()
        self._keeper = Keeper(self._run, model, self._units)
        self._monitors = Monitors(self.config, None)
        _engines[model] = weakref.ref(self)

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
        """The module's forward. Floating-point tensors among the arguments become :attr:`dtype`.

        Raises what the module raises; RefusedError under autocast, or where a parameter was changed
        in place.
        """
        self._begin_pass()
        try:
            return self.module(
                *(self._as_computed(it) for it in args),
                **{key: self._as_computed(it) for key, it in kwargs.items()},
            )
        except BaseException:
            self._keeper.release_all()
            raise

    def _begin_pass(self) -> None:
        """Before the module's forward, whoever calls it."""
        if torch.is_autocast_enabled(self.device.type):
            raise RefusedError(
                "autocast keeps 16-bit copies of parameters from forward to backward, past their"
                ' unit\'s release: leave it out, and set "bf16": {"enabled": true}, with which the'
                " module computes in 16 bits itself"
            )
        if not torch.is_grad_enabled():
            self._keeper.begin_evaluation()
        elif self._new_micro_batch:
            self._monitors.begin_step()
            _check_not_compiled(self.module)
            self._keeper.begin_micro_batch()
            self._new_micro_batch = False

    def _as_computed(self, value: Any) -> Any:
        if (
            isinstance(value, torch.Tensor)
            and value.is_floating_point()
            and value.dtype != self.dtype
        ):
            return value.to(self.dtype)
        return value

    def backward(
        self, loss: torch.Tensor, retain_graph: bool = False, *, averages: bool = True
    ) -> None:
        """Adds the gradient of `loss`, a tensor of one element, to the step's.

        A step's gradient is that of the mean of its micro-batches' losses: `loss` is divided by
        their number, unless `averages` is False, and multiplied by the loss scale of fp16. Several
        calls before :meth:`step` add up.
        """
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise RefusedError("backward() wants the loss, a tensor of one element")
        if not loss.requires_grad:
            raise RefusedError(
                "the loss has no gradient: it was computed under torch.no_grad(), or of frozen"
                " parameters alone"
            )
        self._begin_backward()
        try:
            scale = self._run.loss_scale / (self._run.micro_batches if averages else 1)
            loss.backward(torch.full_like(loss, scale), retain_graph=retain_graph)
            for unit, arrived in enumerate(self._arrived):
                if arrived > 0:
                    self._hand_over(unit)
        except BaseException:
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
        self._run.abandon_step()

    def _on_gradient(self, parameter: torch.Tensor) -> None:
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
        except BaseException:
            self._abandon()
            raise
        if not self._run.is_complete:
            return None
        self._check_parameters()
        losses = [float(loss) for loss in self._losses]
        self._losses.clear()
        self._keeper.release_all()
        try:
            outcome = self._run.step(losses)
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
            {
                "step": self.last_step.step,
                "loss": outcome.loss,
                "lr": outcome.learning_rate,
                "grad_norm": outcome.grad_norm,
                "loss_scale": outcome.loss_scale,
                "skipped": outcome.skipped,
            }
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
    def config(self) -> dict[str, Any]:
        """The configuration as it was resolved, in the form of a run file."""
        return json.loads(self._config.json())

    @property
    def applied_step(self) -> int:
        """Steps whose update was applied."""
        return self._run.applied_step

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
    def memory(self) -> dict[str, Any]:
        """Bytes by tier ("host", "gpu", "nvme") and purpose, as the plan has them; without what
        autograd keeps."""
        return self._run.memory

    def train(self, mode: bool = True) -> Engine:
        self.module.train(mode)
        return self

    def eval(self) -> Engine:
        return self.train(False)

    # ---- values

    def _gather(self, unit: int) -> list[torch.Tensor]:
        """Copies of a unit's parameters, on the CPU."""
        with self._keeper.holding([unit]):
            return [
                it.parameter.detach().to("cpu", copy=True) for it in self._units[unit].parameters
            ]

    def _gather_into(
        self, module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any
    ) -> None:
        """Behind a module's own part of state_dict(): copies in place of views that are empty by
        then."""
        if self._gathered is None or self._gathered[0]() is not state:
            self._gathered = (weakref.ref(state), {})
        copies = self._gathered[1]
        for name, parameter in module._parameters.items():
            known = self._managed.get(id(parameter)) if parameter is not None else None
            if known is None or prefix + name not in state:
                continue
            if id(parameter) not in copies:
                for it, copy in zip(self._units[known.unit].parameters, self._gather(known.unit)):
                    copies[id(it.parameter)] = copy
            state[prefix + name] = copies[id(parameter)]

    @contextmanager
    def gathered(self, *parameters: nn.Parameter) -> Iterator[None]:
        """Within it these parameters of the module can be read, and those that are fetched with
        them.

        Not changed: RefusedError behind it, where one was. Where units are on NVMe, few may be
        gathered at a time.
        """
        units = sorted({self._number_of(it) for it in parameters})
        with self._keeper.holding(units):
            yield

    def _number_of(self, parameter: nn.Parameter) -> int:
        known = self._managed.get(id(parameter))
        if known is None:
            raise RefusedError("gathered() wants parameters of the module that is trained")
        return known.unit

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The module's, with copies of all parameters in :attr:`dtype` on the CPU; tied ones are
        one tensor."""
        return self.module.state_dict()

    def load_weights(self, state: Mapping[str, torch.Tensor]) -> None:
        """Begins anew from these values, by the module's names: AdamW's moments are zero again, and
        the step is 0.

        Names of parameters that are tied, or that `state` has beyond those of the module, are not
        needed.
        """
        names: dict[int, set[str]] = {}
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), set()).add(name)
        values: dict[int, torch.Tensor] = {}
        for it in self._managed.values():
            found = sorted(names.get(id(it.parameter), set()) & state.keys())
            if not found:
                raise RefusedError(f"the weights have no {it.name}")
            if state[found[0]].shape != it.parameter.shape:
                raise RefusedError(
                    f"{found[0]} has the shape {tuple(state[found[0]].shape)} in the weights, and "
                    f"{tuple(it.parameter.shape)} in the module"
                )
            values[id(it.parameter)] = state[found[0]]
        self._abandon()
        self._keeper.release_all()
        self._run.initialise(
            lambda unit: [values[id(it.parameter)].detach() for it in self._units[unit].parameters]
        )
        self._keeper.step_taken()
        for name, buffer in self.module.named_buffers():
            if name in state:
                buffer.copy_(state[name])

    def save_weights(self, path: str | os.PathLike[str], dtype: str = "fp32") -> None:
        """All trained parameters as one safetensors file: their masters, "fp32", or rounded to
        "bf16" or "fp16"."""
        if dtype not in _DTYPES:
            raise RefusedError(f'dtype is "{dtype}": there are {", ".join(_DTYPES)}')
        self._keeper.release_all()
        self._run.save_weights(os.fspath(path), dtype)

    # ---- checkpoints

    def save_checkpoint(self, directory: str | os.PathLike[str], client_state: Any = None) -> str:
        """Saves masters, moments, the step, buffers, torch's random generators and `client_state`,
        which JSON can hold, between steps. Durable when it returns the checkpoint's folder,
        DIR/checkpoints/step-N.

        Frozen parameters are not in it: they are the module's, as it was when the engine was made.

        Raises:
            Error: what could not be written; checkpoints before it stay.
        """
        self._keeper.release_all()
        client = _client.pack(self.module, client_state, self._frozen_sample)
        return self._run.save(os.fspath(directory), client)

    def load_checkpoint(self, path: str | os.PathLike[str]) -> tuple[str, Any]:
        """Goes on where a checkpoint was made, with the bits of a run that never stopped.

        Args:
            path: a checkpoint's folder, or a directory that was given to :meth:`save_checkpoint`:
                its newest.

        Returns:
            The checkpoint's folder and the client_state that was saved.

        Raises:
            RefusedError: it is of another module or configuration. Nothing has changed.
            Error: it cannot be read, or is damaged.
        """
        self._abandon()
        self._keeper.release_all()
        accepted: list[dict[str, Any]] = []
        folder = self._run.load(
            os.fspath(path),
            lambda client: accepted.append(_client.read(client, self.module, self._frozen_sample)),
        )
        self._keeper.step_taken()
        return folder, _client.restore(accepted[0], self.module)

    def close(self) -> None:
        """Gives the memory and the drives back. The module's parameters are gone: take state_dict()
        before."""
        if isinstance(self._run, Closed):
            return
        self._monitors.close()
        self._keeper.close()
        for handle in self._handles:
            handle.remove()
        _engines.pop(self.module, None)
        self._run = cast(Run, Closed())

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@atexit.register
def _close_engines() -> None:
    """What they have on drives is of no use to anybody then."""
    for reference in list(_engines.values()):
        engine = reference()
        if engine is not None:
            engine.close()


def _refuse_load(module: nn.Module, *_: Any) -> None:
    raise RefusedError(
        "the engine has the module's parameters: load them by engine.load_weights(state_dict)"
    )
