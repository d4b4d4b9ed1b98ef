"""Turns the arguments of a call into a micro-batch for the engine's units. The loss must be the
same as transformers'; otherwise the units do not support the call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ._core import Family

_IGNORED = -100
Documents = tuple[torch.Tensor, torch.Tensor, int]


class NotByUnits(Exception):
    """Why units do not support a call, as a clause."""


class MicroBatch:
    def __init__(
        self,
        tokens: torch.Tensor,
        targets: torch.Tensor,
        divisor: float,
        documents: Documents | None,
    ):
        self.tokens, self.targets = tokens, targets
        self.divisor, self.documents = divisor, documents


@dataclass(frozen=True)
class Passed:
    """What a backward pass by units was computed from."""

    batch: MicroBatch
    number: int  # among the passes of its micro-batch
    args: tuple
    kwargs: dict[str, Any]
    scale: float


def micro_batch(
    given: dict[str, Any], family: Family, config: Any, device: torch.device
) -> MicroBatch:
    """Builds it from a call's arguments, by name. Raises NotByUnits, or IndexError for unknown
    tokens."""
    has_rotary = family.name != "gpt2"
    given = {key: value for key, value in given.items() if value is not None}
    tokens, labels = given.pop("input_ids", None), given.pop("labels", None)
    mask, positions = given.pop("attention_mask", None), given.pop("position_ids", None)
    items = given.pop("num_items_in_batch", None)
    _check_arguments(given, config)
    if tokens is None or labels is None:
        raise NotByUnits(
            "the loss is not the model's own: it was called without input_ids and labels"
        )
    for name, tensor in (("input_ids", tokens), ("labels", labels)):
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != 2 or tensor.dtype != torch.int64:
            raise NotByUnits(f"{name} is not an int64 tensor of shape [rows, positions]")
    if labels.shape != tokens.shape or tokens.numel() == 0:
        raise NotByUnits("labels and input_ids have different shapes")
    if tokens.shape[1] > family.context and not has_rotary:
        raise NotByUnits(f"the context is {family.context} tokens")
    home = labels.device
    targets = nn.functional.pad(labels[:, 1:], (0, 1), value=_IGNORED)
    counts = targets != _IGNORED
    seen = None
    if mask is not None:
        if not isinstance(mask, torch.Tensor) or mask.shape != tokens.shape:
            raise NotByUnits("attention_mask is not a padding mask of shape [rows, positions]")
        seen = mask.to(home) != 0
    facts = _facts(tokens.to(home), targets, counts, seen, positions, family.vocab)
    _check_facts(facts, has_rotary)
    documents = None
    if seen is not None and facts["padded on the left"]:
        documents = _documents(seen.cpu(), device)
    count = facts["counted"]
    divisor = float(count if items is None else items)
    if divisor == 0 and count > 0:
        raise NotByUnits("num_items_in_batch is 0")
    return MicroBatch(
        _own(tokens, device),  # backward reads them again
        targets.to(device, non_blocking=True).contiguous(),
        divisor,
        documents,
    )


def _check_arguments(rest: dict[str, Any], config: Any) -> None:
    for name in ("output_attentions", "output_hidden_states"):
        if rest.pop(name, False) or getattr(config, name, False):
            raise NotByUnits(f"{name} is requested")
    if not rest.pop("return_dict", getattr(config, "return_dict", True)):
        raise NotByUnits("return_dict is False")
    rest.pop("use_cache", None)  # a whole sequence has no continuation
    logits = rest.pop("logits_to_keep", 0)
    if not (isinstance(logits, int) and logits == 0):
        raise NotByUnits("logits_to_keep is given")
    for name in rest:
        raise NotByUnits(f"{name} is given")


def _facts(
    tokens: torch.Tensor,
    targets: torch.Tensor,
    counts: torch.Tensor,
    seen: torch.Tensor | None,
    positions: Any,
    vocab: int,
) -> dict[str, int]:
    """Facts about a micro-batch, with at most one wait for the device."""
    outside = ((tokens < 0) | (tokens >= vocab)).any()
    facts = {
        "counted": counts.sum(),
        "tokens outside": outside,
        "labels outside": (((targets < 0) | (targets >= vocab)) & counts).any(),
    }
    if seen is not None:
        gaps = (seen[:, 1:] != seen[:, :-1]).sum(1) - (~seen[:, 0]).long() > 1
        facts["with gaps"] = gaps.any()
        facts["padded on the left"] = (~seen[:, 0]).any()
        facts["counted but hidden"] = (counts & ~seen).any()
    if positions is not None:
        if not isinstance(positions, torch.Tensor):
            raise NotByUnits("position_ids is not a tensor")
        usual = torch.arange(tokens.shape[1], device=positions.device)
        facts["moved"] = (positions != usual).any().to(tokens.device)
    together = torch.stack([fact.long() for fact in facts.values()]).tolist()
    return dict(zip(facts, together))


def _check_facts(facts: dict[str, int], has_rotary: bool) -> None:
    if facts["tokens outside"]:
        raise IndexError("input_ids has a token outside the vocabulary")
    if facts["labels outside"]:
        raise IndexError("labels has a token outside the vocabulary")
    if facts.get("with gaps"):
        raise NotByUnits("attention_mask hides tokens between others")
    if facts.get("counted but hidden"):
        raise NotByUnits(
            "a label counts where attention_mask hides the token before it (set labels to -100 at"
            " hidden tokens and at the first token after padding on the left)"
        )
    if facts.get("padded on the left") and not has_rotary:
        raise NotByUnits("rows are padded on the left, and the model has learned positions")
    if facts.get("moved"):
        raise NotByUnits("position_ids are not consecutive from 0")


def _own(tokens: torch.Tensor, device: torch.device) -> torch.Tensor:
    moved = tokens.to(device, non_blocking=True)
    return moved.clone() if moved is tokens else moved.contiguous()


def _documents(seen: torch.Tensor, device: torch.device) -> Documents:
    """Makes the padding of left-padded rows a document of its own, which no later token sees.
    Positions in rotary embeddings are relative."""
    rows, length = seen.shape
    first = torch.where(seen.any(1), seen.int().argmax(1), seen.new_zeros(rows, dtype=torch.int64))
    at = torch.arange(length, device=seen.device).expand(rows, length)
    positions = torch.where(at < first[:, None], at, at - first[:, None])
    starts = torch.nonzero(positions.flatten() == 0).flatten()
    starts = torch.cat([starts, starts.new_tensor([rows * length])]).to(torch.int32)
    longest = int(positions.max()) + 1
    return positions.contiguous().to(device), starts.to(device), longest
