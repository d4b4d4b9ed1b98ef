"""Shared by tests of conversations and templates, which call the encoder of tools/prepare --chat in
one process, so that many cases take no time.

Templates are in the manner of well-known ones, of which they have the one trait that matters. A
case is a row, and what it has to become: pieces of text, each with whether it is trained on, or a
reason.
"""

import datetime
import json
import sys
import unittest
from array import array
from itertools import groupby
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent.parent / "tools"
sys.dont_write_bytecode = True
sys.path.insert(0, str(TOOLS))

import tool_packages
from toolbox import Failure

CHATML = """\
{%- if tools is not none %}<|im_start|>system
Tools: {{ tools | tojson }}<|im_end|>
{% endif %}
{%- for message in messages %}
    {%- if message.role in ('system', 'user', 'assistant', 'tool') %}
    {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
    {%- for call in message.tool_calls or [] %}
    {{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
    {{- (call.function.arguments | tojson) + '}</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
NEEDS_MESSAGES = "{%- if messages[0].role == 'tool' %}{% endif %}" + CHATML
MARKED = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}
{%- generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
{%- else %}{{ message.content + '<|im_end|>' }}{% endif %}
{%- endfor %}"""
# An end of text unless an answer is asked for.
PHI = """\
{% for message in messages %}{{ '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""
# The last turn ends otherwise than the others, and reasoning is kept only after the last question.
CHANNELS = """\
{%- set last = namespace(user=0) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set last.user = loop.index0 %}
{%- endif %}{% endfor %}
{%- for message in messages %}
{{- '<|start|>' + message.role }}
{%- if message.thinking and loop.index0 > last.user %}
{{- '<|channel|>analysis<|message|>' + message.thinking + '<|end|><|start|>assistant' }}
{%- endif %}
{{- ('<|channel|>final' if message.role == 'assistant' else '') + '<|message|>' + message.content }}
{%- if loop.last and message.role == 'assistant' and not add_generation_prompt %}
{{- '<|return|>' }}{% else %}{{ '<|end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""
# Ends with the header of an answer, whether that is asked for or not.
COMMAND = """\
{{- bos_token }}
{%- for message in messages %}<|turn|><|{{ message.role }}|>{{ message.content }}<|end|>
{%- endfor %}<|turn|><|assistant|>"""
# The prompt begins a reasoning, which turns are written without; a call is text, begins with a
# token of its own, and comes without content.
DISTILLED = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'user' %}{{ '<|User|>' + message.content }}{% endif %}
{%- if message.role == 'tool' %}{{ '<|out|>' + message.content }}{% endif %}
{%- if message.role == 'assistant' %}{{ '<|Assistant|>' }}
{%- for call in message.tool_calls or [] %}
{{- '<|call|>' + call.function.name + ' ' + call.function.arguments }}
{%- endfor %}
{%- if message.content is not none %}{{ message.content.split('</think>')[-1] }}{% endif %}
{{- '<|eos|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|Assistant|><think>\\n' }}{% endif %}"""
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>",
            "<|return|>", "<|system|>", "<|user|>", "<|assistant|>", "<|endoftext|>", "<|turn|>",
            "<|User|>", "<|Assistant|>", "<|call|>", "<|out|>", "<|eos|>", "<s>", "<think>"]
TOKENS = {"bos_token": "<s>", "eos_token": "<|endoftext|>"}
TOOL = {"type": "function", "function": {"name": "stock", "parameters": {"type": "object"}}}


def missing():
    """Which packages these tests lack; empty: none."""
    try:
        tool_packages.need(["tokenizers", "jinja2", "markupsafe", "pyarrow"], "this test")
    except Failure as failure:
        return str(failure)
    return ""


def user(text, **more):
    return {"role": "user", "content": text, **more}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(arguments, content=None):
    return assistant(content, tool_calls=[
        {"id": "c1", "type": "function", "function": {"name": "stock", "arguments": arguments}}])


TALK = [user("a"), assistant("b"), user("c"), assistant("d")]


class Cases(unittest.TestCase):
    def encode(self, row, template=CHATML, begins=None, **settings):
        """(pieces, (reason, detail)) of a row, one of them None. begins: the token that the
        tokenizer puts before every text."""
        from corpus import chat_encode
        from tokenizers import (AddedToken, Tokenizer, decoders, models, pre_tokenizers,
                                processors)
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        made = Tokenizer(models.BPE(vocab={text: at for at, text in enumerate(alphabet)},
                                    merges=[]))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        made.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIALS])
        if begins:
            made.post_processor = processors.TemplateProcessing(
                single=f"{begins} $A", special_tokens=[(begins, made.token_to_id(begins))])
        templates = template if isinstance(template, dict) else {"default": template}
        encoder = chat_encode.ChatEncoder(chat_encode.ChatSettings(**{
            "json_text": made.to_str(), "wide": False, "templates": templates,
            "special_tokens": TOKENS, "now": datetime.datetime(2024, 2, 29), "name": "t.jinja",
            "form": None, "renamed": {}, "train_on": "assistant", "max_tokens": None, "cut": False,
            "validation_fraction": 0.0, "end": TOKENS["eos_token"], **settings}))
        batch = encoder.encode([row if isinstance(row, bytes) else json.dumps(row).encode()])
        self.omitted = dict(batch.omitted)
        if batch.left_out:
            return None, batch.left_out[0][1:]
        side = batch.sides["train"]
        tokens = array("H", bytes(side.raw))
        return [(made.decode([token for token, _ in run], skip_special_tokens=False), bool(trained))
                for trained, run in groupby(zip(tokens, side.mask), lambda each: each[1])], None

    def trained(self, row, template=CHATML, **settings):
        pieces, left_out = self.encode(row, template, **settings)
        self.assertIsNone(left_out)
        return [text for text, trained in pieces if trained]

    def text(self, row, template=CHATML, **settings):
        pieces, left_out = self.encode(row, template, **settings)
        self.assertIsNone(left_out)
        return "".join(text for text, _ in pieces)

    def left_out(self, row, template=CHATML, **settings):
        pieces, left_out = self.encode(row, template, **settings)
        self.assertIsNone(pieces)
        return "{} ({})".format(*left_out)
