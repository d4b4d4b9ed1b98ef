"""Reads an engine's masters back."""

from __future__ import annotations

import json
import math
import os
import tempfile

import torch

from .._core import RefusedError
from ..engine import Engine


def _read(path: str) -> dict[str, torch.Tensor]:
    """A safetensors file of fp32 tensors, mapped into memory."""
    size = os.path.getsize(path)
    data = torch.from_file(path, shared=False, size=size, dtype=torch.uint8)
    header = int.from_bytes(data[:8].numpy().tobytes(), "little")
    entries = json.loads(data[8 : 8 + header].numpy().tobytes())
    entries.pop("__metadata__", None)
    found = {}
    for name, entry in entries.items():
        first = 8 + header + entry["data_offsets"][0]
        part = data[first : first + 4 * math.prod(entry["shape"])]
        part = part if first % 4 == 0 else part.clone()
        found[name] = part.view(torch.float32).reshape(entry["shape"])
    return found


def begin_anew(engine: Engine) -> None:
    """Begins again from the current masters, with moments of zero, at step 0."""
    if engine.world_size > 1:
        raise RefusedError(
            "several ranks cannot restart from their own master weights: save them with"
            " save_16bit_model() or engine.save_weights(), and load them with load_state_dict() in"
            " the next run"
        )
    frozen = {
        name for name, parameter in engine.module.named_parameters() if not parameter.requires_grad
    }
    state = engine.state_dict() if frozen else {}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "masters.safetensors")
        engine.save_weights(path)
        engine.load_weights({**{name: state[name] for name in frozen}, **_read(path)})
