"""How a run adapts to storage and limits: btrfs, drives that are memory, folders shared with other
machines, control groups.

The programs are the environment's SLUICE and AIO_BENCH.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from failing_mount import MIB, Btrfs, FailingMount
from sluice_runs import SLUICE, SluiceRuns

AIO_BENCH = os.path.abspath(os.environ.get("AIO_BENCH", "build/bin/aio_bench"))


class Runs(SluiceRuns):
    def setUp(self):
        super().setUp()
        self.tokens("text.bin", 8000, seed=4)

    def run_file(self, nvme, steps=6):
        return self.write_run({
            "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
            "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0,
                                  "offload_optimizer": {"device": "nvme"},
                                  "offload_param": {"device": "nvme"}},
            "model": {"layers": 2, "hidden": 128, "heads": 2, "context": 16, "vocab": 64},
            "data": {"train": [str(self.path / "text.bin")], "dtype": "uint16"},
            "run": {"steps": steps, "device": "cpu", "cpu_threads": 1, "checkpoint_at_end": False},
            "budget": {"nvme_paths": [str(nvme)]}})

    def start(self, config, name):
        with open(self.path / "stderr", "w", encoding="utf-8") as stderr:
            process = subprocess.Popen([SLUICE, "train", config, "--out", self.path / name],
                                       stdout=subprocess.DEVNULL, stderr=stderr)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def stderr(self):
        return (self.path / "stderr").read_text(encoding="utf-8")

    def wait_for_steps(self, process, name, steps):
        """Waits for that many steps."""
        metrics = self.path / name / "metrics.jsonl"
        while process.poll() is None:
            if metrics.exists() and len(metrics.read_bytes().splitlines()) >= steps:
                return
            time.sleep(0.01)
        self.fail(f"ended with {process.returncode}: {self.stderr()}")

    def train(self, config, name, *flags, code=0):
        done = subprocess.run([SLUICE, "train", config, "--out", self.path / name, *flags],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr


@unittest.skipIf(Btrfs.unavailable(), Btrfs.unavailable())
class OnBtrfs(Runs):
    def test_a_run_overwrites_its_state_on_a_drive_that_others_have_filled(self):
        with Btrfs(128 * MIB) as disk:
            process = self.start(self.run_file(disk.path, steps=40), "a")
            self.wait_for_steps(process, "a", 2)  # every record was written, and overwritten
            process.send_signal(signal.SIGSTOP)
            disk.fill()
            process.send_signal(signal.SIGCONT)
            self.assertEqual(process.wait(), 0, self.stderr())
            self.assertEqual(len(self.metrics("a")), 40)
            self.assertNotIn("new blocks", self.stderr())


class InMemory(Runs):
    def mount(self, kind, options, point):
        point.mkdir()
        mounted = subprocess.run(["mount", "-t", kind, kind, "-o", options, str(point)],
                                 check=False, capture_output=True)
        if mounted.returncode != 0:
            self.skipTest(f"{kind} cannot be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", str(point)], check=False,
                        stderr=subprocess.DEVNULL)

    def overlay(self):
        """An overlay whose upper layer is in memory, and that memory's mount point."""
        folder = Path(tempfile.mkdtemp(prefix="sluice-overlay-"))
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        memory, overlay = folder / "m", folder / "o"
        self.mount("tmpfs", "size=64m", memory)
        for part in "luw":
            (memory / part).mkdir()
        self.mount("overlay", f"lowerdir={memory}/l,upperdir={memory}/u,workdir={memory}/w",
                   overlay)
        return overlay, memory

    def expect_memory(self, overlay, name):
        shown = self.train(self.run_file(overlay), name)
        self.assertIn("overlay on tmpfs", shown)
        self.assertIn("not on a drive", shown)
        self.assertRegex(shown, r"/o, which is memory \(overlay on tmpfs\) +\d")
        self.assertNotIn("O_DIRECT", shown)
        measured = subprocess.run(
            [AIO_BENCH, "--path", overlay, "--size", "1M", "--mode", "write", "--seconds", "0.1",
             "--runs", "1"], capture_output=True, text=True, check=False)
        self.assertEqual(measured.returncode, 0, measured.stderr)
        self.assertIn("(through the page cache)", measured.stdout + measured.stderr)
        self.assertEqual(list(overlay.iterdir()), [])

    def test_an_overlay_on_tmpfs_is_called_memory_and_counted_as_such(self):
        overlay, memory = self.overlay()
        self.expect_memory(overlay, "a")
        # Inside a container, the mount table has no entry for the upper layer.
        subprocess.run(["umount", "-l", str(memory)], check=True)
        self.assertEqual(list(memory.iterdir()), [])
        self.expect_memory(overlay, "b")


@unittest.skipIf(FailingMount.unavailable(), FailingMount.unavailable())
class OfAnotherMachine(Runs):
    """On a file system whose locks may not reach other machines, such as FUSE or NFS."""

    @staticmethod
    def contents(folder):
        return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def test_a_store_is_refused_every_time_and_never_touched(self):
        with FailingMount(self.path / "nvme") as mount:
            config = self.run_file(mount.path, steps=100000)
            process = self.start(config, "a")
            self.wait_for_steps(process, "a", 1)
            process.kill()
            process.wait()
            owners = list((self.path / "nvme").rglob("owner.json"))
            self.assertEqual(len(owners), 2)  # parameters and optimizer state
            ours = [owner.read_text(encoding="utf-8") for owner in owners]
            for owner, text in zip(owners, ours):
                owner.write_text(json.dumps({**json.loads(text), "host": "elsewhere",
                                             "boot_id": "another", "machine_id": "another"}))
            before = self.contents(self.path / "nvme")
            config = self.run_file(mount.path, steps=2)
            for _ in range(3):
                told = self.train(config, "a", "--overwrite", code=2)
                self.assertIn("on host elsewhere since", told)
                self.assertIn(f"rm -r {mount.path}/sluice-run", told)
                self.assertEqual(self.contents(self.path / "nvme"), before)
            # Left by a container that had another host name on this machine and this mount.
            for owner, text in zip(owners, ours):
                owner.write_text(json.dumps({**json.loads(text), "host": "pod-1"}))
            self.train(config, "a", "--overwrite")
            self.assertEqual(self.contents(self.path / "nvme"), {})


    def test_a_live_store_is_refused_through_another_mount_of_its_folder(self):
        """Like two pods of one node: each mount has locks of its own."""
        with FailingMount(self.path / "nvme") as one, FailingMount(self.path / "nvme") as two:
            process = self.start(self.run_file(one.path, steps=100000), "a")
            self.wait_for_steps(process, "a", 1)
            (self.path / "a").rename(self.path / "b")  # moves its lock; the store keeps its name
            told = self.train(self.run_file(two.path, steps=2), "a", code=2)
            self.assertIn(f"process {process.pid} on host", told)
            listed = subprocess.run([SLUICE, "scrub", two.path, "--remove-leftovers"], check=True,
                                    capture_output=True, text=True).stdout
            self.assertIn("0 leftovers removed", listed)
            self.assertEqual(listed.count("kept: "), 2, listed)
            self.assertIn("lock may not", listed)
            self.wait_for_steps(process, "b", len(self.metrics("b")) + 2)
            process.kill()
            process.wait()


class InAControlGroup(Runs):
    def test_the_table_has_what_its_limit_leaves_without_page_cache(self):
        limit = 1536 * MIB
        processes = self.group(limit)
        # Half of the limit is page cache of a file, which the kernel can reclaim.
        script = f"""echo $$ > {processes}
            head -c {limit // 2} /dev/zero > {self.path}/pages && cat {self.path}/pages > /dev/null
            exec {SLUICE} train {self.run_file(self.path / "nvme")} --out {self.path}/a"""
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        table = next(line for line in done.stderr.splitlines() if "host memory" in line)
        self.assertIn("limit of 1.50G", table)
        room = float(table.split(" of ")[1].split("G")[0])
        self.assertGreater(room, 1.1, table)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
