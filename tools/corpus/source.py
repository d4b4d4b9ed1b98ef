"""Source: a file to read, which the user named or a folder contained."""

import errno
import os
import stat
from collections import namedtuple
from pathlib import Path


class Source(namedtuple("Source", "name path size_bytes format folder", defaults=(None,))):
    """folder: where the file was found, or None if the user named the file."""

    @property
    def suffix(self):
        return Path(self.name).suffix.lower()

    def open(self):
        """Opens the file. One that was found in a folder has to be a regular file, reached without
        links. Others who can write there may have replaced it since it was listed."""
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
    """A path of the file that is open, even if it was renamed."""
    return f"/proc/self/fd/{handle.fileno()}"


def place_in(folder, name):
    """(folder, path in it without links) of a file in a folder. None if a link leads out of the
    folder, possibly to another user's file. In the hub's cache, links of a snapshot lead to its
    blobs."""
    root = os.path.realpath(folder)
    target = os.path.realpath(os.path.join(root, name))
    cache = root.rpartition("/snapshots/")[0]
    for each in (root, f"{cache}/blobs") if cache else (root,):
        if target.startswith(each.rstrip("/") + "/"):
            return Path(each), Path(target)
    return None
