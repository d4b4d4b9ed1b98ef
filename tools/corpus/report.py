"""What a preparation prints: progress, and what it skipped."""

import sys
import time
from collections import Counter

SHOWN_AT_MOST = 10
SHOWN_OF_A_REASON = 3
REASONS_RECORDED = 50
INTERVAL_S = 0.2


class Report:
    """Counts what was read, replaced and skipped; names the first that were skipped."""

    def __init__(self, program, quiet=False):
        self.program = program
        self.quiet = quiet
        self.skipped = 0
        self.reasons = Counter()  # counts for leave_out()
        self._skips = Counter()  # counts for skip(), without details
        self.replaced_bytes = 0
        self.replaced_sources = 0

    def skip(self, name, reason):
        self.skipped += 1
        self._skips[reason.split(" (")[0]] += 1
        if self.skipped <= SHOWN_AT_MOST:
            self._say(f"skipped {name}: {reason}")
        elif self.skipped == SHOWN_AT_MOST + 1:
            self._say("more is skipped; the last line says how much")

    def leave_out(self, name, reason, detail=""):
        """Skips something for one of a few reasons, each of which has a count of its own."""
        self.skipped += 1
        self.reasons[reason] += 1
        if self.reasons[reason] <= SHOWN_OF_A_REASON:
            self._say(f"skipped {name}: {reason}" + (f" ({detail})" if detail else ""))
        elif self.reasons[reason] == SHOWN_OF_A_REASON + 1:
            self._say(f"more is skipped: {reason}; the last lines say how much")

    def note(self, sentence):
        """Reports many at once, and counts none as skipped."""
        self._say(sentence)

    def replaced(self, name, count):
        """`count` undecodable bytes of a source became U+FFFD."""
        self.replaced_bytes += count
        self.replaced_sources += 1
        if self.replaced_sources <= SHOWN_AT_MOST:
            self._say(f"{name}: {count} places are not UTF-8; they are now U+FFFD")

    def record(self):
        """For the sidecars: how much is missing from the token files, by reason, with the rarest
        reasons summed up; and how many sources, or conversations, had characters replaced."""
        left_out = sorted((self.reasons + self._skips).items(),
                          key=lambda reason: (-reason[1], reason[0]))
        kept, rest = left_out[:REASONS_RECORDED], left_out[REASONS_RECORDED:]
        if rest:
            kept.append(("other reasons", sum(count for _, count in rest)))
        return {"left_out": dict(kept), "replaced": self.replaced_sources}

    def _say(self, message):
        if not self.quiet:
            clear = "\r\033[K" if sys.stderr.isatty() else ""
            print(f"{clear}{self.program}: {message}", file=sys.stderr, flush=True)


class SilentReport(Report):
    """For the pass that trains a tokenizer; the encoding pass reports everything."""

    def __init__(self):
        super().__init__("", quiet=True)


class Progress:
    """A line on standard error that is rewritten; on a terminal only."""

    def __init__(self, what, total_bytes):
        self._what = what
        self._total_bytes = total_bytes  # None if unknown
        self._begin = time.monotonic()
        self._shown = self._begin
        self._live = sys.stderr.isatty()

    def update(self, done_bytes, tokens):
        now = time.monotonic()
        if not self._live or now - self._shown < INTERVAL_S:
            return
        self._shown = now
        elapsed = now - self._begin
        line = f"{self._what}: {done_bytes / 1e6:.1f} MB"
        if self._total_bytes:
            share = min(1.0, done_bytes / self._total_bytes)
            filled = int(share * 24)
            left_s = int(elapsed * (1 - share) / max(share, 1e-9))
            line = (f"{self._what} [{'#' * filled}{'.' * (24 - filled)}] {share:4.0%}  "
                    f"{left_s // 60}:{left_s % 60:02d} left")
        print(f"\r\033[K{line}  {tokens / 1e6:.1f}M tokens  {done_bytes / 1e6 / elapsed:.1f} MB/s",
              end="", file=sys.stderr, flush=True)

    def finish(self):
        if self._live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
