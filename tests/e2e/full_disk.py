"""Runs whose disk is full: what they save, what they print, and how they end.

The program is the environment's SLUICE.
"""

import errno
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import unittest

from disk_runs import DiskTest, SAVED
from failing_mount import FailingMount, FullDisk, KIB, MIB
from sluice_runs import SLUICE, WAIT_S


@unittest.skipIf(FullDisk.unavailable(), FullDisk.unavailable())
class ADriveWithRoomForOneRun(DiskTest):
    def setUp(self):
        super().setUp()
        self.disk = FullDisk(9 * MIB)
        self.addCleanup(self.disk.close)
        self.on_nvme = []
        for key, value in (("zero_optimization.offload_optimizer.device", "nvme"),
                           ("zero_optimization.offload_param.device", "nvme"),
                           ("budget.nvme_paths", json.dumps([str(self.disk.path)])),
                           ("model.hidden", "128"), ("run.checkpoint_every", "2")):
            self.on_nvme += ["--set", f"{key}={value}"]

    def kill_one(self):
        run = self.start("a", *self.on_nvme, "--overwrite")
        run.wait_for(SAVED)
        run.send(signal.SIGKILL)
        run.end()
        room = shutil.disk_usage(self.disk.path)
        self.assertGreater(room.used, room.free)  # a second copy of its files does not fit

    def test_a_killed_run_goes_on_there_and_so_does_another(self):
        self.kill_one()
        planned = subprocess.run([SLUICE, "plan", "run.json", *self.on_nvme], cwd=self.path,
                                 check=False, capture_output=True, text=True).stderr
        self.assertRegex(planned, r"killed runs .* [\d.]+M ")
        self.assertIn(f"sluice scrub {self.disk.path} --remove-leftovers", planned)
        self.train("a", *self.on_nvme, "--resume", steps=self.steps("a")[-1] + 3)
        self.kill_one()
        self.assertIn("removed: ", self.train("b", *self.on_nvme, steps=2))


@unittest.skipIf(FullDisk.unavailable(), FullDisk.unavailable())
class AFullDisk(DiskTest):
    def setUp(self):
        super().setUp()
        self.disk = FullDisk(4 * MIB)
        self.addCleanup(self.disk.close)
        self.out = self.disk.path / "run"

    def start_and_fill(self):
        """Checkpoints have 350 KiB each, and metrics some 400 bytes per step."""
        run = self.start(self.out, "--set", "run.checkpoint_every=2", "--set", "run.keep_last=1")
        run.wait_for(SAVED, 2)
        self.disk.fill()
        self.assertEqual(self.disk.free_bytes(), 0)
        run.wait_for("was not saved")
        run.wait_for("metrics are kept in memory")
        run.wait_for_more_steps(5)
        return run

    def test_costs_checkpoints_and_not_the_run_and_metrics_are_whole_when_there_is_room(self):
        run = self.start_and_fill()
        self.disk.free()
        run.wait_for("can be written again")
        run.wait_for(SAVED, run.text.count(SAVED) + 1)
        run.send(signal.SIGTERM)
        self.assertEqual(run.end(), 1, run.text)
        self.assertEqual(run.text.count("metrics are kept in memory"), 1)
        self.assertEqual(run.text.count("can be written again"), 1)
        self.assertRegex(run.text, r"\nsluice: \d+ checkpoints? .*missing, .*disk was full\n")
        self.assertNotIn("the metrics of", run.text)
        steps = self.steps(self.out)
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        self.assertEqual(os.listdir(self.out / "checkpoints"), [f"step-{steps[-1]:09d}"])
        self.expect_bits_of_a_whole_run(self.out)

    def test_says_which_metrics_are_missing_where_it_stays_full_and_leaves_what_was_there(self):
        run = self.start_and_fill()
        run.send(signal.SIGTERM)
        self.assertEqual(run.end(), 1, run.text)
        self.assertRegex(run.text, r"\nsluice: .*metrics of \d+ steps .*\S+jsonl")
        steps = self.steps(self.out)
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        # Resuming is refused before anything of the run has changed.
        before = (self.out / "config.json").read_bytes()
        told = self.train(self.out, "--resume", code=2)
        self.assertIn("(ENOSPC)", told.splitlines()[-1])
        self.assertEqual((self.out / "config.json").read_bytes(), before)
        self.assertEqual(self.steps(self.out), steps)
        self.disk.free()
        self.expect_bits_of_a_whole_run(self.out)

    def test_sample_texts_wait_for_room_too(self):
        (self.path / "words.txt").write_text("some words, and some more of them. " * 400)
        (self.path / "prompts.txt").write_text("some\nwords\n")
        subprocess.run([SLUICE, "prepare", "words.txt", "--tokenizer", "bytes", "--out", "words"],
                       cwd=self.path, check=True, capture_output=True)
        run = self.start(self.out, "--set", "run.eval_every=1", "--set", "run.keep_last=1",
                         "--set", 'data.train=["words/train.bin"]', "--set", "model.vocab=260",
                         "--set", "samples.prompts=prompts.txt", "--set", "samples.tokens=4")
        run.wait_for("  sample  some")
        self.disk.fill()
        run.wait_for("metrics are kept in memory")
        run.wait_for_more_steps(5)
        self.disk.free()
        run.wait_for("can be written again")
        run.wait_for_more_steps(2)
        run.send(signal.SIGTERM)
        run.end()
        events = [json.loads(line) for line in (self.out / "events.jsonl").read_text().splitlines()]
        samples = [(each["step"], each["prompt"]) for each in events if each["event"] == "sample"]
        last = samples[-1][0]  # an interrupted step may have none
        self.assertGreaterEqual(last, self.steps(self.out)[-1] - 1)
        self.assertEqual(samples, [(step, prompt) for step in range(1, last + 1)
                                   for prompt in ("some", "words")])

    def test_is_found_too_small_at_the_start_and_what_is_set_is_obeyed(self):
        self.assertRegex(self.train(self.out, steps=1), f"every 30 minutes.*{self.out}/checkpoints")
        self.disk.fill(leave_bytes=500 * KIB)  # one checkpoint fits, and the run saves no other
        told = self.train(self.out, "--overwrite", steps=2)
        self.assertIn("more checkpoints of", told)
        self.assertIn("not save by time", told)
        self.assertIn("saves at the end", told)
        told = self.train(self.out, "--overwrite", "--set", "run.checkpoint_minutes=7", steps=2)
        self.assertIn("A save fails", told)
        self.assertIn("saves every 7 minutes", told)
        told = self.train(self.out, "--overwrite", "--set", "run.checkpoint_minutes=0", steps=1)
        self.assertNotIn("may not fit", told)


class AnExport(DiskTest):
    """An export of adapters, alone or merged with their base."""

    def setUp(self):
        super().setUp()
        model = {"preset": "custom", "family": "llama", "layers": 2, "hidden": 32, "heads": 2,
                 "context": 16, "vocab": 257, "ffn_multiplier": 3}
        self.edit_run(model=model)
        self.train("whole", steps=1)
        self.export("whole", "base")
        self.edit_run(model={"path": "base"}, recipe={"lora": {"rank": 4}})
        self.train("adapters", steps=1)

    def edit_run(self, **keys):
        file = self.path / "run.json"
        file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **keys}),
                        encoding="utf-8")

    def begin(self, *words):
        process = subprocess.Popen(
            [SLUICE, "export", *map(str, words), "--tokenizer", "bytes"], cwd=self.path,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        return process

    def export(self, *words, code=0):
        """Its messages if it fails; `code`: the expected exit code, None for any."""
        process = self.begin(*words)
        _, told = process.communicate(timeout=WAIT_S)
        if code is not None:
            self.assertEqual(process.returncode, code, told)
        return told if process.returncode != 0 else ""

    def content(self, folder):
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    def exported(self, *words):
        """An export without disturbance: its name and its files."""
        name = "of-" + "".join(words)
        self.export("adapters", name, *words)
        return name, self.content(self.path / name)

    @unittest.skipIf(FullDisk.unavailable(), FullDisk.unavailable())
    def test_is_whole_or_not_there_however_much_room_is_left(self):
        disk = FullDisk(4 * MIB)
        self.addCleanup(disk.close)
        for words in ([], ["--merged"], ["--merged", "--max-shard-size", "20K"]):
            with self.subTest(words=words):
                name, whole = self.exported(*words)
                out = disk.path / name
                needed = sum(map(len, whole.values()))
                refusals = set()
                for leave in range(0, needed + 128 * KIB, needed // 12):
                    disk.fill(leave_bytes=leave)
                    told = self.export("adapters", out, *words, code=None)
                    disk.free()
                    if not told:
                        break
                    told = told.splitlines()[-1]
                    self.assertRegex(told, r"^sluice: (no room for [\d.]+K? at |.* \(ENOSPC\))")
                    self.assertRegex(told, rf" ((at|in) {out}/|folder {out} failed)")
                    self.assertFalse(out.exists(), os.listdir(disk.path))
                    refusals.add(re.sub(r"[\d.]+K?", "N", told))
                else:
                    self.fail("it never had enough room")
                self.assertEqual(self.content(out), whole)
                self.assertGreater(len(refusals), 1)  # several writes were tried
                # An existing export stays unchanged.
                disk.fill()
                told = self.export("adapters", out, *words, code=2)
                self.assertIn(f"{out} is not empty", told)
                self.assertEqual(self.content(out), whole)
                disk.free()
                shutil.rmtree(out)

    @unittest.skipIf(FailingMount.unavailable(), FailingMount.unavailable())
    def test_counts_when_it_is_whole_and_not_before_whenever_it_is_killed(self):
        mount = FailingMount(self.path)
        self.addCleanup(mount.close)
        changes = ("mkdir", "create", "fallocate", "truncate", "write", "rename", "fsync",
                   "fsyncdir", "unlink")
        for words, stride in ([], 1), (["--merged", "--max-shard-size", "80K"], 4):
            with self.subTest(words=words):
                name, whole = self.exported(*words)
                kills = 0
                for change in range(0, 1000, stride):
                    out = mount.path / f"{stride}-{change}" / name
                    (self.path / f"{stride}-{change}").mkdir()
                    hung = mount.hang(changes, after=change, times=1)
                    process = self.begin("adapters", out, *words)
                    while hung.hits() == 0 and process.poll() is None:
                        time.sleep(0.005)
                    process.kill()
                    hung.remove()  # the pending operation still happens
                    _, told = process.communicate(timeout=WAIT_S)
                    mount.wait_until_idle()
                    if process.returncode == 0:
                        break
                    self.assertEqual(process.returncode, -signal.SIGKILL, told)
                    kills += 1
                    there = self.content(out) if out.exists() else {}
                    counts = there.keys() & {"config.json", "adapter_config.json"}
                    if counts:
                        self.assertEqual(there, whole)
                    # An incomplete export is refused, and not mistaken for something else.
                    told = self.export("adapters", out, *words, code=2 if there else 0)
                    self.assertEqual("of an export that" in told, bool(there and not counts), told)
                    self.assertEqual(self.content(out), there or whole)
                self.assertEqual(self.content(out), whole)
                self.assertGreater(kills, 10)


class OtherFailures(DiskTest):
    @unittest.skipIf(FailingMount.unavailable(), FailingMount.unavailable())
    def test_a_quota_and_a_read_only_disk_cost_checkpoints_and_not_the_run(self):
        mount = FailingMount(self.path)
        self.addCleanup(mount.close)
        writes = ("create", "write", "fallocate", "mkdir", "rename", "unlink", "truncate")
        for error, says in ((errno.EDQUOT, "full"), (errno.EROFS, "read-only")):
            with self.subTest(error=errno.errorcode[error]):
                out = f"run{error}"
                run = self.start(mount.path / out, "--set", "run.checkpoint_every=2")
                run.wait_for(SAVED, 2)
                rule = mount.fail(error, writes, out + "*")
                run.wait_for("was not saved")
                run.wait_for("metrics are kept in memory")
                run.wait_for_more_steps()
                rule.remove()
                run.wait_for("can be written again")
                run.wait_for(SAVED, run.text.count(SAVED) + 1)
                run.send(signal.SIGTERM)
                self.assertEqual(run.end(), 1, run.text)
                self.assertIn(f"({errno.errorcode[error]})", run.text)
                self.assertRegex(run.text, rf"missing,.*disk was {says}\n")
                steps = self.steps(out)
                self.assertEqual(steps, list(range(1, len(steps) + 1)))

    @unittest.skipIf(FailingMount.unavailable(), FailingMount.unavailable())
    def test_older_checkpoints_that_cannot_be_removed_cost_neither_checkpoints_nor_the_run(self):
        mount = FailingMount(self.path)
        self.addCleanup(mount.close)
        run = self.start(mount.path / "a", "--set", "run.checkpoint_every=2", "--set",
                         "run.keep_last=1")
        run.wait_for(SAVED, 2)
        rule = mount.fail(errno.EACCES, ("unlink", "rmdir"), "a/checkpoints/*")
        run.wait_for("older checkpoints were not removed: ", 2)
        self.assertIn("(EACCES)", run.text)
        run.wait_for(SAVED, run.text.count(SAVED) + 1)
        rule.remove()
        run.wait_for(SAVED, run.text.count(SAVED) + 2)
        run.send(signal.SIGTERM)
        self.assertEqual(run.end(), 75, run.text)
        kept = [path.name for path in (self.path / "a/checkpoints").iterdir()]
        self.assertEqual(kept, [f"step-{self.steps('a')[-1]:09}"])

    def test_a_limit_of_the_files_size_is_an_error_and_not_the_end(self):
        run = self.start("a", "--set", "run.checkpoint_every=2")
        run.wait_for(SAVED, 2)
        _, hard = resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (1, hard))
        run.wait_for("was not saved")
        run.wait_for("metrics are kept in memory")
        run.wait_for_more_steps()
        resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        run.wait_for("can be written again")
        run.send(signal.SIGTERM)
        self.assertEqual(run.end(), 1, run.text)
        self.assertIn("(EFBIG)", run.text)
        self.assertIn("ulimit -f", run.text)
        steps = self.steps("a")
        self.assertEqual(steps, list(range(1, len(steps) + 1)))

    def test_what_is_written_at_the_end_fails_by_itself(self):
        run = self.start("a", "--save-weights", "model.safetensors", "--trace", "1:2")
        run.wait_for_more_steps()
        (self.path / "a/trace.json.new").mkdir()
        (self.path / "model.safetensors").mkdir()
        run.send(signal.SIGTERM)
        self.assertEqual(run.end(), 1, run.text)
        self.assertIn("trace was not written: ", run.text)
        self.assertIn("weights were not saved: ", run.text)
        self.expect_bits_of_a_whole_run("a")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
