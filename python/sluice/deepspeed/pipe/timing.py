"""How long each layer of a pipeline takes, for partition_method "time"."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..._core import Ranks, RefusedError
from ..._tensors import tensors_in
from .layers import LayerSpec, TiedLayerSpec

_REPEATS = 3


def layer_seconds(layers: Sequence[Any], example: Any, ranks: Ranks) -> list[float]:
    """Forward and backward of each layer by itself, on the first rank: the least of a few runs.
    Layers, their gradients and random generators stay as they are; one layer is built at a time."""
    told = ""
    if ranks.rank == 0:
        try:
            told = json.dumps(_measure(layers, example))
        except BaseException as error:
            ranks.abort(f"rank 0: {type(error).__name__}: {error}")
            raise
    return json.loads(ranks.all_gather(told)[0])


def _measure(layers: Sequence[Any], example: Any) -> list[float]:
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    with torch.random.fork_rng(devices=[device.index] if on_gpu else []), torch.enable_grad():
        seconds = []
        inputs = _leaves(example, device)
        for number, layer in enumerate(layers):
            compute = _function(layer, device)
            least = float("inf")
            for _ in range(_REPEATS):
                inputs = _leaves(inputs, device)
                began = time.perf_counter()
                try:
                    outputs = compute(inputs)
                    _backward(outputs)
                except Exception as error:
                    raise RefusedError(
                        f"layer {number} could not be timed: {type(error).__name__}: {error}. Is"
                        " example_inputs a micro-batch's inputs?"
                    ) from error
                if on_gpu:
                    torch.cuda.synchronize()
                least = min(least, time.perf_counter() - began)
            seconds.append(least)
            inputs = outputs
    return seconds


def _function(layer: Any, device: torch.device) -> Any:
    if isinstance(layer, LayerSpec):
        module = layer.build().to(device)
        function = layer.forward_fn if isinstance(layer, TiedLayerSpec) else None
        return module if function is None else lambda inputs: function(module, inputs)
    return copy.deepcopy(layer).to(device) if isinstance(layer, nn.Module) else layer


def _leaves(value: Any, device: torch.device) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(_leaves(item, device) for item in value)
    if not isinstance(value, torch.Tensor):
        return value
    # A copy, because a layer may change it in place; not a leaf for the same reason.
    leaf = value.detach().to(device, copy=True).requires_grad_(value.is_floating_point())
    return leaf * 1 if leaf.requires_grad else leaf


def _backward(outputs: Any) -> None:
    made = [it for it in tensors_in(outputs) if it.requires_grad]
    if made:
        torch.autograd.backward(made, [torch.ones_like(it) for it in made])
