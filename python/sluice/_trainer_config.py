"""Completes a configuration from TrainingArguments, as Hugging Face does for DeepSpeed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ._core import RefusedError
from .deepspeed import read_config

_TRUTH = {"true": True, "false": False}


class TrainerConfig:
    """The keys of a DeepSpeed JSON or a run file that may contain "auto".

    "auto" is replaced by the value from the arguments. Any other value must equal the argument's.
    Keys that the file does not mention also come from the arguments: batch sizes, clipping, 16
    bits.
    """

    def __init__(self, source: Mapping[str, Any] | str | os.PathLike[str]):
        self.keys = read_config(source)
        self._mismatches: list[str] = []

    def has(self, section: str) -> bool:
        """Whether the section exists and is not empty."""
        return bool(self.keys.get(section))

    def value(self, path: str) -> Any:
        """The value at a path, or None."""
        section, key = self._find(path)
        value = None if section is None else section.get(key)
        return _TRUTH.get(value.lower(), value) if isinstance(value, str) else value

    def _find(self, path: str) -> tuple[dict[str, Any] | None, str]:
        *sections, key = path.split(".")
        section: Any = self.keys
        for name in sections:
            section = section.get(name)
            if not isinstance(section, dict):
                return None, key
        return section, key

    def fill(self, path: str, wanted: Any, argument: str | None) -> None:
        """Fills in a value. `argument`: the one that sets it. None: a value in the file takes
        precedence, unless it is "auto"."""
        section, key = self._find(path)
        if section is None or section.get(key) is None:
            return
        found = self.value(path)
        if found == "auto":
            section[key] = wanted
        elif argument is not None and found != wanted:
            self._mismatches.append(
                f"{path} is {found} in the configuration, but {argument} is {wanted}"
            )

    def complete(self, args: Any, max_steps: int, model: Any) -> dict[str, Any]:
        """Returns the completed keys for a training of `max_steps` steps.

        Raises:
            RefusedError: values do not match; the message lists all of them.
        """
        self._batch(args)
        self._optimizer(args)
        self._precision(args)
        self._schedule(args, max_steps)
        self.sizes(model)
        if self._mismatches:
            raise RefusedError(
                "the configuration and TrainingArguments do not match. Make them equal, or write"
                ' "auto" into the configuration:\n- ' + "\n- ".join(self._mismatches)
            )
        return self.keys

    def _batch(self, args: Any) -> None:
        micro, accumulation = args.per_device_train_batch_size, args.gradient_accumulation_steps
        self.keys.setdefault("train_micro_batch_size_per_gpu", micro)
        self.keys.setdefault("gradient_accumulation_steps", accumulation)
        self.keys.setdefault("gradient_clipping", args.max_grad_norm)
        self.fill("train_micro_batch_size_per_gpu", micro, "per_device_train_batch_size")
        self.fill("gradient_accumulation_steps", accumulation, "gradient_accumulation_steps")
        product = "per_device_train_batch_size x gradient_accumulation_steps"
        if args.world_size > 1:
            product += f" x {args.world_size} ranks"
        self.fill("train_batch_size", micro * accumulation * args.world_size, product)
        self.fill("gradient_clipping", args.max_grad_norm, "max_grad_norm")

    def _optimizer(self, args: Any) -> None:
        betas = [args.adam_beta1, args.adam_beta2]
        self.fill("optimizer.params.lr", args.learning_rate, "learning_rate")
        self.fill("optimizer.params.betas", betas, "[adam_beta1, adam_beta2]")
        self.fill("optimizer.params.eps", args.adam_epsilon, "adam_epsilon")
        self.fill("optimizer.params.weight_decay", args.weight_decay, "weight_decay")

    def _precision(self, args: Any) -> None:
        for kind, wanted in (("fp16", args.fp16), ("bf16", args.bf16)):
            section = self.keys.get(kind)
            if section is None and wanted:
                self.keys[kind] = {"enabled": True}
            elif isinstance(section, dict) and section and "enabled" not in section:
                section["enabled"] = wanted
            self.fill(f"{kind}.enabled", wanted, kind)

    def _schedule(self, args: Any, max_steps: int) -> None:
        self.fill("scheduler.params.warmup_min_lr", 0, None)
        self.fill("scheduler.params.warmup_max_lr", args.learning_rate, "learning_rate")
        warmup = args.get_warmup_steps(max_steps)
        if str(self.value("scheduler.type")).startswith("Warmup"):
            warmup = max(1, warmup)  # DeepSpeed's schedules need at least 1
        for name in ("total_num_steps", "num_training_steps"):
            self.fill(f"scheduler.params.{name}", max_steps, "the number of steps")
        for name in ("warmup_num_steps", "num_warmup_steps"):
            self.fill(f"scheduler.params.{name}", warmup, "warmup_steps")

    def sizes(self, model: Any) -> None:
        """Sets buffer sizes as Hugging Face does, or leaves the engine's defaults if the model has
        no hidden size."""
        config = getattr(model, "config", None)
        config = getattr(config, "text_config", None) or config
        width = getattr(config, "hidden_size", None)
        if width is None:
            width = max(getattr(config, "hidden_sizes", None) or [0])
        if width == 0:
            return
        zero = "zero_optimization"
        self.fill(f"{zero}.reduce_bucket_size", width * width, None)
        self.fill(f"{zero}.stage3_prefetch_bucket_size", int(0.9 * width * width), None)
        self.fill(f"{zero}.stage3_param_persistence_threshold", 10 * width, None)
