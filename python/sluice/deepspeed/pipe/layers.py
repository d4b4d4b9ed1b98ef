"""The layers of a pipeline: modules, functions, and specifications of modules that only the stage
that owns them builds."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ..._core import RefusedError


class LayerSpec:
    """A module that is built by the stage that owns it: ``typename(*args, **kwargs)``."""

    def __init__(self, typename: type[nn.Module], *module_args: Any, **module_kwargs: Any):
        if not (isinstance(typename, type) and issubclass(typename, nn.Module)):
            raise RefusedError(f"LayerSpec takes a class of torch.nn.Module, and not {typename!r}")
        self.typename = typename
        self.module_args = module_args
        self.module_kwargs = module_kwargs

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.typename.__name__})"

    def build(self, log: bool = False) -> nn.Module:
        return self.typename(*self.module_args, **self.module_kwargs)


class TiedLayerSpec(LayerSpec):
    """A module that all layers with the same key share, on whichever stages they are.

    The first of them owns the module: its arguments make it, its stage trains it, and the others
    have its values before each step. Their gradients are added to its own.

    Args:
        key: the name that layers share.
        forward_fn: computes the layer, ``forward_fn(module, inputs)``; None: ``module(inputs)``.
        tied_weight_attr: an attribute of the module, or several. All parameters are shared; these
            are checked to be alike in all layers with the key.
    """

    def __init__(
        self,
        key: str,
        typename: type[nn.Module],
        *module_args: Any,
        forward_fn: Callable[[nn.Module, Any], Any] | None = None,
        tied_weight_attr: str | Sequence[str] = "weight",
        **module_kwargs: Any,
    ):
        super().__init__(typename, *module_args, **module_kwargs)
        self.key = key
        self.forward_fn = forward_fn
        one = isinstance(tied_weight_attr, str)
        self.tied_weight_attr = [str(tied_weight_attr)] if one else list(tied_weight_attr)


def name_of(layer: Any) -> str:
    """The name of a layer's class, or of the function."""
    if isinstance(layer, LayerSpec):
        return layer.typename.__name__
    if isinstance(layer, nn.Module):
        return type(layer).__name__
    return str(getattr(layer, "__name__", ""))


def outline(layer: Any) -> nn.Module | None:
    """The module of a layer, without values if it is not built yet; None for a function."""
    if isinstance(layer, nn.Module):
        return layer
    if not isinstance(layer, LayerSpec):
        return None
    cuda = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=cuda):
        try:
            with torch.device("meta"):
                return layer.build()
        except (RuntimeError, NotImplementedError):  # it reads a value while it is made
            return layer.build()


def check_layers(layers: Sequence[Any]) -> None:
    if not layers:
        raise RefusedError("PipelineModule needs layers, and the list is empty")
    for number, layer in enumerate(layers):
        if hasattr(layer, "is_pipeline"):
            raise RefusedError(f"layer {number} is a PipelineModule: pass its layers instead")
        if isinstance(layer, type) or not (isinstance(layer, LayerSpec) or callable(layer)):
            raise RefusedError(
                f"layer {number} is {layer!r}: it must be a torch.nn.Module, a function or a"
                " LayerSpec"
            )


def check_tied(layers: Sequence[Any], outlines: Sequence[nn.Module | None]) -> None:
    """RefusedError if the layers of a key are not alike."""
    first: dict[str, int] = {}
    for number, layer in enumerate(layers):
        if not isinstance(layer, TiedLayerSpec):
            continue
        owner = first.setdefault(layer.key, number)
        for attribute in layer.tied_weight_attr:
            own = _tied_tensor(outlines[number], attribute, layer, number)
            other = _tied_tensor(outlines[owner], attribute, layer, owner)
            if own.shape != other.shape:
                raise RefusedError(
                    f'layers {owner} and {number} are tied by the key "{layer.key}", but'
                    f" {attribute} is {list(other.shape)} in one and {list(own.shape)} in the other"
                )
        here, there = (
            {name: tuple(it.shape) for name, it in outlines[at].named_parameters()}  # type: ignore
            for at in (owner, number)
        )
        if here != there:
            names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
            raise RefusedError(
                f'layers {owner} and {number} are tied by the key "{layer.key}", but their modules'
                f" differ in {names[0]}: give both the same class and arguments"
            )


def _tied_tensor(module: Any, attribute: str, layer: TiedLayerSpec, number: int) -> torch.Tensor:
    value = module
    for part in attribute.split("."):
        value = getattr(value, part, None)
    if not isinstance(value, torch.Tensor):
        raise RefusedError(
            f'layer {number} is tied by the key "{layer.key}", but {name_of(layer)} has no tensor'
            f" {attribute}: name the weights by tied_weight_attr"
        )
    return value


def matches_type(layers: Sequence[Any], pattern: str) -> list[bool]:
    """Which layers' names contain a match of the pattern, whatever its case."""
    try:
        wanted = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise RefusedError(f'partition_method "type:{pattern}" is no pattern: {error}') from error
    found = [bool(wanted.search(name_of(layer))) for layer in layers]
    if not any(found):
        names = ", ".join(sorted({name_of(layer) or "a function" for layer in layers}))
        raise RefusedError(f'partition_method "type:{pattern}" matches none of the layers: {names}')
    return found
