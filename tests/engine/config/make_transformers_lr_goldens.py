#!/usr/bin/env python3
"""Writes data/transformers_lr_schedules.json: learning rates as transformers' own schedules have
them.

    make_transformers_lr_goldens.py > data/transformers_lr_schedules.json

With a Python that has torch and transformers (tools/reference_packages.py: PYTHONPATH). Entry i of a
list is what the optimizer has when it applies update i; `lr` is of a group with the optimizer's rate,
`own_lr` of one with a rate of its own.
"""

import json
import sys

import torch
import transformers

STEPS = 64
LEARNING_RATE, OWN_RATE = 0.0025, 0.0007

# Type, steps of warm-up and in all, and what get_scheduler() calls scheduler_specific_kwargs.
CASES = [
    ("constant", 0, 50, {}),
    ("constant_with_warmup", 10, 50, {}),
    ("linear", 10, 50, {}),
    ("linear", 0, 50, {}),
    ("linear", 1, 41, {}),
    ("cosine", 10, 50, {}),
    ("cosine", 0, 37, {}),
    ("cosine", 3, 41, {"num_cycles": 1.75}),
    ("cosine_with_restarts", 6, 50, {}),
    ("cosine_with_restarts", 6, 50, {"num_cycles": 3}),
    ("cosine_with_min_lr", 7, 50, {"min_lr_rate": 0.1}),
    ("cosine_with_min_lr", 7, 50, {"min_lr": 0.0003}),
    ("cosine_with_min_lr", 0, 33, {"min_lr": 0.0003, "num_cycles": 0.25}),
    ("polynomial", 5, 50, {}),
    ("polynomial", 5, 44, {"lr_end": 0.0001, "power": 2.5}),
    ("inverse_sqrt", 9, 50, {}),
    ("inverse_sqrt", 0, 50, {}),
    ("inverse_sqrt", 9, 50, {"timescale": 4}),
    ("warmup_stable_decay", 10, 50, {"num_decay_steps": 12}),
    ("warmup_stable_decay", 10, 50, {"num_decay_steps": 12, "decay_type": "linear"}),
    ("warmup_stable_decay", 10, 50, {"num_decay_steps": 12, "decay_type": "1-sqrt",
                                     "min_lr_ratio": 0.05}),
    ("warmup_stable_decay", 10, 50, {"num_decay_steps": 30, "warmup_type": "cosine",
                                     "min_lr_ratio": 0.1, "num_cycles": 0.4}),
    ("warmup_stable_decay", 8, 50, {"num_decay_steps": 11, "num_stable_steps": 21,
                                    "warmup_type": "1-sqrt", "decay_type": "linear",
                                    "min_lr_ratio": 0.1}),
    ("warmup_stable_decay", 0, 50, {"num_decay_steps": 50, "decay_type": "1-sqrt"}),
]


def values_of(name, warmup, total, params):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))]},
              {"params": [torch.nn.Parameter(torch.zeros(1))], "lr": OWN_RATE}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE)
    scheduler = transformers.get_scheduler(name, optimizer, num_warmup_steps=warmup,
                                           num_training_steps=total,
                                           scheduler_specific_kwargs=dict(params))
    rates = [[], []]
    # Beyond its end transformers' cosine rises again, and no run goes there.
    for _ in range(total + 1 if "cosine" in name else STEPS):
        for group, of_group in zip(optimizer.param_groups, rates):
            of_group.append(float(group["lr"]))
        optimizer.step()
        scheduler.step()
    return {"type": name, "warmup": warmup, "total": total, "params": params, "lr": rates[0],
            "own_lr": rates[1]}


def main():
    if len(sys.argv) != 1:
        sys.exit(__doc__)
    lines = [json.dumps(values_of(*case)) for case in CASES]
    print('{"optimizer_lr": %r, "own_lr": %r,\n "transformers": "%s",\n "cases": [\n  %s\n ]}' %
          (LEARNING_RATE, OWN_RATE, transformers.__version__, ",\n  ".join(lines)))


if __name__ == "__main__":
    main()
