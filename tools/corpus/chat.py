"""Conversations to token files, from the rows to the closing report."""

import datetime
import hashlib
import re
from collections import Counter
from functools import partial

from corpus import chat_encode, chat_spans, encode, vocabulary
from corpus.chat_output import ChatWriter, histogram
from corpus.left_out import NO_FORM
from corpus.report import Progress
from corpus.tokenizer_folder import SPECIAL_TOKENS
from toolbox import Failure, default_jobs

BATCH_BYTES = 1 << 20
BATCH_ROWS = 1024


class ChatPreparation:
    """One run. options: tools/prepare's; tokenizer: a TokenizerFolder."""

    def __init__(self, options, tokenizer, report):
        self._options = options
        self._report = report
        self._conversations = Counter()  # read, cut, of those that spell special tokens
        self._tokens = 0
        _check_names(tokenizer)
        end = options.end_of_text or tokenizer.special_tokens.get("eos_token", "none")
        self.words = vocabulary.given(options.tokenizer, end)
        checked = chat_encode.chat_tokenizer(self.words.json_text)
        tokenizer.check_added_tokens(checked.token_to_id)
        now = datetime.datetime.now()
        self._settings = chat_encode.ChatSettings(
            self.words.json_text, self.words.size > 1 << 16, tokenizer.templates,
            tokenizer.special_tokens, now, tokenizer.template_from, options.chat_format,
            options.map, options.train_on, options.max_tokens, options.too_long == "cut",
            options.validation_fraction, "" if end == "none" else end)
        markers = chat_encode.ChatEncoder(self._settings).has_markers
        self._about = {
            **{key: hashlib.sha256(tokenizer.templates[name].encode()).hexdigest()
               for key, name in (("template_sha256", "default"),
                                 ("tool_template_sha256", "tool_use"))
               if name in tokenizer.templates},
            "train_on": options.train_on,
            "mask": chat_spans.MARKERS if markers else chat_spans.PREFIXES}
        self.made_with = {"validation_fraction": options.validation_fraction,
                          "chat_format": options.chat_format, "max_tokens": options.max_tokens,
                          "too_long": options.too_long}
        if any("strftime_now" in text for text in tokenizer.templates.values()):
            self.made_with["now"] = now.isoformat(timespec="seconds")

    def write(self, corpus, folder):
        """Encodes everything into train.bin and val.bin; returns the writers that have tokens."""
        options = self._options
        sides = ("train", "val") if options.validation_fraction else ("train",)
        writers = {side: ChatWriter(folder.partial / f"{side}.bin", self.words, self._about)
                   for side in sides}
        self._encode(corpus, writers)
        if not self._tokens:
            reasons = self._report.reasons.most_common()
            if reasons:
                raise Failure("no conversation is left to train on. Left out, and why: " +
                              ", ".join(f"{count} {reason}" for reason, count in reasons) +
                              ("; --map says what the rows' names mean, as in "
                               "question=instruction,answer=output"
                               if reasons[0][0] == NO_FORM else ""))
            skipped = self._report.skipped
            raise Failure("there is no conversation in what was given" +
                          (f" ({skipped} skipped, see above)" if skipped else ""))
        return self._with_tokens(writers)

    def _encode(self, corpus, writers):
        jobs = self._options.jobs or default_jobs()
        if corpus.total_bytes < encode.WORTH_PROCESSES_BYTES:
            jobs = 1
        progress = Progress("encoding", corpus.total_bytes)
        places = []  # of the batches in flight: a list of names each
        batches = _batches(corpus.rows(self._report), places)
        make_encoder = partial(chat_encode.ChatEncoder, self._settings)
        for batch, done_bytes in encode.encoded(batches, make_encoder, jobs):
            self._take(batch, places.pop(0), writers)
            progress.update(done_bytes, self._tokens)
        progress.finish()

    def _take(self, batch, names, writers):
        self._conversations.update(read=len(names), cut=batch.cut, specials=batch.spell_specials,
                                   **batch.omitted)
        for number, reason, detail in batch.left_out:
            self._report.leave_out(names[number], reason, detail)
        for number in batch.replaced:
            self._report.replaced(names[number], 1)
        for name, side in batch.sides.items():
            self._tokens += len(side.mask)
            writers[name].append_conversations(bytes(side.raw), side.counts, side.lengths,
                                               bytes(side.mask))

    def _with_tokens(self, writers):
        options = self._options
        if options.default_fraction and writers["train"].tokens == 0:
            writers["train"].exchange_files(writers["val"])
            writers = {"train": writers["val"], "val": writers["train"]}
        if options.default_fraction and writers["val"].tokens == 0:
            self._report.note("there are too few conversations for a part to validate on, so there "
                              "is no val.bin: leave data.validation out of the run's file")
            writers.pop("val").discard()
        for side, writer in writers.items():
            if writer.tokens == 0:
                raise Failure(f"the split leaves nothing in {side}.bin (--validation-fraction "
                              f"{options.validation_fraction}): use another fraction")
        return writers

    def record(self):
        """For the sidecars."""
        return {"conversations": self._conversations["read"], "cut": self._conversations["cut"],
                **self._report.record()}

    def closing_lines(self, out, sidecars, writers):
        """sidecars: side -> what it says."""
        lines = []
        for side, description in sidecars.items():
            tokens, trained = description["tokens"], description["trained_tokens"]
            lines.append(f"{out}/{side}.bin: {description['documents']} conversations, {tokens} "
                         f"tokens ({description['dtype']}), {trained} of them trained on "
                         f"({trained / tokens:.1%}); the longest has "
                         f"{description['longest_document']}; unigram entropy "
                         f"{description['unigram_entropy_nats']:.3f} nats")
        lengths = sum((writer.lengths for writer in writers.values()), Counter())
        lines.append("\n".join(["tokens of a conversation, and how many have so many:",
                                *histogram(lengths)]))
        counted = self._conversations
        if counted["cut"]:
            lines.append(f"{counted['cut']} conversations are cut to {self._options.max_tokens} "
                         "tokens")
        if counted["specials"]:
            lines.append(f"in {counted['specials']} conversations a message spells a special "
                         "token, and is trained on as that token")
        if counted["reasoning"]:
            lines.append(f"in {counted['reasoning']} conversations the template drops the "
                         "reasoning of a turn that others follow, as it will when the model is "
                         "used")
        if counted["tools"]:
            lines.append(f"in {counted['tools']} conversations there are tools that the template "
                         "does not write: the model learns without seeing them")
        if counted["system"]:
            lines.append(f"in {counted['system']} conversations a system text is not used: they "
                         "have another one, which comes first")
        if counted["plain"]:
            lines.append(f"{counted['plain']} rows are a prompt and a completion as text, and are "
                         "written without the template; --map prompt=instruction,"
                         "completion=output uses it")
        left_out = sum(self._report.reasons.values())
        lines.append("\n".join([f"{left_out} of {counted['read']} conversations are left out"] +
                               [f"{count:>9} {reason}" for reason, count in
                                self._report.reasons.most_common()]))
        return lines


def _check_names(tokenizer):
    """A template that writes a token nobody has named would leave it out without a word."""
    used = [name for name in SPECIAL_TOKENS
            if any(re.search(rf"\b{name}\b", text) for text in tokenizer.templates.values())]
    if used and not tokenizer.says_special_tokens:
        raise Failure(f"the chat template {tokenizer.template_from} writes {' and '.join(used)}, "
                      "and no file says what that is: put the model's tokenizer_config.json beside "
                      f"{tokenizer.path}")


def _batches(rows, places):
    """Lists of contents, and how many source bytes were read up to there. The rows' names are added
    to `places`, which stays here: they need not travel."""
    contents, names, size_bytes, done_bytes = [], [], 0, 0
    for row in rows:
        contents.append(row.content)
        names.append(row.where)
        size_bytes += row.size_bytes
        done_bytes = row.done_bytes
        if size_bytes >= BATCH_BYTES or len(contents) >= BATCH_ROWS:
            places.append(names)
            yield contents, done_bytes
            contents, names, size_bytes = [], [], 0
    if contents:
        places.append(names)
        yield contents, done_bytes
