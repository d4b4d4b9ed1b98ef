"""Which characters of a rendered conversation are the assistant's, and which tokens these are.

A template with generation markers says it itself. Of others, two texts are compared for each of
the assistant's turns: what asks for the turn (the messages before it and the generation prompt),
and the messages up to and with it. What the second has more is what the model writes, the end of
its turn included. Both have to be beginnings of the whole text, since that is what is trained on.

With exceptions, for what well-known templates do:
  - They drop the reasoning of a turn once others follow (Qwen3's, also an empty one, which the
    generation prompt may begin). Then what asks for the turn begins the whole text but for that,
    and goes on there with the end of what the turn alone reads as.
  - They write something at the very end only: an end of text where no prompt follows (Phi's),
    another token than at the end of other turns (gpt-oss's), the header of the next answer whether
    it is asked for or not (Command's).
"""

import json
import re

from corpus.chat_template import REASONING_KEYS, as_object, as_the_template_reads
from corpus.left_out import NOT_TEXT, UNTRAINED, LeftOut

REWRITES = "text that the template writes differently once more follows"
LACKS = "an assistant turn that is not among the trained tokens"
DROPPED = "a message that the template drops"
NO_REASONING = "reasoning that the template drops"
NOTHING = "nothing left to train on"
MARKERS = "generation markers"
PREFIXES = "prefix differences"
# After which comes what was said aloud.
REASONING_ENDS = ("</think>", "[/THINK]", "</thinking>", "</reasoning>", "</thought>")
REASONING_BEGINS = ("<think>", "[THINK]", "<thinking>", "<reasoning>", "<thought>")
AS_PROMPTED = "as the generation prompt does; a template with generation markers may do"
ADVICE = "--train-on last, or a template with generation markers, may do"
MARK = "\ue0f5{}\ue0f6"  # characters that no text has, around a number


class Borders:
    """Where a text may be cut: not within an added token or a reasoning's tag."""

    def __init__(self, added_tokens):
        known = sorted({*added_tokens, *REASONING_BEGINS, *REASONING_ENDS}, key=len, reverse=True)
        self._token = re.compile("|".join(map(re.escape, known)))
        self._longest = len(known[0])

    def snap(self, position, *texts):
        """`position`, or the begin of what it lies within in one of the texts."""
        for text in texts:
            for found in self._token.finditer(text, max(0, position - self._longest)):
                if found.start() >= position:
                    break
                if position < found.end():
                    position = found.start()
        return position

    def common(self, one, other):
        """How long the beginning is that both have."""
        return self.snap(_common_length(one, other), one, other)

    def token_before(self, text, position):
        """The token that ends there, or an empty text."""
        begin = max(0, position - self._longest)
        for found in self._token.finditer(text, begin, position):
            if found.end() == position:
                return found[0]
        return ""

    def first_tokens(self, text, count):
        return [found[0] for found, _ in zip(self._token.finditer(text), range(count))]


def _common_length(one, other):
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def trained_turns(conversation, train_on):
    turns = [number for number, message in enumerate(conversation.messages)
             if message["role"] == "assistant"]
    if train_on == "last":
        turns = turns[-1:]
    turns = [turn for turn in turns if turn not in conversation.untrained]
    if not turns:
        raise LeftOut(UNTRAINED, "its last one" if train_on == "last" else "")
    return turns


def of_conversation(templates, conversation, train_on, borders):
    """The conversation as it is rendered, its whole text, the ascending (begin, end) of what is
    trained on, what the template left out without harm ("reasoning", "tools"), and a LeftOut of
    what may not be missing, or None."""
    template = templates.of(conversation.tools)
    tools = conversation.tools
    messages = as_the_template_reads(template, conversation.messages, tools)
    conversation = conversation._replace(messages=messages)
    whole, marked = template.render(messages, tools)
    omitted, dropped = _check_messages(template, conversation, whole, train_on)
    try:
        if train_on == "all":
            spans = _all_but(template, conversation, whole)
        elif template.has_markers:
            spans = _marked(template, conversation, marked, trained_turns(conversation, train_on))
        else:
            spans = _Prefixes(template, conversation, whole, borders).spans(
                trained_turns(conversation, train_on))
        return conversation, whole, _merged(spans), omitted, dropped
    except LeftOut as left_out:
        raise dropped or left_out from None


def of_completion(conversation, begin, end, train_on):
    """The same for a prompt and its completion as text. They follow each other as they are, between
    the texts of the tokens that begin and end a text. What TRL trains on: the completion."""
    prompt, completion = (message["content"] for message in conversation.messages)
    whole = begin + prompt + completion
    if not completion.endswith(end):
        whole += end
    first = 0 if train_on == "all" else len(begin + prompt)
    return conversation, whole, [(first, len(whole))], {"plain"}, None


def _all_but(template, conversation, whole):
    at = 0
    for number in sorted(conversation.untrained):
        begin, end = (_rendered_or_nothing(template, conversation, count)[0]
                      for count in (number, number + 1))
        if not whole.startswith(begin) or not whole.startswith(end):
            raise LeftOut(REWRITES, f"message {number + 1}, which is not to be trained on")
        yield at, len(begin)
        at = len(end)
    yield at, len(whole)


def _rendered_or_nothing(template, conversation, count):
    """Some of the messages. Many templates refuse to write none."""
    if count == 0:
        try:
            return template.render([], conversation.tools)
        except LeftOut:
            return "", []
    return template.render(conversation.messages[:count], conversation.tools)


def _marked(template, conversation, marked, turns):
    """The marked pieces of some of the assistant's turns."""
    everyone = [number for number, message in enumerate(conversation.messages)
                if message["role"] == "assistant"]
    if turns == everyone:
        return marked
    kept = []
    for turn in turns:
        first, behind = (len(_rendered_or_nothing(template, conversation, count)[1])
                         for count in (turn, turn + 1))
        kept += marked[first:behind]
    return kept


class _Prefixes:
    """The spans of a conversation's turns, by what its beginnings read as."""

    def __init__(self, template, conversation, whole, borders):
        self._template = template
        self._messages = conversation.messages
        self._tools = conversation.tools
        self._whole = whole
        self._borders = borders

    def spans(self, turns):
        for turn in turns:
            asked, answered = self._asked(turn), self._render(turn + 1, False)
            begin = self._begin(turn, asked, answered)
            yield begin, self._end(turn, asked, answered, begin)

    def _render(self, count, asks):
        if count == len(self._messages) and not asks:
            return self._whole
        return self._template.render(self._messages[:count], self._tools, asks)[0]

    def _asked(self, turn):
        """What asks for the turn. Where nobody has said anything, the prompt is found by what asks
        for the next turn: many templates write no empty conversation."""
        try:
            asked = self._render(turn, True)
            rest = asked[self._borders.common(asked, self._whole):]
            if turn > 0 or not rest or rest.lstrip().startswith(REASONING_BEGINS):
                return asked
        except LeftOut:
            if turn > 0:
                raise
        first, asks = self._render(1, False), self._render(1, True)
        prompt = asks[self._borders.common(first, asks):]
        place = first.find(prompt)
        if not prompt or place < 0:
            raise LeftOut(REWRITES, f"message 1 does not begin {AS_PROMPTED}")
        return first[:place + len(prompt)]

    def _begin(self, turn, asked, answered):
        if self._whole.startswith(asked) and answered.startswith(asked):
            return len(asked)
        name = f"message {turn + 1}"
        before = _rendered_before(self._render, turn)
        before = before[:self._borders.common(before, asked)]
        if not self._whole.startswith(before):
            raise LeftOut(REWRITES, f"what comes before {name}; {ADVICE}")
        begin = min(self._borders.common(asked, text) for text in (self._whole, answered))
        if begin <= len(before):  # nothing of the prompt is there
            raise LeftOut(REWRITES, f"{name} does not begin {AS_PROMPTED}")
        return begin

    def _end(self, turn, asked, answered, begin):
        following = self._messages[turn + 1:turn + 2]
        if following and following[0]["role"] != "assistant" and self._whole.startswith(answered):
            return len(answered)
        alone, header = self._without_what_ends_texts(turn, asked, answered)
        if not following and not header:
            return len(answered)
        if self._whole.startswith(alone):
            return len(alone)
        kept = _end_that_begins(alone[begin:], self._whole[begin:len(alone)])
        if kept == 0:
            raise LeftOut(REWRITES, f"message {turn + 1}; {ADVICE}")
        return begin + kept

    def _without_what_ends_texts(self, turn, asked, answered):
        """The messages up to the turn as they read where more follows, and, where the template
        writes it although nobody asks, the header of the next answer."""
        asking = self._render(turn + 1, True)
        if asking != answered:
            prompt = asked[self._borders.common(_rendered_before(self._render, turn), asked):]
            if prompt and asking.endswith(prompt):
                return asking[:-len(prompt)], ""
            return answered[:self._borders.common(answered, asking)], ""
        try:
            more = self._template.render(
                [*self._messages[:turn + 1], {"role": "user", "content": "?"}], self._tools)[0]
        except LeftOut:
            return answered, ""
        end = self._borders.common(answered, more)
        if end == len(answered) or not asked.endswith(answered[end:]):
            return answered, ""
        opens = self._borders.token_before(answered, end)
        if opens and opens in self._borders.first_tokens(self._whole, 2):
            end -= len(opens)  # each message's header begins so
        return answered[:end], answered[end:]


def _rendered_before(render, turn):
    try:
        return render(turn, False)
    except LeftOut:
        if turn > 0:
            raise
        return ""


def _check_messages(template, conversation, whole, train_on):
    """That the template writes each message that is context, each call, and the reasoning of the
    trained turns that answer the last question. Each is given a mark of its own, and what is written then has to have these. Returns
    what is missing and may be, earlier reasoning and tools, and a LeftOut of what may not, or
    None."""
    messages = conversation.messages
    last = {message["role"]: number for number, message in enumerate(messages)}
    answer = last.get("assistant", -1)
    # Markers say what is to be learnt, also of earlier turns.
    is_free = train_on == "last" or template.has_markers
    first_needed = answer if is_free else last.get("user", -1)
    marked = [dict(message) for message in messages]
    wanted = []  # (mark, text, reason, detail); no reason: it may be missing
    for number, message in enumerate(marked):
        is_context = message["role"] != "assistant" or number in conversation.untrained
        keys = (["content"] if is_context and message.get("content") else []) + [
            key for key in REASONING_KEYS if message.get(key)][:1]
        for key in keys:
            mark = MARK.format(len(wanted))
            if not isinstance(message[key], str):
                raise LeftOut(NOT_TEXT, f"'{key}' of message {number + 1} is of type "
                                        f"{type(message[key]).__name__}")
            reason = DROPPED if key == "content" else NO_REASONING
            detail = f"message {number + 1} ({message['role']})"
            if key != "content" and (is_context or number < first_needed):
                reason = None
            elif key != "content" and number < answer:
                detail += f"; {ADVICE}"
            wanted.append((mark, message[key], reason, detail))
            message[key] = message[key] + mark
        if message.get("tool_calls"):
            message["tool_calls"] = list(map(dict, message["tool_calls"]))
        for call in message.get("tool_calls") or ():
            mark, name = MARK.format(len(wanted)), call["function"]["name"]
            wanted.append((mark, name, LACKS, _no_call(number, name)))
            call["function"] = {**call["function"], "name": name + mark}
    omitted, dropped = set(conversation.unused), None
    if wanted:
        try:
            text = template.render(marked, conversation.tools)[0]
        except LeftOut:  # the marks are what it refuses
            text = None
        for mark, content, reason, detail in wanted:
            if (content.strip() in whole) if text is None else (
                    mark in text or json.dumps(mark)[1:-1] in text):
                continue
            if reason:
                dropped = dropped or LeftOut(reason, detail)
            else:
                omitted.add("reasoning")
    if any(name not in whole for name in map(_tool_name, conversation.tools or ())):
        omitted.add("tools")
    return omitted, dropped


def _no_call(number, name):
    return f"message {number + 1}: its call of {name} is not there"


def _tool_name(tool):
    function = tool.get("function")
    name = (function if isinstance(function, dict) else tool).get("name")
    return name if isinstance(name, str) else ""


def _end_that_begins(turn, text):
    """How many characters of `turn`'s end `text` begins with, at most (Knuth, Morris, Pratt)."""
    shorter, matched = [0], 0  # of text[:n + 1], the longest proper beginning that ends it
    for character in text[1:]:
        while matched and text[matched] != character:
            matched = shorter[matched - 1]
        matched += text[matched] == character
        shorter.append(matched)
    matched = 0
    for character in turn:
        while matched and (matched == len(text) or text[matched] != character):
            matched = shorter[matched - 1]
        matched += bool(text) and text[matched] == character
    return matched


def _merged(spans):
    merged = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif begin < end:
            merged.append((begin, end))
    return merged


def token_mask(offsets, spans, partly=False):
    """A 1 for each token whose characters lie inside one of the spans, wholly or also in part, else
    a 0. What a prompt shares with what follows it is no answer; of what generation markers enclose
    transformers takes all tokens that have any of it."""
    mask = bytearray(len(offsets))
    spans = iter([*spans, (float("inf"), float("inf"))])
    span_begin, span_end = next(spans)
    before = 0
    for token, (begin, end) in enumerate(offsets):
        if begin == end and begin < before:  # no characters of its own: it stands where the one
            begin = end = before             # before it ended
        while span_end <= begin:
            span_begin, span_end = next(spans)
        if end > span_begin:
            mask[token] = (span_begin <= begin and end <= span_end) or (partly and begin < span_end)
        elif begin == end == span_begin:
            mask[token] = 1
        if end > before:
            before = end
    return mask


def check_turns(conversation, train_on, text, as_decoded):
    """That the trained text has what the assistant says, turn by turn. Of all turns but the last
    one, a template may drop the reasoning."""
    messages, at = conversation.messages, 0
    for turn in trained_turns(conversation, train_on):
        message, begin = messages[turn], at
        content = (message.get("content") or "").strip()
        if content:
            for pieces in _ways_to_read(content, turn + 1 < len(messages), as_decoded):
                end = _end_of(pieces, text, at)
                if end is not None:
                    at = end
                    break
            else:
                raise LeftOut(LACKS, f"message {turn + 1}: the template drops or changes it, or a "
                                     "token lies across its border")
        for name, keys in _called(message):
            if text.find(name, begin) < 0:
                raise LeftOut(LACKS, _no_call(turn, name))
            for key in keys:
                if text.find(key, begin) < 0:
                    raise LeftOut(LACKS, f"message {turn + 1}: '{key}' of its call of {name} is "
                                         "not there")


def _end_of(pieces, text, at):
    """The end of the last piece if all occur after `at` in this order, else None."""
    for piece in pieces:
        place = text.find(piece, at)
        if place < 0:
            return None
        at = place + len(piece)
    return at if any(pieces) else None


def _ways_to_read(content, others_follow, as_decoded):
    """Lists of pieces, since a template may write other tags and white space around a reasoning."""
    reasoning, aloud = _split(content)
    yield [content]
    yield [as_decoded(content)]  # normalised by the tokenizer
    yield [reasoning, aloud]
    yield [as_decoded(reasoning), as_decoded(aloud)]
    if others_follow:
        yield [aloud]
        yield [as_decoded(aloud)]


def _split(content):
    """The reasoning without its tags, and the answer."""
    ends = [(content.rfind(end), end) for end in REASONING_ENDS if end in content]
    if not ends:
        return "", content
    place, end = max(ends)
    reasoning = content[:place].strip()
    for begin in REASONING_BEGINS:
        reasoning = reasoning.removeprefix(begin)
    return reasoning.strip(), content[place + len(end):].strip()


def _called(message):
    """Of each call, its name and those of its arguments."""
    for call in message.get("tool_calls") or ():
        arguments = as_object(call["function"].get("arguments"))
        yield call["function"]["name"], arguments if isinstance(arguments, dict) else ()
