"""In which encoding a file's text is, and its bytes as UTF-8.

Taken for granted is UTF-8. UTF-16 and UTF-32 are known by their marks, UTF-16 also by the zero
bytes that text has in it. Other encodings cannot be told from each other: whoever has such files
names the encoding, and without it a text that is mostly no UTF-8 is refused (NotText).
"""

import codecs
import io

READ_BYTES = 1 << 20
HEAD_BYTES = 8192
MARKS = ((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
         (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


class NotText(Exception):
    """A file that cannot be read as text. Says why."""


def known(name):
    """The encoding's own name, or None."""
    try:
        found = codecs.lookup(name)
        "".encode(name)  # codecs of bytes, such as hex, take no text
    except (LookupError, TypeError, ValueError):
        return None
    return None if found.name in ("idna", "punycode", "undefined") else found.name


def of_head(head):
    """By how a text begins."""
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
    """By how a regular file begins."""
    with source.open() as handle:
        return of_head(handle.read(HEAD_BYTES))


def check_decodable(source, encoding=None):
    """Raises UnicodeError where any of a regular file is damaged or in another encoding, so that
    the file is left out as a whole before anything of it is used."""
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
    """Refuses a regular file in which more is invalid as UTF-8 than is valid: its text would be
    something else."""
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
    """An error handler for decoders that counts."""

    NAME = "sluice-count"
    count = 0

    def __init__(self):
        _Counted.count = 0
        codecs.register_error(self.NAME, self)

    def __call__(self, error):
        _Counted.count += 1
        return "\ufffd", error.end


class Utf8Reader(io.RawIOBase):
    """A file's bytes as UTF-8, unless they are so already: then they are given as they are.

    encoding: None to tell it by the head. Raises UnicodeDecodeError where a text in another
    encoding is damaged. at_bytes: of the file, read so far.
    """

    def __init__(self, source, digest, encoding=None):
        super().__init__()
        self._handle = source.open()
        self._digest = digest
        self._head = self._handle.read(HEAD_BYTES)  # of a pipe, too, however it is written to
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
