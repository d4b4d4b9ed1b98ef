"""A file operation that hangs is named while it hangs, in every command.

The operations hang on a FUSE mount. The program is the environment's SLUICE.
"""

import errno
import json
import re
import subprocess
import sys
import time
import unittest

from failing_mount import FailingMount
from sluice_runs import SLUICE, WAIT_S, Running, SluiceRuns

LIMIT_S = "0.2"


@unittest.skipIf(FailingMount.unavailable(), FailingMount.unavailable())
class HangingDrives(SluiceRuns):
    def setUp(self):
        super().setUp()
        (self.path / "behind").mkdir()
        self.mount = FailingMount(self.path / "behind")
        self.addCleanup(self.mount.close)
        self.tokens("text.bin", 2000, seed=3)
        self.config = self.write_run({
            "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
            "model": {"layers": 1, "hidden": 32, "heads": 2, "context": 16, "vocab": 512,
                      "dropout": 0},
            "data": {"train": [str(self.path / "text.bin")], "dtype": "uint16"},
            "run": {"steps": 2, "device": "cpu", "cpu_threads": 1, "checkpoint_every": 1,
                    "keep_last": 1, "io_watchdog": float(LIMIT_S)}})
        self.run_folder = self.mount.path / "run"

    def start(self, *words):
        process = subprocess.Popen([SLUICE, *map(str, words)], cwd=self.path,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        # Run from the last to the first: SIGKILL does not end a process that waits for a drive.
        for undo in (process.wait, process.kill, self.mount.clear):
            self.addCleanup(undo)
        return Running(process)

    def meet(self, running, rules):
        """Waits until each rule's hang is named, with the mount, and releases it; in any order."""
        left = dict(rules)
        end = time.monotonic() + WAIT_S
        while left:
            self.assertLess(time.monotonic(), end, f"never came: {list(left)}\n{running.text}")
            for words, rule in list(left.items()):
                if rule.hits() == 0:
                    continue
                place = f"{words}.* on .*fuse.*mounted at {re.escape(str(self.mount.path))}"
                running.wait_for_match(f"has not (answered|returned) for [\\d.]+ s: {place}")
                rule.release()
                running.wait_for_match(f"has answered after [\\d.]+ s: {place}")
                del left[words]
            time.sleep(0.01)

    def test_names_what_a_training_run_waits_for(self):
        hang = lambda operation, pattern: self.mount.hang(operation, pattern, times=1)
        running = self.start("train", self.config, "--out", self.run_folder)
        self.meet(running, {
            "creation of \\S+/run": hang("mkdir", "run"),
            "write of \\d+ bytes at offset 0 of \\S+/run/metrics.jsonl":
                hang("write", "run/metrics.jsonl"),
            "(open|creation) of \\S+/run/config.json": hang(["create", "open"], "run/config.json*"),
            "write of .*\\S+/step-000000001.new/master": hang("write", "*step-000000001*/master*"),
            "rename of \\S+ to \\S+/checkpoint.json": hang("rename", "*checkpoint.json*"),
            "sync of \\S+/checkpoints": hang("fsyncdir", "run/checkpoints*"),
            "removal of \\S+": hang(["unlink", "rmdir"], "*step-000000001*"),
        })
        self.assertEqual(running.end(), 0, running.text)

    def test_a_drive_that_holds_inputs_of_units_hangs_and_fails_by_name(self):
        drive = self.mount.path / "drive"
        drive.mkdir()
        config = json.loads(self.config.read_text(encoding="utf-8"))
        config["model"]["layers"] = 4
        config["budget"] = {"nvme_paths": [str(drive)]}
        config["placement"] = {"unit_inputs_to_nvme": "on"}
        self.config.write_text(json.dumps(config), encoding="utf-8")
        records = "drive/sluice-*inputs*/records*"
        hung = {f"{operation} of \\d+ bytes at offset \\d+ of \\S*inputs\\S*/records.*":
                    self.mount.hang(operation, records, times=1)
                for operation in ("write", "read")}
        running = self.start("train", self.config, "--out", self.run_folder)
        self.meet(running, hung)
        self.assertEqual(running.end(), 0, running.text)
        self.assertEqual(list(drive.glob("*")), [])
        for operation in ("write", "read"):
            self.mount.fail(errno.EIO, operation, records)
            running = self.start("train", self.config, "--out", self.run_folder, "--overwrite")
            self.assertEqual(running.end(), 1, running.text)
            self.assertRegex(running.text, "ing record h\\.\\d input\\[")
            self.mount.clear()

    def test_names_what_every_command_waits_for(self):
        self.sluice("train", self.config, "--out", self.run_folder)
        self.sluice("export", self.run_folder, self.mount.path / "model")
        run, model = self.run_folder, self.mount.path / "model"
        for words, operation, pattern, command in (
                # Nothing on the mount responds, not even a look-up of its name.
                ("look-up of \\S+/run", "*", "*", ["ls", run]),
                ("listing of \\S+/checkpoints", "readdir", "run/checkpoints", ["ls", run]),
                ("read of", "read", "*step-000000002/master*", ["scrub", run]),
                ("creation of \\S+/exported", "mkdir", "exported",
                 ["export", run, self.mount.path / "exported"]),
                ("read of", "read", "model/*.safetensors",
                 ["import", model, self.mount.path / "imported"]),
                ("read of", "read", "*step-000000002/master*",
                 ["generate", run, "--prompt", "ab", "--tokens", "1", "--tokenizer", "bytes"]),
                ("read of", "read", "model/*.safetensors",
                 ["eval", self.config, "--weights", model, "--batches", "1", "--data",
                  self.path / "text.bin"]),
                ("listing of \\S+/checkpoints", "readdir", "run/checkpoints",
                 ["train", self.config, "--out", run, "--resume", "--steps", "3"])):
            with self.subTest(command=command[0]):
                rule = self.mount.hang(operation, pattern, times=None if operation == "*" else 1)
                running = self.start("--io-watchdog", LIMIT_S, *command)
                try:
                    self.meet(running, {words: rule})
                finally:
                    self.mount.clear()
                self.assertEqual(running.end(), 0, running.text)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
