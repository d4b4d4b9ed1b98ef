"""Encodes fragments to tokens in several processes; their number does not change the output.

Fragments are collected into batches of about a million characters, any free process encodes a
batch, and the results are written in order. At most two batches per process are in flight, so
memory is bounded even if the disk is slow.
"""

import hashlib
import multiprocessing
import os
import signal
from collections import Counter, deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from toolbox import Failure, end_with_parent

BATCH_CHARACTERS = 1 << 20
BATCH_FRAGMENTS = 4096
# Below this, starting processes takes longer than the work.
WORTH_PROCESSES_BYTES = 8 << 20


def batches(fragments, side_of):
    """Lists of (text, ends document, side), and the number of source bytes read up to there."""
    batch, characters, side, done_bytes = [], 0, "train", 0
    for fragment in fragments:
        if fragment.begins_document:
            side = fragment.side or side_of(fragment.text)
        batch.append((fragment.text, fragment.ends_document, side))
        characters += len(fragment.text)
        done_bytes = fragment.done_bytes
        if characters >= BATCH_CHARACTERS or len(batch) >= BATCH_FRAGMENTS:
            yield batch, done_bytes
            batch, characters = [], 0
    if batch:
        yield batch, done_bytes


def side_by_hash(validation_fraction):
    """Chooses a document's side by its first million characters alone, not by order or
    neighbours."""
    limit = int(validation_fraction * 2 ** 64)

    def side_of(text):
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return "val" if int.from_bytes(digest, "little") < limit else "train"
    return side_of


class BatchEncoder:
    """encode(batch) -> {side: (token bytes, counts, documents ended)}"""

    def __init__(self, vocabulary):
        self._encoder = vocabulary.encoder()
        self._end = vocabulary.end_of_text
        width = 2 if vocabulary.size <= 1 << 16 else 4
        self._end_bytes = b"" if self._end is None else self._end.to_bytes(width, "little")

    def encode(self, batch):
        pieces, counts, documents = {}, {}, Counter()
        for (_, ends, side), (raw, count) in zip(
                batch, self._encoder.encode([text for text, _, _ in batch])):
            pieces.setdefault(side, []).append(raw)
            counts.setdefault(side, Counter()).update(count)
            if ends:
                documents[side] += 1
                pieces[side].append(self._end_bytes)
                if self._end is not None:
                    counts[side][self._end] += 1
        return {side: (b"".join(raw), counts[side], documents[side])
                for side, raw in pieces.items()}


def encoded(all_batches, make_encoder, jobs):
    """(result of encode(batch), source bytes) for each batch, in order. Each process gets
    `make_encoder` and calls it for an encoder of its own."""
    if jobs == 1:
        encoder = make_encoder()
        for batch, done_bytes in all_batches:
            yield encoder.encode(batch), done_bytes
        return
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _start_worker,
                               (make_encoder, os.getpid()))
    waiting = deque()
    try:
        for batch, done_bytes in all_batches:
            waiting.append((pool.submit(_work, batch), done_bytes))
            if len(waiting) >= 2 * jobs:
                future, at_bytes = waiting.popleft()
                yield future.result(), at_bytes
        while waiting:
            future, at_bytes = waiting.popleft()
            yield future.result(), at_bytes
    except BrokenProcessPool as error:
        raise Failure("a process that encodes text ended without a word, mostly because memory ran "
                      "out: try --jobs 1") from error
    finally:
        pool.shutdown(cancel_futures=True)


# --- in the worker processes ----------------------------------------------------------------------

_encoder = None  # one per process


def _start_worker(make_encoder, parent):
    # Ctrl-C goes to every process of the terminal, and the first one decides when to end. If that
    # is killed, this one ends with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)
    global _encoder
    _encoder = make_encoder()


def _work(batch):
    return _encoder.encode(batch)
