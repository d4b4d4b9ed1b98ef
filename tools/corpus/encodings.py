"""Detects the encoding of a text file, and reads its bytes as UTF-8.

The default is UTF-8. UTF-16 and UTF-32 are recognised by their byte order marks, UTF-16 also by its
zero bytes. Other encodings cannot be distinguished, so the user has to name them. Without that, a
text that is mostly invalid as UTF-8 is refused (NotText).
"""

import codecs
import io

READ_BYTES = 1 << 20
HEAD_BYTES = 8192
MARKS = ((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
         (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


class NotText(Exception):
    """A file that cannot be read as text; holds the reason."""


def known(name):
    """The canonical name of the encoding, or None."""
    try:
        found = codecs.lookup(name)
        "".encode(name)  # raises for codecs of bytes, such as hex
    except (LookupError, TypeError, ValueError):
        return None
    return None if found.name in ("idna", "punycode", "undefined") else found.name


def of_head(head):
    """The encoding, by the first bytes of a text."""
    for mark, name in MARKS:
        if head.startswith(mark):
            return name
    half = len(head) // 2
    even, odd = head[0:2 * half:2].count(0), head[1:2 * half:2].count(0)
    for name, zeros, others in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        if zeros > 0.3 * half and others <= 0.02 * half:
            try:
                text = codecs.getincrementaldecoder(name)().decode(head)
            except UnicodeDecodeError:
                continue
            if sum(character < " " and not character.isspace() for character in text) == 0:
                return name
    return "utf-8"


def of_file(source):
    """The encoding, by the first bytes of a regular file."""
    with source.open() as handle:
        return of_head(handle.read(HEAD_BYTES))


def check_decodable(source, encoding=None):
    """Raises UnicodeError if any part of a regular file is damaged or in another encoding, so that
    the file is skipped as a whole, before any of it is used."""
    if not source.path.is_file():
        return
    decoder = codecs.getincrementaldecoder(encoding or of_file(source))()
    with source.open() as handle:
        while True:
            raw = handle.read(READ_BYTES)
            decoder.decode(raw, final=not raw)
            if not raw:
                return


def check_utf8(source):
    """Refuses a regular file with more invalid than valid UTF-8: most of its text would be lost."""
    if not source.path.is_file():
        return
    counted = _Counted()
    decoder = codecs.getincrementaldecoder("utf-8")(counted.NAME)
    characters = 0
    with source.open() as handle:
        while True:
            raw = handle.read(READ_BYTES)
            if not raw or not raw.isascii() or decoder.getstate()[0]:
                text = decoder.decode(raw, final=not raw)
                characters += len(text) - len(text.encode("ascii", "ignore"))
            if not raw:
                break
    if _Counted.count > characters - _Counted.count:
        raise NotText(not_utf8(_Counted.count))


def not_utf8(places):
    return (f"it is not UTF-8 ({places} places are invalid); name its encoding with --encoding, "
            "such as cp1252 (Windows)")


class _Counted:
    """An error handler for decoders that counts errors."""

    NAME = "sluice-count"
    count = 0

    def __init__(self):
        _Counted.count = 0
        codecs.register_error(self.NAME, self)

    def __call__(self, error):
        _Counted.count += 1
        return "\ufffd", error.end


class Utf8Reader(io.RawIOBase):
    """Reads a file as UTF-8. Bytes that are UTF-8 already are returned unchanged.

    encoding: None to detect it from the first bytes. Raises UnicodeDecodeError if a text in another
    encoding is damaged. at_bytes: how much of the file has been read.
    """

    def __init__(self, source, digest, encoding=None):
        super().__init__()
        self._handle = source.open()
        self._digest = digest
        self._head = self._handle.read(HEAD_BYTES)  # complete, even for a slow pipe
        self.encoding = encoding or of_head(self._head)
        self._decoder = (None if self.encoding == "utf-8" else
                         codecs.getincrementaldecoder(self.encoding)())
        self._left = memoryview(b"")
        self.at_bytes = 0

    def readable(self):
        return True

    def readinto(self, buffer):
        while not self._left:
            raw = self._head or self._handle.read(READ_BYTES)
            self._head = b""
            self._digest.update(raw)
            self.at_bytes += len(raw)
            if self._decoder:
                text = self._decoder.decode(raw, final=not raw)
                self._left = memoryview(text.encode("utf-8", "surrogatepass"))
            else:
                self._left = memoryview(raw)
            if not raw:
                break
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def close(self):
        self._handle.close()
        super().close()
