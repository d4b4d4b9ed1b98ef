"""`sluice train --resume` on folders that have changed since the run: unreadable files are never
ignored or removed, and every problem is reported.

SLUICE is the program; SLUICE_HAS_ENGINE=1 when it was built with LibTorch.
"""

import ctypes
import ctypes.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from sluice_program import HAS_ENGINE, SLUICE, Training


def sealed(content):
    """The format of swap/sealed_json.h; None if Python finds no libxxhash."""
    library = ctypes.util.find_library("xxhash")
    if library is None:
        return None
    xxh3 = ctypes.CDLL(library).XXH3_64bits
    xxh3.restype = ctypes.c_uint64
    xxh3.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    text = json.dumps(content, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()
    return json.dumps({"checksum": f"{xxh3(text, len(text)):016x}", "content": content}, indent=1,
                      sort_keys=True, ensure_ascii=False) + "\n"


def contents(folder):
    """Every file below the folder with its contents, except the lock."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
            for path in folder.rglob("*") if path.name != "lock"}


@unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
class Resume(Training):
    """Unreadable files are never ignored or removed; every problem is reported."""

    @classmethod
    def setUpClass(cls):
        cls.run_before = None
        cls.folder = tempfile.TemporaryDirectory(prefix="sluice-cli-", dir=os.getcwd())
        cls.addClassCleanup(cls.folder.cleanup)

    def setUp(self):
        """A run of 6 steps in a/, with checkpoints of steps 2, 4 and 6."""
        super().setUp()
        if self.run_before is None:
            self.sluice("train", "run.json", "--out", "a", "--steps", "6", "--set",
                        "run.checkpoint_every=2", "--set", "run.keep_last=0")
            type(self).run_before = Path(self.folder.name) / "a"
            shutil.copytree(self.path / "a", self.run_before)
        else:
            shutil.copytree(self.run_before, self.path / "a")
        self.checkpoints = self.path / "a/checkpoints"

    def next_command(self, text, before):
        """The command that the message suggests, unchanged."""
        last = text.splitlines()[-1]
        self.assertIn(before, last)
        words = shlex.split(last.split(before)[1].split(". ")[0])
        self.assertEqual(words[0], "sluice")
        return words[1:]

    def damage_the_newest(self):
        """Ways to damage a checkpoint: names, and functions of its folder."""
        def of_manifest(change):
            def damage(folder):
                path = folder / "checkpoint.json"
                path.write_bytes(change(path.read_bytes()))
            return damage

        def flip(content):
            return content[:100] + bytes([content[100] ^ 1]) + content[101:]

        def newer(content):
            inside = json.loads(content)["content"]
            return sealed({**inside, "version": 1000, "something": "new"}).encode()

        yield "flipped", "is damaged", of_manifest(flip)
        yield "cut short", "is damaged", of_manifest(lambda content: content[:-100])
        yield "still copied", "still being copied", lambda folder: (
            folder / "checkpoint.json").unlink()
        yield "data missing", "is missing", lambda folder: next(folder.glob("exp_avg-*")).unlink()
        yield "data cut short", "bytes instead of", lambda folder: os.truncate(
            next(folder.glob("master-*")), 1000)
        yield "renamed", "was renamed", lambda folder: folder.rename(
            folder.with_name("step-000000009"))
        if sealed({}) is not None:
            yield "newer", "written by a newer version", of_manifest(newer)

    def test_stops_at_the_newest_that_cannot_be_read_with_the_way_on(self):
        for number, (name, says, damage) in enumerate(self.damage_the_newest()):
            with self.subTest(damage=name):
                out = f"run {number}"  # a name that needs quotes in a shell
                shutil.copytree(self.path / "a", self.path / out)
                damage(self.path / out / "checkpoints/step-000000006")
                before = contents(self.path / out)
                arguments = ["train", "run.json", "--out", out, "--steps", "7", "--set",
                             "run.keep_last=1"]
                told = self.sluice(*arguments, "--resume", code=1).stderr
                self.assertIn(says, told)
                self.assertEqual(contents(self.path / out), before)
                if name in ("still copied", "newer"):  # the others share that code
                    self.assertIn(says, self.sluice(*arguments, "--overwrite", code=1).stderr)
                    self.assertEqual(contents(self.path / out), before)
                    self.sluice("ls", out, code=1)
                    self.assertIn("--checkpoint step-000000004",
                                  self.sluice("export", out, "x", code=1).stderr)
                went = self.sluice(*self.next_command(told, "To continue from there: ")).stderr
                self.assertNotIn("it is not changed", went)
                kept = [path for path in (self.path / out / "checkpoints").iterdir()
                        if path.name.startswith("set-aside-at-step-000000004")]
                self.assertEqual(len(kept), 1)
                now = contents(kept[0] / "checkpoints")
                then = {path: content for path, content in before.items()
                        if path.startswith(("checkpoints/step-000000006",
                                            "checkpoints/step-000000009"))}
                self.assertEqual(sorted("checkpoints/" + path for path in now), sorted(then))
                self.assertEqual(list(now.values()), [then["checkpoints/" + path] for path in now])
                self.assertEqual(len(self.metrics(out)), 7)
                self.assertEqual(self.results(out)[:6], self.results("a"))

    def test_stops_where_no_manifest_can_be_read(self):
        for manifest in self.checkpoints.glob("*/checkpoint.json"):
            manifest.write_bytes(manifest.read_bytes()[:-2])
        before = contents(self.path / "a")
        told = self.sluice("train", "run.json", "--out", "a", "--resume", "--steps", "1",
                           code=1).stderr
        self.assertRegex(told, "no older.*To start a new")
        self.assertEqual(contents(self.path / "a"), before)

    def test_stops_where_the_first_file_of_the_newest_is_being_copied(self):
        copied = self.checkpoints / "step-000000009"
        copied.mkdir()
        (copied / ".exp_avg-00001-of-00013.safetensors.AbCdEf").write_bytes(b"so far")
        before = contents(self.path / "a")
        for command, says in ((["train", "run.json", "--out", "a", "--resume"], "being copied"),
                              (["export", "a", "x"], "being copied"),
                              (["ls", "a"], "being copied"),
                              (["scrub", "a"], "no checkpoint was completed")):
            with self.subTest(command=command):
                result = self.sluice(*command, code=1)
                self.assertIn(says, result.stdout + result.stderr)
                self.assertEqual(contents(self.path / "a"), before)

    def test_leaves_a_folder_that_is_being_copied_alone(self):
        (self.checkpoints / "step-000000002/checkpoint.json").unlink()
        told = self.sluice("train", "run.json", "--out", "a", "--resume", "--steps", "7", "--set",
                           "run.keep_last=1").stderr
        self.assertRegex(told, "step-000000002 .*copied.*; .*not changed")
        self.assertRegex(told, r"run\.keep_last is 1:.*step-000000004")
        self.assertIn("run.keep_last removed step-000000006)", told)
        self.assertEqual(sorted(os.listdir(self.checkpoints)),
                         ["step-000000002", "step-000000007"])

    def test_goes_back_only_if_told_what_becomes_of_later_checkpoints(self):
        before = contents(self.path / "a")
        told = self.sluice("train", "run.json", "--out", "a", "--steps", "6", "--resume=step-2",
                           code=2).stderr
        self.assertIn("step-000000004 to step-000000006", told)
        self.assertEqual(contents(self.path / "a"), before)

        # Into a new folder; a is unchanged.
        command = self.next_command(told, "To keep this run unchanged: ")
        self.sluice(*["b" if word == "NEW_FOLDER" else word for word in command])
        self.assertEqual(contents(self.path / "a"), before)
        self.assertEqual(self.results("b"), self.results("a")[2:])
        self.assertEqual(os.listdir(self.path / "b/checkpoints"), ["step-000000006"])
        told = self.sluice("train", "run.json", "--out", "b", "--resume=a/checkpoints/2/",
                           code=2).stderr
        self.assertIn("checkpoints of its own", told)

        # Or with later checkpoints set aside, each time in a new folder.
        keep = self.next_command(self.sluice("train", "run.json", "--out", "a", "--steps", "6",
                                             "--resume=2", code=2).stderr, "step-000000002: ")
        for name, first in (("set-aside-at-step-000000002", "step-000000004 to "),
                            ("set-aside-at-step-000000002-2", "")):
            aside = f"a/checkpoints/{name}"
            told = self.sluice(*keep).stderr
            self.assertIn(f"{first}step-000000006 in {aside} (sluice ls {aside}",
                          told)
            self.assertRegex(told, rf"4 lines.*{aside}/metrics\.jsonl")
            self.assertIn("step-000000006", self.sluice("ls", aside).stdout)
            self.assertEqual(self.results(aside), self.results("b"))
            self.assertEqual(len(self.results("a")), 6)
        moved = contents(self.checkpoints / "set-aside-at-step-000000002/checkpoints")
        self.assertEqual(moved, {path.removeprefix("checkpoints/"): content
                                 for path, content in before.items()
                                 if path.startswith(("checkpoints/step-000000004",
                                                     "checkpoints/step-000000006"))})
        saved = json.loads((self.path / "a/config.json").read_text(encoding="utf-8"))
        self.assertEqual(saved["run"]["later_checkpoints"], "refuse")
        self.assertIn("--resume",
                      self.refused("train", "run.json", "--out", "c", "--set-aside-later"))

    def test_keeps_the_metrics_that_it_cuts_and_says_so(self):
        lines = (self.path / "a/metrics.jsonl").read_text(encoding="utf-8").splitlines(True)
        shutil.rmtree(self.checkpoints / "step-000000006")
        resume = ["train", "run.json", "--out", "a", "--resume", "--steps", "4"]
        self.assertRegex(self.sluice(*resume).stderr, r"2 lines.*a/metrics-cut\.jsonl")
        self.assertNotIn("metrics-cut", self.sluice(*resume).stderr)
        self.assertEqual((self.path / "a/metrics.jsonl").read_text(encoding="utf-8"),
                         "".join(lines[:4]))
        self.assertEqual((self.path / "a/metrics-cut.jsonl").read_text(encoding="utf-8"),
                         "".join(lines[4:]))

    def test_keeps_as_many_checkpoints_as_before_unless_told_otherwise(self):
        resume = ["train", "run.json", "--out", "a", "--resume"]
        self.sluice(*resume, "--steps", "6", "--set", "run.keep_last=1")  # no step is left to train
        self.assertEqual(len(os.listdir(self.checkpoints)), 3)
        told = self.sluice(*resume, "--steps", "7").stderr
        self.assertRegex(told, r"all checkpoints.*--set run\.keep_last=2")
        self.assertEqual(len(os.listdir(self.checkpoints)), 4)

    def test_says_that_products_are_in_fp8_from_now_on(self):
        told = self.sluice("train", "run.json", "--out", "a", "--resume", "--steps", "7", "--set",
                           "fp8.enabled=true").stderr
        self.assertIn("fp8.enabled was false and is true", told)
        self.assertNotIn("fp8.weight_gradient", told)
        told = self.sluice("train", "run.json", "--out", "a", "--resume", "--steps", "8").stderr
        self.assertIn("fp8.enabled was true and is false", told)

    def stop_during_set_up(self, *arguments):
        """SIGINT before the first step of a run in a/; its folder must not change."""
        (self.path / "a/lock").unlink(missing_ok=True)
        before = contents(self.path / "a")
        process = self.start(*arguments)
        deadline = time.monotonic() + 120
        while not (self.path / "a/lock").exists():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.001)
        process.send_signal(signal.SIGSTOP)
        self.assertEqual(contents(self.path / "a"), before, "it could not be stopped in time")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        told = process.communicate(timeout=120)[1].decode()
        self.assertEqual(process.returncode, 130, told)
        self.assertIn("nothing was changed", told)
        self.assertEqual(contents(self.path / "a"), before)
        self.assertEqual(os.listdir(self.path / "nvme"), [])

    def test_an_interrupt_before_the_first_step_costs_the_former_run_nothing(self):
        self.stop_during_set_up("train", "run.json", "--out", "a", "--overwrite", "--steps",
                                "100000")
        self.stop_during_set_up("train", "run.json", "--out", "a", "--resume=2", "--steps",
                                "100000", "--set-aside-later")

    def test_removes_no_run_that_it_is_to_go_on_with(self):
        before = contents(self.path / "a")
        run = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        run["run"]["resume"] = "step-2"
        self.write("resuming.json", run)
        for arguments in (["run.json", "--set", "run.resume=newest"], ["resuming.json"]):
            said = self.refused("train", *arguments, "--out", "a", "--overwrite")
            self.assertRegex(said, r"--overwrite.*run\.resume")
            self.assertEqual(contents(self.path / "a"), before)
        self.assertIn("--init-from cannot", self.refused(
            "train", "resuming.json", "--out", "a", "--init-from", "w.safetensors"))

    def test_does_not_say_that_there_is_no_checkpoint_when_the_newest_is_damaged(self):
        # With this learning rate, from some step on no value is finite.
        sudden = {"type": "LRRangeTest", "params": {
            "lr_range_test_min_lr": 0.003, "lr_range_test_step_size": 600,
            "lr_range_test_step_rate": 1e35, "lr_range_test_staircase": True}}
        run = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        run["zero_optimization"] = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
        self.write("sudden.json", {**run, "scheduler": sudden})
        process = self.start("train", "sudden.json", "--out", "b", "--steps", "100000", "--set",
                             "run.checkpoint_every=350")
        manifest = self.path / "b/checkpoints/step-000000350/checkpoint.json"
        deadline = time.monotonic() + 120
        while not manifest.exists():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.005)
        process.send_signal(signal.SIGSTOP)
        manifest.write_bytes(manifest.read_bytes()[:-2])
        process.send_signal(signal.SIGCONT)
        told = process.communicate(timeout=120)[1].decode()
        self.assertEqual(process.returncode, 1, told)
        last = told.splitlines()[-1]
        self.assertIn("is not finite", last)
        self.assertIn("cannot be determined", last)
        self.assertIn("step-000000350 is damaged", last)

    def small_disk(self, size):
        small = self.path / "small"
        small.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs",
                                  str(small)], check=False, capture_output=True)
        if mounted.returncode != 0:
            self.skipTest("only root can mount a small drive")
        self.addCleanup(subprocess.run, ["umount", "-l", str(small)], check=False)
        shutil.copytree(self.path / "a", small / "a")
        return small

    def leave(self, small, free):
        """Leaves that many bytes free."""
        ballast = small / "ballast"
        ballast.unlink(missing_ok=True)
        room = os.statvfs(small)
        ballast.write_bytes(bytes(room.f_bavail * room.f_frsize - free))

    def test_a_full_disk_refuses_a_run_before_anything_is_moved(self):
        small = self.small_disk("2m")
        before = contents(small / "a")
        # Allow one page more each time. All steps are done, so the run writes no other files.
        for pages in range(20):
            self.leave(small, pages * 4096)
            result = subprocess.run(
                [SLUICE, "train", "run.json", "--out", "small/a", "--steps", "2", "--resume=2",
                 "--set-aside-later"], cwd=self.path, check=False, capture_output=True, text=True,
                timeout=240)
            if result.returncode == 0:
                break
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn("ENOSPC", result.stderr.splitlines()[-1])
            self.assertEqual(contents(small / "a"), before)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertGreaterEqual(pages, 2)  # config.json, and the lines of metrics
        aside = small / "a/checkpoints/set-aside-at-step-000000002"
        self.assertEqual(len(os.listdir(aside / "checkpoints")), 2)
        self.assertEqual((aside / "metrics.jsonl").read_bytes().count(b"\n"), 4)
        self.assertEqual(len(self.metrics("small/a")), 2)

    def test_counts_no_room_of_checkpoints_that_it_sets_aside(self):
        small = self.small_disk("4m")
        self.leave(small, 500 * 1024)  # one checkpoint fits, two do not
        told = self.sluice("train", "run.json", "--out", "small/a", "--steps", "4",
                           "--resume=a/checkpoints/2", "--set-aside-later", "--set",
                           "run.checkpoint_every=1", "--set", "run.keep_last=1", code=1).stderr
        self.assertIn("2 more checkpoints of ", told)
        self.assertIn("disk of small/a", told)

    def test_says_what_fewer_kept_checkpoints_remove(self):
        told = self.sluice("train", "run.json", "--out", "a", "--resume", "--steps", "7", "--set",
                           "run.keep_last=2").stderr
        self.assertRegex(told, r"run\.keep_last is 2:.*step-000000002.*a/checkpoints")
        self.assertIn("run.keep_last removed step-000000004)", told)

    def test_overwrites_nothing_before_the_new_run_is_set_up(self):
        before = contents(self.path / "a")
        self.refused("train", "run.json", "--out", "a", "--overwrite", "--set",
                     "data.train=[\"absent.bin\"]")
        self.assertEqual(contents(self.path / "a"), before)
        told = self.sluice("train", "run.json", "--out", "a", "--overwrite", "--steps", "1").stderr
        self.assertRegex(told, "the run in a, 3 checkpoints, step-000000002.*step-000000006")
        self.assertEqual(os.listdir(self.checkpoints), ["step-000000001"])

    def test_does_not_take_a_folder_that_cannot_be_searched_for_an_empty_one(self):
        self.checkpoints.rename(self.path / "elsewhere")
        self.checkpoints.symlink_to(self.path / "unmounted")
        for command in (["train", "run.json", "--out", "a", "--resume"], ["ls", "a"],
                        ["export", "a", "x"], ["scrub", "a"]):
            with self.subTest(command=command):
                result = self.sluice(*command, code=1)
                self.assertIn("mounted?", result.stderr)
        self.checkpoints.unlink()
        self.checkpoints.write_bytes(b"")
        for command in (["train", "run.json", "--out", "a", "--resume"], ["ls", "a"],
                        ["scrub", "a"]):
            with self.subTest(command=command):
                self.assertIn("must be a folder", self.sluice(*command, code=1).stderr)
        self.assertEqual(len(self.metrics("a")), 6)

    def test_says_that_it_may_not_look_where_it_may_not(self):
        # Root can read everything, unless it drops that capability.
        give_up = []
        if os.geteuid() == 0:
            give_up = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
            if shutil.which("setpriv") is None:
                self.skipTest("root can look everywhere, and there is no setpriv to give that up")
        closed = self.checkpoints / "step-000000006/checkpoint.json"
        for path, says in ((self.checkpoints, "listing of a/checkpoints"),
                           (closed, "step-000000006 cannot be read: ")):
            mode = path.stat().st_mode
            path.chmod(0)
            self.addCleanup(path.chmod, mode)
            for command in (["train", "run.json", "--out", "a", "--resume"],
                            ["train", "run.json", "--out", "a", "--overwrite"],
                            ["export", "a", "x"], ["generate", "a", "--prompt", "a"]):
                with self.subTest(path=path.name, command=command):
                    result = subprocess.run([*give_up, SLUICE, *command], cwd=self.path,
                                            check=False, capture_output=True, text=True,
                                            timeout=240)
                    self.assertEqual(result.returncode, 2, result.stderr)
                    self.assertIn(says, result.stderr.splitlines()[-1])
                    self.assertIn("EACCES", result.stderr.splitlines()[-1])
            path.chmod(mode)
        self.assertEqual(len(contents(self.path / "a")), len(contents(self.run_before)))
        # An unreadable file is not damaged, so the message does not suggest to continue without it.
        next(self.checkpoints.glob("step-000000006/master-*")).chmod(0)
        result = subprocess.run([*give_up, SLUICE, "train", "run.json", "--out", "a", "--resume",
                                 "--steps", "7"], cwd=self.path, check=False, capture_output=True,
                                text=True, timeout=240)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("EACCES", result.stderr.splitlines()[-1])
        self.assertNotIn("--set-aside-later", result.stderr)

    def test_a_folder_that_is_moved_away_costs_the_checkpoint_and_not_the_run(self):
        process = self.start("train", "run.json", "--out", "a", "--resume", "--steps", "100000")
        self.wait_for_steps("a", 8)
        (self.path / "a").rename(self.path / "moved")
        process.send_signal(signal.SIGINT)  # saves a checkpoint
        told = process.communicate(timeout=120)[1].decode()
        self.assertEqual(process.returncode, 1, told)
        self.assertRegex(told, "step [0-9]+ .*not saved: a no longer")
        self.assertRegex(told, "1 checkpoint.*moved or unmounted")
        self.assertFalse((self.path / "a").exists())
        self.assertEqual(len(list((self.path / "moved/checkpoints").iterdir())), 3)

    def test_does_not_say_that_there_is_no_checkpoint_when_its_folder_is_gone(self):
        process = self.start("train", "run.json", "--out", "a", "--resume", "--steps", "100000")
        self.wait_for_steps("a", 8)
        (self.path / "a").rename(self.path / "unmounted")
        for store in (self.path / "nvme").rglob("*"):
            if store.is_file() and store.stat().st_size > 65536:
                os.truncate(store, 4096)
        _, told = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 1, told)
        last = told.decode().splitlines()[-1]
        self.assertIn("a no longer exists", last)
        self.assertNotIn("There is no checkpoint", last)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
