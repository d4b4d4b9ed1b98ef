"""``sluice.init``: modules that are larger than memory while they are made or read."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.overrides import TorchFunctionMode

from . import _forks, ranks
from ._core import RefusedError, Spill, Use, flush_spills_of, is_spilled, touch
from ._setup import read_config
from ._tensors import tensors_in

_log = logging.getLogger("sluice")

# What asks for a tensor's form alone, makes a view of it, or makes another one of its form: its
# values need not be there. Attributes and their setters are likewise.
_FORM = frozenset(
    "__get__ __set__ __delete__ __hash__ __len__ _is_view chunk detach detach_ dim element_size"
    " empty_like expand expand_as full_like get_device has_names is_complex is_contiguous"
    " is_floating_point is_inference is_same_size is_signed narrow ndimension nelement"
    " new_empty new_full new_ones new_zeros numel ones_like permute rand_like randint_like"
    " randn_like register_hook register_post_accumulate_grad_hook requires_grad_ retain_grad"
    " select size split squeeze storage_offset stride swapaxes t transpose unbind unflatten"
    " unsqueeze view view_as zeros_like".split()
)
# What hands out an address, which may be used at any time.
_ADDRESS = frozenset(
    "__array__ __dlpack__ _typed_storage data_ptr numpy share_memory_ storage"
    " untyped_storage".split()
)
# What gives a parameter another storage.
_REPLACES = frozenset("__set__ resize_ resize_as_ set_".split())
_EMPTY = "_sluice_has_no_values"  # of a parameter
# transformers reads all tensors of a folder ahead, with threads, unless this is set.
_NO_READING_AHEAD = "HF_DEACTIVATE_ASYNC_LOAD"


class _Materializing(TorchFunctionMode):
    """Values are in memory when a function of torch gets them. Its random numbers, and all that it
    does, are the plain ones."""

    def __init__(self, use: Use, adopt: Any = None):
        super().__init__()
        self._use = use
        self._adopt = adopt
        self._spills: dict[int, Spill] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name not in _FORM:
            tensors = list(tensors_in((args, kwargs)))
            for spill in touch(tensors, Use.ADDRESS if name in _ADDRESS else self._use):
                self._spills[id(spill)] = spill
        result = func(*args, **kwargs)
        if name in _REPLACES and self._adopt is not None and isinstance(args[0], nn.Parameter):
            self._adopt(args[0])
        return result

    def flush(self) -> None:
        for spill in self._spills.values():
            spill.flush()
        self._spills.clear()


@contextmanager
def materialized(tensors: Iterable[torch.Tensor], changes: bool = False) -> Iterator[None]:
    """Within it these can be used, where sluice.init() has them: they go back behind it."""
    if not any(is_spilled(it) for it in tensors):
        yield
        return
    with _Materializing(Use.CHANGE if changes else Use.READ) as mode:
        yield
    mode.flush()


def flush(root: nn.Module) -> None:
    """What sluice.init() has in memory goes to the drives: an engine needs the room. Buffers that
    are views of parameters get values of their own."""
    for module in root.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and is_spilled(buffer):
                with materialized([buffer]):
                    module._buffers[name] = buffer.clone()
    flush_spills_of(list(root.parameters()))


class DeferredInit:
    """Made by :func:`init`."""

    def __init__(self, config: Any, overrides: Any, cache_gib: float | None, values: bool):
        self._config = config
        self._values = values
        self._overrides = overrides
        self._cache_bytes = None if cache_gib is None else int(cache_gib * 2**30)
        self._stack: ExitStack | None = None
        self._spill: Spill | None = None
        self._mode: _Materializing | None = None

    @property
    def stats(self) -> dict[str, int]:
        """Bytes, of what was made: in all, in memory now and at most, written and read."""
        return {} if self._spill is None else self._spill.stats

    def __enter__(self) -> DeferredInit:
        if self._stack is not None:
            raise RefusedError("this sluice.init() is entered twice: make another one")
        if not self._values:
            self._stack = ExitStack()
            self._stack.callback(_drop_values())
            return self
        launch = ranks.of_launcher()
        self._spill = Spill.create(
            read_config(self._config, self._overrides, world=launch.world),
            self._cache_bytes,
            launch.local_world,
        )
        if self._spill is None:
            _log.info(
                "sluice.init(): the configuration names no folder on NVMe (nvme_path), so"
                " parameters are made in memory"
            )
            return self
        _forks.note_use()
        with ExitStack() as stack:
            stack.callback(self._watch_parameters(self._spill))
            stack.enter_context(_environment(_NO_READING_AHEAD, "1"))
            self._mode = stack.enter_context(_Materializing(Use.CHANGE, self._spill.adopt))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._stack is None:
            return
        self._stack.close()
        self._stack = None
        if kind is not None or self._spill is None or self._mode is None:
            return
        self._mode.flush()
        self._spill.flush()
        stats = self._spill.stats
        _log.info(
            "sluice.init(): %d parameters, %.2f GiB, at most %.2f GiB of them in memory",
            stats["values"],
            stats["value_bytes"] / 2**30,
            stats["most_resident_bytes"] / 2**30,
        )

    @staticmethod
    def _watch_parameters(spill: Spill) -> Any:
        """Parameters that this thread makes are the spill's. What ends that."""
        thread = threading.get_ident()
        plain = nn.Parameter.__dict__["__new__"]

        def adopt(parameter: Any) -> None:
            if threading.get_ident() != thread or not parameter.is_floating_point():
                return
            if parameter.is_cuda and torch.get_default_device().type == "cuda":
                parameter.data = parameter.data.cpu()  # torch.device("cuda") around it
            spill.adopt(parameter)

        def make(cls: type, *args: Any, **kwargs: Any) -> Any:
            parameter = plain.__get__(None, cls)(cls, *args, **kwargs)
            if isinstance(parameter, torch.Tensor):
                adopt(parameter)
            return parameter

        def on_registration(_module: nn.Module, _name: str, parameter: Any) -> None:
            if isinstance(parameter, torch.Tensor) and not isinstance(
                parameter, nn.parameter.UninitializedParameter
            ):
                adopt(parameter)

        hook = modules.register_module_parameter_registration_hook(on_registration)
        setattr(nn.Parameter, "__new__", staticmethod(make))

        def end() -> None:
            setattr(nn.Parameter, "__new__", plain)
            hook.remove()

        return end


def _drop_values() -> Any:
    """Parameters that this thread makes have a form alone. What ends that."""
    thread = threading.get_ident()

    def on_registration(_module: nn.Module, _name: str, parameter: Any) -> Any:
        if threading.get_ident() != thread or not isinstance(parameter, torch.Tensor):
            return None
        if getattr(parameter, _EMPTY, False):  # tied
            return None
        form = nn.Parameter(
            torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad
        )
        setattr(form, _EMPTY, True)
        return form

    return modules.register_module_parameter_registration_hook(on_registration).remove


def fill_meta(root: nn.Module) -> bool:
    """Parameters that were made without values become zeros, which have no memory. Whether there
    are such."""
    made: dict[int, nn.Parameter] = {}
    found = False
    for module in root.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or not getattr(parameter, _EMPTY, False):
                continue
            found = True
            if parameter.is_meta:
                if id(parameter) not in made:
                    zeros = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
                    made[id(parameter)] = nn.Parameter(zeros, parameter.requires_grad)
                    setattr(made[id(parameter)], _EMPTY, True)  # also for another engine
                module._parameters[name] = made[id(parameter)]
    return found


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def init(
    config: Mapping[str, Any] | str | os.PathLike[str],
    *,
    overrides: Mapping[str, Any] | None = None,
    cache_gib: float | None = None,
    values: bool = True,
) -> DeferredInit:
    """Within it modules are made, or read from folders, whose parameters need not fit into memory::

        with sluice.init("run.json"):
            model = AutoModelForCausalLM.from_pretrained(folder)
        engine = sluice.initialize(model, "run.json")

    Parameters that were not used last are on the configuration's NVMe folders, in files without a
    name, which go with the process. Any function of torch finds their values as always, so they are
    made of the same random numbers as without it, and are the same. Behind it a parameter has its
    shape and type, and using its values raises an error, until the module has an engine, which
    takes them over part by part; another ``with sluice.init(config)`` finds them, too. Buffers are
    where they always are. With a GPU as the default device, parameters go to the CPU as they are
    created, and what initialises them there draws the CPU's random numbers. A configuration without
    NVMe folders changes nothing.

    Args:
        config: that of :func:`initialize`.
        overrides: likewise.
        cache_gib: of values in memory, at most, beside what one function of torch needs; else half
            of what ``budget.cpu_gib`` leaves beside the program, or a quarter of what the machine
            has free.
        values: False makes parameters of the device meta, without values, for an engine whose next
            call is ``load_checkpoint()`` or ``load_weights()``.

    Raises:
        Error: a drive is full, or fails; the sentence says where.
        RefusedError: the addresses of more values than that are asked for (``numpy()``,
            ``data_ptr()``).
    """
    return DeferredInit(config, overrides, cache_gib, values)
