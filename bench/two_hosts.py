#!/usr/bin/env python3
"""The bytes that each of two hosts sends in a step, with each way of communication.

The hosts are network namespaces of this machine, joined by a virtual cable whose counters are read.
Two ranks on each train a small GPT-2 in stage 3 on the CPU. Needs root and the program ip.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SLUICE = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/bin/sluice")
ADDRESSES = ["10.214.0.1", "10.214.0.2"]
WAYS = [("as it is", {}),
        ("weights int8 (qwZ)", {"communication.weights": "int8"}),
        ("host_copy ram (hpZ)", {"communication.host_copy": "ram"}),
        ("gradients int8 (qgZ)", {"communication.gradients": "int8"}),
        ("gradients int4 (qgZ)", {"communication.gradients": "int4"}),
        ("int8, ram, int4", {"communication.weights": "int8", "communication.host_copy": "ram",
                             "communication.gradients": "int4"})]
RUN = {"train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
       "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
       "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
       "model": {"layers": 8, "hidden": 512, "heads": 8, "context": 32, "vocab": 512},
       "data": {"dtype": "uint16"}, "run": {"device": "cpu", "cpu_threads": 1,
                                            "checkpoint_at_end": False}}


def ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def sent(space):
    return json.loads(ip("-n", space, "-s", "-j", "link", "show", "cable"))[0]["stats64"]["tx"][
        "bytes"]


def train(folder, spaces, steps, options):
    """Returns the bytes that the first host has sent."""
    before = sent(spaces[0])
    words = [word for key, value in options.items() for word in ("--set", f"{key}={value}")]
    out = tempfile.mkdtemp(dir=folder) + "/run"
    ranks = []
    for rank in range(4):
        variables = {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": rank % 2, "LOCAL_WORLD_SIZE": 2,
                     "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": 29500, "OMP_NUM_THREADS": 1,
                     "NCCL_HOSTID": f"host{rank // 2}"}
        ranks.append(subprocess.Popen(
            ["ip", "netns", "exec", spaces[rank // 2], SLUICE, "train", folder / "run.json",
             "--out", out, "--set", f"run.steps={steps}", *words],
            env={**os.environ, **{key: str(value) for key, value in variables.items()}},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    if any(rank.wait() for rank in ranks):
        raise SystemExit("a rank has failed")
    return sent(spaces[0]) - before


def main():
    spaces = [f"sluice-bench-{name}" for name in "ab"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = [(7 * i * i + i) % 509 for i in range(20000)]
        (folder / "text.bin").write_bytes(b"".join(it.to_bytes(2, "little") for it in tokens))
        RUN["data"]["train"] = [str(folder / "text.bin")]
        (folder / "run.json").write_text(json.dumps(RUN))
        try:
            for space in spaces:
                ip("netns", "add", space)
            ip("link", "add", "cable", "netns", spaces[0], "type", "veth", "peer", "name", "cable",
               "netns", spaces[1])
            for space, address in zip(spaces, ADDRESSES):
                ip("-n", space, "address", "add", f"{address}/24", "dev", "cable")
                for device in ("cable", "lo"):
                    ip("-n", space, "link", "set", device, "up")
            print("| communication | MB a step and host |\n|---|---|")
            for way, options in WAYS:
                few, many = (train(folder, spaces, steps, options) for steps in (2, 6))
                print(f"| {way} | {(many - few) / 4 / 1e6:.1f} |", flush=True)
        finally:
            for space in spaces:
                subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


if __name__ == "__main__":
    main()
