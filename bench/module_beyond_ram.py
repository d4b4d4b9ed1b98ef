"""Trains all of a module of transformers that is several times as large as the RAM of its run.

The package sluice makes, trains, saves and loads it, and trains it again. The kernel counts the
RAM, from outside the process.

  python3 bench/module_beyond_ram.py --nvme /nvme --cpu-gib 1.25 --times 3

On a GPU:

  python3 bench/module_beyond_ram.py --nvme /nvme --cpu-gib 6 --times 1.3 --gpu-gib 8 --units engine
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HIDDEN, INTERMEDIATE, VOCAB, TOKENS = 1024, 2816, 1000, 8
BLOCK_PARAMETERS = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * INTERMEDIATE + 2 * HIDDEN
FP32_BYTES = 4


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nvme", required=True, help="folder on the drive")
    parser.add_argument("--cpu-gib", type=float, default=1.25, help="RAM of the run, program included")
    parser.add_argument("--gpu-gib", type=float, help="of a GPU, which computes (default: the CPU does)")
    parser.add_argument("--times", type=float, default=3.0, help="fp32 bytes of the module / RAM")
    parser.add_argument("--units", choices=["hooks", "engine"], default="hooks", help="of initialize()")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--as-child", help=argparse.SUPPRESS)
    return parser.parse_args()


def blocks(given):
    ends = 2 * VOCAB * HIDDEN
    wanted = given.times * given.cpu_gib * 2**30 / FP32_BYTES - ends
    return math.ceil(wanted / BLOCK_PARAMETERS)


def child(given):
    import torch
    import transformers

    import sluice

    folder = Path(given.as_child)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {
            "stage": 3,
            "offload_param": {"device": "nvme"},
            "offload_optimizer": {"device": "nvme"},
        },
        "budget": {"cpu_gib": given.cpu_gib, "nvme_paths": [str(folder)]},
        "placement": {"record_elements": 2**20},
        "run": {"device": "cpu"},
    }
    if given.gpu_gib:
        config["budget"]["gpu_gib"] = given.gpu_gib
        config["run"]["device"] = "cuda"
    shape = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=INTERMEDIATE,
        num_hidden_layers=blocks(given), num_attention_heads=16, num_key_value_heads=16,
    )  # fmt: skip

    def say(what, began, **more):
        print(json.dumps({"what": what, "s": round(time.monotonic() - began, 1), **more}), flush=True)

    def steps(engine, count, seed):
        generator = torch.Generator().manual_seed(seed)
        losses = []
        for _ in range(count):
            tokens = torch.randint(0, VOCAB, (2, TOKENS), generator=generator)
            engine.backward(engine(tokens, labels=tokens).loss)
            losses.append(engine.step().loss)
        return losses

    torch.manual_seed(1)
    began = time.monotonic()
    with sluice.init(config):
        module = transformers.AutoModelForCausalLM.from_config(shape)
    module.gradient_checkpointing_enable()  # no plan includes the activations that autograd saves
    say("made", began, parameters=sum(it.numel() for it in module.parameters()))
    began = time.monotonic()
    with sluice.initialize(module, config, units=given.units) as engine:
        planned = {tier: dict(lines) for tier, lines in engine.memory.items()}
        say("taken over", began, gib={tier: round(sum(lines.values()) / 2**30, 2)
                                      for tier, lines in planned.items()},
            gradients_on_nvme="gradients" in planned["nvme"])
        began = time.monotonic()
        say("trained", began, losses=steps(engine, given.steps, 1))
        began = time.monotonic()
        engine.save_checkpoint(folder / "run")
        say("saved", began)
        after = steps(engine, 1, 9)
        began = time.monotonic()
        engine.load_checkpoint(folder / "run")
        say("loaded", began, goes_on_alike=after == steps(engine, 1, 9))
    if given.gpu_gib:
        say("closed", began, gpu_gib=round(torch.cuda.max_memory_reserved() / 2**30, 2))


def peak_bytes(pid):
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return max((int(it.split()[1]) << 10 for it in lines if it.startswith("VmHWM")), default=0)


def watch(process, peaks, period_s=0.1):
    while process.poll() is None:
        peaks.append(max(peaks[-1], peak_bytes(process.pid)))
        time.sleep(period_s)


def main():
    given = arguments()
    if given.as_child:
        child(given)
        return
    module_bytes = (2 * VOCAB * HIDDEN + blocks(given) * BLOCK_PARAMETERS) * FP32_BYTES
    print(f"{blocks(given)} blocks, {module_bytes / 2**30:.2f} GiB in fp32; RAM: {given.cpu_gib} GiB")
    with tempfile.TemporaryDirectory(dir=given.nvme, prefix="sluice-beyond-ram-") as folder:
        process = subprocess.Popen([sys.executable, *sys.argv, "--as-child", folder],
                                   stdout=subprocess.PIPE, text=True)
        peaks = [0]
        watcher = threading.Thread(target=watch, args=(process, peaks))
        watcher.start()
        for line in process.stdout:
            print(f"{peaks[-1] / 2**30:.2f} GiB at most so far: {line.strip()}", flush=True)
        watcher.join()
    if process.returncode != 0:
        sys.exit(f"it ended with {process.returncode}")
    print(f"RAM at most: {peaks[-1] / 2**30:.3f} GiB of {given.cpu_gib}")
    sys.exit(peaks[-1] > given.cpu_gib * 2**30)


if __name__ == "__main__":
    main()
