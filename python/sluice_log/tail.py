"""Reads lines of a file that may still be written to: it grows, is rotated and is truncated."""

import errno
import os
import re
import stat

from .outputs import Failure

CHUNK = 4 << 20
MOST_OF_A_LINE = 4 << 20  # the same limit as in sluice report


# Other errors come from a file that is being created, removed or renamed.
LASTING = {errno.EACCES, errno.EPERM, errno.ELOOP, errno.EIO}


def open_file(path):
    """Opens a file for reading. OSError if it is gone or not readable now, Failure if it never will
    be. A link is followed only within its folder, since the run may belong to another user."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        try:
            file = os.open(path, flags)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            folder, target = os.path.dirname(path), os.readlink(path)
            where = os.path.dirname(os.path.join(folder, target))
            if os.path.realpath(where) != os.path.realpath(folder):
                raise Failure(f"{path} is a link to another folder, not a regular file of the"
                              " run") from error
            file = os.open(os.path.join(folder, os.path.basename(target)), flags)
    except OSError as error:
        if error.errno in LASTING:
            raise Failure(f"{path} cannot be read: {error.strerror}") from error
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):  # may never end, or wait for a writer
        os.close(file)
        raise Failure(f"{path} is not a regular file")
    return file


def parts_of(path):
    """The existing files among PATH.2, PATH.1 and PATH, the oldest first, with their inodes."""
    folder, name = os.path.split(path)
    pattern = re.compile(re.escape(name) + r"\.([1-9][0-9]{0,8})\Z")
    found = []
    try:
        with os.scandir(folder or ".") as entries:
            for entry in entries:
                match = pattern.match(entry.name)
                if match and entry.is_file(follow_symlinks=False):
                    found.append((-int(match[1]), entry.path))
    except OSError:
        pass
    parts = []
    for part in [part for _, part in sorted(found)] + [path]:
        try:
            parts.append((part, os.stat(part).st_ino))
        except OSError as error:  # renamed meanwhile; the reader will notice
            if error.errno in LASTING:
                raise Failure(f"{part} cannot be read: {error.strerror}") from error
    return parts


class Tail:
    """Reads all parts from the oldest line on, and then what is appended.

    poll() returns (lines, restarted). `lines` are complete lines as bytes, without line breaks, up
    to about CHUNK bytes. `restarted` says that they are the first ones again, because the file was
    truncated, replaced, or rotated more than once. `at_end`: everything has been read.
    """

    def __init__(self, path):
        self.path = path
        self.at_end = False
        self.too_long = 0  # skipped lines
        self._waiting = []  # parts to read after this one
        self._file = None
        self._inode = None
        self._offset = 0
        self._last = b""  # bytes before the offset: unchanged unless the file was truncated
        self._begun = b""
        self._passes_over = False
        self._started = False

    def close(self):
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def poll(self):
        self.at_end = False
        restarted = False
        if self._started and self._was_cut():
            self.close()
            self._waiting, self._started, restarted = [], False, True
        if not self._started:
            self._waiting = parts_of(self.path)
            self._started = bool(self._waiting)
            if not self._started or not self._open_next():
                self._started = False
                self.at_end = True
                return [], restarted
        while True:
            block = os.read(self._file, CHUNK)
            if block:
                self._offset += len(block)
                self._last = (self._last + block)[-256:]
                return self._split(block), restarted
            if not self._next_part():
                self.at_end = True
                return [], restarted

    def rest(self):
        """The last line without its line break, once nothing is written any more."""
        rest, self._begun = self._begun, b""
        return [] if self._passes_over or not rest else [rest]

    def _split(self, block):
        *whole, begun = (self._begun + block).split(b"\n")
        if whole and self._passes_over:
            whole.pop(0)
            self._passes_over = False
            self.too_long += 1
        if len(begun) > MOST_OF_A_LINE:
            begun, self._passes_over = b"", True
        self._begun = begun
        fitting = [line for line in whole if len(line) <= MOST_OF_A_LINE]
        self.too_long += len(whole) - len(fitting)
        return fitting

    def _open_next(self):
        while self._waiting:
            part, inode = self._waiting.pop(0)
            try:
                file = open_file(part)
            except OSError:
                return False
            if os.fstat(file).st_ino != inode:  # renamed meanwhile
                os.close(file)
                return False
            self.close()
            self._file, self._inode, self._offset, self._last = file, inode, 0, b""
            self._begun, self._passes_over = b"", False
            return True
        return False

    def _next_part(self):
        """Called at the end of a part. Returns whether there is more to read."""
        if self._waiting:
            if self._open_next():
                return True
            self._started = False  # from its start, at the next poll
            return False
        try:
            if os.stat(self.path).st_ino == self._inode:
                return False
            if os.stat(self.path + ".1").st_ino != self._inode:
                return False  # _was_cut() reports it
            if os.fstat(self._file).st_size > self._offset:
                return True  # appended meanwhile
        except OSError:
            return False
        self._waiting = parts_of(self.path)[-1:]
        return self._open_next()

    def _was_cut(self):
        if self._file is None:
            return True
        try:
            if os.fstat(self._file).st_size < self._offset:
                return True
            seen = os.pread(self._file, len(self._last), self._offset - len(self._last))
            if seen != self._last:
                return True
            if self._waiting or os.stat(self.path).st_ino == self._inode:
                return False
            return os.stat(self.path + ".1").st_ino != self._inode
        except FileNotFoundError:
            return os.fstat(self._file).st_nlink == 0
        except OSError:
            return True
