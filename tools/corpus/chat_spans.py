"""Which characters of a rendered conversation are the assistant's, and which tokens these are.

A template with generation markers says it itself. Of others, two texts are compared for each of
the assistant's turns: what asks for the turn (the messages before it and the generation prompt),
and the messages up to and with it. What the second has more is what the model writes, the end of
its turn included. Both have to be beginnings of the whole text, since that is what is trained on.

With one exception: there are templates that drop the reasoning of a turn once others follow
(Qwen3's, also an empty one, which the generation prompt may begin). Then what asks for the turn
begins the whole text but for that, and goes on there with the end of what the turn alone reads as.
That end is what is trained on.
"""

import os

from corpus.conversations import LeftOut

REWRITES = "text that the template writes differently once more follows"
LACKS = "an assistant turn that is not among the trained tokens"
NOTHING = "nothing left to train on"
MARKERS = "generation markers"
PREFIXES = "prefix differences"
# After which comes what was said aloud.
REASONING_ENDS = ("</think>", "[/THINK]", "</thinking>", "</reasoning>", "</thought>")
AS_PROMPTED = "as the generation prompt does; a template with generation markers may do"
ADVICE = "--train-on last, or a template with generation markers, may do"


def assistant_turns(messages, train_on):
    turns = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    return turns[-1:] if train_on == "last" else turns


def of_conversation(template, conversation, train_on):
    """The whole text, and the ascending (begin, end) of what is trained on."""
    messages, tools = conversation.messages, conversation.tools
    whole, marked = template.render(messages, tools)
    if train_on == "all":
        return whole, [(0, len(whole))]
    turns = assistant_turns(messages, train_on)
    if not template.has_markers:
        return whole, _merged(_by_prefixes(
            lambda count, asks: template.render(messages[:count], tools, asks)[0],
            len(messages), whole, turns))
    if train_on == "last" and turns[0] > 0:
        marked = marked[len(template.render(messages[:turns[0]], tools)[1]):]
    return whole, _merged(marked)


def _by_prefixes(render, count, whole, turns):
    for turn in turns:
        asked = render(turn, True)
        answered = whole if turn + 1 == count else render(turn + 1, False)
        name = f"message {turn + 1}"
        begin, end = len(asked), len(answered)
        if not whole.startswith(asked):
            before = render(turn, False)
            begin = len(os.path.commonprefix([asked, whole]))
            if not whole.startswith(before):
                raise LeftOut(REWRITES, f"what comes before {name}; {ADVICE}")
            if begin == len(before):  # nothing of the prompt is there
                raise LeftOut(REWRITES, f"{name} does not begin {AS_PROMPTED}")
        if not answered.startswith(asked):
            raise LeftOut(REWRITES, f"{name} does not begin {AS_PROMPTED}")
        if begin < len(asked) or not whole.startswith(answered):
            kept = _end_that_begins(answered[begin:], whole[begin:end])
            if kept == 0:
                raise LeftOut(REWRITES, f"{name}; {ADVICE}")
            end = begin + kept
        yield begin, end


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
        if begin == end:  # no characters of its own: it stands where the one before it ended
            begin = end = max(begin, before)
        while span_end <= begin:
            span_begin, span_end = next(spans)
        inside = span_begin <= begin and end <= span_end
        mask[token] = inside or (partly and begin < span_end and span_begin < end)
        before = max(before, end)
    return mask


def check_turns(messages, train_on, text, as_decoded):
    """That the trained text has what the assistant says, turn by turn. Of all turns but the last
    one, a template may drop the reasoning."""
    at = 0
    for turn in assistant_turns(messages, train_on):
        message, begin = messages[turn], at
        content = message.get("content", "").strip()
        if content:
            for wanted in _ways_to_read(content, turn + 1 < len(messages), as_decoded):
                place = text.find(wanted, at) if wanted else -1
                if place >= 0:
                    at = place + len(wanted)
                    break
            else:
                raise LeftOut(LACKS, f"message {turn + 1}: the template drops or changes it, or a "
                                     "token lies across its border")
        for name in _called(message):
            if text.find(name, begin) < 0:
                raise LeftOut(LACKS, f"message {turn + 1}: its call of {name} is not there")


def _ways_to_read(content, others_follow, as_decoded):
    yield content
    yield as_decoded(content)  # normalised by the tokenizer
    if others_follow:
        aloud = _after_reasoning(content)
        yield aloud
        yield as_decoded(aloud)


def _after_reasoning(content):
    last = max((content.rfind(end) + len(end) for end in REASONING_ENDS if end in content),
               default=0)
    return content[last:].strip()


def _called(message):
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function", call) if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            yield name
