"""`sluice train` on several ranks, compared with DistributedDataParallel, and under torchrun.

The programs are the environment's SLUICE and PRINT_SAMPLES.
"""

import json
import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from reference_gpt import GPT2LMHeadModel, MISSING, loss_of, make_model, windows
from sluice_runs import SLUICE, WAIT_S, SluiceRuns

PRINT_SAMPLES = os.path.abspath(os.environ.get("PRINT_SAMPLES", "build/bin/print_samples"))
STEPS, MICRO, ACCUMULATION, CLIP, SHUFFLE_SEED = 30, 2, 2, 1.6, 11
SHAPE = {"layers": 3, "hidden": 64, "heads": 4, "context": 32, "vocab": 256, "dropout": 0}
ADAMW = {"lr": 0.001, "betas": [0.9, 0.98], "eps": 1e-8, "weight_decay": 0.1}
FURTHEST = 1e-6  # for a loss of 5
LEARNT = 0.4


class Rank:
    """One of PyTorch's processes; writes the mean losses of all of them to a file."""

    def __init__(self, task):
        self.task = task
        model = GPT2LMHeadModel.from_pretrained(task["before"]).train()
        self.model = DistributedDataParallel(model)
        groups = [{"params": [p for p in model.parameters() if (p.ndim > 1) == matrices],
                   "weight_decay": ADAMW["weight_decay"] if matrices else 0}
                  for matrices in (True, False)]
        self.optimizer = torch.optim.AdamW(groups, lr=ADAMW["lr"], betas=ADAMW["betas"],
                                           eps=ADAMW["eps"])

    def step(self, firsts):
        """The step's micro-batches have one order, in which those of the first rank come first."""
        self.optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        begin = dist.get_rank() * ACCUMULATION
        for number in range(ACCUMULATION):
            own = firsts[(begin + number) * MICRO:(begin + number + 1) * MICRO]
            rows = windows(self.task["text"], own, SHAPE["context"])
            sync = number == ACCUMULATION - 1
            with self.model.no_sync() if not sync else torch.enable_grad():
                loss = loss_of(self.model, rows) / ACCUMULATION
                loss.backward()
            total += loss.detach().double()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        dist.all_reduce(total)
        return total.item() / dist.get_world_size()

    def train(self):
        of_step = MICRO * ACCUMULATION * dist.get_world_size()
        firsts = self.task["firsts"]
        return [self.step(firsts[step * of_step:(step + 1) * of_step]) for step in range(STEPS)]


def run_rank(path):
    task = json.loads(Path(path).read_text(encoding="utf-8"))
    dist.init_process_group("gloo")
    losses = Rank(task).train()
    if dist.get_rank() == 0:
        Path(task["losses"]).write_text(json.dumps(losses), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


@unittest.skipIf(MISSING, MISSING)
class RanksAgainstDdp(SluiceRuns):
    """In fp32, from the same weights, with the same micro-batches on each rank."""

    def ours(self, world):
        run = {"train_micro_batch_size_per_gpu": MICRO,
               "gradient_accumulation_steps": ACCUMULATION, "gradient_clipping": CLIP,
               "optimizer": {"type": "AdamW", "params": ADAMW}, "model": SHAPE,
               "data": {"train": [str(self.path / "train.bin")], "dtype": "uint16",
                        "shuffle_seed": SHUFFLE_SEED, "validation_fraction": 0},
               "run": {"steps": STEPS, "device": "cpu", "cpu_threads": 1,
                       "checkpoint_at_end": False}}
        self.sluice("train", self.write_run(run), "--out", self.path / f"out{world}", "--ranks",
                    world, "--init-from", self.path / "before")
        return [step["loss"] for step in self.metrics(f"out{world}")]

    def theirs(self, world, text):
        count = STEPS * ACCUMULATION * MICRO * world
        printed = subprocess.run(
            [PRINT_SAMPLES, self.path / "train.bin", str(SHAPE["context"]), str(SHUFFLE_SEED),
             str(count)], capture_output=True, check=True).stdout
        task = self.path / "task.json"
        task.write_text(json.dumps({
            "before": str(self.path / "before"), "text": list(text),
            "firsts": list(map(int, printed.split())),
            "losses": str(self.path / "losses.json")}), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
             str(world), __file__, "--rank", task], check=False, capture_output=True, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"})
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads((self.path / "losses.json").read_text(encoding="utf-8"))

    def test_have_its_losses(self):
        text = self.tokens("train.bin", 20000, seed=4)
        make_model(SHAPE, seed=2).save_pretrained(self.path / "before")
        for world in (2, 4):
            ours, theirs = self.ours(world), self.theirs(world, text)
            self.assertEqual(len(ours), STEPS)
            self.assertLess(ours[-1], ours[0] - LEARNT)
            worst = max(abs(a - b) for a, b in zip(ours, theirs))
            print(f"{world} ranks: loss {ours[0]:.3f} -> {ours[-1]:.3f}, "
                  f"worst difference {worst:.1e}")
            self.assertLess(worst, FURTHEST)


def rank_of(launcher, rank):
    """The launcher's child process of that rank."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[1])
            variables = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == launcher and f"RANK={rank}".encode() in variables:
            return int(process.name)
    raise AssertionError(f"no rank {rank}")


class Torchrun(SluiceRuns):
    def test_starts_ranks_again_which_go_on_from_the_last_checkpoint(self):
        self.tokens("train.bin", 20000, seed=4)
        run = {"train_batch_size": 4, "train_micro_batch_size_per_gpu": 1,
               "optimizer": {"type": "AdamW", "params": ADAMW}, "model": {**SHAPE, "dropout": 0.1},
               "data": {"train": [str(self.path / "train.bin")], "dtype": "uint16"},
               "run": {"steps": 300, "device": "cpu", "cpu_threads": 1, "lanes": 2,
                       "checkpoint_every": 20}}
        config = self.write_run(run)
        command = ["--nproc-per-node", "2", "--no-python", SLUICE, "train", str(config)]
        weights = [self.path / f"{name}.safetensors" for name in ("undisturbed", "again")]
        self.sluice("train", config, "--out", self.path / "undisturbed", "--save-weights",
                    weights[0])
        elastic = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--max-restarts", "2",
             "--monitor-interval", "0.2", "--rdzv-backend", "c10d", "--rdzv-endpoint",
             "localhost:0", *command, "--out", str(self.path / "again"), "--resume",
             "--save-weights", str(weights[1])], stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.addCleanup(elastic.kill)
        checkpoints = self.path / "again/checkpoints"
        end = time.monotonic() + WAIT_S
        while not list(checkpoints.glob("step-*/checkpoint.json")):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        os.kill(rank_of(elastic.pid, 1), signal.SIGKILL)
        told = elastic.communicate(timeout=WAIT_S)[1]
        self.assertEqual(elastic.returncode, 0, told)
        self.assertIn("continuing from", told)
        self.assertEqual(weights[1].read_bytes(), weights[0].read_bytes())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        run_rank(sys.argv[2])
    else:
        unittest.main()
