"""PipelineModule: a list of layers, of which this process has those of its stage."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint

from ... import ranks
from ..._core import RefusedError
from . import partition
from .layers import LayerSpec, TiedLayerSpec, check_layers, check_tied, matches_type, name_of, outline
from .tied import TiedLayer, TiedUse
from .timing import layer_seconds
from .topology import PipeDataParallelTopology, PipelineParallelGrid, ProcessTopology


def set_random_seed(seed: int) -> None:
    """Seeds the generators of Python, torch and, if it is imported, numpy."""
    random.seed(seed)
    torch.manual_seed(seed % 2**63)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


@dataclass(frozen=True)
class Received:
    """A stage's inputs, of which the engine is not to convert a tensor to its own type. Within a
    stage, too, layers get what the ones before return."""

    value: Any


class PipelineModule(nn.Module):
    """A model as a list of layers, each of which takes what the one before returns.

    - ``layers``: modules, functions, :class:`LayerSpec`, :class:`TiedLayerSpec`; or a Sequential.
    - ``num_stages``: consecutive parts of the list, on as many groups of ranks.
    - ``topology``: instead of num_stages, with the axes "pipe" and "data".
    - ``loss_fn``: a function of outputs and labels. Without it, the last layer returns the loss.
    - ``seed_layers``: seeds each layer before it is built, and in each forward pass. Values and
      dropout are then the same for any number of stages.
    - ``seed_fn``: seeds instead of :func:`set_random_seed`.
    - ``partition_method``: "parameters", "uniform", "type:REGEX", by the names of classes, or
      "time", which times each layer on the first rank with ``example_inputs``.
    - ``activation_checkpoint_interval``: recomputes that many layers at a time. 0: none.
    - ``activation_checkpoint_func``: instead of torch.utils.checkpoint's, non-reentrant.
    - ``checkpointable_layers``: classes that are recomputed, by name. None: all with parameters.
    - ``dynamic_shape``: has no effect. Shapes may always change.

    Raises:
        RefusedError: on all ranks, before any module is built.
    """

    is_pipeline = True

    def __init__(
        self,
        layers: Iterable[Any],
        num_stages: int | None = None,
        topology: ProcessTopology | None = None,
        loss_fn: Callable[[Any, Any], torch.Tensor] | None = None,
        seed_layers: bool = False,
        seed_fn: Callable[[int], None] | None = None,
        base_seed: int = 1234,
        partition_method: str = "parameters",
        activation_checkpoint_interval: int = 0,
        activation_checkpoint_func: Callable[..., Any] | None = None,
        checkpointable_layers: list[str] | None = None,
        dynamic_shape: bool = False,
        example_inputs: Any = None,
    ):
        super().__init__()
        self.loss_fn = loss_fn
        self.seed_layers, self.seed_fn, self.base_seed = seed_layers, seed_fn, base_seed
        self.activation_checkpoint_interval = activation_checkpoint_interval
        self.activation_checkpoint_func = activation_checkpoint_func
        self.checkpointable_layers = checkpointable_layers
        self.dynamic_shape = dynamic_shape
        #: The number of the micro-batch among all of the run, for the seeds of layers.
        self.micro_batch = 0
        specs = list(layers)
        check_layers(specs)
        self._grid = PipelineParallelGrid(
            _topology(num_stages, topology, ranks.world_size()), ranks.rank()
        )
        self.num_stages = self._grid.pipe_parallel_size
        self.stage_id, self.data_id = self._grid.get_stage_id(), self._grid.get_data_parallel_id()
        outlines = [outline(layer) for layer in specs]
        check_tied(specs, outlines)
        #: Stage s has the layers [parts[s], parts[s + 1]).
        self.parts = _partition(specs, outlines, self.num_stages, partition_method, example_inputs)
        _check_stages(specs, outlines, self.parts)
        #: Layers that use a tied module of another layer, by number; on all stages.
        self.tied_uses = _tied_uses(specs)
        #: Tied modules of other stages that this one uses, by key. They are not trained here.
        self.borrowed: dict[str, TiedLayer] = {}
        #: Tied modules that this stage owns, by key.
        self.owned: dict[str, TiedLayer] = {}
        self._functions = [self._build(number, specs) for number in self.local_layers]

    # ---- this stage's layers

    @property
    def local_layers(self) -> range:
        return range(self.parts[self.stage_id], self.parts[self.stage_id + 1])

    def topology(self) -> ProcessTopology:
        return self._grid.topology

    def mpu(self) -> PipelineParallelGrid:
        return self._grid

    def num_pipeline_stages(self) -> int:
        return self.num_stages

    def stage_owner(self, layer_idx: int) -> int:
        return partition.stage_of(self.parts, layer_idx)

    def set_checkpoint_interval(self, interval: int) -> None:
        self.activation_checkpoint_interval = interval

    @property
    def forward_funcs(self) -> list[Callable[[Any], Any]]:
        return self._functions

    def _build(self, number: int, specs: list[Any]) -> Callable[..., Any]:
        """What computes a layer."""
        layer = specs[number]
        if isinstance(layer, TiedLayerSpec):
            return self._build_tied(number, layer, specs)
        if isinstance(layer, LayerSpec):
            self._seed(self.base_seed + number)
            layer = layer.build()
        if isinstance(layer, nn.Module):
            self.add_module(str(number), layer)
        return layer

    def _build_tied(self, number: int, spec: TiedLayerSpec, specs: list[Any]) -> Callable[..., Any]:
        use = self.tied_uses.get(number)
        owner = number if use is None else use.owner
        is_here = owner in self.local_layers
        known = self.owned if is_here else self.borrowed
        if spec.key not in known:
            self._seed(self.base_seed + owner)
            made = TiedLayer(spec.key, specs[owner].build(), specs[owner].forward_fn)
            known[spec.key] = made
            if is_here:
                self.add_module(str(owner), made)
        layer = known[spec.key]
        return layer if use is None else partial(layer, use=use)

    def _seed(self, seed: int) -> None:
        if self.seed_layers:
            (self.seed_fn or set_random_seed)(seed)

    def train(self, mode: bool = True) -> PipelineModule:
        for layer in self.borrowed.values():
            layer.train(mode)
        super().train(mode)
        return self

    # ---- passes

    def forward(self, inputs: Any) -> Any:
        """This stage's layers."""
        if isinstance(inputs, Received):
            inputs = inputs.value
        interval = self.activation_checkpoint_interval
        if interval <= 0 or not torch.is_grad_enabled():
            return self._range(0, len(self._functions))(inputs)
        for begin in range(0, len(self._functions), interval):
            end = min(begin + interval, len(self._functions))
            if not self._is_checkpointed(begin, end):
                inputs = self._range(begin, end)(inputs)
            elif isinstance(inputs, tuple):
                inputs = self._checkpoint(self._range(begin, end, is_tuple=True), inputs)
            else:
                inputs = self._checkpoint(self._range(begin, end), (inputs,))
        return inputs

    def _range(self, begin: int, end: int, *, is_tuple: bool = False) -> Callable[..., Any]:
        """Computes layers. Their inputs are its arguments if they are a tuple, else its only one."""
        micro_batch = self.micro_batch + 1  # also when it is computed again

        def compute(*inputs: Any) -> Any:
            value = inputs if is_tuple else inputs[0]
            for local in range(begin, end):
                number = self.local_layers[local]
                self._seed(self.base_seed * (micro_batch + 1) + number)
                value = self._functions[local](value)
            return value

        return compute

    def _checkpoint(self, compute: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
        if self.activation_checkpoint_func is not None:
            return self.activation_checkpoint_func(compute, *inputs)
        return checkpoint.checkpoint(compute, *inputs, use_reentrant=False)

    def _is_checkpointed(self, begin: int, end: int) -> bool:
        modules = [self._module(local) for local in range(begin, end)]
        if self.checkpointable_layers is not None:
            names = [name_of(module) for module in modules]
            return all(name in self.checkpointable_layers for name in names)
        return any(
            next(module.parameters(), None) is not None
            for module in modules
            if isinstance(module, nn.Module)
        )

    def _module(self, local: int) -> Any:
        """A layer's own module, or its function."""
        layer = self._functions[local]
        layer = layer.func if isinstance(layer, partial) else layer
        return layer.tied if isinstance(layer, TiedLayer) else layer


def _topology(
    num_stages: int | None, topology: ProcessTopology | None, world: int
) -> ProcessTopology:
    if topology is None:
        if num_stages is None:
            raise RefusedError("PipelineModule needs num_stages= or topology=")
        if num_stages < 1 or world % num_stages != 0:
            raise RefusedError(
                f"num_stages={num_stages} does not divide the number of ranks, {world}"
            )
        topology = PipeDataParallelTopology(num_stages, world // num_stages)
    more = [axis for axis in topology.get_axis_names() if axis not in ("pipe", "data")]
    if any(topology.get_dim(axis) > 1 for axis in more):
        raise RefusedError(
            f"the topology has an axis {more[0]}: layers are not divided among ranks, only pipe and"
            " data are supported"
        )
    if topology.get_dim("pipe") < 1 or topology.get_axis_names()[0] != "pipe":
        raise RefusedError('the first axis of a topology must be "pipe"')
    if topology.world_size() != world:
        raise RefusedError(
            f"the topology has {topology.world_size()} ranks, and {world} were started"
        )
    return topology


def _trained(module: nn.Module | None) -> int:
    if module is None:
        return 0
    return sum(it.numel() for it in module.parameters() if it.requires_grad)


def _partition(
    layers: list[Any],
    outlines: Sequence[nn.Module | None],
    stages: int,
    method: str,
    example: Any,
) -> list[int]:
    if len(layers) < stages:
        raise RefusedError(f"{len(layers)} layers cannot be divided into {stages} stages")
    kind, _, pattern = method.partition(":")
    if kind.lower() == "type" and pattern:
        return partition.balanced([float(it) for it in matches_type(layers, pattern)], stages)
    if method.lower() == "uniform":
        return partition.uniform(len(layers), stages)
    if method.lower() == "parameters":
        return partition.balanced([float(_trained(it)) for it in outlines], stages)
    if method.lower() == "time":
        if example is None:
            raise RefusedError('partition_method "time" needs example_inputs=, to time each layer')
        return partition.balanced(layer_seconds(layers, example, ranks.join()), stages)
    raise RefusedError(
        f'partition_method "{method}" is not valid: it must be "parameters", "uniform", "time" or'
        ' "type:REGEX"'
    )


def _check_stages(
    layers: list[Any], outlines: Sequence[nn.Module | None], parts: Sequence[int]
) -> None:
    """RefusedError if a stage has nothing to train, or if two share a parameter without a key."""
    users: dict[int, int] = {}
    uses = _tied_uses(layers)
    for stage in range(len(parts) - 1):
        numbers = range(parts[stage], parts[stage + 1])
        if not any(_trained(outlines[it]) for it in numbers if it not in uses):
            raise RefusedError(
                f"stage {stage} has no trained parameters (layers {numbers.start} to"
                f" {numbers.stop - 1}): choose fewer stages or another partition_method"
            )
        for number in numbers:
            if not isinstance(layers[number], nn.Module):
                continue
            for parameter in layers[number].parameters():
                other = users.setdefault(id(parameter), number)
                if other < numbers.start:
                    raise RefusedError(
                        f"layers {other} and {number} share a parameter, and are on different"
                        " stages: use TiedLayerSpec for both"
                    )


def _tied_uses(layers: list[Any]) -> dict[int, TiedUse]:
    first: dict[str, int] = {}
    uses = {}
    for number, layer in enumerate(layers):
        if isinstance(layer, TiedLayerSpec):
            owner = first.setdefault(layer.key, number)
            if owner != number:
                uses[number] = TiedUse(layer.key, number, owner, layer.forward_fn)
    return uses
