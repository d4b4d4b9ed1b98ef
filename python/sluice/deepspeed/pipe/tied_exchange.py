"""Values and gradients of tied modules between the stages that use them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from ...engine import Engine
from .messages import Link
from .module import PipelineModule
from .partition import stage_of
from .tied import TiedLayer, TiedUse


class TiedExchange:
    """Before each step the owner of a tied module sends its values to the other stages that use it.
    When a lane of micro-batches ends they send their sums of gradients, which the owner adds.

    The order of messages between two stages is that of the micro-batches. Within one it is that of
    the layers, from the last to the first, as in backward.
    """

    def __init__(self, module: PipelineModule, engine: Engine, links: Mapping[int, Link]):
        self._module = module
        self._engine = engine
        self._links = links
        self._stage = module.stage_id
        self._stale = True
        self._uses = [module.tied_uses[it] for it in sorted(module.tied_uses, reverse=True)]
        # Nearest owners first: an owner waits for its sums before it sends gradients to earlier ones.
        self._sent = sorted(
            (it for it in self._uses if it.layer in module.local_layers and not self._owns(it)),
            key=lambda use: -self._stage_of(use.owner),
        )
        for layer in module.borrowed.values():
            layer.to(engine.device, engine.dtype)
        if any(self._owns(use) for use in self._uses):
            engine.expect_added_gradients()

    def _owns(self, use: TiedUse) -> bool:
        return use.owner in self._module.local_layers

    def _stage_of(self, layer: int) -> int:
        return stage_of(self._module.parts, layer)

    # ---- values

    def values_changed(self) -> None:
        self._stale = True

    def refresh(self) -> None:
        """Gives this stage's borrowed modules the owners' values, or sends values to others."""
        if not self._stale:
            return
        self._stale = False
        done: set[tuple[str, int]] = set()
        for use in self._uses:
            user, owner = self._stage_of(use.layer), self._stage_of(use.owner)
            if user == owner or (use.key, user) in done:
                continue
            done.add((use.key, user))
            if owner == self._stage:
                parameters = self._parameters(self._module.owned[use.key])
                with self._engine.gathered(*parameters.values()):
                    self._links[user].tell([it.detach() for it in parameters.values()])
            elif user == self._stage:
                parameters = self._parameters(self._module.borrowed[use.key])
                forms = [(list(it.shape), it.dtype) for it in parameters.values()]
                with torch.no_grad():
                    for it, value in zip(parameters.values(), self._links[owner].hear(forms)):
                        it.copy_(value)

    # ---- gradients

    def forget(self) -> None:
        """Forgets the sums of a step that an exception has ended."""
        for use in self._uses:
            use.take_sums()

    def exchange(self, *, sends: bool, receives: bool) -> None:
        """After the last micro-batch of a lane: sends sums, once this stage has sent the gradients
        of its inputs; or receives and adds them, while the micro-batch is open."""
        if receives:
            for use in filter(self._owns, self._uses):
                user = self._stage_of(use.layer)
                self._add(use, None if user == self._stage else self._links[user])
        if sends:
            for use in self._sent:
                self._send(use, self._links[self._stage_of(use.owner)])

    def _send(self, use: TiedUse, link: Link) -> None:
        parameters = self._parameters(self._module.borrowed[use.key])
        sums = use.take_sums()
        there = torch.tensor([name in sums for name in parameters], device="cpu")
        link.tell([there])
        link.tell([sums[name] for name in parameters if name in sums])

    def _add(self, use: TiedUse, link: Link | None) -> None:
        parameters = self._parameters(self._module.owned[use.key])
        if link is None:
            sums = use.take_sums()
        else:
            there = link.hear([([len(parameters)], torch.bool)])[0].tolist()
            names = [name for name, is_there in zip(parameters, there) if is_there]
            forms = [(list(parameters[name].shape), torch.float32) for name in names]
            sums = dict(zip(names, link.hear(forms)))
        # A parameter may have been frozen after it was made, of which other stages know nothing.
        trained = [name for name in sums if parameters[name].requires_grad]
        self._engine.add_gradients({parameters[name]: sums[name] for name in trained})

    @staticmethod
    def _parameters(layer: TiedLayer) -> dict[str, nn.Parameter]:
        return dict(layer.tied.named_parameters())
