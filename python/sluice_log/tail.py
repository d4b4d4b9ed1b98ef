"""Lines of a file that somebody may still be writing: it grows, is begun anew in parts, and is cut."""

import errno
import os
import re
import stat

from .outputs import Failure

CHUNK = 4 << 20
MOST_OF_A_LINE = 4 << 20  # what sluice report reads, too


# Not those of a file that comes, goes, or is renamed at the moment.
LASTING = {errno.EACCES, errno.EPERM, errno.ELOOP, errno.EIO}


def open_file(path):
    """A descriptor; OSError where it is gone, or cannot be read now; Failure where it never can. A
    link is followed to another name in its folder, and no further: a run may be somebody else's."""
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
                raise Failure(f"{path} is a link to another folder, and is not a regular file of "
                              "the run") from error
            file = os.open(os.path.join(folder, os.path.basename(target)), flags)
    except OSError as error:
        if error.errno in LASTING:
            raise Failure(f"{path} cannot be read: {error.strerror}") from error
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):  # what never ends, or waits for a writer
        os.close(file)
        raise Failure(f"{path} is not a regular file")
    return file


def parts_of(path):
    """PATH.2, PATH.1, PATH: those that there are, the oldest first, with their inodes."""
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
        except OSError as error:  # it was renamed meanwhile, and who reads on notices
            if error.errno in LASTING:
                raise Failure(f"{part} cannot be read: {error.strerror}") from error
    return parts


class Tail:
    """Reads all parts from the oldest line on, and then what is added.

    poll() returns (lines, restarted): whole lines as bytes without their ends, at most about CHUNK
    bytes of them; `restarted` says that they are the first ones again, because the file was cut,
    replaced, or begun anew more than once. `at_end`: there was nothing more.
    """

    def __init__(self, path):
        self.path = path
        self.at_end = False
        self.too_long = 0  # lines that were passed over
        self._waiting = []  # parts that are to be read after this one
        self._file = None
        self._inode = None
        self._offset = 0
        self._last = b""  # the bytes before the offset, which stay as long as the file is not cut
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
        """A last line without its end, once nobody writes any more."""
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
        """At the end of a part: whether there is another one."""
        if self._waiting:
            if self._open_next():
                return True
            self._started = False  # from the beginning, at the next poll
            return False
        try:
            if os.stat(self.path).st_ino == self._inode:
                return False
            if os.stat(self.path + ".1").st_ino != self._inode:
                return False  # _was_cut() says so
            if os.fstat(self._file).st_size > self._offset:
                return True  # something came between
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
