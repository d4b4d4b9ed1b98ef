"""The native module that python/native/ builds."""

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch

torch_version: str
version: str

class Error(RuntimeError): ...
class RefusedError(Error): ...
class NonFiniteGradientError(Error): ...

def strict_config(name: str, text: bytes) -> str: ...

class Config:
    def __init__(
        self, text: str, of_deepspeed: bool, overrides: Sequence[str] = ..., world: int = ...
    ) -> None: ...
    ignored: list[tuple[str, str]]
    warnings: list[str]
    precision: str
    uses_gpu: bool
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

class RankContext:
    rank: int
    world: int
    local_rank: int
    local_world: int

def read_launch(environment: dict[str, str]) -> RankContext: ...
def leave_exit_handlers_to_parent() -> None: ...
def free_ram_bytes() -> int | None: ...
def check_trace(steps: str) -> None: ...

class Ranks:
    def __init__(self, environment: dict[str, str]) -> None: ...
    rank: int
    world: int
    local_rank: int
    local_world: int
    def abort(self, reason: str) -> None: ...
    def failure(self) -> str: ...
    def all_gather(self, text: str) -> list[str]: ...
    def broadcast(self, values: torch.Tensor) -> None: ...

def has_fast_products(precision: str) -> bool: ...

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

class ValuesHash:
    def __init__(self) -> None: ...
    def add(self, values: torch.Tensor) -> None: ...
    @property
    def value(self) -> str: ...

class SavedCheckpoint:
    step: int
    path: str
    bytes: int
    stopped_s: float
    took_s: float
    removed: list[str]
    error: str | None

class Run:
    @overload
    def __init__(
        self,
        config: Config,
        units: Sequence[tuple[str, Sequence[Parameter]]],
        ranks: Ranks,
        speeds: str = ...,
        unix_s: int = ...,
        checkpointed: float = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        config: Config,
        family: Family,
        ranks: Ranks,
        cache_path: str,
        checkpointed: float = ...,
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
    def fail(self, reason: str) -> None: ...
    micro_batches: int
    micro_batch: int
    is_complete: bool
    loss_scale: float
    learning_rate: float
    global_step: int
    applied_step: int
    on_gpu: bool
    keeping_costs: bool
    def expect_several_passes(self) -> None: ...
    can_have_several_passes: bool
    has_several_passes: bool
    memory: dict[str, Any]
    notes: list[str]
    nvme_reads: int
    def step(self, losses: Sequence[float]) -> StepOutcome: ...
    def drain(self) -> None: ...
    def change(
        self, changes: Sequence[tuple[int, int, torch.Tensor, torch.Tensor]]
    ) -> None: ...
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
        within_step: bool = ...,
    ) -> str: ...
    def wait_for_saves(self) -> None: ...
    def finished_saves(self) -> list[SavedCheckpoint]: ...
    def remove_checkpoint(self, path: str) -> None: ...
    def load(self, path: str, accept: Callable[[str], None]) -> str: ...
    def save_weights(self, path: str, dtype: str) -> None: ...

class Use:
    READ: Use
    CHANGE: Use
    ADDRESS: Use

class Spill:
    @staticmethod
    def create(
        config: Config, cache_bytes: int | None, local_ranks: int
    ) -> Spill | None: ...
    def adopt(self, tensor: torch.Tensor) -> bool: ...
    def flush(self) -> None: ...
    cache_bytes: int
    stats: dict[str, int]

def is_spilled(tensor: torch.Tensor) -> bool: ...
def touch(tensors: Sequence[torch.Tensor], use: Use) -> list[Spill]: ...
def flush_spills_of(tensors: Sequence[torch.Tensor]) -> None: ...
def values_of(tensor: torch.Tensor) -> torch.Tensor: ...

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
        number: int,
    ) -> MicroBatchPass: ...
    def backward(self, micro_batch: MicroBatchPass, scale: float) -> None: ...
    def logits(self, micro_batch: MicroBatchPass) -> torch.Tensor: ...

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
    config: Config,
    units: Sequence[tuple[str, Sequence[Parameter]]],
    machine: dict[str, float],
    gpus: int,
    hosts: int,
    refresh: bool,
    checkpointed: float,
) -> PlanTexts: ...
def plan_family(
    config: Config,
    family: Family,
    machine: dict[str, float],
    gpus: int,
    hosts: int,
    refresh: bool,
    checkpointed: float,
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
    config: str
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
