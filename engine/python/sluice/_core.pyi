"""What bindings.cc and tools/python/ make: the engine for this package."""

from collections.abc import Callable, Sequence
from typing import Any

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
    given_run_dir: str
    saves_in_background: bool
    steps_per_print: int
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

class SavedCheckpoint:
    step: int
    path: str
    bytes: int
    stopped_s: float
    took_s: float
    removed: list[str]
    error: str | None

class Run:
    def __init__(
        self,
        config: Config,
        units: Sequence[tuple[str, Sequence[Parameter]]],
        speeds: str = ...,
        unix_s: int = ...,
    ) -> None: ...
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
    predicted_step_s: float | None
    assumptions: list[str]
    def own_directory(self, directory: str) -> None: ...
    def start_trace(self, steps: str) -> int: ...
    def begin_traced_step(self, step: int, now_ns: int) -> None: ...
    def add_span(self, phase: int, begin_ns: int, end_ns: int) -> None: ...
    def save(
        self,
        directory: str,
        client: str,
        background: bool = ...,
        loss: float | None = ...,
    ) -> str: ...
    def wait_for_saves(self) -> None: ...
    def finished_saves(self) -> list[SavedCheckpoint]: ...
    def load(self, path: str, accept: Callable[[str], None]) -> str: ...
    def save_weights(self, path: str, dtype: str) -> None: ...

class ConfigOptions:
    def __init__(
        self, file: str, text: str, deepspeed: str, overrides: Sequence[str]
    ) -> None: ...

class PlanTexts:
    fits: bool
    text: str
    json: str
    reason: str
    warnings: list[str]
    assumptions: list[str]

class ProbeTexts:
    text: str
    json: str
    warning: str

def plan(
    config: ConfigOptions, machine: dict[str, float], gpus: int, hosts: int, refresh: bool
) -> PlanTexts: ...
def plan_module(
    config: Config, units: Sequence[tuple[str, Sequence[Parameter]]], refresh: bool
) -> PlanTexts: ...
def probe(config: ConfigOptions, is_given: bool, refresh: bool) -> ProbeTexts: ...
def speeds_path() -> str: ...
def read_metrics(path: str) -> list[dict[str, Any]]: ...

class Training:
    def __init__(self, config: ConfigOptions, more: dict[str, Any]) -> None: ...
    def next(self) -> dict[str, Any] | None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...
    def said(self) -> str: ...
    def missing(self) -> list[str]: ...
    has_ended: bool
    folder: str
    steps: int
    begun_after: int
    tokens_per_step: int
    predicted_step_s: float | None

class Record:
    def __init__(self, run: Run, config: Config, directory: str) -> None: ...
    def step(
        self,
        outcome: StepOutcome,
        step: int,
        tokens: int,
        begin_ns: int,
        end_ns: int,
        forward_s: float,
        backward_s: float,
        update_s: float,
    ) -> None: ...
    def checkpoint(self, saved: SavedCheckpoint) -> None: ...
    def end(self, how: str, reason: str = ...) -> None: ...
    def write_trace(self) -> None: ...
    last: dict[str, Any]
    def missing(self) -> list[str]: ...

def load_weights(
    path: str, checkpoint: str, dtype: torch.dtype | None
) -> dict[str, torch.Tensor]: ...
def save_weights(
    weights: Sequence[tuple[str, torch.Tensor]], path: str, max_shard_bytes: int
) -> None: ...
def export_checkpoint(
    from_: str,
    to: str,
    checkpoint: str,
    dtype: str,
    max_shard_bytes: int,
    tokenizer: str,
    merged: bool,
    base: str,
) -> str: ...
def is_of_a_run(path: str) -> bool: ...
