"""Tokenizers: text in, token ids out.

A vocabulary is a small object that is sent to worker processes, which make an encoder from it. Text
that spells a special token is encoded by its characters: only the end of a document becomes the
end-of-text token.
"""

import hashlib
import itertools
import os
import sys
from array import array
from collections import Counter

from corpus.tokenizer_folder import tokenizer_json
from toolbox import Failure, read_json

END_OF_TEXT = "<|endoftext|>"
# Names of the end-of-text token, in the order in which they are looked up in a tokenizer.json.
KNOWN_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eot_id|>", "[SEP]")
SMALLEST_BPE = 257  # one for each byte, and the end of text


class ByteVocabulary:
    """The bytes of UTF-8, and 256 for the end of text. Needs no package."""

    kind = "bytes"
    size = 257
    end_of_text = 256
    json_text = None

    def encoder(self):
        return _ByteEncoder()


class BpeVocabulary:
    """The tokenizer of a tokenizer.json, trained here ("bpe") or given ("file")."""

    def __init__(self, kind, json_text, end_of_text=None):
        self.kind = kind
        self.json_text = json_text
        tokenizer = _tokenizer(json_text)
        ids = tokenizer.get_vocab(with_added_tokens=True)
        if not ids:
            raise Failure("the tokenizer has no vocabulary")
        self.size = max(ids.values()) + 1
        if end_of_text == "none":
            self.end_of_text = None
            return
        names = [end_of_text] if end_of_text else KNOWN_ENDS
        self.end_of_text = next((ids[name] for name in names if name in ids), None)
        if self.end_of_text is None:
            raise Failure(f"the tokenizer has no token {' or '.join(names)}: name the one that "
                          "ends a document by --end-of-text, or pass --end-of-text none")

    def encoder(self):
        return _BpeEncoder(self.json_text)


def given(path, end_of_text):
    """Reads a tokenizer.json, or that of a folder."""
    path = tokenizer_json(path)
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe would block
        raise Failure(f"the tokenizer {path} is not a regular file")
    try:
        with open(path, encoding="utf-8") as handle:
            return BpeVocabulary("file", handle.read(), end_of_text)
    except OSError as error:
        raise Failure(f"cannot read the tokenizer {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Failure(f"{path} is not a tokenizer.json: {error}") from error


def trained(corpus, report, size, sample_bytes):
    """A byte-level BPE of `size` tokens, trained on every n-th fragment: about `sample_bytes`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    total_bytes = corpus.total_bytes
    every = 1 if total_bytes is None else max(1, -(-total_bytes // sample_bytes))

    def sample():
        left = sample_bytes
        for fragment in itertools.islice(corpus.fragments(report), 0, None, every):
            yield fragment.text
            left -= len(fragment.text)
            if left <= 0:
                return

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(sample(), trainers.BpeTrainer(
        vocab_size=size, special_tokens=[END_OF_TEXT], show_progress=sys.stderr.isatty(),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    return BpeVocabulary("bpe", tokenizer.to_str(pretty=True))


def description(vocabulary):
    """Its description in the sidecar."""
    text = vocabulary.json_text
    return {"kind": vocabulary.kind,
            "end_of_text": vocabulary.end_of_text,
            "file": "tokenizer.json" if text else None,
            "sha256": hashlib.sha256(text.encode()).hexdigest() if text else None,
            "vocabulary_sha256": fingerprint(text) if text else None}


def fingerprint(json_text):
    """A hash of what its tokens mean; engine/exchange/tokenizer_files.h defines it."""
    try:
        tokenizer = read_json(json_text)
    except ValueError as error:
        raise Failure(f"this is not a tokenizer.json: {error}") from error
    vocabulary = tokenizer["model"]["vocab"]
    if isinstance(vocabulary, dict):
        entries = {(token, text) for text, token in vocabulary.items()}
    else:  # Unigram: text and score
        entries = {(token, entry[0]) for token, entry in enumerate(vocabulary)}
    entries |= {(added["id"], added["content"]) for added in tokenizer.get("added_tokens") or ()}
    digest = hashlib.sha256()
    for token, raw in sorted((token, text.encode(errors="replace")) for token, text in entries):
        digest.update(b"%d %d %s\n" % (token, len(raw), raw))
    return digest.hexdigest()


# --- encoders: encode(texts) -> for each text, (ids as an array, how often each occurs) -----------

def _tokenizer(json_text):
    from tokenizers import Tokenizer
    try:
        tokenizer = Tokenizer.from_str(json_text)
    except Exception as error:  # the package raises plain Exceptions
        raise Failure(f"this is not a tokenizer.json: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


class _ByteEncoder:
    def encode(self, texts):
        for text in texts:
            raw = text.encode()
            wide = bytearray(2 * len(raw))
            wide[0::2] = raw
            yield bytes(wide), Counter(raw)


class _BpeEncoder:
    def __init__(self, json_text):
        # parallel work is several processes, each with one thread
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self._tokenizer = _tokenizer(json_text)
        self._type = "H" if BpeVocabulary("file", json_text, "none").size <= 1 << 16 else "I"

    def encode(self, texts):
        batch = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        for encoding in batch:
            ids = encoding.ids
            yield array(self._type, ids).tobytes(), Counter(ids)
