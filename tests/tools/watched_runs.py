"""The runs that tests of `sluice watch` write, and the server of its page."""

import contextlib
import fcntl
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time

from sluice_program import SLUICE

WAIT_S = 60


class MadeUpRun:
    """A run that this test writes: it holds the lock like a run that trains."""

    def __init__(self, folder, steps=50):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"run": {
            "steps": steps, "eval_every": 10, "checkpoint_every": 5}}), encoding="utf-8")
        self.lock = None
        self.step = 0
        self.hold()
        self.event("begin", schema=1, steps=steps, ranks=2, model={"family": "gpt2", "parameters": 1.5e9},
                   machine={"gpu": "NVIDIA H100", "cpu": "CPU"},
                   tiers={"gpu": {"bytes": 5 * 2**30, "budget_bytes": 8 * 2**30},
                          "nvme": {"bytes": 2**34, "budget_bytes": 2**36}},
                   plan={"step_s": 0.09, "tokens_per_s": 1100, "bottleneck": "NVMe read",
                         "busy_s": {"NVMe read": 0.08, "compute": 0.07}})

    def hold(self):
        self.lock = open(self.folder / "lock", "w", encoding="ascii")
        fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self):
        self.lock.close()

    def event(self, kind, **members):
        self.append("events.jsonl", json.dumps({"event": kind, "unix_s": time.time(), "step": self.step,
                                                **members}) + "\n")

    def append(self, name, text):
        with open(self.folder / name, "a", encoding="utf-8") as file:
            file.write(text)

    def line(self, **more):
        self.step += 1
        return json.dumps({
            "schema": 2, "step": self.step, "tokens_seen": 100 * self.step, "unix_s": time.time(),
            "loss": 4 / self.step, "lr": 1e-3, "grad_norm": 1.5, "loss_scale": 1.0, "skipped": False,
            "tokens_per_s": 1000.0 + self.step, "step_ms": 100.0, "forward_ms": 30.0, "backward_ms": 40.0,
            "update_ms": 29.0, "update_exposed_ms": 25.0, "nvme_read_bytes": 10**8,
            "nvme_write_bytes": 5 * 10**7, "h2d_bytes": 10**8, "d2h_bytes": 10**7,
            "gpu_peak_bytes": 4 * 2**30, "host_pinned_bytes": 2**29, "host_rss_bytes": 2**31, **more}) + "\n"

    def train(self, steps, pause=0.0, **more):
        for _ in range(steps):
            self.append("metrics.jsonl", self.line(**more))
            time.sleep(pause)


class Server:
    """`sluice watch --web` on a free port."""

    def __init__(self, *words, address="127.0.0.1:0", **environment):
        self.process = subprocess.Popen(
            [SLUICE, "watch", "--every", "0.2", "--web", address, *map(str, words)], text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **environment})
        self.url = self.process.stdout.readline().split()[-1]
        self.port = int(re.search(r":(\d+)/", self.url).group(1))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=WAIT_S)

    def get(self, path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        with contextlib.closing(connection):
            connection.request(method, path, headers={key.replace("_", "-"): value
                                                      for key, value in headers.items()})
            reply = connection.getresponse()
            return reply.status, reply.read().decode(), dict(reply.getheaders())

    def data(self, cursors=""):
        return json.loads(self.get("/data?at=" + cursors)[1])

    def raw(self, request, wait_s=1):
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait_s) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
                return connection.recv(1 << 16)
            return b""

    def cpu_s(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
