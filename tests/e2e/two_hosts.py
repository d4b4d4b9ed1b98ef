"""Runs on two hosts: network namespaces of this machine, each with a name and an address, joined by
a virtual cable. Needs root and the program ip; without them the tests are skipped."""

import json
import os
import shutil
import signal
import subprocess
import sys
import unittest

from rank_runs import LANES, WAIT_S, RankRuns
from sluice_runs import SLUICE

PORT = "29500"


def ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


class TwoHosts(RankRuns):
    def setUp(self):
        super().setUp()
        if os.geteuid() != 0 or shutil.which("ip") is None:
            self.skipTest("network namespaces need root and the program ip")
        self.spaces = [f"sluice-{os.getpid()}-{name}" for name in "ab"]
        self.addresses = ["10.213.0.1", "10.213.0.2"]
        try:
            for space in self.spaces:
                ip("netns", "add", space)
                self.addCleanup(ip, "netns", "del", space)
            cable = [word for space in self.spaces
                     for word in (["peer", "name"] if space == self.spaces[1] else []) +
                     ["cable", "netns", space]]
            ip("link", "add", *cable[:3], "type", "veth", *cable[3:])
        except subprocess.CalledProcessError as error:
            self.skipTest(f"no network namespaces here: {error.stderr.strip()}")
        for space, address in zip(self.spaces, self.addresses):
            ip("-n", space, "address", "add", f"{address}/24", "dev", "cable")
            for device in ("cable", "lo"):
                ip("-n", space, "link", "set", device, "up")

    def on_host(self, host, command, **variables):
        """Starts a command on a host of its own name."""
        words = ["ip", "netns", "exec", self.spaces[host], "unshare", "--uts", "sh", "-c",
                 'hostname "$0" && exec "$@"', f"node{host}", *map(str, command)]
        process = subprocess.Popen(words, cwd=self.path, stdin=subprocess.DEVNULL, text=True,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   env={**os.environ, "OMP_NUM_THREADS": "1", **variables})
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def ranks(self, host, *words):
        """Starts the two ranks of a host, as a launcher would."""
        return [self.on_host(host, [SLUICE, "train", self.config, *words], RANK=str(2 * host + i),
                             LOCAL_RANK=str(i), WORLD_SIZE="4", LOCAL_WORLD_SIZE="2",
                             MASTER_ADDR=self.addresses[0], MASTER_PORT=PORT) for i in range(2)]

    def sent(self, host):
        """The bytes that the host has sent over the cable."""
        stats = json.loads(ip("-n", self.spaces[host], "-s", "-j", "link", "show", "cable"))
        return stats[0]["stats64"]["tx"]["bytes"]

    def finish(self, processes):
        told = [process.communicate(timeout=WAIT_S)[1] for process in processes]
        for process, text in zip(processes, told):
            self.assertEqual(process.returncode, 0, text)
        return told

    def torchrun(self, host, *words):
        return self.on_host(host, [sys.executable, "-m", "torch.distributed.run", *words])

    def has_checkpoint(self, run):
        return list((self.path / run / "checkpoints").glob("step-*/checkpoint.json"))

    def test_train_the_same_weights_when_torchrun_starts_them(self):
        self.train(1, "--out", "one", "--save-weights", "one.safetensors")
        before = self.sent(0)
        self.finish([self.torchrun(
            host, "--nnodes", "2", "--node-rank", host, "--nproc-per-node", "2", "--master-addr",
            self.addresses[0], "--master-port", PORT, "--no-python", SLUICE, "train", self.config,
            "--out", "two", "--save-weights", "two.safetensors") for host in range(2)])
        self.assertEqual(self.weights("two.safetensors"), self.weights("one.safetensors"))
        self.assertGreater(self.sent(0), before + len(self.weights("one.safetensors")))

    def test_that_lose_a_host_continue_on_the_other_with_the_same_weights(self):
        steps = ["--set=run.steps=600", "--set=run.checkpoint_every=40"]
        self.train(1, "--out", "one", *steps, "--save-weights", "one.safetensors")
        staying, _ = [self.torchrun(
            host, "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3",
            "--monitor-interval", "0.3", "--local-addr", self.addresses[host], "--rdzv-backend",
            "c10d", "--rdzv-endpoint", f"{self.addresses[0]}:{PORT}", "--rdzv-conf",
            f"is_host={1 - host},join_timeout=90,last_call_timeout=3,keep_alive_interval=1,"
            "keep_alive_max_attempt=3", "--no-python", SLUICE, "train", self.config, "--out", "two",
            *steps, "--resume", "--save-weights", "two.safetensors") for host in range(2)]
        self.wait_for(lambda: self.has_checkpoint("two"))
        self.assertIn('"ranks":2', (self.path / "two/events.jsonl").read_text())
        for process in ip("netns", "pids", self.spaces[1]).split():
            os.kill(int(process), signal.SIGKILL)
        told, = self.finish([staying])
        self.assertIn("continuing from", told)
        self.assertIn("rank 1 (node1) is gone", told)
        self.assertEqual(self.weights("two.safetensors"), self.weights("one.safetensors"))

    def test_train_the_same_weights_when_a_hostfile_names_them(self):
        self.train(1, "--out", "one", "--save-weights", "one.safetensors")
        (self.path / "hosts").write_text("".join(f"{it} slots=2\n" for it in self.addresses))
        shell = self.path / "shell"  # takes the place of ssh
        shell.write_text(f'#!/bin/sh\nexec ip netns exec {self.spaces[1]} unshare --uts '
                         'sh -c "hostname node1 && $2"\n')
        shell.chmod(0o755)
        self.finish([self.on_host(0, [SLUICE, "train", self.config, "--hostfile", "hosts", "--ssh",
                                      shell, "--out", "two", "--save-weights", "two.safetensors"])])
        self.assertEqual(self.weights("two.safetensors"), self.weights("one.safetensors"))

    def test_a_pulled_cable_ends_both_hosts_by_name(self):
        long = ["--set=run.steps=1000000", "--out", "long"]
        hosts = [self.ranks(host, *long) for host in range(2)]
        self.wait_for(lambda: self.has_checkpoint("long"))
        ip("-n", self.spaces[1], "link", "set", "cable", "down")
        told = [[rank.communicate(timeout=WAIT_S)[1] for rank in ranks] for ranks in hosts]
        self.assertRegex(told[0][0], r"rank [23] \(node1\)")
        self.assertIn("rank 0 (node0)", "".join(told[1]))
        self.assertEqual({rank.returncode for ranks in hosts for rank in ranks}, {1}, told)


if __name__ == "__main__":
    unittest.main()
