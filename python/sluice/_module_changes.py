"""Changes that a script makes to a module in training and that the engine would not see."""

from __future__ import annotations

import copy
import functools
import logging
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad

from . import _engines
from ._families import OWN, READ, SCALARS, loss_functions, named

_log = logging.getLogger("sluice")
_ALWAYS_COMPARED = 1 << 16  # elements of a buffer; larger ones are compared by version
_NOT_OF_PASSES = {"architectures", "dtype", "torch_dtype", "transformers_version"}
_MISSING = object()
_WATCHES = "_sluice_watches"  # set on a function that replaces one of torch's


def _same(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, SCALARS) and type(one) is type(other) and one == other)


def _noted(part: nn.Module) -> Iterator[tuple[str, Any]]:
    """The attributes that affect how a module computes."""
    for key, value in part.__dict__.items():
        if key == "forward" or key.startswith("_") or key in OWN:
            continue
        if key == "p" and isinstance(part, nn.Dropout):  # compared with the family's value
            continue
        if key == "config" or isinstance(value, SCALARS) or callable(value):
            yield key, value


class Snapshot:
    """How a family's module computes. The engine's units take all of this from its config, and do
    not see later changes."""

    def __init__(self, model: nn.Module):
        self._model = weakref.ref(model)
        self._parts = [(name, part, dict(_noted(part))) for name, part in named(model)]
        self._forwards = {type(part): type(part).forward for _, part, _ in self._parts}
        self._config = self._config_of(model)
        self._losses = loss_functions(model)
        self._buffers = [
            (name, part, key, buffer, buffer._version, self._copy(buffer))
            for name, part, _ in self._parts
            for key, buffer in part._buffers.items()
            if buffer is not None and not _is_updated_in_passes(part)
        ]
        self._stream = (
            torch.cuda.Stream() if any(entry[3].is_cuda for entry in self._buffers) else None
        )
        self._before: torch.cuda.Event | None = None

    @staticmethod
    def _config_of(model: nn.Module) -> dict[str, Any]:
        own: dict[str, Any] = vars(model.config)
        return copy.deepcopy({key: own[key] for key in sorted(READ - _NOT_OF_PASSES) if key in own})

    @staticmethod
    def _copy(buffer: torch.Tensor) -> torch.Tensor | None:
        return buffer.clone() if buffer.numel() <= _ALWAYS_COMPARED else None

    def changed(self) -> str | None:
        """What has changed, apart from values on a GPU, as a clause."""
        model: Any = self._model()
        config = vars(model.config)
        for key, value in self._config.items():
            if config.get(key, _MISSING) != value:
                return f"{key} of its config was changed after sluice.initialize()"
        if loss_functions(model) != self._losses:
            return "its loss_function was replaced"
        for kind, forward in self._forwards.items():
            if kind.forward is not forward:
                return f"the forward of {kind.__qualname__} was replaced"
        for name, part, noted in self._parts:
            own = part.__dict__
            for key, value in noted.items():
                if not _same(own.get(key, _MISSING), value):
                    return f"{key} of {name} was changed after sluice.initialize()"
        for name, part, key, buffer, version, values in self._buffers:
            now = part._buffers.get(key)
            if values is None:
                is_same = now is buffer and now._version == version
            else:  # detects changes that bypass the version counter
                is_same = now is not None and _has_form(now, values)
                is_same = is_same and (values.is_cuda or torch.equal(now, values))
            if not is_same:
                return _buffer_changed(name, key)
        if self._stream is not None:
            self._before = torch.cuda.current_stream().record_event()
        return None

    def changed_on_gpu(self) -> str | None:
        """What has changed among the values on a GPU, which changed() leaves out. Call it after
        changed(), while the GPU computes a pass: this does not wait for the pass."""
        if self._stream is None or self._before is None:
            return None
        compared = [
            (name, key, part._buffers[key], values)
            for name, part, key, _, _, values in self._buffers
            if values is not None and values.is_cuda
        ]
        if not compared:
            return None
        with torch.no_grad(), torch.cuda.stream(self._stream):
            self._stream.wait_event(self._before)
            differs = torch.stack([(now != values).any() for *_, now, values in compared]).tolist()
        return next(
            (
                _buffer_changed(name, key)
                for (name, key, *_), has_changed in zip(compared, differs)
                if has_changed
            ),
            None,
        )


def _has_form(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)


def _buffer_changed(name: str, key: str) -> str:
    return f"the buffer {key} of {name} was changed after sluice.initialize()"


def _is_updated_in_passes(part: nn.Module) -> bool:
    """Whether it has rotary tables that transformers recomputes as sequences grow."""
    return getattr(part, "rope_type", "") in ("dynamic", "longrope")


# ---- clipping


_told: weakref.WeakSet[Any] = weakref.WeakSet()  # engines


def _say_who_clips(parameters: Any, by_value: bool) -> None:
    """Warns once per engine: torch's functions find no gradients on its parameters."""
    if isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    engine = _engines.find(parameters)
    if engine is None or engine in _told:
        return
    _told.add(engine)
    by_norm = "gradient_clipping", "which clips by the norm of the whole step"
    by_element = "gradient_clipping_value", "which clips each element"
    key, what = by_element if by_value else by_norm
    own = engine.config.get(key)
    _log.warning(
        "torch.nn.utils.clip_grad_%s_() has no effect: the engine holds the gradients, and"
        ' parameter.grad is None. Set "%s" in the configuration, %s (it is %s); last_step.grad_norm'
        " is the norm before clipping",
        "value" if by_value else "norm",
        key,
        what,
        f"{own:g}" if own else "off",
    )


def _watch_clipping() -> None:
    """Watches the part of clip_grad_norm_ that gets the parameters, so that names a script has
    already imported are covered as well."""

    def watched(original: Any, by_value: bool) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            parameters = args[0] if args else kwargs.get("parameters", ())
            if not isinstance(parameters, torch.Tensor):  # may be a generator
                parameters = list(parameters)
            _say_who_clips(parameters, by_value)
            if args:
                return original(parameters, *args[1:], **kwargs)
            return original(**{**kwargs, "parameters": parameters})

        setattr(call, _WATCHES, True)
        return call

    inner = "_clip_grads_with_norm_"
    norm = inner if hasattr(clip_grad, inner) else "clip_grad_norm_"
    for name in (norm, "clip_grad_value_"):
        original = getattr(clip_grad, name)
        if getattr(original, _WATCHES, False):
            continue
        call = watched(original, name == "clip_grad_value_")
        for module in (clip_grad, torch.nn.utils):
            if getattr(module, name, None) is original:
                setattr(module, name, call)


_watch_clipping()
