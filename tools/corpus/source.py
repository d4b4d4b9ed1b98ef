"""Source: a file to read, named by the user or found in a folder."""

import errno
import os
import stat
from collections import namedtuple
from pathlib import Path


class Source(namedtuple("Source", "name path size_bytes format folder", defaults=(None,))):
    """folder: what a file was found in, or None where the user named the file."""

    @property
    def suffix(self):
        return Path(self.name).suffix.lower()

    def open(self):
        """Opens it to be read. Whoever can write in a folder may have changed it since it was
        listed, so what was found in one is a regular file that no link leads to, or an error."""
        if self.folder is None:
            return open(self.path, "rb")
        return os.fdopen(_found(self.folder, self.path.relative_to(self.folder).parts), "rb")


def _found(folder, parts):
    """The descriptor of a regular file in a folder."""
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for number, part in enumerate(parts, 1):
            kind = os.O_NONBLOCK if number == len(parts) else os.O_DIRECTORY
            inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=at)
            os.close(at)
            at = inner
        if not stat.S_ISREG(os.fstat(at).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return at
    except OSError as error:
        os.close(at)
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise OSError(error.errno, "a link to it has appeared since the folder was "
                                       "listed") from error
        raise


def path_of(handle):
    """A path of the very file that is open."""
    return f"/proc/self/fd/{handle.fileno()}"


def place_in(folder, name):
    """(folder, path in it without links) of a file of a folder. None where a link leads out: that
    may be somebody else's, and does not decide what else is read. In the hub's cache, links of a
    snapshot lead to its blobs."""
    root = os.path.realpath(folder)
    target = os.path.realpath(os.path.join(root, name))
    cache = root.rpartition("/snapshots/")[0]
    for each in (root, f"{cache}/blobs") if cache else (root,):
        if target.startswith(each.rstrip("/") + "/"):
            return Path(each), Path(target)
    return None
