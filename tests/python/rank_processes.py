"""Ranks of the package sluice, started like torchrun does. Each runs a test's code, after `import *`
from this file."""

import atexit
import json  # noqa: F401: used by ranks, as are signal, unittest and what follows
import multiprocessing
import os
import signal  # noqa: F401
import socket
import subprocess
import sys
import tempfile
import time
import unittest  # noqa: F401
from pathlib import Path

import torch  # noqa: F401

import sluice  # noqa: F401
from small_modules import (  # noqa: F401
    DEVICE,
    batches,
    initialize,
    masters,
    run_config,
    tower,
    train,
)

HERE = str(Path(__file__).resolve().parent)
HUNG_S = 240  # a rank that runs longer waits for something that does not come


def free_port():
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


# Ranks are forked from one process that has imported PyTorch, because the import takes seconds.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["sluice", "small_modules"])


def be_a_rank(code, variables, outputs):
    for stream, path in zip((1, 2), outputs):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), stream)
    os.environ.update(variables)
    sys.path.insert(0, HERE)
    try:
        exec(compile(f"from rank_processes import *\n{code}", "rank", "exec"), {"__name__": "__main__"})
    finally:
        atexit._run_exitfuncs()  # multiprocessing does not call them


class Ranks:
    """Processes that run `code` with RANK and the other variables, as if on several hosts; their
    outputs, by rank."""

    def __init__(self, code, world=2, hosts=1, **variables):
        of_host = world // hosts
        port = str(free_port())
        self.folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self.outputs = [[f"{self.folder.name}/{name}{rank}" for name in ("out", "err")]
                        for rank in range(world)]
        self.processes = []
        for rank in range(world):
            places = {
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "LOCAL_RANK": str(rank % of_host),
                "LOCAL_WORLD_SIZE": str(of_host),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            if hosts > 1:
                places["NCCL_HOSTID"] = f"host{rank // of_host}"
            arguments = (code, {**os.environ, **places, **variables}, self.outputs[rank])
            self.processes.append(FORKS.Process(target=be_a_rank, args=arguments))
            self.processes[-1].start()

    def wait(self):
        """Exit codes, and the outputs followed by the errors."""
        deadline = time.monotonic() + HUNG_S
        try:
            for it in self.processes:
                it.join(max(1, deadline - time.monotonic()))
                if it.exitcode is None:
                    raise subprocess.TimeoutExpired("a rank", HUNG_S)
        finally:
            for it in self.processes:
                it.kill()
        texts = ["".join(Path(path).read_text(encoding="utf-8") for path in outputs)
                 for outputs in self.outputs]
        self.folder.cleanup()
        return [it.exitcode for it in self.processes], texts


def of_steps(first, last, world, rank):
    """A rank's micro-batches, one per step."""
    return [batches(world, seed=step)[rank] for step in range(first, last)]


def start(world, place="cpu", drive=None, stage=3, lanes=2, **more):
    """An engine of one of `world` ranks, which together have `lanes` micro-batches per step."""
    return initialize(
        tower(tied=False, dropout=0.0),
        accumulation=lanes // world,
        place=place,
        drive=drive,
        gradient_clipping=1.0,
        run={"lanes": lanes},
        zero_optimization={"stage": stage},
        **more,
    )
