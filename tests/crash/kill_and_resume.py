"""`sluice train` killed by SIGKILL at random moments, resumed each time, and held against a run that
nobody disturbed.

The oracle is outside: checkpoints count as acknowledged once the program has said "saved ..." on its
standard error; a resume must go on from the newest acknowledged one or a later one; and in the end the
losses of every step and the bytes of the weights must be those of the undisturbed run. Kills fall into
start-up, steps, saves, the removal of old checkpoints, and resuming, because a save follows every step
and each life is cut after a random share of what a whole run takes. There is one model of each
family, adapters with a frozen base that no checkpoint holds, and a run whose checkpoints are in place.

    SLUICE=build/bin/sluice python3 tests/crash/kill_and_resume.py [KILLS [SEED]]
"""

import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SLUICE = os.path.abspath(os.environ["SLUICE"])
STEPS = 24

VARIANTS = (  # every life may lie elsewhere
    [],
    ["zero_optimization.offload_optimizer.device=cpu"],
    ["zero_optimization.offload_param.device=cpu", "run.checkpoint_background=on"],
    ["run.checkpoint_background=on"],
    ["placement.overlap_update=false", "zero_optimization.sub_group_size=2000"],
)


def check(condition, message):
    if not condition:
        sys.exit(f"kill_and_resume: {message}")


SIZES = {"layers": 2, "hidden": 32, "heads": 2, "context": 16, "vocab": 64}
LLAMA = {"preset": "custom", "family": "llama", "architecture": "qwen3", "kv_heads": 1, "head_dim": 16,
         "ffn_multiplier": 3}
MODELS = {
    "gpt2": {"model": {**SIZES, "dropout": 0.1}},
    "llama": {"model": {**SIZES, **LLAMA}},
    "adapters": {"model": {**SIZES, **LLAMA}, "recipe": {"lora": {"rank": 4}}},
    "in place": {"model": {**SIZES, "dropout": 0.1}},
}
# Every life continues in the store of the one before it, so its state stays where it is.
IN_PLACE = ["run.checkpoint_in_place=true", "run.keep_last=1", "zero_optimization.sub_group_size=4000",
            "zero_optimization.offload_optimizer.device=auto",
            'placement.optimizer_fractions={"cpu": 0.3, "nvme": 0.7}']
IN_PLACE_VARIANTS = (IN_PLACE, [*IN_PLACE, "placement.overlap_update=false"],
                     [*IN_PLACE, "zero_optimization.offload_param.device=cpu"])


def prepare(folder, model):
    draw = random.Random(3)
    last, tokens = 1, []
    for _ in range(8000):
        last = (last * 5 + 3 + draw.randrange(2)) % 61
        tokens.append(last)
    (folder / "text.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
    (folder / "nvme").mkdir()
    (folder / "run.json").write_text(json.dumps({
        "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "gradient_clipping": 0.5,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
        "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"},
                              "offload_optimizer": {"device": "nvme"},
                              "stage3_param_persistence_threshold": 0},
        **MODELS[model],
        "data": {"train": ["text.bin"], "dtype": "uint16", "validation_fraction": 0.1},
        "run": {"steps": STEPS, "cpu_threads": 1, "device": "cpu", "eval_batches": 2,
                "deterministic": True, "checkpoint_every": 1, "keep_last": 2},
        "budget": {"nvme_paths": ["nvme"]}}), encoding="utf-8")


class Life:
    """One process, and what it has said so far."""

    def __init__(self, folder, out, variant, *more):
        arguments = [SLUICE, "train", "run.json", "--out", out, "--resume", *more]
        for override in variant:
            arguments += ["--set", override]
        self.text = ""
        self.resume_s = None  # until it had the checkpoint's state
        self._begin = time.monotonic()
        self.process = subprocess.Popen(arguments, cwd=folder, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                        text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.text += line
            if line.startswith("continuing from"):
                self.resume_s = time.monotonic() - self._begin

    def end(self, after_s=None):
        """Kills it after that time, if it lives so long. Whether it was killed."""
        try:
            self.process.wait(timeout=after_s if after_s is not None else 300)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        return self.process.returncode == -signal.SIGKILL

    def acknowledged(self):
        return max([int(step) for step in re.findall(r"^saved \S*/step-(\d+) ", self.text, re.M)],
                   default=0)

    def resumed_from(self):
        """None: it was killed before it said so."""
        found = re.search(r"^continuing from \S*/step-(\d+),", self.text, re.M)
        if found:
            return int(found.group(1))
        return 0 if "starting at step 0" in self.text else None


def results(folder, out):
    lines = (folder / out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [[json.loads(line)[key] for key in ("step", "loss", "lr", "grad_norm", "loss_scale")]
            for line in lines]


def weights(folder, out, variant=()):
    name = out + ".safetensors"
    life = Life(folder, out, variant, "--save-weights", name)
    life.end()
    check(life.process.returncode == 0, "the last resume failed:\n" + life.text)
    return (folder / name).read_bytes()


def main():
    kills_wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 30)
    print(f"seed {seed}", flush=True)
    draw = random.Random(seed)
    for index, model in enumerate(MODELS):
        folder = Path(tempfile.mkdtemp(prefix="sluice-kill-", dir=os.getcwd()))
        share = kills_wanted * (index + 1) // len(MODELS) - kills_wanted * index // len(MODELS)
        try:
            run(folder, model, draw, share)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def run(folder, model, draw, kills_wanted):
    prepare(folder, model)
    begin = time.monotonic()
    undisturbed = Life(folder, "whole", [])
    undisturbed.end()
    check(undisturbed.process.returncode == 0, "the undisturbed run failed:\n" + undisturbed.text)
    whole_s = time.monotonic() - begin
    expected_results, expected_weights = results(folder, "whole"), weights(folder, "whole")

    in_place = model == "in place"
    kept = 1 if in_place else 2
    kills = runs = 0
    resume_s = []
    while kills < kills_wanted:
        out = f"run{runs}"
        acknowledged = 0
        while True:
            life = Life(folder, out, draw.choice(IN_PLACE_VARIANTS if in_place else VARIANTS))
            # Short lives now and then: start-up and resuming are to be hit as well.
            longest = whole_s * draw.choice((0.3, 0.8, 1.2))
            killed = life.end(draw.uniform(0, longest) if kills < kills_wanted else None)
            origin = life.resumed_from()
            if origin is not None:
                check(origin >= acknowledged,
                      f"step {acknowledged} was acknowledged, and a later life went on from "
                      f"{origin}:\n{life.text}")
            if life.resume_s is not None:
                resume_s.append(life.resume_s)
            acknowledged = max(acknowledged, life.acknowledged())
            if not killed:
                check(life.process.returncode == 0, "a resumed run failed:\n" + life.text)
                break
            kills += 1
        check(results(folder, out) == expected_results, f"{out}: other losses than undisturbed")
        more = IN_PLACE if in_place else []
        check(weights(folder, out, more) == expected_weights, f"{out}: other weights than undisturbed")
        left = os.listdir(folder / "nvme")
        check(len(left) == (1 if in_place else 0), f"{out}: this is left on the drive: {left}")
        for store in left:
            shutil.rmtree(folder / "nvme" / store)
        left = sorted(os.listdir(folder / out / "checkpoints"))
        # Where the kill fell between the last save and the removal of older ones, no save followed.
        if life.resumed_from() == STEPS:
            left = left[-kept:]
        check(left == [f"step-{step:09d}" for step in range(STEPS - kept + 1, STEPS + 1)],
              f"{out}: these checkpoints are left: {left}")
        shutil.rmtree(folder / out)
        runs += 1
    print(f"{model}: {kills} kills in {runs} runs, {len(resume_s)} resumes from a checkpoint, which took "
          f"{sum(resume_s) / max(len(resume_s), 1):.2f} s in the mean from the program's start; 0 "
          f"acknowledged checkpoints lost, and every run ended with the bits of the undisturbed one "
          f"({whole_s:.2f} s)")


if __name__ == "__main__":
    main()
