"""Token files of conversations: where each one begins, and which tokens are trained on.

FILE.bin has two companions. FILE.bin.documents has the number of the first token of each
conversation, and finally the number of tokens (little-endian uint64). In FILE.bin.mask, bit t % 8,
least significant first, of byte t // 8 is 1 if token t is trained on.
"""

from array import array
from collections import Counter

from corpus.output import TokenWriter, cannot_write

DIGITS = bytes.maketrans(b"\0\1", b"01")
BAR_COLUMNS = 40


class ChatWriter(TokenWriter):
    version = 2
    suffixes = ("", ".documents", ".mask")

    def __init__(self, path, vocabulary, chat):
        super().__init__(path, vocabulary)
        self.trained = 0
        self.lengths = Counter()  # by their bits: n for 2^(n - 1) to 2^n - 1 tokens
        self._chat = chat
        self._longest = 0
        self._written = 0
        self._loose = b""  # the mask of the last tokens, until they fill a byte
        self._documents = open(f"{path}.documents", "wb")
        self._mask = open(f"{path}.mask", "wb")

    def append_conversations(self, raw, counts, lengths, mask):
        """`lengths`: tokens per conversation; `mask`: a byte of 0 or 1 per token."""
        self.append(raw, counts, len(lengths))
        begins = array("Q")
        for length in lengths:
            begins.append(self._written)
            self._written += length
            self.lengths[length.bit_length()] += 1
        self._longest = max(self._longest, *lengths)
        self.trained += mask.count(1)
        mask = self._loose + mask
        whole = len(mask) // 8 * 8
        self._loose = mask[whole:]
        try:
            self._documents.write(begins.tobytes())
            self._mask.write(_packed(mask[:whole]))
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def close(self):
        if not self._documents.closed:
            self._documents.write(array("Q", [self._written]).tobytes())
            self._mask.write(_packed(self._loose))
        self._documents.close()
        self._mask.close()
        super().close()

    def particulars(self):
        return {"trained_tokens": self.trained, "longest_document": self._longest,
                "chat": self._chat}


def _packed(mask):
    """Packs eight tokens into a byte, the first in its least significant bit."""
    if not mask:
        return b""
    return int(mask[::-1].translate(DIGITS), 2).to_bytes(-(-len(mask) // 8), "little")


def histogram(lengths):
    """Lines of text for a ChatWriter's `lengths`."""
    most = max(lengths.values())
    lines = []
    for bits in range(min(lengths), max(lengths) + 1):
        count = lengths[bits]
        bar = "#" * -(-count * BAR_COLUMNS // most)
        lines.append(f"{1 << bits >> 1:>9} - {(1 << bits) - 1:<9} {count:>9} {bar}".rstrip())
    return lines
