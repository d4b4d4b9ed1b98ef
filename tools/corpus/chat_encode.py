"""Turns conversations into tokens and masks, in a worker process."""

import json
import os
from array import array
from collections import Counter, namedtuple

from corpus import chat_spans
from corpus.chat_template import ENDLESS, ChatTemplates
from corpus.left_out import LeftOut
from corpus.messages import parse
from corpus.encode import side_by_hash
from toolbox import Failure, read_json

TOO_LONG = "longer than --max-tokens"
LONG_CHARACTERS = 1 << 20  # a longer text is encoded in pieces
CUT_TRIES = 4096
CUT_CONTEXT = 512
MOST_ENDLESS = 3  # conversations on which the template may exceed a bound

# The inputs of an encoder, which are sent to worker processes. templates: name -> text; name: the
# file of the templates; renamed: key in the rows -> key here. end: the token that ends a text.
ChatSettings = namedtuple("ChatSettings", "json_text wide templates special_tokens now name form "
                          "renamed train_on max_tokens cut validation_fraction end")
Rendered = namedtuple("Rendered", "number conversation text spans omitted dropped")


class Side:
    """The data for one of the files."""

    def __init__(self):
        self.raw = bytearray()
        self.counts = Counter()
        self.lengths = []
        self.mask = bytearray()


class ChatBatch:
    """The results for some rows."""

    def __init__(self):
        self.sides = {}
        self.left_out = []  # (number of the row, reason, detail)
        self.replaced = []  # numbers of the rows
        self.cut = 0
        self.spell_specials = 0
        self.omitted = Counter()  # what the template left out -> number of conversations


class ChatEncoder:
    def __init__(self, settings):
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # parallel work is several processes
        self._settings = settings
        self._tokenizer = chat_tokenizer(settings.json_text)
        self._templates = ChatTemplates(settings.templates, settings.special_tokens, settings.now,
                                        settings.name)
        self._endless = 0
        added = self._tokenizer.get_added_tokens_decoder().values()
        self._specials = [token.content for token in added if token.special]
        self._borders = chat_spans.Borders(token.content for token in added)
        # Added tokens whose offsets include the white space around them, which they swallow.
        self._swallowing = {number: token.content for number, token in
                            self._tokenizer.get_added_tokens_decoder().items()
                            if token.lstrip or token.rstrip}
        self._begin = text_begin(settings.json_text)
        self._type = "I" if settings.wide else "H"
        self._side_of = side_by_hash(settings.validation_fraction)

    @property
    def has_markers(self):
        return self._templates.has_markers

    def encode(self, rows):
        """Returns the ChatBatch of unparsed rows."""
        batch, rendered = ChatBatch(), []
        for number, content in enumerate(rows):
            try:
                conversation = parse(content, self._settings.form, self._settings.renamed)
                rendered.append(Rendered(number, *self._render(conversation)))
            except LeftOut as left_out:
                batch.left_out.append((number, left_out.reason, left_out.detail))
                self._check_endless(left_out)
        short = [each for each in rendered if len(each.text) <= LONG_CHARACTERS]
        encodings = iter(self._tokenizer.encode_batch([each.text for each in short],
                                                      add_special_tokens=False))
        for each in rendered:
            try:
                if len(each.text) <= LONG_CHARACTERS:
                    self._add(batch, each, [(0, next(encodings))])
                else:
                    self._add(batch, each, self._pieces(each.text))
            except LeftOut as left_out:
                batch.left_out.append((each.number, left_out.reason, left_out.detail))
        batch.left_out.sort()
        return batch

    def _render(self, conversation):
        train_on = self._settings.train_on
        if conversation.is_plain:
            return chat_spans.of_completion(conversation, self._begin, self._settings.end, train_on)
        return chat_spans.of_conversation(self._templates, conversation, train_on, self._borders)

    def _pieces(self, text):
        """(begin, Encoding) of each piece of a long text: the package takes hundreds of bytes for
        each token that it encodes at once."""
        begin = 0
        while begin < len(text):
            end = self._cut(text, begin + LONG_CHARACTERS // 2) if (
                len(text) - begin > LONG_CHARACTERS) else len(text)
            yield begin, self._encoded(text[begin:end])
            begin = end

    def _cut(self, text, near):
        """A position near `near` at which a cut does not change the tokens; else the end of the
        text."""
        for end in range(near, near - CUT_TRIES, -1):
            if not text[end].isspace() or text[end - 1].isspace():
                continue
            before = text[max(0, end - CUT_CONTEXT):end]
            after = text[end:end + CUT_CONTEXT]
            if self._encoded(before + after).ids == [*self._encoded(before).ids,
                                                     *self._encoded(after).ids]:
                return end
        return len(text)

    def _encoded(self, text):
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _check_endless(self, left_out):
        """Stops after a few conversations: each would take as long as the bound allows."""
        self._endless += left_out.reason == ENDLESS
        if self._endless >= MOST_ENDLESS:
            raise Failure(f"{self._settings.name}: {left_out.reason} ({left_out.detail}), for "
                          f"{MOST_ENDLESS} conversations already: use another template "
                          "(--chat-template FILE)")

    def _add(self, batch, each, pieces):
        settings = self._settings
        ids, mask = array("I"), bytearray()
        for begin, encoding in pieces:
            ids.extend(encoding.ids)
            mask += self._mask(each, begin, encoding)
        trained = self._decoded([token for token, is_trained in zip(ids, mask) if is_trained])
        chat_spans.check_turns(each.conversation, settings.train_on, trained,
                               self._as_decoded)
        if each.dropped:
            raise each.dropped
        if settings.max_tokens and len(ids) > settings.max_tokens:
            if not settings.cut:
                raise LeftOut(f"{TOO_LONG} {settings.max_tokens}", f"it has {len(ids)}")
            ids, mask = ids[:settings.max_tokens], mask[:settings.max_tokens]
            batch.cut += any(mask)
        if not any(mask):
            raise LeftOut(chat_spans.NOTHING,
                          f"of its first {len(ids)} tokens" if settings.cut else "")
        side = batch.sides.setdefault(self._side_of(each.conversation.fingerprint), Side())
        same_type = self._type == ids.typecode
        side.raw += (ids if same_type else array(self._type, ids)).tobytes()
        side.counts.update(ids)
        side.lengths.append(len(ids))
        side.mask += mask
        if each.conversation.replaced:
            batch.replaced.append(each.number)
        batch.spell_specials += self._spells_special(each.conversation.messages)
        batch.omitted.update(each.omitted)

    def _mask(self, each, begin, encoding):
        """The mask of the tokens of the piece that begins at `begin`."""
        if each.spans == [(0, len(each.text))]:
            return b"\1" * len(encoding.ids)
        # A token that begins in a plain prompt and ends in its completion is trained on, too.
        is_plain = each.conversation.is_plain
        marked = not is_plain and self._templates.of(each.conversation.tools).has_markers
        offsets = encoding.offsets if marked else self._offsets(encoding, each.text[begin:])
        spans = [(first - begin, end - begin) for first, end in each.spans]
        return chat_spans.token_mask(offsets, spans, partly=marked or is_plain)

    def _offsets(self, encoding, text):
        """The offsets of the tokens; for one that swallows white space, those without it."""
        offsets = encoding.offsets
        if not self._swallowing:
            return offsets
        for at, (token, (begin, end)) in enumerate(zip(encoding.ids, offsets)):
            content = self._swallowing.get(token)
            place = text.find(content, begin, end) if content else -1
            if place >= 0:
                offsets[at] = (place, place + len(content))
        return offsets

    def _decoded(self, ids):
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def _as_decoded(self, text):
        return self._decoded(self._encoded(text).ids).strip()

    def _spells_special(self, messages):
        contents = [message.get("content") or "" for message in messages]
        return any(special in content for special in self._specials for content in contents)


def text_begin(json_text):
    """The text of the special tokens that the tokenizer puts before every text (Llama's <s>)."""
    from tokenizers import Tokenizer  # pylint: disable=import-outside-toplevel
    encoded = Tokenizer.from_str(json_text).encode("a")
    first = next((at for at, is_special in enumerate(encoded.special_tokens_mask)
                  if not is_special), 0)
    return "".join(encoded.tokens[:first])


def chat_tokenizer(json_text):
    """A tokenizer that gives offsets, and recognises special tokens, which templates write as text.
    It has no post-processor, which could add tokens or exclude spaces by "trim_offsets"."""
    from tokenizers import Tokenizer  # pylint: disable=import-outside-toplevel
    try:
        described = read_json(json_text)
        described["post_processor"] = None
        tokenizer = Tokenizer.from_str(json.dumps(described))
    except Exception as error:  # the package raises plain Exceptions
        raise Failure(f"this is not a tokenizer.json: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
