"""`sluice train --ranks N` of which a random process is killed by SIGKILL at random moments, resumed on
any number of ranks, and held against the run that one rank did undisturbed.

Of each kill: all other processes end within 10 s, what is left says which rank it was, and no checkpoint
is lost that was reported as saved. Of each run: the losses of every step and the bytes of the weights are
those of the undisturbed run, and nothing is left on the drive. The victim is a rank, or now and then the
process that has started them; moments are drawn at start, in steps, in saves and at the end, and counted
as what the run's folder shows just before the kill.

    SLUICE=build/bin/sluice python3 tests/crash/ranks_killed.py [--times N] [--seed S]
"""

import argparse
import collections
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
STEPS = 8
LANES = 12  # which 2, 3 and 4 ranks can share
ENDS_WITHIN_S = 10
PATIENCE_S = 300
STARTER = -1  # of a victim: no rank, but who has started them

VARIANTS = (  # every life may lie elsewhere, but none without the drive: it removes what others left
    [],
    ["zero_optimization.offload_optimizer.device=cpu"],
    ["zero_optimization.offload_param.device=cpu"],
    ["placement.overlap_update=false", "zero_optimization.sub_group_size=2000"],
)


def check(condition, message):
    if not condition:
        sys.exit(f"ranks_killed: {message}")


def prepare(folder):
    draw = random.Random(3)
    last, tokens = 1, []
    for _ in range(3000):
        last = (last * 5 + 3 + draw.randrange(2)) % 61
        tokens.append(last)
    (folder / "text.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
    (folder / "nvme").mkdir()
    (folder / "run.json").write_text(json.dumps({
        "train_batch_size": LANES, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
        "gradient_clipping": 0.5, "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
        "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"},
                              "offload_optimizer": {"device": "nvme"},
                              "stage3_param_persistence_threshold": 0},
        "model": {"layers": 1, "hidden": 32, "heads": 2, "context": 16, "vocab": 64, "dropout": 0.1},
        "data": {"train": ["text.bin"], "dtype": "uint16", "validation_fraction": 0.1},
        "run": {"steps": STEPS, "cpu_threads": 1, "device": "cpu", "lanes": LANES, "eval_every": 3,
                "eval_batches": 2, "deterministic": True, "checkpoint_every": 1, "keep_last": 2},
        "budget": {"nvme_paths": ["nvme"]}}), encoding="utf-8")


def rank_of(process):
    """None: it is none, or not yet."""
    try:
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((int(it[5:]) for it in variables if it.startswith(b"RANK=")), None)


def runs(process):
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


class Life:
    """A run's processes from their start to their end, and what they have said."""

    def __init__(self, folder, out, world, variant):
        self.out = folder / out
        words = [SLUICE, "train", "run.json", "--out", out, "--resume", "--ranks", str(world),
                 "--save-weights", out + ".safetensors", "--force"]
        for override in variant:
            words += ["--set", override]
        self.text = ""
        self.name = f"{world} ranks {variant}"
        self.process = subprocess.Popen(words, cwd=folder, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.ranks = self._ranks(world) if world > 1 else {}

    def _read(self):
        for line in self.process.stderr:
            self.text += line

    def _ranks(self, world):
        """Process numbers, by rank."""
        own, end = self.process.pid, time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            children = Path(f"/proc/{own}/task/{own}/children").read_text(encoding="ascii").split()
            ranks = {rank_of(it): int(it) for it in children}
            if set(ranks) == set(range(world)):
                return ranks
            time.sleep(0.002)
        sys.exit(f"ranks_killed: {world} ranks have not started:\n{self.text}")

    def steps(self):
        try:
            return (self.out / "metrics.jsonl").read_bytes().count(b"\n")
        except OSError:
            return 0

    def is_saving(self):
        return any((self.out / "checkpoints").glob("*.new"))

    def has_begun(self):
        return "set up in" in self.text

    def phase(self):
        if not self.has_begun():
            return "start"
        if self.is_saving():
            return "save"
        return "end" if self.steps() == STEPS else "step"

    def wait_until(self, condition):
        end = time.monotonic() + PATIENCE_S
        while not condition() and self.process.poll() is None:
            check(time.monotonic() < end, f"a run of {self.name} hangs:\n{self.text}")
            time.sleep(0.0005)

    def wait_for_moment(self, draw, wanted):
        if wanted == "start":
            time.sleep(draw.uniform(0, 1.5))
            return
        self.wait_until(self.has_begun)
        more = self.steps() + draw.randrange(3)
        self.wait_until(lambda: self.steps() >= (STEPS if wanted == "end" else min(more, STEPS - 1)))
        if wanted == "save":
            self.wait_until(self.is_saving)
        time.sleep(draw.uniform(0, {"step": 0.1, "save": 0.03, "end": 0.4}[wanted]))

    def number_of(self, victim):
        return self.process.pid if victim == STARTER else self.ranks[victim]

    def kill(self, victim):
        """How long the others took to end."""
        begin = time.monotonic()
        os.kill(self.number_of(victim), signal.SIGKILL)
        while self.process.poll() is None or any(map(runs, self.ranks.values())):
            took_s = time.monotonic() - begin
            check(took_s < ENDS_WITHIN_S, f"{took_s:.1f} s after {victim} was killed others still run:"
                                          f"\n{self.text}{self._doings()}")
            time.sleep(0.01)
        self.end()
        return time.monotonic() - begin

    def _doings(self):
        """What the threads of who still runs wait for in the kernel."""
        text = ""
        for process in filter(runs, [self.process.pid, *self.ranks.values()]):
            text += f"process {process}, rank {rank_of(process)}:"
            try:
                for thread in Path(f"/proc/{process}/task").iterdir():
                    text += f" {(thread / 'comm').read_text().strip()} {(thread / 'wchan').read_text()}"
            except OSError:
                text += " ends just now"
            text += "\n"
        return text

    def end(self):
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)

    def acknowledged(self):
        return max([int(step) for step in re.findall(r"^saved \S*/step-(\d+) ", self.text, re.M)],
                   default=0)

    def resumed_from(self):
        """None: it was killed before it said so."""
        found = re.search(r"^continuing from \S*/step-(\d+),", self.text, re.M)
        if found:
            return int(found.group(1))
        return 0 if "starting at step 0" in self.text else None


def check_words(life, victim, phase):
    """That it is said which rank it was: by who has started it, and by the other ranks once they know
    each other. A run without who has started it is saved."""
    if victim == STARTER:
        check(phase in ("start", "end") or "--resume continues from here" in life.text
              or life.steps() == STEPS, f"in a {phase}, nothing of the end is said:\n{life.text}")
        return
    check(f"rank {victim} was ended by signal 9" in life.text,
          f"rank {victim} is not named at {phase}:\n{life.text}")
    check(phase in ("start", "end") or re.search(rf"^sluice: .*rank {victim} \(\S+\) is ", life.text,
                                                 re.M),
          f"no other rank names rank {victim}, killed in a {phase}:\n{life.text}")


def results(folder, out):
    lines = (folder / out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return ([[json.loads(line)[key] for key in ("step", "loss", "lr", "grad_norm", "loss_scale")]
             for line in lines], (folder / (out + ".safetensors")).read_bytes())


class Test:
    def __init__(self, folder, draw, times):
        self.folder = folder
        self.draw = draw
        self.times = times
        self.kills = collections.Counter()  # by phase
        self.victims = collections.Counter()
        self.longest_s = 0
        self.runs = 0

    def life(self, out, world=None):
        world = world or self.draw.choice((2, 3, 4) if self.times > 20 else (2, 2, 3))
        return Life(self.folder, out, world, self.draw.choice(VARIANTS))

    def kill_one(self, life):
        victim = self.draw.choice([*life.ranks, *life.ranks, STARTER])
        wanted = self.draw.choices(("start", "step", "save", "end"), (3, 7, 8, 2))[0]
        life.wait_for_moment(self.draw, wanted)
        phase = life.phase()
        if not runs(life.number_of(victim)):
            return  # it was done
        took_s = life.kill(victim)
        if life.process.returncode == 0:
            return  # likewise
        check_words(life, victim, phase)
        self.longest_s = max(self.longest_s, took_s)
        self.kills[phase] += 1
        self.victims["who started them" if victim == STARTER else f"rank {victim}"] += 1

    def run(self, expected):
        out, acknowledged = f"run{self.runs}", 0
        while True:
            life = self.life(out)
            if sum(self.kills.values()) < self.times:
                self.kill_one(life)
            life.end()
            origin = life.resumed_from()
            if origin is not None:
                check(origin >= acknowledged, f"step {acknowledged} was saved, and a later life went on "
                                              f"from {origin}:\n{life.text}")
            acknowledged = max(acknowledged, life.acknowledged())
            if life.process.returncode == 0:
                break
            check(life.process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL, 1),
                  f"exit code {life.process.returncode}:\n{life.text}")
            check(sum(self.kills.values()) < self.times or "was ended by signal 9" in life.text
                  or life.process.returncode < 0, f"a resumed run failed:\n{life.text}")
        check(results(self.folder, out) == expected, f"{out}: other losses or weights than undisturbed")
        on_drive = os.listdir(self.folder / "nvme")
        check(on_drive == [], f"{out}: {on_drive} are left on the drive by {life.name}:\n{life.text}")
        left = sorted(os.listdir(self.folder / out / "checkpoints"))
        check(left[-1] == f"step-{STEPS:09d}" and not any(it.endswith(".new") for it in left),
              f"{out}: these checkpoints are left: {left}")
        shutil.rmtree(self.folder / out)
        self.runs += 1

    def run_all(self):
        whole = self.life("whole", world=1)
        whole.end()
        check(whole.process.returncode == 0, "the undisturbed run failed:\n" + whole.text)
        expected = results(self.folder, "whole")
        while sum(self.kills.values()) < self.times:
            self.run(expected)
        print(f"{sum(self.kills.values())} kills in {self.runs} runs, by phase {dict(self.kills)}, by victim "
              f"{dict(self.victims)}; all others had ended within {self.longest_s:.1f} s; 0 saved "
              "checkpoints lost, and every run ended with the bits of the undisturbed one")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    words = parser.parse_args()
    print(f"seed {words.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="sluice-ranks-killed-", dir=os.getcwd()))
    try:
        prepare(folder)
        Test(folder, random.Random(words.seed), words.times).run_all()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
