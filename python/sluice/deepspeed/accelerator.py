"""``deepspeed.accelerator``: the GPU or CPU, with DeepSpeed's interface."""

from __future__ import annotations

import logging
from typing import Any

import torch

from .. import ranks

_log = logging.getLogger("sluice")


class Accelerator:
    """CUDA if there is a GPU, otherwise the CPU. Other attributes are those of torch.cuda or
    torch.cpu: ``empty_cache``, ``memory_allocated``, ``Stream``, ..."""

    def __init__(self) -> None:
        self._name = "cuda" if torch.cuda.is_available() else "cpu"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # may be read before __init__(), for example by copy
            raise AttributeError(name)
        found = getattr(getattr(torch, self._name), name, None)
        if found is None:
            if self._name == "cpu" and hasattr(torch.cuda, name):
                return lambda *_, **__: 0  # the CPU has no such memory or streams
            raise AttributeError(f"sluice.deepspeed's accelerator ({self._name}) has no {name!r}")
        return found

    def device_name(self, device_index: int | None = None) -> str:
        return self._name if device_index is None else f"{self._name}:{device_index}"

    def device(self, device_index: int | None = None) -> Any:
        return torch.cuda.device(device_index) if self._name == "cuda" else torch.device("cpu")

    def current_device(self) -> int:
        return torch.cuda.current_device() if self._name == "cuda" else 0

    def current_device_name(self) -> str:
        return f"cuda:{self.current_device()}" if self._name == "cuda" else "cpu"

    def set_device(self, device_index: int) -> None:
        if self._name == "cuda":
            torch.cuda.set_device(device_index)

    def device_count(self) -> int:
        return (
            torch.cuda.device_count() if self._name == "cuda" else ranks.of_launcher().local_world
        )

    def is_available(self) -> bool:
        return True

    def is_synchronized_device(self) -> bool:
        return self._name == "cpu"

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def initial_seed(self) -> int:
        return torch.initial_seed()

    def total_memory(self, device_index: int | None = None) -> int:
        if self._name == "cuda":
            return torch.cuda.get_device_properties(device_index).total_memory
        import psutil

        return psutil.virtual_memory().total

    def is_bf16_supported(self) -> bool:
        return self._name == "cpu" or torch.cuda.is_bf16_supported()

    def is_fp16_supported(self) -> bool:
        return True

    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.float32, torch.float16, torch.bfloat16]

    def communication_backend_name(self) -> str:
        return "nccl" if self._name == "cuda" else "gloo"

    def pin_memory(self, tensor: torch.Tensor, align_bytes: int = 1) -> torch.Tensor:
        if self._name != "cuda":
            return tensor
        try:
            return tensor.pin_memory()
        except RuntimeError as error:  # as on WSL2; pageable memory has the same numbers
            _log.warning("host memory stays pageable, which makes copies slower: %s", error)
            return tensor

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self._name


_accelerator: Accelerator | None = None


def get_accelerator() -> Accelerator:
    global _accelerator
    if _accelerator is None:
        _accelerator = Accelerator()
    return _accelerator
