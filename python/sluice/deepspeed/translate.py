"""Translates torch's optimizers and schedules to configuration keys, with their parameter
groups."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler as schedules

from .._core import RefusedError

#: Dotted configuration keys, as for ``sluice.initialize(overrides=...)``.
Keys = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """Parameters with their own learning rate, before the schedule, and weight decay."""

    names: list[str]
    lr: float
    weight_decay: float


def trained_names(module: nn.Module) -> dict[int, str]:
    """The engine's names of the trained parameters, by id."""
    return {
        id(parameter): name
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }


# ---- groups


def _candidates(name: str) -> Iterator[str]:
    """Globs that match a name, the widest first: any layer, a part of the module, the same name
    within that part, and the exact name."""
    exact = re.sub(r"([*?\[])", r"[\1]", name)
    yield re.sub(r"(?<=\.)\d+(?=\.|$)", "*", exact)
    *path, last = exact.split(".")
    prefixes = [".".join(path[:length]) for length in range(1, len(path) + 1)]
    yield from (f"{prefix}.*" for prefix in prefixes)
    yield from (f"{prefix}.*.{last}" for prefix in prefixes[:-1])
    yield exact


def _patterns(names: Sequence[str], others: Sequence[str]) -> list[str]:
    """Globs that match these names and none of the others. They should be few: a configuration may
    have 256 at most."""
    found: list[str] = []
    fits_others: dict[str, bool] = {}
    for name in names:
        if any(fnmatchcase(name, pattern) for pattern in found):
            continue
        for pattern in _candidates(name):
            if pattern not in fits_others:
                fits_others[pattern] = any(fnmatchcase(other, pattern) for other in others)
            if not fits_others[pattern]:
                found.append(pattern)
                break
    return found


def group_keys(groups: Sequence[Group]) -> Keys:
    """The largest group becomes optimizer.params. The others become optimizer.groups, the smallest
    first: the first match wins."""
    *others, base = sorted(
        (group for group in groups if group.names), key=lambda group: len(group.names)
    )
    keys: Keys = {
        "optimizer.params.lr": base.lr,
        "optimizer.params.weight_decay": base.weight_decay,
        "optimizer.params.decayed": "all",
    }
    entries = []
    for number, group in enumerate(others):
        later = [name for group in (*others[number + 1 :], base) for name in group.names]
        entry: dict[str, Any] = {"match": _patterns(group.names, later)}
        if group.lr != base.lr:
            entry["lr"] = group.lr
        entry["weight_decay"] = group.weight_decay
        entries.append(entry)
    if entries:
        keys["optimizer.groups"] = entries
    return keys


def configured_groups(config: Mapping[str, Any], module: nn.Module) -> list[Group]:
    """The parameter groups of a resolved configuration for a module."""
    params = config["optimizer"]["params"]
    lr, decay = params["lr"], params["weight_decay"]
    entries = config["optimizer"].get("groups", [])
    taken: dict[tuple[int, bool], list[str]] = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        number = next(
            (i for i, entry in enumerate(entries) if _fits(name, entry["match"])), len(entries)
        )
        decays = params["decayed"] == "all" or parameter.dim() > 1
        taken.setdefault((number, decays), []).append(name)
    groups = []
    for (number, decays), names in taken.items():
        entry = entries[number] if number < len(entries) else {}
        own = entry.get("weight_decay", decay if decays else 0.0)
        groups.append(Group(names, entry.get("lr", lr), own))
    return groups


def _fits(name: str, match: str | Sequence[str]) -> bool:
    return any(
        fnmatchcase(name, pattern) for pattern in ([match] if isinstance(match, str) else match)
    )


def given_groups(
    groups: Iterable[Any], module: nn.Module, *, lr: float, weight_decay: float
) -> list[Group] | None:
    """Groups from parameters, or from groups of them as torch's optimizers take them.

    Returns None for all trained parameters without settings of their own. `lr` and `weight_decay`
    are the defaults of groups.

    Raises:
        RefusedError: the parameters are not exactly those that are trained, or a group sets other
            options.
    """
    names = trained_names(module)
    entries = list(groups)
    if not entries:
        raise RefusedError("model_parameters is empty: if it is a generator, it was read before")
    is_plain = not isinstance(entries[0], dict)
    if is_plain:
        entries = [{"params": entries}]
    found: list[Group] = []
    seen: set[int] = set()
    for entry in entries:
        entry = dict(entry)
        own = entry.pop("params")
        parameters = [own] if isinstance(own, torch.Tensor) else list(own)
        parameters = [
            parameter[1] if isinstance(parameter, tuple) else parameter for parameter in parameters
        ]
        extra = sorted(
            key for key in entry.keys() - {"lr", "weight_decay", "initial_lr"} if key != "name"
        )
        if extra:
            raise RefusedError(
                f"a parameter group has its own {', '.join(extra)}: only lr and weight_decay may"
                " differ between groups"
            )
        foreign = [
            parameter
            for parameter in parameters
            if parameter.requires_grad and id(parameter) not in names
        ]
        if foreign:
            raise RefusedError(
                f"the optimizer has a parameter of shape {tuple(foreign[0].shape)} that is not the"
                " model's: make the optimizer after the model was last changed or copied"
            )
        ids = [id(parameter) for parameter in parameters if parameter.requires_grad]
        if len(set(ids)) < len(ids) or seen & set(ids):
            raise RefusedError("a parameter is in two groups of the optimizer")
        seen |= set(ids)
        rate: Any = entry.get("initial_lr", entry.get("lr", lr))
        decay: Any = entry.get("weight_decay", weight_decay)
        found.append(Group([names[key] for key in ids], float(rate), float(decay)))
    missing = [name for key, name in names.items() if key not in seen]
    if missing:
        raise RefusedError(
            f"{missing[0]}{' and others' if len(missing) > 1 else ''} requires a gradient"
            " but is not in the optimizer: add it, or freeze it first (requires_grad_(False))"
        )
    return None if is_plain else found


# ---- optimizers


def optimizer_keys(optimizer: Any, module: nn.Module) -> Keys:
    """Keys that make the engine's AdamW equivalent to this optimizer.

    Raises:
        RefusedError: it is neither torch's AdamW nor Adam, has taken a step, or has other
            parameters than the module.
    """
    if type(optimizer) not in (torch.optim.AdamW, torch.optim.Adam):
        raise RefusedError(
            f"the optimizer is {_full_name(type(optimizer))}, which the engine does not support:"
            " pass torch.optim.AdamW or torch.optim.Adam, or no optimizer and an optimizer section"
            " in the configuration"
        )
    if any(optimizer.state.values()):
        raise RefusedError(
            "the optimizer has already taken steps, and its moments cannot be imported: pass a new"
            " one"
        )
    groups = optimizer.param_groups
    first = groups[0]
    for name in ("betas", "eps", "amsgrad", "maximize", "decoupled_weight_decay"):
        if any(group.get(name) != first.get(name) for group in groups):
            raise RefusedError(
                f"{name} differs between groups of the optimizer: it must be equal in all of them"
            )
    for name in ("amsgrad", "maximize"):
        if first[name]:
            raise RefusedError(
                f"the optimizer was made with {name}=True, which the engine does not support"
            )
    found = given_groups(
        [
            {
                key: group[key]
                for key in ("params", "lr", "weight_decay", "initial_lr")
                if key in group
            }
            for group in groups
        ],
        module,
        lr=0.0,
        weight_decay=0.0,
    )
    assert found is not None
    is_decoupled = isinstance(optimizer, torch.optim.AdamW) or first["decoupled_weight_decay"]
    keys = group_keys(found)
    keys["optimizer.type"] = "AdamW" if is_decoupled else "Adam"
    keys["optimizer.params.adam_w_mode"] = bool(is_decoupled)
    keys["optimizer.params.betas"] = [float(beta) for beta in first["betas"]]
    keys["optimizer.params.eps"] = float(first["eps"])
    return keys


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


# ---- schedules

# transformers' get_scheduler() makes a LambdaLR from a partial of one of these functions. Each is
# listed with its name in a configuration.
_OF_TRANSFORMERS = {
    "_get_constant_schedule_with_warmup_lr_lambda": "constant_with_warmup",
    "_get_linear_schedule_with_warmup_lr_lambda": "linear",
    "_get_cosine_schedule_with_warmup_lr_lambda": "cosine",
    "_get_cosine_with_hard_restarts_schedule_with_warmup_lr_lambda": "cosine_with_restarts",
    "_get_polynomial_decay_schedule_with_warmup_lr_lambda": "polynomial",
    "_get_inverse_sqrt_schedule_lr_lambda": "inverse_sqrt",
    "_get_wsd_scheduler_lambda": "warmup_stable_decay",
}
_PARAMETERS = {
    "num_warmup_steps": "warmup_num_steps",
    "num_training_steps": "total_num_steps",
    "min_lr_rate": "min_lr_ratio",
}


def schedule_keys(schedule: Any, optimizer: torch.optim.Optimizer) -> Keys:
    """Keys that make the engine's learning rate follow this schedule of `optimizer`.

    After the end of a cosine the engine's rate stays constant, while torch's would rise again.

    Raises:
        RefusedError: the engine has no such schedule, or it has begun.
    """
    if getattr(schedule, "optimizer", optimizer) is not optimizer:
        raise RefusedError("the schedule belongs to another optimizer than the one passed")
    if getattr(schedule, "last_epoch", 0) > 0:
        raise RefusedError(
            "the schedule has already advanced: pass a new one, and call load_checkpoint() to"
            " continue a run"
        )
    rates = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
    kind, params = _schedule(schedule, rates)
    keys: Keys = {"scheduler.type": kind}
    keys.update({f"scheduler.params.{key}": value for key, value in params.items()})
    return keys


def _schedule(schedule: Any, rates: Sequence[float]) -> tuple[str, dict[str, Any]]:
    kind = type(schedule)
    if kind is schedules.LambdaLR:
        return _of_lambdas(schedule, rates)
    if kind is schedules.CosineAnnealingLR:
        _must_be_one(rates, schedule.eta_min, "eta_min")
        return "cosine_with_min_lr", {
            "total_num_steps": schedule.T_max,
            "min_lr": float(schedule.eta_min),
        }
    if kind is schedules.PolynomialLR:
        return "polynomial", {
            "total_num_steps": schedule.total_iters,
            "power": float(schedule.power),
            "lr_end": 0.0,
        }
    if kind is schedules.LinearLR and schedule.start_factor == 1:
        _must_be_one(rates, schedule.end_factor, "end_factor")
        return "polynomial", {
            "total_num_steps": schedule.total_iters,
            "power": 1.0,
            "lr_end": schedule.end_factor * rates[0],
        }
    raise _no_such(_full_name(kind))


def _must_be_one(rates: Sequence[float], end: float, name: str) -> None:
    if end != 0 and any(rate != rates[0] for rate in rates):
        raise RefusedError(
            f"the schedule's {name} is the same for groups with different lr, but the engine scales"
            " all of them by one factor"
        )


def _of_lambdas(schedule: Any, rates: Sequence[float]) -> tuple[str, dict[str, Any]]:
    first = schedule.lr_lambdas[0]
    if any(not _same(function, first) for function in schedule.lr_lambdas):
        raise _no_such("a LambdaLR with different functions for its groups")
    function = first.func if isinstance(first, functools.partial) else first
    name = getattr(function, "__qualname__", type(function).__name__)
    if not getattr(function, "__module__", "").startswith("transformers."):
        raise _no_such(f"a LambdaLR of {name}")
    if name == "_get_constant_lambda":
        return "constant", {}
    if name not in _OF_TRANSFORMERS or first.args:
        raise _no_such(f"a LambdaLR of transformers' {name}")
    kind = _OF_TRANSFORMERS[name]
    params = {_PARAMETERS.get(key, key): value for key, value in first.keywords.items()}
    if params.pop("lr_init", rates[0]) != rates[0]:
        raise _no_such("a polynomial schedule of another learning rate than its optimizer's")
    if kind == "cosine" and params.pop("min_lr_ratio", 0.0):
        kind = "cosine_with_min_lr"
        params["min_lr_ratio"] = first.keywords["min_lr_rate"]
    if kind == "warmup_stable_decay":
        params["total_num_steps"] = sum(
            params[key] for key in ("warmup_num_steps", "num_stable_steps", "num_decay_steps")
        )
    return kind, params


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    return (
        isinstance(one, functools.partial)
        and isinstance(other, functools.partial)
        and (one.func, one.args, one.keywords) == (other.func, other.args, other.keywords)
    )


def _no_such(what: str) -> RefusedError:
    return RefusedError(
        f"the schedule is {what}, which the engine does not support. It supports those of"
        " transformers' get_scheduler (except reduce_lr_on_plateau, greedy and"
        " cosine_warmup_with_min_lr), torch's CosineAnnealingLR, PolynomialLR and a LinearLR that"
        " begins at 1, and those of the key scheduler.type"
    )
