#!/usr/bin/env python3
"""Writes data/loss_scales.json: loss scales as DeepSpeed's own class computes them.

    make_loss_scale_goldens.py DEEPSPEED > data/loss_scales.json

DEEPSPEED is a checkout of DeepSpeed, or the folder of the installed package's parent. Its
deepspeed/runtime/fp16/loss_scaler.py is run as it is, with small stand-ins for what it imports, so
that neither PyTorch nor the rest of DeepSpeed is needed.

A case is the rules, the steps ("x": an overflow, ".": none), and what the class holds after each
step: [scale, steps, last overflow, hysteresis left]. "floor" says that it refused the last step.
"""

import json
import logging
import random
import sys
import types
from pathlib import Path

DEFAULTS = {"initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2,
            "consecutive_hysteresis": False, "min_loss_scale": 1}
random_steps = random.Random(5)


def steps(count, overflow_rate):
    return "".join("x" if random_steps.random() < overflow_rate else "." for _ in range(count))


CASES = [
    ({}, "..x.x..xx...x" + "." * 20),
    ({"hysteresis": 1}, "xxxxxxxxxxxxxxxxx"),           # to the floor, and refused there
    ({"hysteresis": 1, "initial_scale_power": 3}, "xx.x.x"),
    ({"hysteresis": 3, "initial_scale_power": 2}, "xxxxxx"),
    ({"hysteresis": 2, "loss_scale_window": 4}, "....x........x....x....xx......"),
    ({"hysteresis": 3, "loss_scale_window": 4}, "xx....x....xx.xx......x........"),
    ({"hysteresis": 2, "consecutive_hysteresis": True}, "x.x.x.xx.xx.xxx.x.x"),
    ({"hysteresis": 4, "consecutive_hysteresis": True, "loss_scale_window": 3},
     "xxx.xxx.xxxx...xxxxxx......xx"),
    ({"loss_scale_window": 1, "hysteresis": 1}, "....x..x...xx..."),
    ({"loss_scale_window": 2, "hysteresis": 1, "initial_scale_power": 4, "min_loss_scale": 3},
     "x.xx....x.x...xxx"),
    ({"hysteresis": 1, "initial_scale_power": 2, "min_loss_scale": 0.25}, "xxxxx"),
    ({"hysteresis": 1, "initial_scale_power": 1, "min_loss_scale": 8}, "..x.x"),
    ({"hysteresis": 1, "initial_scale_power": 0}, "x"),
    ({"initial_scale_power": 32, "loss_scale_window": 20, "hysteresis": 2}, steps(80, 0.3)),
    ({"initial_scale_power": 24, "loss_scale_window": 5, "hysteresis": 3}, steps(120, 0.15)),
    ({"initial_scale_power": 20, "loss_scale_window": 3, "hysteresis": 2,
      "consecutive_hysteresis": True}, steps(120, 0.5)),
    ({"initial_scale_power": 6, "loss_scale_window": 2, "hysteresis": 2, "min_loss_scale": 16},
     steps(120, 0.35)),
]


def load_module(deepspeed):
    root = Path(deepspeed) / "deepspeed" / "runtime"

    def stand_in(name, **members):
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(members)

    def run(name, path):
        module = types.ModuleType(name)
        sys.modules[name] = module
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(module))
        return module

    stand_in("torch", half="half", float16="half")
    comm = types.SimpleNamespace(get_rank=lambda: 0)
    stand_in("deepspeed", comm=comm)
    stand_in("deepspeed.runtime")
    stand_in("deepspeed.runtime.config_utils", DeepSpeedConfigObject=object)
    stand_in("deepspeed.utils", logger=logging.getLogger("deepspeed"))
    validation = root / "loss_scale_validation.py"
    if validation.exists():
        run("deepspeed.runtime.loss_scale_validation", validation)
    return run("loss_scaler", root / "fp16" / "loss_scaler.py")


def play(module, changes, sequence):
    rules = {**DEFAULTS, **changes}
    scaler = module.CreateLossScaler(
        "half", 0, True,
        {"init_scale": 2.0**rules["initial_scale_power"],
         "scale_window": rules["loss_scale_window"],
         "min_scale": rules["min_loss_scale"],
         "delayed_shift": rules["hysteresis"],
         "consecutive_hysteresis": rules["consecutive_hysteresis"]})
    states, floor = [], False
    for step in sequence:
        try:
            scaler.update_scale(step == "x")
        except Exception as error:  # it raises nothing more specific
            if "already at minimum" not in str(error):
                raise
            floor = True
        states.append([scaler.cur_scale, scaler.cur_iter, scaler.last_overflow_iter,
                       scaler.cur_hysteresis])
        if floor:
            break
    return {"rules": rules, "steps": sequence[:len(states)], "states": states, "floor": floor}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    logging.getLogger("deepspeed").setLevel(logging.ERROR)
    module = load_module(sys.argv[1])
    cases = [json.dumps(play(module, *case)) for case in CASES]
    print("[\n %s\n]" % ",\n ".join(cases))


if __name__ == "__main__":
    main()
