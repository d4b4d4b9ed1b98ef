"""Which parameters are fetched together: those of each block of a module, and those outside of
blocks."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Union

import torch
from torch import nn

from ._core import RefusedError

#: Which modules are units, and what computes them. "hooks": the elements of the outermost
#: ``nn.ModuleList`` and ``nn.Sequential``, computed by PyTorch. "engine": the engine's own units,
#: for the families that have them (GPT-2, Llama, Mistral, Qwen2 and Qwen3 of transformers). "auto":
#: "engine" if possible, otherwise "hooks". A sequence of name patterns (fnmatch) and module
#: classes, or a function of a module's name and the module, selects the units that PyTorch
#: computes.
UnitPolicy = Union[str, Sequence[Union[str, type]], Callable[[str, nn.Module], bool]]

OUTSIDE = "outside blocks"
_WHOLE = ("auto", "engine", "hooks")


@dataclass
class ManagedParameter:
    """A parameter that the engine manages, with its unit and its place in it."""

    name: str  # the first of its names in the module
    parameter: nn.Parameter
    unit: int
    index: int
    trained: bool


@dataclass
class Unit:
    """Parameters that are fetched together. Unit 0 contains those outside of all blocks."""

    name: str
    module: nn.Module | None  # the block
    parameters: list[ManagedParameter] = field(default_factory=list)

    @property
    def trained_count(self) -> int:
        return sum(managed.trained for managed in self.parameters)


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def checkpointed_share(module: nn.Module, units: list[Unit]) -> float:
    """The share of blocks that are recomputed in backward, as far as transformers reports it."""
    flag = "gradient_checkpointing"
    blocks = [unit.module for unit in units if unit.module is not None]
    flagged = [[part for part in block.modules() if hasattr(part, flag)] for block in blocks]
    if any(flagged):
        return sum(any(getattr(part, flag) is True for part in parts) for parts in flagged) / len(
            blocks
        )
    return float(any(getattr(part, flag, None) is True for part in module.modules()))


def _walk(
    module: nn.Module, name: str, is_unit: Callable[[str, nn.Module], bool]
) -> Iterator[tuple[str, nn.Module]]:
    """The outermost modules that are units, in the order of their parents' children."""
    for child_name, child in module.named_children():
        full = f"{name}.{child_name}" if name else child_name
        if is_unit(full, child):
            yield full, child
        else:
            yield from _walk(child, full, is_unit)


def _auto(root: nn.Module) -> Callable[[str, nn.Module], bool]:
    elements = {
        id(child)
        for parent in root.modules()
        if isinstance(parent, (nn.ModuleList, nn.Sequential))
        for child in parent.children()
        if _has_parameters(child) and not isinstance(child, (nn.ModuleList, nn.ModuleDict))
    }
    return lambda _, module: id(module) in elements


def _by_patterns(wanted: Sequence[str | type]) -> Callable[[str, nn.Module], bool]:
    for entry in wanted:
        if not isinstance(entry, (str, type)):
            raise RefusedError(
                f"units={entry!r} is not valid: each entry must be a module name, which may contain"
                " *, or a module class"
            )

    def is_unit(name: str, module: nn.Module) -> bool:
        return any(
            (
                fnmatch.fnmatchcase(name, entry)
                if isinstance(entry, str)
                else isinstance(module, entry)
            )
            for entry in wanted
        )

    return is_unit


def find_blocks(root: nn.Module, policy: UnitPolicy) -> list[tuple[str, nn.Module]]:
    """Modules that are units of their own, each once. RefusedError if the policy selects none."""
    if callable(policy) and not isinstance(policy, type):
        is_unit = policy
    elif isinstance(policy, str) and policy in _WHOLE:
        is_unit = _auto(root)
    elif isinstance(policy, str):
        raise RefusedError(
            f'units="{policy}" is not valid: it must be "auto", "engine", "hooks", a list of names'
            " or classes, or a function"
        )
    elif isinstance(policy, Sequence):
        is_unit = _by_patterns(list(policy))
    else:
        is_unit = _by_patterns([policy])
    blocks: dict[int, tuple[str, nn.Module]] = {}
    for name, module in _walk(root, "", is_unit):
        if _has_parameters(module):
            blocks.setdefault(id(module), (name, module))
    if not blocks and not (isinstance(policy, str) and policy in _WHOLE):
        raise RefusedError(
            f"units={policy!r} matches no module with parameters in {type(root).__name__}"
        )
    return list(blocks.values())


def divide(root: nn.Module, policy: UnitPolicy, *, has_values: bool = True) -> list[Unit]:
    """Divides a module's parameters into units. A parameter that several blocks share, or that a
    block shares with a module outside, goes to unit 0, which is held whenever any of its users
    runs. Without `has_values`, parameters may be on the meta device."""
    blocks = find_blocks(root, policy)
    units = [Unit(OUTSIDE, None)] + [Unit(name, module) for name, module in blocks]
    homes: dict[int, set[int]] = {}
    inside: set[int] = set()
    for number, (_, block) in enumerate(blocks, start=1):
        for module in block.modules():
            inside.add(id(module))
            for parameter in module.parameters(recurse=False):
                homes.setdefault(id(parameter), set()).add(number)
    for module in root.modules():
        if id(module) not in inside:
            for parameter in module.parameters(recurse=False):
                homes.setdefault(id(parameter), set()).add(0)
    for name, parameter in root.named_parameters():
        home = homes[id(parameter)]
        number = home.pop() if len(home) == 1 else 0
        _check_parameter(name, parameter, has_values)
        of_unit = units[number].parameters
        of_unit.append(
            ManagedParameter(name, parameter, number, len(of_unit), parameter.requires_grad)
        )
    return units


def _check_parameter(name: str, parameter: nn.Parameter, has_values: bool) -> None:
    if parameter.is_meta and has_values:
        raise RefusedError(
            f"parameter {name} is on the meta device, without values: create or load the module on"
            " the CPU"
        )
    if isinstance(parameter, nn.parameter.UninitializedParameter):
        raise RefusedError(
            f"parameter {name} has no shape yet: run the module once before sluice.initialize()"
        )
    if parameter.layout != torch.strided or not parameter.is_floating_point():
        raise RefusedError(
            f"parameter {name} is {parameter.dtype}, {parameter.layout}: only dense floating-point"
            " parameters can be trained"
        )
    if parameter.numel() == 0:
        raise RefusedError(f"parameter {name} has no elements")


def owners(root: nn.Module, units: list[Unit]) -> list[tuple[nn.Module, list[int]]]:
    """Modules whose forward needs units, with these units.

    These are blocks, and parts of blocks with parameters of their own, so that a part may be called
    alone. Outside of blocks, these are all modules that contain a parameter of unit 0. With a
    family's units, whose head is one, only modules with parameters of their own count there.
    """
    unit_of = {id(managed.parameter): managed.unit for unit in units for managed in unit.parameters}

    def own(module: nn.Module) -> set[int]:
        found = {unit_of[id(parameter)] for parameter in module.parameters(recurse=False)}
        for child in module.children():  # containers have no forward
            if isinstance(child, (nn.ParameterList, nn.ParameterDict)):
                found |= {unit_of[id(parameter)] for parameter in child.parameters()}
        return found

    needs: dict[int, tuple[nn.Module, set[int]]] = {}
    inside: set[int] = set()
    for number, unit in enumerate(units):
        if unit.module is None:
            continue
        compiled = _is_compiled_forward(unit.module)
        for module in unit.module.modules():
            inside.add(id(module))
            if compiled and module is not unit.module:  # hooks of its parts would be traced
                continue
            wanted = own(module) | ({number} if module is unit.module else set())
            if module is unit.module and compiled:
                wanted |= set().union(*(own(part) for part in unit.module.modules()))
            if wanted:
                known = needs.get(id(module), (module, set()))
                needs[id(module)] = (module, known[1] | wanted)
    for module in root.modules():
        if id(module) in inside or isinstance(module, (nn.ParameterList, nn.ParameterDict)):
            continue
        if units[-1].module is None and len(units) > 1:
            if own(module):
                needs[id(module)] = (module, own(module))
            continue
        parts = [part for part in module.modules() if id(part) not in inside]
        if any(0 in own(part) for part in parts):
            needs[id(module)] = (module, {0})
    return [(module, sorted(wanted)) for module, wanted in needs.values()]


def _is_compiled_forward(module: nn.Module) -> bool:
    return hasattr(module.__dict__.get("forward"), "_torchdynamo_orig_callable")
