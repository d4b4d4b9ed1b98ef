"""The part of a checkpoint that Python writes, as JSON: buffers, random generators and the user's
own state."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from . import _deferred_init
from ._core import Error, Ranks, RefusedError, ValuesHash, is_spilled, values_of
from .ranks import gather_long
from .units import ManagedParameter

_SAMPLED = 1024  # elements at either end
_AT_ONCE = 1 << 22  # elements
_MOST_BUFFER_BYTES = 64 << 20
_log = logging.getLogger("sluice")


def sample(parameters: Iterable[ManagedParameter], whole: bool = False) -> str:
    """A fingerprint of names, shapes and some or all values. Empty without parameters."""
    return sample_of(((managed, managed.parameter) for managed in parameters), whole)


def sample_of(values: Iterable[tuple[ManagedParameter, torch.Tensor]], whole: bool = False) -> str:
    """The fingerprint of these values: SOME, which earlier versions wrote, or SOME/ALL."""
    some, every = hashlib.sha256(), ValuesHash()
    any_there = False
    for managed, value in values:
        any_there = True
        flat = value.detach().reshape(-1)
        ends = torch.cat([values_of(flat[:_SAMPLED]), values_of(flat[-_SAMPLED:])])
        ends = ends.float().cpu().contiguous()
        some.update(f"{managed.name} {tuple(managed.parameter.shape)}".encode())
        some.update(ends.numpy().tobytes())
        for first in range(0, flat.numel() if whole else 0, _AT_ONCE):
            every.add(values_of(flat[first : first + _AT_ONCE]).float().cpu().contiguous())
    if not any_there:
        return ""
    return some.hexdigest() + (f"/{every.value}" if whole else "")


def _of_buffer(buffer: torch.Tensor) -> list[Any]:
    """The buffer's dtype and shape, and a fingerprint of all its bytes."""
    data = _plain(buffer).reshape(-1).view(torch.uint8).numpy()
    return [str(buffer.dtype), list(buffer.shape), hashlib.sha256(data).hexdigest()]


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy on the CPU, so that its bytes can be read in order."""
    return tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()


def _put(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Sets the values of a tensor. Elements that share memory, as after expand(), keep sharing it,
    since another buffer may use it too."""
    own = tuple(slice(0, 1 if step == 0 else None) for step in tensor.stride())
    tensor[own].copy_(values[own])
    if not torch.equal(_plain(tensor), values):  # differs on rank 0
        tensor.data = values.to(tensor.device)


def take_first_ranks_values(
    ranks: Ranks, parameters: list[ManagedParameter], module: nn.Module
) -> None:
    """Gives all ranks the first rank's values, as DeepSpeed does. This covers parameters, and
    buffers that have the same form on all ranks. Sparse and quantized ones stay local to each
    rank."""
    tensors: dict[str, torch.Tensor] = {managed.name: managed.parameter for managed in parameters}
    with _deferred_init.materialized(managed.parameter for managed in parameters):
        own: dict[str, Any] = {
            managed.name: sample([managed], whole=True) for managed in parameters
        }
    for name, buffer in module.named_buffers():
        is_strided = buffer.layout == torch.strided and not buffer.is_quantized
        if is_strided and not (buffer.is_meta or buffer.numel() == 0 or is_spilled(buffer)):
            tensors[name] = buffer
            own[name] = _of_buffer(buffer)
    of_all = [json.loads(text) for text in gather_long(ranks, json.dumps(own))]
    others = [name for name, first in of_all[0].items() if _differs(first, of_all, name)]
    if not others:
        return
    with (
        _deferred_init.materialized((tensors[name] for name in others), changes=True),
        torch.no_grad(),
    ):
        for name in others:
            tensor, values = tensors[name], _plain(tensors[name])
            ranks.broadcast(values)
            if ranks.rank != 0:
                _put(tensor, values)
    if ranks.rank == 0:
        names = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
        _log.warning(
            "%d tensors of the module differed between ranks; all ranks now use rank 0's values"
            " (%s)",
            len(others),
            names,
        )


def _differs(first: Any, of_all: list[dict[str, Any]], name: str) -> bool:
    """Whether a buffer's values differ between ranks. Buffers of different forms, such as a cache
    that grows, stay local to each rank."""
    if any(name not in fingerprints for fingerprints in of_all):
        return False
    if isinstance(first, list) and any(
        fingerprints[name][:2] != first[:2] for fingerprints in of_all
    ):
        return False
    return any(fingerprints[name] != first for fingerprints in of_all)


def _to_text(tensor: torch.Tensor) -> dict[str, Any]:
    data = tensor.detach().cpu().contiguous()
    raw = data.reshape(-1).view(torch.uint8).numpy().tobytes() if data.numel() else b""
    return {
        "dtype": str(data.dtype).removeprefix("torch."),
        "shape": list(data.shape),
        "data": base64.b64encode(raw).decode("ascii"),
    }


def _from_text(text: dict[str, Any]) -> torch.Tensor:
    raw = bytearray(base64.b64decode(text["data"]))
    dtype = getattr(torch, text["dtype"])
    if not raw:
        return torch.empty(text["shape"], dtype=dtype, device="cpu")
    return torch.frombuffer(raw, dtype=torch.uint8).view(dtype).reshape(text["shape"])


def _persistent_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    return {
        f"{prefix}.{name}" if prefix else name: buffer
        for prefix, part in module.named_modules()
        for name, buffer in part._buffers.items()
        if buffer is not None and name not in part._non_persistent_buffers_set
    }


def pack(module: nn.Module, client_state: Any, frozen: str, ranks: Ranks) -> str:
    """The state of the first rank, with the random generators of every rank."""
    buffers = _persistent_buffers(module)
    size = sum(buffer.numel() * buffer.element_size() for buffer in buffers.values())
    if size > _MOST_BUFFER_BYTES:
        raise RefusedError(
            f"the module's persistent buffers take {size} bytes, and a checkpoint stores at most"
            f" {_MOST_BUFFER_BYTES}: register large buffers with persistent=False"
        )
    generators = {"cpu": _to_text(torch.get_rng_state())}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        generators["cuda"] = _to_text(torch.cuda.get_rng_state())
    refused = ""
    state = None
    try:
        state = json.loads(json.dumps(client_state))
    except (TypeError, ValueError, RecursionError) as error:
        refused = f"client_state cannot be written as JSON: {error}"
    some, _, every = frozen.partition("/")
    of_ranks = []
    for rank, text in enumerate(ranks.all_gather(json.dumps([refused, generators]))):
        refusal, of_rank = json.loads(text)
        if refusal:
            raise RefusedError(refusal if ranks.world == 1 else f"rank {rank}: {refusal}")
        of_ranks.append(of_rank)
    return json.dumps(
        {
            "client_state": state,
            "buffers": {name: _to_text(buffer) for name, buffer in buffers.items()},
            "generators": generators,
            "generators_of_ranks": of_ranks[1:],
            "frozen": some,
            "frozen_values": every,
        }
    )


@dataclass
class Stored:
    """The checked contents of what pack() wrote: restore() cannot fail halfway."""

    client_state: Any
    buffers: dict[str, torch.Tensor]
    generators: dict[str, torch.Tensor]  # this rank's; empty if the save had no such rank


def _generators(stored: dict[str, Any], rank: int) -> dict[str, torch.Tensor]:
    of_ranks = [stored["generators"], *stored.get("generators_of_ranks", [])]
    if rank >= len(of_ranks):
        return {}
    states = {}
    for kind, text in of_ranks[rank].items():
        if kind == "cuda" and not torch.cuda.is_available():
            continue
        state = _from_text(text)
        try:
            torch.Generator(kind).set_state(state)
        except (RuntimeError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise RefusedError(
                f"torch {torch.__version__} refuses the checkpoint's state of its {kind} random"
                f" generator: {reason}. Load the checkpoint with the version of torch that saved it"
            ) from error
        states[kind] = state
    return states


def read(text: str, module: nn.Module, frozen: str, rank: int) -> Stored:
    """Reads what pack() wrote. RefusedError if it belongs to another module, Error if it is
    unreadable."""
    try:
        return _read(json.loads(text), module, frozen, rank)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError, RecursionError) as error:
        if isinstance(error, Error):
            raise
        raise Error(
            "the checkpoint's buffers and random generators cannot be read"
            f" ({type(error).__name__}: {error}): it is damaged, or another version of Sluice wrote"
            " it"
        ) from error


def _read(stored: dict[str, Any], module: nn.Module, frozen: str, rank: int) -> Stored:
    some, _, every = frozen.partition("/")
    kept = stored.get("frozen_values")  # earlier versions fingerprinted both ends of each parameter
    if stored["frozen"] != some or (kept and every and kept != every):
        raise RefusedError(
            "the checkpoint was trained with other values of the frozen parameters than this module"
            " has: load the weights that the run began with into the module first"
        )
    buffers = _persistent_buffers(module)
    for name, value in stored["buffers"].items():
        if name not in buffers or list(buffers[name].shape) != value["shape"]:
            raise RefusedError(
                f"the checkpoint has a buffer {name} of shape {value['shape']}, and the module has"
                " no such buffer"
            )
    return Stored(
        stored["client_state"],
        {name: _from_text(value) for name, value in stored["buffers"].items()},
        _generators(stored, rank),
    )


def of_other_stages(texts: Iterable[str], module: nn.Module, frozen: str) -> str:
    """What pack() would have written for this module, from the texts of a pipeline that was cut into
    stages elsewhere. Random generators are left as they are."""
    of_stages = [json.loads(text) for text in texts]
    wanted = _persistent_buffers(module)
    buffers = {
        name: value
        for stored in of_stages
        for name, value in stored["buffers"].items()
        if name in wanted
    }
    some, _, every = frozen.partition("/")
    return json.dumps(
        {
            "client_state": of_stages[0]["client_state"],
            "buffers": buffers,
            "generators": {},
            "frozen": some,
            "frozen_values": every,
        }
    )


def restore(stored: Stored, module: nn.Module) -> Any:
    """Restores buffers and generators, and returns the client_state. A rank that did not exist at
    the save keeps its own generators."""
    buffers = _persistent_buffers(module)
    with torch.no_grad():
        for name, value in stored.buffers.items():
            buffers[name].copy_(value)
    if "cpu" in stored.generators:
        torch.set_rng_state(stored.generators["cpu"])
    if "cuda" in stored.generators:
        torch.cuda.set_rng_state(stored.generators["cuda"])
    return stored.client_state
