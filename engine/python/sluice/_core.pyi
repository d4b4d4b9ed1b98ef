"""What bindings.cc makes: the engine for this package."""

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch

torch_version: str
version: str

class Error(RuntimeError): ...
class RefusedError(Error): ...
class NonFiniteGradientError(Error): ...

class Config:
    def __init__(self, text: str, of_deepspeed: bool, overrides: Sequence[str] = ...) -> None: ...
    ignored: list[tuple[str, str]]
    precision: str
    accumulation: int
    micro_batch: int
    run_dir: str
    def json(self) -> str: ...

class Parameter:
    def __init__(self, name: str, shape: Sequence[int], trained: bool) -> None: ...

class StepOutcome:
    loss: float
    grad_norm: float
    learning_rate: float
    loss_scale: float
    skipped: bool
    warning: str

class Family:
    def __init__(self, config: str) -> None: ...
    units: list[tuple[str, list[tuple[str, list[int]]]]]
    name: str
    dropout: float
    context: int
    vocab: int
    def logits(
        self, values: Sequence[Sequence[torch.Tensor]], tokens: torch.Tensor
    ) -> torch.Tensor: ...

class Run:
    @overload
    def __init__(
        self, config: Config, units: Sequence[tuple[str, Sequence[Parameter]]]
    ) -> None: ...
    @overload
    def __init__(self, config: Config, family: Family, cache_path: str) -> None: ...
    def initialise(self, values: Callable[[int], list[torch.Tensor]]) -> None: ...
    def views(self, unit: int) -> list[torch.Tensor]: ...
    def acquire(self, unit: int) -> None: ...
    def release(self, unit: int) -> None: ...
    def prefetch(self, unit: int) -> None: ...
    def expect(self, passes: Sequence[int], trains: bool) -> None: ...
    most_acquired: int
    def begin_backward(self) -> None: ...
    def add(
        self, unit: int, gradients: Sequence[torch.Tensor | None], is_last: bool
    ) -> None: ...
    def end_micro_batch(self) -> None: ...
    def abandon_step(self) -> None: ...
    micro_batches: int
    micro_batch: int
    is_complete: bool
    loss_scale: float
    learning_rate: float
    global_step: int
    applied_step: int
    on_gpu: bool
    memory: dict[str, Any]
    notes: list[str]
    nvme_reads: int
    def step(self, losses: Sequence[float]) -> StepOutcome: ...
    def drain(self) -> None: ...
    def save(self, directory: str, client: str) -> str: ...
    def load(self, path: str, accept: Callable[[str], None]) -> str: ...
    def save_weights(self, path: str, dtype: str) -> None: ...

class MicroBatchPass:
    loss: torch.Tensor

class FamilyPass:
    def __init__(self, run: Run, family: Family, padding_row: int) -> None: ...
    def forward(
        self,
        tokens: torch.Tensor,
        targets: torch.Tensor,
        divisor: float,
        documents: tuple[torch.Tensor, torch.Tensor, int] | None,
        has_backward: bool,
        drops: bool,
        keeps: bool,
    ) -> MicroBatchPass: ...
    def backward(self, micro_batch: MicroBatchPass, scale: float) -> None: ...
    def logits(self, micro_batch: MicroBatchPass) -> torch.Tensor: ...
