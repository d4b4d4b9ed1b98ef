"""Hashes of modules that the Python package trains for 20 steps, by native units and by hooks, one
line per case. Two packages or commits compute the same if their files are equal.

  module_bits.py OUT [--ranks N] [--every N]
  module_bits.py --compare ONE OTHER

A case is a module, its placement, precision, clipping, accumulation and frozen parameters. Its line
has a hash of the parameters, one of every step's loss, norm, rate and loss scale, and the last
step.
PYTHONPATH has the package; SLUICE_TEST_DEVICE=cuda computes on GPUs, one per rank.
"""

import argparse
import hashlib
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

STEPS = 20
FP16 = {"fp16": {"enabled": True, "initial_scale_power": 12}}
PRECISIONS = {"fp32": {}, "bf16": {"bf16": {"enabled": True}}, "fp16": FP16}


def cases(places):
    """(way, module, place, precision, settings, micro-batches per step, whether some is frozen)"""
    for place in places:
        for precision, settings in PRECISIONS.items():
            clipped = {**settings, "gradient_clipping": 0.3}
            for these in (settings, clipped) if precision == "bf16" else (settings,):
                for accumulation in (1, 3) if precision == "fp32" else (3,):
                    last = (place, precision, these, accumulation)
                    for name in ("gpt2", "tied", "qwen3"):
                        yield ("units", name, *last, False)
                        if precision == "bf16" and these is settings:
                            yield ("units", name, *last, True)
                    for module in (0.0, 0.1, "gpt2"):  # a tower with that dropout, or GPT-2
                        yield ("hooks", module, *last, False)


def train(case, rank, ranks, drive):
    import native_models
    import small_modules
    import sluice
    import torch

    way, module, place, _, settings, accumulation, freezes = case
    torch.manual_seed(7)
    count = STEPS * accumulation * ranks
    if isinstance(module, str):
        made, data = native_models.make(module), native_models.batches(count)
    else:
        made, data = small_modules.tower(dropout=module), small_modules.batches(count)
    if freezes:
        next(made.parameters()).requires_grad_(False)
    config = small_modules.run_config(accumulation, place, drive, **settings)
    units = {"hooks": "hooks", "units": "auto" if freezes else "engine"}[way]
    with sluice.initialize(made, config, units=units) as engine:
        steps = []
        for batch in data[rank::ranks]:
            loss = engine(**batch).loss if isinstance(batch, dict) else engine(batch)
            engine.backward(loss)
            done = engine.step()
            if done is not None:
                steps.append((done.loss, done.grad_norm, done.learning_rate, done.loss_scale))
        weights = hashlib.sha256()
        for name, value in sorted(engine.state_dict().items()):
            weights.update(name.encode())
            weights.update(value.contiguous().view(torch.uint8).numpy().tobytes())
    return [weights.hexdigest(), hashlib.sha256(repr(steps).encode()).hexdigest(), steps[-1]]


def write(options):
    import small_modules
    import torch
    import transformers

    rank = int(os.environ.get("RANK", 0))
    if small_modules.DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    logging.getLogger("sluice").setLevel(logging.ERROR)
    lines = []
    for number, case in enumerate(cases(small_modules.PLACES)):
        if number % options.every == 0:
            drive = Path(options.drives, str(number))
            drive.mkdir(exist_ok=True)  # shared by all ranks
            lines.append([case, train(case, rank, options.ranks, drive)])
    if rank == 0:
        Path(options.out).write_text("".join(json.dumps(it) + "\n" for it in lines),
                                     encoding="utf-8")
        print(len(lines), "cases")
    return 0


def start_ranks(count, drives):
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        port = it.getsockname()[1]
    environment = {**os.environ, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count),
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        subprocess.Popen([sys.executable, *sys.argv, "--drives", drives],
                         env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(count)
    ]
    return max(abs(it.wait()) for it in started)


def compare(one, other):
    first, second = ({json.dumps(case): got for case, got in map(json.loads, open(path))}
                     for path in (one, other))
    for case in second.keys() - first.keys():
        print("only in the second:", case)
    different = [case for case in first if repr(first[case]) != repr(second.get(case))]
    for case in different:
        print("differs:", case, first[case], second.get(case))
    print(f"{len(first) - len(different)} the same, {len(different)} different")
    return 1 if different or len(first) != len(second) or not first else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="takes each Nth case")
    parser.add_argument("--drives", help=argparse.SUPPRESS)
    parser.add_argument("--compare", nargs=2, metavar=("ONE", "OTHER"))
    options = parser.parse_args()
    if options.compare:
        return compare(*options.compare)
    if not options.out:
        parser.error("OUT is wanted")
    with tempfile.TemporaryDirectory() as drives:
        if options.ranks > 1 and "RANK" not in os.environ:
            return start_ranks(options.ranks, drives)
        options.drives = options.drives or drives
        return write(options)


if __name__ == "__main__":
    sys.exit(main())
