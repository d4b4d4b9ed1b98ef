"""Layers that share a module. The first one of a key owns it; the gradients of the others are
summed apart, lane by lane, and then added to the owner's. So their order of additions is the same
wherever the layers are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

Function = Callable[[nn.Module, Any], Any]


def _named(module: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Parameter]]:
    """Each place of each parameter, with the first of the parameter's names."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    for part in module.modules():
        for key, parameter in part._parameters.items():
            if parameter is not None:
                yield names[id(parameter)], part, key, parameter


class TiedUse:
    """A use of a tied module by a layer that does not own it."""

    def __init__(self, key: str, layer: int, owner: int, function: Function | None):
        self.key = key
        self.layer = layer
        self.owner = owner  # the owning layer
        self.function = function
        #: The sums of the current lane in fp32, by the parameter's name in the module.
        self.sums: dict[str, torch.Tensor] = {}

    def take_sums(self) -> dict[str, torch.Tensor]:
        sums, self.sums = self.sums, {}
        return sums

    def _add(self, name: str, alias: torch.Tensor) -> None:
        gradient, alias.grad = alias.grad, None
        assert gradient is not None
        if gradient.layout != torch.strided:
            gradient = gradient.to_dense()
        known = self.sums.get(name)
        if known is None:
            self.sums[name] = gradient.to(torch.float32, copy=True)
        else:
            known.add_(gradient)

    @contextmanager
    def aliased(self, module: nn.Module) -> Iterator[None]:
        """Within this context the module's parameters are aliases, with gradients of their own."""
        places = list(_named(module))
        aliases: dict[str, nn.Parameter] = {}
        for name, _, _, parameter in places:
            if name not in aliases:
                alias = nn.Parameter(parameter.detach(), parameter.requires_grad)
                if parameter.requires_grad:
                    alias.register_post_accumulate_grad_hook(partial(self._add, name))
                aliases[name] = alias
        for name, part, key, _ in places:
            part._parameters[key] = aliases[name]
        try:
            yield
        finally:
            for _, part, key, parameter in places:
                part._parameters[key] = parameter


class TiedLayer(nn.Module):
    """A tied module, and how the layers that share it compute with it."""

    def __init__(self, key: str, module: nn.Module, function: Function | None):
        super().__init__()
        self.key = key
        self.tied = module
        self._function = function  # the owner's

    def forward(self, inputs: Any, use: TiedUse | None = None) -> Any:
        if use is None:
            return self._compute(self._function, inputs)
        with use.aliased(self.tied):
            return self._compute(use.function, inputs)

    def _compute(self, function: Function | None, inputs: Any) -> Any:
        return self.tied(inputs) if function is None else function(self.tied, inputs)
