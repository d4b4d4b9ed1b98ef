"""Runs whose folder is gone, whose terminal disappears, or whose drive does not respond: what they
save, what they print, and how they end.

The program is the environment's SLUICE.
"""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
import unittest

from disk_runs import DiskTest, SAVED
from failing_mount import FailingMount
from sluice_runs import SLUICE, WAIT_S


@unittest.skipIf(FailingMount.unavailable(), FailingMount.unavailable())
class AFolderThatCannotBeReached(DiskTest):
    """A folder that cannot be read is not treated as missing."""

    def expect_named(self, name, *commands):
        """Each command fails with exit code 1 and the error's name."""
        before = {path: path.read_bytes() for path in (self.path / "run").rglob("*")
                  if path.is_file()}
        for command in commands:
            with self.subTest(command=command[0], error=name):
                done = subprocess.run([SLUICE, *map(str, command)], cwd=self.path, check=False,
                                      stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                      timeout=WAIT_S)
                told = done.stdout + done.stderr
                self.assertEqual(done.returncode, 1, told)
                self.assertIn(f"({name})", told)
                self.assertNotIn("no checkpoint", told)
        self.assertEqual({path: path.read_bytes() for path in before}, before)

    def test_is_an_error_and_not_a_run_without_checkpoints(self):
        self.train("run", steps=2)
        mount = FailingMount(self.path)
        self.addCleanup(mount.close)
        run = mount.path / "run"
        resume = ["train", "run.json", "--out", run, "--resume", "--steps", "3"]
        # A network file system returns it when its server has lost the file.
        rule = mount.fail(errno.ESTALE)
        self.expect_named("ESTALE", resume, ["ls", run])
        rule.remove()
        mount.kill()
        self.expect_named("ENOTCONN", resume, ["ls", run], ["export", run, "exported"],
                          ["generate", run, "--prompt", "ab", "--tokens", "1"])
        self.assertFalse((self.path / "exported").exists())


class SavedOnTheWay(DiskTest):
    def test_by_time_with_the_same_bits(self):
        told = self.train("a", "--set", "run.checkpoint_minutes=1e-9", steps=6)
        self.assertIn("every 1e-09 minutes", told)
        self.assertEqual(told.count(SAVED), 6, told)
        self.assertEqual(sorted(os.listdir(self.path / "a/checkpoints")),
                         ["step-000000005", "step-000000006"])
        told = self.train("b", "--set", "run.checkpoint_minutes=60", steps=6)
        self.assertEqual(told.count(SAVED), 1, told)
        self.assertEqual(self.bits("a"), self.bits("b"))

    def test_when_its_terminal_is_gone(self):
        master, terminal = os.openpty()

        def prepare():
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        process = subprocess.Popen(self.words("a"), cwd=self.path, stdin=terminal, stdout=terminal,
                                   stderr=terminal, start_new_session=True, preexec_fn=prepare)
        self.addCleanup(process.kill)
        os.close(terminal)
        shown = b""
        while shown.count(b"step ") < 5:  # read like a terminal; otherwise the run would wait
            shown += os.read(master, 4096)
        os.close(master)  # SIGHUP, and EIO for all later writes
        self.assertEqual(process.wait(WAIT_S), 75)
        self.assertEqual(os.listdir(self.path / "a/checkpoints"),
                         [f"step-{self.steps('a')[-1]:09d}"])
        self.expect_bits_of_a_whole_run("a")

    def test_when_a_lost_connection_sends_several_signals_at_once(self):
        run = self.start("a")
        run.wait_for_more_steps()
        run.send(signal.SIGHUP, signal.SIGTERM, signal.SIGHUP)
        self.assertEqual(run.end(), 75, run.text)
        self.assertEqual(run.text.count(SAVED), 1)

    def test_not_under_nohup(self):
        run = self.start("a", ignoring=signal.SIGHUP)
        run.wait_for_more_steps()
        run.send(signal.SIGHUP)
        run.wait_for_more_steps()
        self.assertNotIn("finishing the step", run.text)
        run.send(signal.SIGTERM)
        self.assertEqual(run.end(), 75, run.text)

    def test_when_nobody_reads_what_it_says(self):
        process = subprocess.Popen(self.words("a"), cwd=self.path, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        while b"step 3" not in process.stderr.readline():
            pass
        process.stderr.close()
        done = len(self.steps("a"))
        log = self.path / "a/metrics.jsonl"
        end = time.monotonic() + WAIT_S
        while process.poll() is None and log.read_bytes().count(b"\n") < done + 5:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(WAIT_S), 75)
        self.assertEqual(len(os.listdir(self.path / "a/checkpoints")), 1)


@unittest.skipIf(FailingMount.unavailable(), FailingMount.unavailable())
class ADriveThatHangs(DiskTest):
    def tasks(self, process):
        return len(os.listdir(f"/proc/{process.pid}/task"))

    def test_does_not_keep_the_second_ctrl_c_from_ending_the_process(self):
        mount = FailingMount(self.path)
        self.addCleanup(mount.close)
        run = self.start(mount.path / "a")
        run.wait_for_more_steps()
        hung = mount.hang("write", "a/metrics.jsonl")
        hung.wait_for_hits()  # the main thread waits there
        run.send(signal.SIGINT)
        run.wait_for("again to stop immediately")
        run.send(signal.SIGINT)
        # The last thread is the one that waits in the kernel.
        end = time.monotonic() + WAIT_S
        while self.tasks(run.process) > 1:
            self.assertLess(time.monotonic(), end, "it goes on")
            time.sleep(0.01)
        hung.release()
        self.assertEqual(run.end(), 130, run.text)
        self.assertFalse((self.path / "a/checkpoints").exists())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
