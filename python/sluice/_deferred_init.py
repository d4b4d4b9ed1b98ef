"""``sluice.init``: creates or loads modules that are larger than memory."""

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

# Functions that read a tensor's form, make a view of it or make another tensor of the same form.
# They need no values. The same holds for attributes and their setters.
_FORM = frozenset(
    "__get__ __set__ __delete__ __hash__ __len__ _is_view chunk detach detach_ dim element_size"
    " empty_like expand expand_as full_like get_device has_names is_complex is_contiguous"
    " is_floating_point is_inference is_same_size is_signed narrow ndimension nelement"
    " new_empty new_full new_ones new_zeros numel ones_like permute rand_like randint_like"
    " randn_like register_hook register_post_accumulate_grad_hook requires_grad_ retain_grad"
    " select size split squeeze storage_offset stride swapaxes t transpose unbind unflatten"
    " unsqueeze view view_as zeros_like".split()
)
# Functions that return an address, which may be used at any time.
_ADDRESS = frozenset(
    "__array__ __dlpack__ _typed_storage data_ptr numpy share_memory_ storage"
    " untyped_storage".split()
)
# Functions that give a parameter another storage.
_REPLACES = frozenset("__set__ resize_ resize_as_ set_".split())
_EMPTY = "_sluice_has_no_values"  # set on a parameter
# transformers reads all tensors of a folder ahead in threads, unless this is set.
_NO_READING_AHEAD = "HF_DEACTIVATE_ASYNC_LOAD"


class _Materializing(TorchFunctionMode):
    """Brings values into memory before a function of torch uses them. The functions, and the random
    numbers they draw, are unchanged."""

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
    """Makes these tensors usable within the context where sluice.init() has spilled them, and
    spills them again afterwards."""
    if not any(is_spilled(tensor) for tensor in tensors):
        yield
        return
    with _Materializing(Use.CHANGE if changes else Use.READ) as mode:
        yield
    mode.flush()


def flush(root: nn.Module) -> None:
    """Writes the values that sluice.init() has in memory to the drives: an engine needs the room.
    Buffers that are views of parameters get values of their own."""
    for module in root.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and is_spilled(buffer):
                with materialized([buffer]):
                    module._buffers[name] = buffer.clone()
    flush_spills_of(list(root.parameters()))


class DeferredInit:
    """The context that :func:`init` returns."""

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
        """Byte counts of the parameters: total, in memory now, peak in memory, written and read."""
        return {} if self._spill is None else self._spill.stats

    def __enter__(self) -> DeferredInit:
        if self._stack is not None:
            raise RefusedError(
                "this sluice.init() was already entered: call sluice.init() again for each `with`"
            )
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
                "sluice.init(): the configuration names no NVMe folder (nvme_path), so parameters"
                " are created in memory"
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
        """Has the spill adopt the parameters that this thread creates. Returns the function that
        ends this."""
        thread = threading.get_ident()
        plain = nn.Parameter.__dict__["__new__"]

        def adopt(parameter: Any) -> None:
            if threading.get_ident() != thread or not parameter.is_floating_point():
                return
            if parameter.is_cuda and torch.get_default_device().type == "cuda":
                parameter.data = parameter.data.cpu()  # created under torch.device("cuda")
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
    """Drops the values of parameters that this thread creates. Returns the function that ends
    this."""
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
    """Turns parameters without values into zeros that take no memory. Returns whether there were
    any."""
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
                    setattr(made[id(parameter)], _EMPTY, True)  # for another engine as well
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
    """Within this context, modules may be created or loaded whose parameters do not fit into
    memory::

        with sluice.init("run.json"):
            model = AutoModelForCausalLM.from_pretrained(folder)
        engine = sluice.initialize(model, "run.json")

    Parameters that were not used recently are on the configuration's NVMe folders, in unnamed files
    that vanish with the process. Every function of torch gets its values as usual. Parameters are
    therefore initialized with the same random numbers, and get the same values, as without this
    context.

    After the context a parameter has its shape and dtype, but using its values raises an error. An
    engine for the module takes the values over piece by piece. Another ``with sluice.init(config)``
    makes them usable, too.

    Buffers are where they would be without this context. If the default device is a GPU, parameters
    move to the CPU as they are created, and their initialization draws the CPU's random numbers.
    Without NVMe folders in the configuration, the context changes nothing.

    Args:
        config: as for :func:`initialize`.
        overrides: as for :func:`initialize`.
        cache_gib: the most values to keep in memory, in addition to what a single function of torch
            needs. The default is half of what ``budget.cpu_gib`` leaves next to the program, or a
            quarter of the machine's free memory.
        values: False makes parameters on the meta device, without values, for an engine whose next
            call is ``load_checkpoint()`` or ``load_weights()``.

    Raises:
        Error: a drive is full or fails; the message names it.
        RefusedError: more values than that would have to stay in memory, because their addresses
            were requested (``numpy()``, ``data_ptr()``).
    """
    return DeferredInit(config, overrides, cache_gib, values)
