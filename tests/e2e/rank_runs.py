"""Shared by tests of several ranks: a small run, and its ranks, started as a launcher would."""

import json
import os
import resource
import socket
import subprocess
import time

from sluice_runs import SLUICE, WAIT_S, SluiceRuns

LANES = 4


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


class RankRuns(SluiceRuns):
    def setUp(self):
        super().setUp()
        self.tokens("text.bin", 3000, seed=3)
        (self.path / "drive").mkdir()
        self.config = self.write_run({
            "train_batch_size": LANES, "train_micro_batch_size_per_gpu": 1,
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
            "model": {"layers": 2, "hidden": 32, "heads": 2, "context": 16, "vocab": 512,
                      "dropout": 0.1},
            "data": {"train": [str(self.path / "text.bin")], "dtype": "uint16"},
            "budget": {"nvme_paths": [str(self.path / "drive")]},
            "run": {"steps": 4, "device": "cpu", "cpu_threads": 1, "lanes": LANES,
                    "checkpoint_every": 2, "deterministic": True}})

    def start(self, world, *words, hosts=1, file_limits=None, memory_limits=None, folders=None):
        """Starts the processes, in rank order, as if on several hosts. file_limits, memory_limits:
        bytes by rank, of a file and of mapped memory; folders: working folders by rank."""
        of_host = world // hosts
        port, ranks = free_port(), []
        for rank in range(world):
            variables = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank % of_host,
                         "LOCAL_WORLD_SIZE": of_host, "MASTER_ADDR": "localhost",
                         "MASTER_PORT": port} if world > 1 else {}
            if hosts > 1:
                variables["NCCL_HOSTID"] = f"host{rank // of_host}"
            ranks.append(subprocess.Popen(
                [SLUICE, "train", str(self.config), *map(str, words)],
                cwd=(folders or {}).get(rank, self.path),
                env={**os.environ, **{key: str(value) for key, value in variables.items()}},
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                text=True, preexec_fn=self.limited(rank, file_limits or {}, memory_limits or {})))
            self.addCleanup(ranks[-1].wait)
            self.addCleanup(ranks[-1].kill)
        return ranks

    @staticmethod
    def limited(rank, file_limits, memory_limits):
        def limit():
            for kind, limits in ((resource.RLIMIT_FSIZE, file_limits),
                                 (resource.RLIMIT_AS, memory_limits)):
                if rank in limits:
                    resource.setrlimit(kind, (limits[rank],) * 2)
        return limit

    def train(self, world, *words, code=0, hosts=1):
        """The messages of the first rank; the others print nothing."""
        ranks = self.start(world, *words, hosts=hosts)
        told = [rank.communicate(timeout=WAIT_S)[1] for rank in ranks]
        self.assertEqual(ranks[0].returncode, code, told)
        for rank, text in zip(ranks[1:], told[1:]):
            self.assertEqual(rank.returncode, min(code, 1), text)
            self.assertEqual(text.strip(), "")
        return told[0]

    def weights(self, name):
        return (self.path / name).read_bytes()

    def checkpoints(self, run):
        return sorted(path.name for path in (self.path / run / "checkpoints").iterdir())

    @staticmethod
    def on_nvme():
        return [f"--set=zero_optimization.offload_{what}.device=nvme"
                for what in ("optimizer", "param")]

    def wait_for(self, condition):
        end = time.monotonic() + WAIT_S
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
