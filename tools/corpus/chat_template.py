"""A chat template, rendered by the rules that transformers has for them.

Templates come with models and are programs of strangers: they run in Jinja's sandbox and see
nothing but plain data. What they take for the present is the begin of the run, so the same
conversation gives the same text in every process.
"""

import json
import re
import sys
from importlib import metadata

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from corpus.conversations import LeftOut
from toolbox import Failure

RAISES = "the template refuses it"
LOST_MARKERS = "generation markers whose place is not known"
SAFE_VERSION = (3, 1, 6)  # templates can leave the sandbox of older ones
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


class ChatTemplate:
    def __init__(self, text, special_tokens, now, name="the chat template"):
        installed = metadata.version("jinja2")
        if tuple(map(int, re.findall(r"\d+", installed)[:3])) < SAFE_VERSION:
            raise Failure(f"this Python has jinja2 {installed}, whose sandbox a template can "
                          f"leave: {sys.executable} -m pip install --upgrade jinja2")
        self._special_tokens = special_tokens
        self._environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self._environment.filters["tojson"] = _to_json
        self._environment.globals["raise_exception"] = _raise
        self._environment.globals["strftime_now"] = now.strftime
        try:
            self._template = self._environment.from_string(text)
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
        try:
            # Piece by piece: when a marker's content is written, all before it has been counted.
            for piece in self._template.generate(
                    **self._special_tokens, messages=[_with_reasoning(each) for each in messages],
                    tools=tools, documents=None, add_generation_prompt=add_generation_prompt):
                pieces.append(piece)
                environment.written += len(piece)
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
