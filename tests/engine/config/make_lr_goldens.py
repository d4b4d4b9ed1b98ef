#!/usr/bin/env python3
"""Writes data/lr_schedules.json: learning rates and betas as DeepSpeed's own code computes them.

    make_lr_goldens.py DEEPSPEED > data/lr_schedules.json

DEEPSPEED is a checkout of DeepSpeed, or the folder of the installed package's parent. Its
deepspeed/runtime/lr_schedules.py is run as it is, with small stand-ins for what it imports, so that
neither PyTorch nor the rest of DeepSpeed is needed. Entry i of a list is what the optimizer has when
it applies update i.
"""

import json
import logging
import sys
import types
from pathlib import Path

STEPS = 64
LEARNING_RATE = 0.0025

CASES = [
    ("WarmupLR", {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 10}),
    ("WarmupLR", {"warmup_min_lr": 0.0001, "warmup_max_lr": 0.003, "warmup_num_steps": 17,
                  "warmup_type": "linear"}),
    ("WarmupLR", {"warmup_num_steps": 1}),
    ("WarmupLR", {}),
    ("WarmupDecayLR", {"total_num_steps": 50, "warmup_num_steps": 10}),
    ("WarmupDecayLR", {"total_num_steps": 40, "warmup_min_lr": 0.0002, "warmup_max_lr": 0.002,
                       "warmup_num_steps": 7, "warmup_type": "linear"}),
    ("WarmupDecayLR", {"total_num_steps": 5, "warmup_num_steps": 9}),
    ("WarmupCosineLR", {"total_num_steps": 50, "warmup_num_steps": 10}),
    ("WarmupCosineLR", {"total_num_steps": 41, "warmup_num_steps": 6, "warmup_min_ratio": 0.1,
                        "cos_min_ratio": 0.05, "warmup_type": "linear"}),
    ("WarmupCosineLR", {"total_num_steps": 4, "warmup_num_steps": 9}),
    ("OneCycle", {"cycle_min_lr": 0.0001, "cycle_max_lr": 0.001, "cycle_first_step_size": 20}),
    ("OneCycle", {"cycle_min_lr": 0.0001, "cycle_max_lr": 0.001, "cycle_first_step_size": 7,
                  "cycle_second_step_size": 22, "decay_lr_rate": 0.3, "decay_step_size": 5,
                  "decay_mom_rate": 0.01, "cycle_min_mom": 0.85, "cycle_max_mom": 0.95}),
    ("OneCycle", {"cycle_min_lr": 0.0001, "cycle_max_lr": 0.001, "cycle_first_step_size": 12,
                  "cycle_second_step_size": 21, "cycle_first_stair_count": 4,
                  "cycle_second_stair_count": 3}),
    ("OneCycle", {"cycle_min_lr": 0.0002, "cycle_max_lr": 0.002, "cycle_first_step_size": 15,
                  "cycle_second_step_size": 0, "cycle_momentum": False, "decay_lr_rate": 0.5,
                  "decay_step_size": 10}),
    ("LRRangeTest", {"lr_range_test_min_lr": 0.0001, "lr_range_test_step_size": 9,
                     "lr_range_test_step_rate": 5.0}),
    ("LRRangeTest", {"lr_range_test_min_lr": 0.0003, "lr_range_test_step_size": 8,
                     "lr_range_test_step_rate": 2.5, "lr_range_test_staircase": True}),
    ("LRRangeTest", {}),
]


class Optimizer:
    """As much of torch.optim.Optimizer as a schedule sees."""

    def __init__(self):
        self.defaults = {"betas": (0.9, 0.999)}
        self.param_groups = [{"lr": LEARNING_RATE, "betas": (0.9, 0.999)}]


def load_schedules(deepspeed):
    path = Path(deepspeed) / "deepspeed" / "runtime" / "lr_schedules.py"
    for name, members in {
            "torch": {"is_tensor": lambda value: False},
            "torch.optim": {"Optimizer": Optimizer},
            "deepspeed": {},
            "deepspeed.utils": {"logger": logging.getLogger("deepspeed")},
    }.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(members)
    module = types.ModuleType("lr_schedules")
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(module))
    return module


def values_of(schedules, name, params):
    optimizer = Optimizer()
    scheduler = getattr(schedules, name)(optimizer, **params)
    group = optimizer.param_groups[0]
    rates, betas = [], []
    for _ in range(STEPS):
        rates.append(group["lr"])
        betas.append(list(group["betas"]))
        scheduler.step()
    return {"type": name, "params": params, "lr": rates, "betas": betas}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    logging.getLogger("deepspeed").setLevel(logging.ERROR)
    schedules = load_schedules(sys.argv[1])
    goldens = {"optimizer_lr": LEARNING_RATE,
               "cases": [values_of(schedules, name, params) for name, params in CASES]}
    lines = [json.dumps(case) for case in goldens["cases"]]
    print('{"optimizer_lr": %r,\n "cases": [\n  %s\n ]}' % (LEARNING_RATE, ",\n  ".join(lines)))


if __name__ == "__main__":
    main()
