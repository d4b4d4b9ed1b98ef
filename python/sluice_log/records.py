"""Record: a line of metrics.jsonl under conventional names."""

import json
import math
import re
from dataclasses import dataclass, field

# Keys of metrics.jsonl (sluice metrics --keys), in the order of columns in tables.
NAMES = {
    "loss": "train/loss",
    "val_loss": "validation/loss",
    "lr": "train/learning_rate",
    "grad_norm": "train/grad_norm",
    "loss_scale": "train/loss_scale",
    "balance_loss": "train/balance_loss",
    "skipped": "train/skipped",
    "busiest_expert": "experts/busiest",
    "idle_experts": "experts/idle",
    "tokens_per_s": "speed/tokens_per_second",
    "tflops_per_s": "speed/tflops_per_second",
    "step_ms": "time/step_ms",
    "forward_ms": "time/forward_ms",
    "backward_ms": "time/backward_ms",
    "update_ms": "time/update_ms",
    "update_exposed_ms": "time/update_exposed_ms",
    "recompute_ms": "time/recompute_ms",
    "await_params_ms": "time/await_params_ms",
    "await_inputs_ms": "time/await_inputs_ms",
    "gpu_utilization_percent": "gpu/utilization_percent",
    "gpu_power_watts": "gpu/power_watts",
    "gpu_throttled_percent": "gpu/throttled_percent",
    "gpu_peak_bytes": "memory/gpu_bytes",
    "host_pinned_bytes": "memory/host_pinned_bytes",
    "host_rss_bytes": "memory/host_resident_bytes",
    "nvme_read_bytes": "traffic/nvme_read_bytes",
    "nvme_write_bytes": "traffic/nvme_write_bytes",
    "h2d_bytes": "traffic/host_to_gpu_bytes",
    "d2h_bytes": "traffic/gpu_to_host_bytes",
}
# Lists by layer, and the one number that stands for all.
OF_LAYERS = {"busiest_expert": max, "idle_experts": sum}
# Also shown against tokens.
BY_TOKENS = ("train/loss", "validation/loss", "train/learning_rate", "train/grad_norm")
AXES = {"schema", "step", "tokens_seen", "unix_s"}
MOST_STEP = 2**53
MOST_OTHERS = 100  # keys that are not in NAMES
MOST_NAME = 100


@dataclass
class Record:
    step: int
    tokens: int | None = None
    unix_s: float | None = None
    values: dict[str, float] = field(default_factory=dict)  # NaN: was not finite


def plain_name(text):
    """A name that every kind of output accepts."""
    return re.sub(r"[^A-Za-z0-9_.\-/ ]", "_", text)[:MOST_NAME].strip("/ .") or "_"


def plain_text(text):
    """The text without terminal control characters and lone surrogates."""
    text = str(text).encode("utf-8", "replace").decode("utf-8")
    return "".join(c if c.isprintable() else " " for c in text)


def _number(value):
    if value is None:
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def parse(line):
    """The object in a line, or None."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _whole(value):
    """A count, or None if the value is not one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and not value.is_integer():
        return None
    return int(value) if 0 <= value <= MOST_STEP else None


def _is_of_numbers(value):
    return isinstance(value, list) and value != [] and all(type(it) in (int, float) for it in value)


def record_of(found):
    """The record of a parsed line, or None if the line is not a step's."""
    step = _whole(found.get("step"))
    if step is None:
        return None
    unix_s = found.get("unix_s")
    has_time = isinstance(unix_s, (int, float)) and not isinstance(unix_s, bool)
    if has_time and not 0 <= unix_s < 1e12:
        has_time = False
    record = Record(step, _whole(found.get("tokens_seen")), float(unix_s) if has_time else None)
    others = 0
    for key, value in found.items():
        if key in OF_LAYERS and _is_of_numbers(value):
            value = OF_LAYERS[key](map(_number, value))
        if key in AXES or not (value is None or isinstance(value, (int, float))):
            continue
        name = NAMES.get(key)
        if name is None:
            others += 1
            if others > MOST_OTHERS:
                continue
            name = "other/" + plain_name(key)
        record.values[name] = _number(value)
    # A gradient that overflowed has no norm.
    if record.values.get("train/skipped"):
        record.values.pop("train/grad_norm", None)
    return record
