"""The server of failing_mount.FailingMount: shows a folder, and fails on request.

  failing_mount_server.py SOURCE MOUNTPOINT

Prints "ready" once the mount works, then answers requests, each a line of JSON. Ends with its
input.
"""

import contextlib
import ctypes
import errno
import fnmatch
import json
import os
import stat
import sys
import threading
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))
import reference_packages

reference_packages.use()
import mfusepy

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]
MAX_THREADS = 100  # each operation that hangs occupies one


class Rules:
    """The rules, and how often each was applied. Thread-safe."""

    def __init__(self):
        self._lock = threading.Lock()
        self._rules = {}
        self._next = 0
        self._running = 0  # operations, also those that wait

    @contextlib.contextmanager
    def counted(self):
        with self._lock:
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1

    def answer(self, question):
        with self._lock:
            what = question["do"]
            if what == "add":
                rule = dict(question["rule"], seen=0, hits=0, released=threading.Event())
                self._next += 1
                self._rules[self._next] = rule
                return self._next
            if what == "running":
                return self._running
            if what == "hits":
                return self._rules[question["rule"]]["hits"]
            if what == "remove":
                self._end(self._rules[question["rule"]])
                return 0
            if what == "clear":
                for rule in self._rules.values():
                    self._end(rule)
                return 0
            raise ValueError(what)

    @staticmethod
    def _end(rule):
        rule["operations"] = []
        rule["released"].set()

    def meet(self, operation, path):
        """Applies the first rule that fits: raises its error, or returns once the rule is
        removed."""
        rule = self._first(operation, path)
        if rule is None:
            return
        if "errno" in rule:
            raise OSError(rule["errno"], os.strerror(rule["errno"]))
        rule["released"].wait()

    def _first(self, operation, path):
        with self._lock:
            for rule in self._rules.values():
                names = rule["operations"]
                if operation not in names and "*" not in names:
                    continue
                if not fnmatch.fnmatchcase(path.lstrip("/"), rule["pattern"]):
                    continue
                rule["seen"] += 1
                if rule["seen"] <= rule["after"]:
                    continue
                if rule["times"] is not None and rule["hits"] >= rule["times"]:
                    continue
                rule["hits"] += 1
                return rule
        return None


class PassThrough(mfusepy.Operations):
    use_ns = True

    def __init__(self, source, rules):
        self._source = source
        self._rules = rules
        self._opened = {}  # descriptor -> path, since a file's last name may have been removed

    def _meet(self, operation, path, descriptor=None):
        if path is None:
            path = self._opened.get(descriptor, "")
        self._rules.meet(operation, path)
        return self._source + path

    def _keep(self, descriptor, path):
        self._opened[descriptor] = path
        return descriptor

    # --- names -------------------------------------------------------------------------------

    def getattr(self, path, fh=None):
        real = self._meet("getattr", path, fh)
        there = os.fstat(fh) if fh else os.lstat(real)
        shown = {name: getattr(there, name) for name in
                 ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_blocks", "st_rdev")}
        for name in ("st_atime", "st_mtime", "st_ctime"):
            shown[name] = getattr(there, name + "_ns")
        return shown

    def readdir(self, path, fh):
        return [".", "..", *os.listdir(self._meet("readdir", path))]

    def access(self, path, amode):
        if not os.access(self._meet("access", path), amode):
            raise OSError(errno.EACCES, "")
        return 0

    def mkdir(self, path, mode):
        os.mkdir(self._meet("mkdir", path), mode)
        return 0

    def rmdir(self, path):
        os.rmdir(self._meet("rmdir", path))
        return 0

    def unlink(self, path):
        os.unlink(self._meet("unlink", path))
        return 0

    def rename(self, old, new):
        # A rule may name either path.
        self._meet("rename", old)
        self._meet("rename", new)
        os.rename(self._source + old, self._source + new)
        return 0

    def link(self, target, source):
        self._meet("link", target)
        os.link(self._source + source, self._source + target)
        return 0

    def symlink(self, target, source):
        os.symlink(source, self._meet("symlink", target))
        return 0

    def readlink(self, path):
        return os.readlink(self._meet("readlink", path))

    def chmod(self, path, mode):
        os.chmod(self._meet("chmod", path), mode)
        return 0

    def chown(self, path, uid, gid):
        os.chown(self._meet("chown", path), uid, gid)
        return 0

    def utimens(self, path, times=None):
        os.utime(self._meet("utimens", path), ns=times)
        return 0

    def statfs(self, path):
        there = os.statvfs(self._meet("statfs", path))
        return {name: getattr(there, name) for name in
                ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree",
                 "f_favail", "f_flag", "f_namemax")}

    # --- files -------------------------------------------------------------------------------

    def _open(self, operation, path, flags, mode=0):
        real = self._meet(operation, path)
        # The kernel has turned appends into offsets; our own buffers are not aligned.
        flags &= ~(os.O_DIRECT | os.O_APPEND | os.O_NOFOLLOW)
        if flags & os.O_ACCMODE == os.O_WRONLY:
            flags = flags & ~os.O_ACCMODE | os.O_RDWR
        return self._keep(os.open(real, flags, stat.S_IMODE(mode)), path)

    def open(self, path, flags):
        return self._open("open", path, flags & ~(os.O_CREAT | os.O_EXCL))

    def create(self, path, mode, fi=os.O_RDWR):
        return self._open("create", path, fi | os.O_CREAT, mode)

    def read(self, path, size, offset, fh):
        self._meet("read", path, fh)
        return os.pread(fh, size, offset)

    def write(self, path, data, offset, fh):
        self._meet("write", path, fh)
        return os.pwrite(fh, data, offset)

    def truncate(self, path, length, fh=None):
        real = self._meet("truncate", path, fh)
        os.truncate(fh if fh else real, length)
        return 0

    def fallocate(self, path, mode, offset, size, fh):
        self._meet("fallocate", path, fh)
        if LIBC.fallocate(fh, mode, offset, size) != 0:
            raise OSError(ctypes.get_errno(), "")
        return 0

    def flush(self, path, fh):
        self._meet("flush", path, fh)
        return 0

    def fsync(self, path, datasync, fh):
        self._meet("fsync", path, fh)
        os.fsync(fh)
        return 0

    def fsyncdir(self, path, datasync, fh):
        descriptor = os.open(self._meet("fsyncdir", path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return 0

    def release(self, path, fh):
        self._opened.pop(fh, None)
        os.close(fh)
        return 0

    # --- start -------------------------------------------------------------------------------

    def init(self, path):
        threading.Thread(target=look_up_facts, args=(self._rules,), daemon=True).start()


class Counted(mfusepy.FUSE):
    def __init__(self, rules, *arguments, **options):
        self._rules = rules
        super().__init__(*arguments, **options)

    def _wrapper(self, func, *arguments, **options):
        with self._rules.counted():
            return super()._wrapper(func, *arguments, **options)


def look_up_facts(rules):
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(rules.answer(json.loads(line))), flush=True)
    # The test has ended; with this process all operations of the mount end.
    os._exit(0)


def main():
    source, mountpoint = sys.argv[1:]
    os.umask(0)
    rules = Rules()
    Counted(rules, PassThrough(os.path.abspath(source), rules), mountpoint, foreground=True,
                 nothreads=False, fsname="sluice-failing", max_threads=MAX_THREADS,
                 attr_timeout=0, entry_timeout=0, negative_timeout=0)


if __name__ == "__main__":
    main()
