"""Runs a program on a terminal (a pty), and reads its screen (pyte)."""

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))
import reference_packages  # noqa: E402

reference_packages.use()
try:
    import pyte
except ImportError:
    pyte = None

WAIT_S = 60


class TerminalScreen:
    """with TerminalScreen([SLUICE, "watch", run], rows=24, columns=80) as screen: ..."""

    def __init__(self, command, rows=24, columns=80, **environment):
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.bytes = 0  # written so far
        self.raw = b""
        self.code = None
        # A terminal type whose sequences pyte supports.
        self.environment = {**os.environ, "TERM": "linux", "LC_ALL": "C.UTF-8", **environment}
        self.environment = {key: value for key, value in self.environment.items()
                            if value is not None}
        self.child, self.master = pty.fork()
        if self.child == 0:
            try:
                size = struct.pack("HHHH", rows, columns, 0, 0)
                fcntl.ioctl(0, termios.TIOCSWINSZ, size)
                os.execvpe(str(command[0]), [str(word) for word in command], self.environment)
            finally:
                os._exit(127)
        self.modes = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.code is None:
            os.kill(self.child, signal.SIGKILL)
            os.waitpid(self.child, 0)
        os.close(self.master)

    def read(self, seconds=0.0):
        """Reads its output for that long, and at least what is available already."""
        end = time.monotonic() + seconds
        while True:
            left = max(0.0, end - time.monotonic())
            ready, _, _ = select.select([self.master], [], [], left)
            if not ready:
                return
            try:
                part = os.read(self.master, 1 << 16)
            except OSError:  # the other end was closed
                return
            if not part:
                return
            self.bytes += len(part)
            self.raw = (self.raw + part)[-200_000:]
            self.stream.feed(part)

    @property
    def text(self):
        return "\n".join(line.rstrip() for line in self.screen.display)

    def wait_for(self, *words):
        end = time.monotonic() + WAIT_S
        while True:
            self.read(0.05)
            text = self.text
            if all(word in text for word in words):
                return text
            if time.monotonic() > end:
                raise AssertionError(f"the screen does not show {words}:\n{text}")

    def press(self, keys):
        os.write(self.master, keys.encode())

    def resize(self, rows, columns):
        self.screen.resize(rows, columns)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def send(self, number):
        os.kill(self.child, number)

    def flags(self):
        """The terminal's modes, which a shell relies on."""
        return termios.tcgetattr(self.master)[:4]

    def end(self):
        """The exit code; negative if a signal ended the program."""
        limit = time.monotonic() + WAIT_S
        while True:
            self.read(0.02)
            done, status = os.waitpid(self.child, os.WNOHANG)
            if done:
                self.read(0.05)
                self.code = os.waitstatus_to_exitcode(status)
                return self.code
            if time.monotonic() > limit:
                raise AssertionError(f"it does not end:\n{self.text}")
