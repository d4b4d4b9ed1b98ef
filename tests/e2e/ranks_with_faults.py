"""`sluice train` on two ranks, one of which has a drive error, a full disk or too little memory.

All ranks end within 10 s, or continue if only a checkpoint is lost. The messages name the rank and
the place, and the last checkpoint can be resumed.

The program is the environment's SLUICE. With ALL_FAULTS=1 every fault is tried on either rank.
"""

import errno
import json
import os
import re
import signal
import time
import unittest
from pathlib import Path

from failing_mount import MIB, FailingMount
from rank_runs import RankRuns
from sluice_runs import WAIT_S

ALL = os.environ.get("ALL_FAULTS") == "1"
ENDS_WITHIN_S = 10
FOREVER = ("--steps", 100000)


class FaultyRanks(RankRuns):
    def steps(self, run):
        try:
            return (Path(run) / "metrics.jsonl").read_bytes().count(b"\n")
        except OSError:
            return 0

    def wait_for_more_steps(self, run, ranks, count=3):
        end = time.monotonic() + WAIT_S
        wanted = self.steps(run) + count
        while self.steps(run) < wanted:
            self.assertLess(time.monotonic(), end)
            self.assertIsNone(ranks[0].poll(), "it has ended")
            time.sleep(0.01)

    def ended(self, ranks):
        """The messages of each rank, once all have ended by themselves and in time."""
        begin = time.monotonic()
        told = [rank.communicate(timeout=WAIT_S)[1] for rank in ranks]
        self.assertLess(time.monotonic() - begin, ENDS_WITHIN_S, told)
        return told

    def expect_named(self, ranks, told, victim, *texts):
        for number, rank in enumerate(ranks):
            self.assertIn(rank.returncode, (1, 2), told)
            self.assertIn(f"rank {victim}", told[number] if number != victim else f"rank {victim}")
            for text in texts:
                self.assertIn(text, told[number])

    def expect_continued(self, run, step):
        """Resumes a checkpoint that is at least as new as `step`; returns the step it then
        reached."""
        self.sluice("scrub", run)
        newest = max(path.name for path in (Path(run) / "checkpoints").glob("step-*[0-9]"))
        at = int(newest[len("step-"):])
        self.assertGreaterEqual(at, step)
        self.assertIn(newest, self.train(2, "--out", run, "--resume", "--steps", at + 1,
                                         *self.on_nvme()))
        return at + 1


@unittest.skipIf(FailingMount.unavailable(), FailingMount.unavailable())
class ADrive(FaultyRanks):
    def setUp(self):
        super().setUp()
        self.mount = FailingMount(self.path / "drive")
        self.addCleanup(self.mount.close)
        run = json.loads(self.config.read_text(encoding="utf-8"))
        run["budget"]["nvme_paths"] = [str(self.mount.path)]
        self.config.write_text(json.dumps(run), encoding="utf-8")

    @staticmethod
    def stores_of(rank):
        return f"*-r{rank}/*"

    def test_that_fails_one_rank_ends_all_by_its_name(self):
        saved = 0
        faults = ((0, "read", errno.EIO), (1, "write", errno.ENOSPC), (1, "read", errno.EIO),
                  (0, "write", errno.EIO))
        for victim, operation, error in faults if ALL else faults[:2]:
            ranks = self.start(2, "--out", "run", "--resume", *FOREVER, *self.on_nvme())
            self.wait_for_more_steps(self.path / "run", ranks)
            rule = self.mount.fail(error, operation, self.stores_of(victim))
            told = self.ended(ranks)
            self.assertGreater(rule.hits(), 0)
            self.expect_named(ranks, told, victim, errno.errorcode[error], str(self.mount.path))
            self.mount.clear()
            saved = self.expect_continued(self.path / "run", saved)

    def test_without_room_for_one_rank_is_said_before_anything_has_changed(self):
        self.train(2, "--out", "run", *self.on_nvme())
        before = self.checkpoints("run")
        for victim in (0, 1) if ALL else (1,):
            for words in (("--resume", "--steps", 6), ("--overwrite",)):
                self.mount.fail(errno.ENOSPC, ("create", "write", "fallocate"),
                                self.stores_of(victim))
                ranks = self.start(2, "--out", "run", *words, *self.on_nvme())
                told = self.ended(ranks)
                self.mount.clear()
                self.assertNotIn(0, [rank.returncode for rank in ranks], told)
                self.assertIn("ENOSPC", told[0])
                self.assertIn(str(self.mount.path), told[0])
                self.assertIn(f"-r{victim}", told[0])
                if victim > 0:
                    self.assertIn(f"rank {victim}", told[0])
                self.assertEqual(self.checkpoints("run"), before)
        self.expect_continued(self.path / "run", 4)


@unittest.skipIf(FailingMount.unavailable(), FailingMount.unavailable())
class ACheckpointsDisk(FaultyRanks):
    def setUp(self):
        super().setUp()
        (self.path / "out").mkdir()
        self.mount = FailingMount(self.path / "out")
        self.addCleanup(self.mount.close)
        self.run_folder = self.mount.path / "run"

    def test_without_room_for_one_rank_costs_that_checkpoint_and_says_whose_files_where(self):
        faults = ((1, errno.EFBIG), (0, errno.ENOSPC), (1, errno.ENOSPC))
        for victim, error in faults if ALL else faults[:1]:
            ranks = self.start(2, "--out", self.run_folder, "--overwrite", *FOREVER,
                               *self.on_nvme())
            self.wait_for_more_steps(self.run_folder, ranks, 5)
            rule = self.mount.fail(error, ("write", "fallocate", "create"),
                                   f"*/*-{victim + 1:05d}-of-*")
            self.wait_for_more_steps(self.run_folder, ranks, 5)
            self.assertGreater(rule.hits(), 0)
            rule.remove()
            self.wait_for_more_steps(self.run_folder, ranks, 5)
            # The name without digits at its end is a save in progress.
            last = [it for it in self.checkpoints(self.run_folder) if it[-1].isdigit()][-1]
            ranks[0].send_signal(signal.SIGTERM)
            told = [rank.communicate(timeout=WAIT_S)[1] for rank in ranks]
            self.assertEqual([rank.returncode for rank in ranks], [1, 0], told)
            name = errno.errorcode[error]
            self.assertRegex(told[0], rf"was not saved: rank {victim}: .*{self.run_folder}.*{name}")
            self.assertIn("Training continues", told[0])
            self.assertRegex(told[0], rf"missing, because of rank {victim}: .*{name}")
            self.assertNotIn("the disk was full", told[0])
            self.expect_continued(self.run_folder, int(last[len("step-"):]))

    def test_that_fails_one_rank_ends_all_by_its_name_and_leaves_the_checkpoint_before(self):
        self.train(2, "--out", self.run_folder, "--steps", 2, *self.on_nvme())
        saved = 2
        for victim in (0, 1) if ALL else (1,):
            rule = self.mount.fail(errno.EIO, ("write", "fsync"), f"*/*-{victim + 1:05d}-of-*")
            ranks = self.start(2, "--out", self.run_folder, "--resume", *FOREVER, *self.on_nvme())
            told = self.ended(ranks)
            self.assertGreater(rule.hits(), 0)
            self.assertEqual([rank.returncode for rank in ranks], [1, 1], told)
            self.assertRegex(told[0], rf"\nsluice: .*rank {victim}: .*{self.run_folder}.*EIO")
            self.mount.clear()
            saved = self.expect_continued(self.run_folder, saved)


class Memory(FaultyRanks):
    def test_that_one_rank_cannot_have_ends_all_by_its_name(self):
        ranks = self.start(2, "--out", "run", *FOREVER)
        self.wait_for_more_steps(self.path / "run", ranks)
        taken = [int(re.search(r"VmPeak:\s+(\d+) kB", Path(f"/proc/{rank.pid}/status").read_text(
            encoding="ascii")).group(1)) * 1024 for rank in ranks]
        ranks[0].send_signal(signal.SIGTERM)
        self.ended(ranks)
        before = self.checkpoints("run")
        run = json.loads(self.config.read_text(encoding="utf-8"))
        run["model"] |= {"layers": 4, "hidden": 1024}
        self.config.write_text(json.dumps(run), encoding="utf-8")
        for victim in (0, 1) if ALL else (1,):
            ranks = self.start(2, "--out", "run", "--overwrite", *FOREVER,
                               memory_limits={victim: taken[victim] + 64 * MIB})
            told = self.ended(ranks)
            self.assertNotIn(0, [rank.returncode for rank in ranks], told)
            self.assertRegex(told[0], rf"rank {victim}|memory" if victim == 0 else r"rank 1")
            self.assertRegex("".join(told), "memory|alloc")
            self.assertEqual(self.checkpoints("run"), before)


if __name__ == "__main__":
    unittest.main()
