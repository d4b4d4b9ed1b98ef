"""sluice and aio_bench in a sandbox that allows rings but refuses io_uring_enter.

Each program is started under a seccomp filter that rejects the call. The programs are the
environment's SLUICE and AIO_BENCH.
"""

import ctypes
import errno
import os
import platform
import struct
import subprocess
import sys
import unittest

from sluice_runs import SLUICE, SluiceRuns

AIO_BENCH = os.path.abspath(os.environ.get("AIO_BENCH", "build/bin/aio_bench"))
IO_URING_ENTER = 426  # on every architecture
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
RET_ALLOW, RET_ERRNO = 0x7FFF0000, 0x00050000
ERRORS = (errno.EPERM, errno.EAGAIN, errno.EBUSY, errno.ENOMEM)
LIBC = ctypes.CDLL(None, use_errno=True)


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def refuse_call(call, error):
    """Installs a filter for this process: the system call fails."""
    steps = ((0x20, 0, 0, 0),                      # load the call's number
             (0x15, 0, 1, call),                   # if it is another, skip
             (0x06, 0, 0, RET_ERRNO | error), (0x06, 0, 0, RET_ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = Program(len(steps), ctypes.addressof(code))
    if LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or \
       LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def unavailable():
    if platform.system() != "Linux":
        return "seccomp filters are Linux's"
    try:
        subprocess.run(["true"], preexec_fn=lambda: refuse_call(IO_URING_ENTER, errno.EPERM), check=True)
    except (OSError, subprocess.SubprocessError) as problem:
        return f"no seccomp filter can be installed here: {problem}"
    return None


@unittest.skipIf(unavailable(), unavailable())
class RingsThatCannotBeEntered(SluiceRuns):
    def run_under(self, error, *words):
        """Runs a program; the time-out makes a hang a failure."""
        return subprocess.run([str(word) for word in words], cwd=self.path, timeout=120,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              preexec_fn=lambda: refuse_call(IO_URING_ENTER, error), check=False)

    def bench(self, error, backend):
        return self.run_under(error, AIO_BENCH, "--path", self.path, "--size", "1M",
                              "--block-size", "4K", "--runs", "1", "--seconds", "0.05", "--ramp",
                              "0.01", "--mode", "read", "--backend", backend)

    def test_aio_bench_takes_threads_or_says_that_it_cannot(self):
        for error in ERRORS:
            with self.subTest(error=errno.errorcode[error]):
                done = self.bench(error, "auto")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertRegex(done.stderr,
                                 f"io_uring_enter .*{errno.errorcode[error]}.*POSIX threads")
                refused = self.bench(error, "uring")
                self.assertEqual(refused.returncode, 2, refused.stderr)
                self.assertRegex(refused.stderr,
                                 f"io_uring_enter .*{errno.errorcode[error]}.*auto and posix")

    def test_sluice_trains_saves_and_lists_with_threads(self):
        self.tokens("text.bin", 2000, seed=3)
        config = self.write_run({
            "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
            "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"},
                                  "offload_optimizer": {"device": "nvme"}},
            "model": {"layers": 1, "hidden": 32, "heads": 2, "context": 16, "vocab": 64,
                      "dropout": 0},
            "data": {"train": ["text.bin"], "dtype": "uint16"},
            "run": {"steps": 2, "device": "cpu", "cpu_threads": 1},
            "budget": {"nvme_paths": [str(self.path / "nvme")]}})
        (self.path / "nvme").mkdir(exist_ok=True)
        done = self.run_under(errno.EPERM, SLUICE, "train", config, "--out", "run")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("POSIX threads", done.stderr)
        listed = self.run_under(errno.EAGAIN, SLUICE, "ls", "run", "--verify")
        self.assertEqual(listed.returncode, 0, listed.stderr)
        self.assertIn("intact", listed.stdout)
        refused = self.run_under(errno.EPERM, SLUICE, "train", config, "--out", "other",
                                 "--set", "aio.backend=uring")
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn("io_uring_enter failed", refused.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
