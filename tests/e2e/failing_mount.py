"""File systems for tests that fail on request: disks that can be filled to 0 bytes free, and a
mount whose operations return errors or hang.

  disk = FullDisk(16 * MIB)          ext4 in a loop-mounted image; Btrfs is similar
  disk.fill()                        statvfs says 0 bytes free; disk.free() takes it back

  mount = FailingMount(folder)       mount.path shows the folder, through FUSE
  rule = mount.fail(errno.ENOSPC, ("create", "write"), "checkpoints/*", after=2)
  rule.hits(); rule.remove()
  hung = mount.hang("fsync", "*.json"); hung.wait_for_hits(); hung.release()
  mount.kill()                       the server dies: ENOTCONN from now on

Each class has unavailable(): None, or the sentence with which a test skips on this machine:

  @unittest.skipIf(FailingMount.unavailable(), FailingMount.unavailable())

All are context managers, and close() may be called any number of times (addCleanup(mount.close)).
A mount also ends when the test is killed: a guard process waits for the end of this one, then
unmounts. It does so lazily, so that a process that still uses the mount cannot prevent it.
"""

import ctypes.util
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))
import reference_packages

KIB, MIB = 2**10, 2**20
SERVER = Path(__file__).with_name("failing_mount_server.py")
# Waits for the end of its input, which comes however the test ends.
GUARD = 'cat >/dev/null; umount -l "$1" 2>/dev/null; rmdir "$1"; [ -z "$2" ] || rm -rf "$2"'


class _Mountpoint:
    """A new, empty folder, and a guard process that unmounts and removes it, and removes `also`."""

    def __init__(self, also=""):
        self.path = Path(tempfile.mkdtemp(prefix="sluice-mount-"))
        # A session of its own, so that signals to the test's process group do not end it.
        self._guard = subprocess.Popen(
            ["sh", "-c", GUARD, "guard", str(self.path), also],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)

    def close(self):
        """Lets the guard do now what it does at the end of the test."""
        self._guard.stdin.close()
        self._guard.wait()


class _Mounted:
    """Common to disks and mounts: `path` and close()."""

    def close(self):
        raise NotImplementedError

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _mount(*arguments):
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True,
                          check=False)
    return "" if done.returncode == 0 else done.stderr.strip() or "mount failed"


class _Disk(_Mounted):
    """A small file system at `path`."""

    FILLER = ".filler"
    MAKE = ()  # the mkfs command, without the image's name

    def __init__(self, size_bytes):
        folder = tempfile.mkdtemp(prefix="sluice-disk-")
        self._mountpoint = _Mountpoint(folder)
        self.path = self._mountpoint.path
        problem = self._make_and_mount(Path(folder) / "image", size_bytes)
        if problem:
            self.close()
            raise OSError(problem)

    def _make_and_mount(self, image, size_bytes):
        with open(image, "wb") as file:
            file.truncate(size_bytes)
        made = subprocess.run([*self.MAKE, str(image)], capture_output=True, text=True,
                              check=False)
        if made.returncode != 0:
            return made.stderr.strip()
        return _mount("-o", "loop", image, self.path)

    def fill(self, leave_bytes=0):
        """Fills the free space except `leave_bytes`; with 0, until a write fails."""
        descriptor = os.open(self.path / self.FILLER, os.O_RDWR | os.O_CREAT)
        try:
            end = os.fstat(descriptor).st_size
            step = MIB
            while step >= 512:
                try:
                    if leave_bytes and self.free_bytes() - leave_bytes < step:
                        raise OSError
                    os.pwrite(descriptor, b"\xa5" * step, end)
                    os.fsync(descriptor)
                    end += step
                except OSError:
                    step //= 2
        finally:
            os.close(descriptor)

    def free(self):
        """Removes the files that fill() wrote."""
        (self.path / self.FILLER).unlink(missing_ok=True)
        os.sync()

    def free_bytes(self):
        there = os.statvfs(self.path)
        return there.f_bavail * there.f_frsize

    def close(self):
        self._mountpoint.close()

    @classmethod
    @functools.cache
    def unavailable(cls):
        if os.geteuid() != 0:
            return "only root can mount a small drive"
        if cls.MAKE and shutil.which(cls.MAKE[0]) is None:
            return f"{cls.MAKE[0]} is not installed; tools/setup --for=test installs it"
        try:
            cls(cls.SMALLEST_BYTES).close()
        except OSError as problem:
            return f"no small drive can be mounted here: {problem}"
        return None


class FullDisk(_Disk):
    """ext4 in an image; tmpfs of the same size if there are no loop devices (see `kind`).

    It has blocks of 1 KiB and no reserve for root, so that it can be filled completely.
    """

    MAKE = ("mkfs.ext4", "-q", "-F", "-m", "0", "-b", "1024", "-O", "^resize_inode")
    SMALLEST_BYTES = 2 * MIB

    def _make_and_mount(self, image, size_bytes):
        self.kind = "ext4"
        problem = super()._make_and_mount(image, size_bytes)
        if problem:
            self.kind = "tmpfs"
            problem = _mount("-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", self.path)
        return problem


class Btrfs(_Disk):
    """btrfs in an image: overwritten data goes to new blocks.

    Data and metadata share blocks; otherwise statfs reports 0 on a small drive that was ever full.
    """

    MAKE = ("mkfs.btrfs", "-q", "-f", "--mixed")
    SMALLEST_BYTES = 32 * MIB


class Rule:
    """A rule of a FailingMount for some operations on some paths, until it is removed."""

    def __init__(self, mount, number):
        self._mount = mount
        self._number = number

    def hits(self):
        """How many operations it has affected so far."""
        return self._mount.ask(do="hits", rule=self._number)

    def wait_for_hits(self, count=1, timeout_s=60):
        end = time.monotonic() + timeout_s
        while self.hits() < count:
            if time.monotonic() > end:
                raise TimeoutError(f"{self.hits()} operations in {timeout_s} s, not {count}")
            time.sleep(0.01)

    def remove(self):
        """Ends the rule; waiting operations continue."""
        self._mount.ask(do="remove", rule=self._number)

    release = remove


class FailingMount(_Mounted):
    """Shows `source` at `path`. Rules are tried in the order in which they were added.

    Operations have FUSE's names (see failing_mount_server.py: create, open, read, write, fsync,
    fsyncdir, fallocate, truncate, rename, unlink, mkdir, rmdir, getattr, readdir, statfs, ...).
    Patterns are those of fnmatch, matched against the path below the mount ("checkpoints/*": *
    crosses slashes). The lookup of a path is a getattr of each of its parts. Names and attributes
    are not cached, so every operation of the program arrives. O_DIRECT files work as on a disk.
    """

    def __init__(self, source):
        self._mountpoint = _Mountpoint()
        self.path = self._mountpoint.path
        self._lock = threading.Lock()
        self._server = subprocess.Popen(
            [sys.executable, "-B", str(SERVER), str(source), str(self.path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        try:
            if self._server.stdout.readline() != "ready\n":
                raise OSError("the FUSE server did not start; its messages above say why")
        except BaseException:
            self.close()
            raise

    def fail(self, error, operations="*", pattern="*", after=0, times=None):
        """After the first `after` operations, `times` of them return `error` (an errno)."""
        return self._rule(operations, pattern, after, times, errno=error)

    def hang(self, operations="*", pattern="*", after=0, times=None):
        """The operations wait until release(). Not even SIGKILL ends a waiting process; close()
        does."""
        return self._rule(operations, pattern, after, times, hang=True)

    def clear(self):
        self.ask(do="clear")

    def wait_until_idle(self, timeout_s=60):
        """Returns when no operation is running: a killed process may have left one behind."""
        end = time.monotonic() + timeout_s
        while self.ask(do="running") > 0:
            if time.monotonic() > end:
                raise TimeoutError(f"operations still run after {timeout_s} s")
            time.sleep(0.005)

    def kill(self):
        """Ends the server: all operations, also waiting ones, get ENOTCONN (or ECONNABORTED)."""
        self._server.kill()
        self._server.wait()

    def close(self):
        # End the server first: that ends operations that hang in the mount.
        self.kill()
        self._mountpoint.close()
        self._server.stdin.close()
        self._server.stdout.close()

    def _rule(self, operations, pattern, after, times, **what):
        operations = [operations] if isinstance(operations, str) else list(operations)
        return Rule(self, self.ask(do="add", rule={"operations": operations, "pattern": pattern,
                                                   "after": after, "times": times, **what}))

    def ask(self, **question):
        with self._lock:
            print(json.dumps(question), file=self._server.stdin, flush=True)
            return json.loads(self._server.stdout.readline())

    @classmethod
    @functools.cache
    def unavailable(cls):
        if os.geteuid() != 0 and shutil.which("fusermount3") is None:
            return "only root can mount file systems here: fusermount3 is not installed"
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            return "there is no /dev/fuse here that can be opened"
        if ctypes.util.find_library("fuse3") is None:
            return "libfuse3 is not installed; tools/setup --for=test installs it"
        reference_packages.use()
        try:
            import mfusepy  # noqa: F401
        except ImportError as missing:
            return f"mfusepy cannot be imported ({missing}); tools/setup --for=test installs it"
        try:
            with tempfile.TemporaryDirectory() as folder, cls(folder):
                pass
        except OSError as problem:
            return f"FUSE cannot mount here: {problem}"
        return None
