"""A chat template, rendered by the rules that transformers has for them.

Templates come with models and are programs of strangers: they run in Jinja's sandbox, see nothing
but plain data, and have bounds for time, memory and what they write (bounds.py). What they take for
the present is the begin of the run, so the same conversation gives the same text in every process.
"""

import json
import re
import sys
from importlib import metadata

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from corpus.bounds import Exceeded, bounded, check_operands
from corpus.left_out import LeftOut
from toolbox import Failure, read_json

ENDLESS = "the template exceeds a bound"
MOST_WRITTEN = 1 << 24  # characters, and so much more as a conversation is large
RAISES = "the template refuses it"
LOST_MARKERS = "generation markers whose place is not known"
SAFE_VERSION = (3, 1, 6)  # templates can leave the sandbox of older ones
CALL_MARK = "\ue0f7"  # a character that no name contains
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


class _Generation(Extension):
    """{% generation %} ... {% endgeneration %}: what an assistant says. Writes it as it is, and
    notes where it stands in what was written."""

    tags = {"generation"}

    def __init__(self, environment):
        super().__init__(environment)
        # written: characters that render() has taken over; blocks: (begin, text).
        environment.extend(has_generation=False, written=0, blocks=[])

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        self.environment.has_generation = True
        return jinja2.nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

    def _note(self, caller):
        text = caller()
        self.environment.blocks.append((self.environment.written, text))
        return text


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context, operator, left, right):
        check_operands(operator, left, right)
        return super().call_binop(context, operator, left, right)


class ChatTemplates:
    """What a tokenizer's folder has: a template by the name "default", and perhaps others, of which
    "tool_use" is for conversations with tools (transformers' rule)."""

    def __init__(self, texts, special_tokens, now, name="the chat template"):
        self._templates = {kind: ChatTemplate(text, special_tokens, now, name)
                           for kind, text in texts.items() if kind in ("default", "tool_use")}

    def of(self, tools):
        chosen = "tool_use" if tools is not None and "tool_use" in self._templates else "default"
        if chosen not in self._templates:
            raise LeftOut(RAISES, "there is a template for conversations with tools only")
        return self._templates[chosen]

    @property
    def has_markers(self):
        return any(template.has_markers for template in self._templates.values())


class ChatTemplate:
    def __init__(self, text, special_tokens, now, name="the chat template"):
        installed = metadata.version("jinja2")
        if tuple(map(int, re.findall(r"\d+", installed)[:3])) < SAFE_VERSION:
            raise Failure(f"this Python has jinja2 {installed}, whose sandbox a template can "
                          f"leave: {sys.executable} -m pip install --upgrade jinja2")
        self._special_tokens = special_tokens
        self._environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self._environment.filters["tojson"] = _to_json
        self._environment.globals["raise_exception"] = _raise
        self._environment.globals["strftime_now"] = now.strftime
        try:
            with bounded():
                self._template = self._environment.from_string(text)
        except (Exceeded, MemoryError, RecursionError, SyntaxError) as error:
            raise Failure(f"{name} cannot be compiled ({error or type(error).__name__}): is this a "
                          "chat template for transformers?") from error
        except jinja2.TemplateSyntaxError as error:
            raise Failure(f"{name}, line {error.lineno}: {error.message}; is this a chat template "
                          "for transformers?") from error

    @property
    def has_markers(self):
        return self._environment.has_generation

    def render(self, messages, tools, add_generation_prompt=False):
        """The text, and the (begin, end) of what its generation markers enclose."""
        environment = self._environment
        environment.written, environment.blocks = 0, []
        pieces = []
        given = [_with_reasoning(each) for each in messages]
        most = MOST_WRITTEN + 16 * _characters([given, tools])
        try:
            # Piece by piece: when a marker's content is written, all before it has been counted.
            with bounded():
                for piece in self._template.generate(
                        **self._special_tokens, messages=given, tools=tools, documents=None,
                        add_generation_prompt=add_generation_prompt):
                    pieces.append(piece)
                    environment.written += len(piece)
                    if environment.written > most:
                        raise Exceeded(f"it writes more than {most} characters")
        except (Exceeded, MemoryError) as error:
            del pieces
            environment.blocks = []
            raise LeftOut(ENDLESS, str(error) or "it takes too much memory") from None
        except jinja2.TemplateError as error:
            raise LeftOut(RAISES, error.message or type(error).__name__) from error
        except Exception as error:  # a template's mistake can be any of Python's
            raise LeftOut(RAISES, f"{type(error).__name__}: {error}") from error
        text = "".join(pieces)
        for begin, block in environment.blocks:
            if not text.startswith(block, begin):
                raise LeftOut(LOST_MARKERS, "they are within a macro or a {% set %} block: write "
                                            "them outside")
        return text, [(begin, begin + len(block)) for begin, block in environment.blocks]


def _characters(value):
    if isinstance(value, dict):
        return sum(len(str(key)) + _characters(item) for key, item in value.items())
    return sum(map(_characters, value)) if isinstance(value, list) else len(str(value))


def _raise(message):
    raise jinja2.TemplateError(message)


def _to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def _with_reasoning(message):
    """A message whose reasoning has the names that templates look for, whichever it came with."""
    for key in REASONING_KEYS:
        if message.get(key) is not None:
            return {"thinking": message[key], **message, "reasoning_content": message[key]}
    return message


# --- calls of tools ------------------------------------------------------------------------------

def as_the_template_reads(template, messages, tools):
    """The messages with their calls as the template wants them: as they are if it can write these,
    else with the arguments as JSON objects, or as text where it takes that alone. A template that
    wants objects writes a text in quotes, and one that wants a text refuses an object or writes it
    as Python does. The content of a turn that only calls is left away, which is transformers' rule,
    or is null or an empty text where the template needs that."""
    calling = sum(bool(message.get("tool_calls")) for message in messages)
    if not calling:
        return messages
    for with_content in (_without_content, lambda message: {**message, "content": None},
                 lambda message: {**message, "content": ""}):
        for arguments_as in (lambda arguments: arguments, as_object, _as_text):
            converted = [_converted(message, with_content, arguments_as) for message in messages]
            try:
                text, has_marks = _with_or_without_marks(template, converted, tools)
            except LeftOut as left_out:
                if left_out.reason == ENDLESS:
                    raise
                continue
            marks = text.count(CALL_MARK) + text.count(json.dumps(CALL_MARK)[1:-1])
            if (marks >= calling or not has_marks) and not (
                    any(_is_misread(arguments, text) for message in converted
                        for arguments in _arguments(message))):
                return converted
    return messages


def _with_or_without_marks(template, messages, tools):
    """The text, and whether names of calls are marked: a template may refuse unknown names."""
    try:
        return template.render(list(map(_with_marked_calls, messages)), tools)[0], True
    except LeftOut as left_out:
        if left_out.reason == ENDLESS:
            raise
        return template.render(messages, tools)[0], False


def _with_marked_calls(message):
    if not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [
        {**call, "function": {**call["function"], "name": call["function"]["name"] + CALL_MARK}}
        for call in message["tool_calls"]]}


def _without_content(message):
    return {key: value for key, value in message.items() if key != "content"}


def _arguments(message):
    for call in message.get("tool_calls") or ():
        if "arguments" in call["function"]:
            yield call["function"]["arguments"]


def _converted(message, with_content, arguments_as):
    if not message.get("tool_calls"):
        return message
    if message.get("content") is None:
        message = with_content(message)
    return {**message, "tool_calls": [
        {**call, "function": {key: arguments_as(value) if key == "arguments" else value
                              for key, value in call["function"].items()}}
        for call in message["tool_calls"]]}


def as_object(arguments):
    if isinstance(arguments, str):
        try:
            parsed = read_json(arguments)
        except ValueError:
            return arguments
        return parsed if isinstance(parsed, dict) else arguments
    return arguments


def _as_text(arguments):
    return arguments if isinstance(arguments, str) else _to_json(arguments)


def _is_misread(arguments, text):
    if isinstance(arguments, str):
        return isinstance(as_object(arguments), dict) and any(
            json.dumps(arguments, ensure_ascii=ascii_only) in text for ascii_only in (True, False))
    return bool(arguments) and str(arguments) != _to_json(arguments) and str(arguments) in text
