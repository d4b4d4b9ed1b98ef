"""Conversations as people have them, through templates as models have them: what is trained on, or
the reason why not. In one process, so that many cases take no time.

Templates are this test's, in the manner of well-known ones, of which they have the one trait that
matters. A case is a row, and what it has to become: pieces of text, each with whether it is trained
on, or a reason.
"""

import datetime
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
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


def setUpModule():
    if MISSING:
        raise unittest.SkipTest(MISSING)


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


class Rows(Cases):
    def test_reads_turns_whatever_they_are_called_and_wrapped_in(self):
        wanted = ["b<|im_end|>\n"]
        turns = [user("a"), assistant("b")]
        shared = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
        for row in (turns, {"messages": turns}, {"messages": json.dumps(turns)},
                    {"conversations": json.dumps(shared)},
                    {"messages": [json.dumps(turn) for turn in turns]},
                    {"messages": [{"role": "User", "content": "a"},
                                  {"role": "Assistant", "content": "b"}]},
                    {"conversations": [{"from": "Human", "value": "a"},
                                       {"from": "GPT", "value": "b"}]},
                    {"conversations": [{"role": "user", "value": "a"},
                                       {"role": "assistant", "value": "b"}]},
                    {"messages": [user([{"type": "text", "value": "a"}]),
                                  assistant([{"type": "text", "text": "b"}])]},
                    {"prompt": turns[:1], "completion": turns[1:]},
                    {"instruction": "a", "input": None, "output": "b", "history": None},
                    {"instruction": "a", "input": float("nan"), "output": "b"},
                    {"messages": [user("a", tool_calls=[]), assistant("b", tool_calls=[])],
                     "tools": []},
                    {"conversations": shared, "tools": "[]"},
                    {"conversations": shared, "tools": ""},
                    {"messages": turns, "label": True, "images": [], "image": None},
                    {"messages": turns, "label": 1}, {"messages": turns, "label": "True"},
                    {"messages": turns, "label": None, "kto_tag": "yes"},
                    {"messages": [], "conversations": shared}, {"messages": turns, "tools": {}},
                    {"messages": [turns[0], assistant("b", tool_calls="", function_call={})]},
                    {"messages": turns, "image": float("nan"), "tools": float("nan"),
                     "system": float("nan"), "label": float("nan")},
                    {"messages": [turns[0], assistant("b", weight=float("nan"))]},
                    {"instruction": "", "input": "a", "output": "b", "history": float("nan")}):
            with self.subTest(row=row):
                self.assertEqual(self.trained(row), wanted)
                self.assertEqual(self.text(row), "<|im_start|>user\na<|im_end|>\n"
                                 "<|im_start|>assistant\nb<|im_end|>\n")

    def test_trains_on_completions_and_on_earlier_answers_of_a_history(self):
        self.assertEqual(self.trained({"prompt": TALK[:3], "completion": TALK[3:]}),
                         ["d<|im_end|>\n"])
        self.assertEqual(self.trained({"instruction": "c", "output": "d", "history": [["a", "b"]]}),
                         ["b<|im_end|>\n", "d<|im_end|>\n"])

    def test_trains_on_completions_that_are_text_as_trl_does(self):
        # Without the template: the prompt, the completion, the token that ends a text.
        row = {"prompt": "Q: a\nA:", "completion": " b"}
        for template in (CHATML, MARKED):
            self.assertEqual(self.encode(row, template)[0],
                             [("Q: a\nA:", False), (" b<|endoftext|>", True)])
        self.assertEqual(self.encode({"question": "a", "answer": "b"},
                                     renamed={"question": "prompt", "answer": "completion"})[0],
                         [("a", False), ("b<|endoftext|>", True)])
        ends = {"prompt": "a", "completion": "b<|endoftext|>"}
        self.assertEqual(self.trained(ends), ["b<|endoftext|>"])
        self.assertEqual(self.encode(row, begins="<s>")[0],
                         [("<s>Q: a\nA:", False), (" b<|endoftext|>", True)])
        self.assertEqual(self.trained(row, train_on="all"), ["Q: a\nA: b<|endoftext|>"])
        self.assertEqual(self.trained(row, train_on="last"), [" b<|endoftext|>"])
        self.assertEqual(self.trained({"prompt": "", "completion": "b"}), ["b<|endoftext|>"])
        self.assertEqual(self.trained(row, end=""), [" b"])

    def test_leaves_out_plain_completions_that_teach_nothing_or_need_a_template(self):
        self.assertIn("an empty assistant turn",
                      self.left_out({"prompt": "a", "completion": " "}))
        for row in ({"prompt": "a", "completion": [assistant("b")]}, {"prompt": "a"},
                    {"prompt": [user("a")], "completion": "b"}):
            self.assertIn("the known forms", self.left_out(row))
        self.assertIn("--map prompt=instruction,completion=output",
                      self.left_out({"prompt": "a", "completion": "b", "system": "s"}))
        self.assertIn("no text under 'prompt'",
                      self.left_out({"messages": TALK}, form="completion"))

    def test_translates_names(self):
        for row, renamed in (
                ({"question": "a", "answer": "b"}, {"question": "instruction", "answer": "output"}),
                ({"dialog": [{"who": "user", "says": "a"}, {"who": "bot", "says": "b"}]},
                 {"dialog": "messages", "who": "role", "says": "content"}),
                ({"dialog": json.dumps([user("a"), assistant("b")])}, {"dialog": "conversations"})):
            with self.subTest(row=row):
                self.assertEqual(self.trained(row, renamed=renamed), ["b<|im_end|>\n"])
                self.assertIn("the known forms", self.left_out(row))

    def test_prefers_what_is_mapped_to_what_is_called_so(self):
        turns, others = [user("a"), assistant("b")], [user("x"), assistant("y")]
        swapped = [{"role": "assistant", "content": "a", "who": "user", "from": "web"},
                   {"role": "user", "value": "y", "who": "bot", "content": "b"}]
        question = {"question": "instruction", "answer": "output"}
        for row, renamed in (
                ({"question": "a", "answer": "b", "instruction": "x", "output": "y"}, question),
                ({"instruction": "b", "output": "a"},
                 {"instruction": "output", "output": "instruction"}),
                ({"dialog": turns, "messages": others}, {"dialog": "messages"}),
                ({"dialog": turns, "messages": others}, {"dialog": "conversations"}),
                ({"messages": swapped}, {"who": "role"}),
                ({"messages": [json.dumps(turn) for turn in swapped]}, {"who": "role"}),
                ({"messages": {"who": ["user", "bot"], "says": ["a", "b"]}},
                 {"who": "role", "says": "content"})):
            for order in (1, -1):
                with self.subTest(row=row, order=order):
                    row = dict(list(row.items())[::order])
                    self.assertEqual(self.text(row, renamed=renamed), "<|im_start|>user\na"
                                     "<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n")

    def test_leaves_out_what_cannot_be_trained_on_and_says_why(self):
        for row, said in (
                ({"messages": TALK, "label": False}, "its data reject ('label' is false)"),
                ({"messages": TALK, "label": 0}, "its data reject ('label' is 0)"),
                ({"messages": TALK, "label": 0.0}, "its data reject ('label' is 0.0)"),
                ({"messages": TALK, "label": "False"}, "its data reject ('label' is \"False\")"),
                ({"messages": TALK, "kto_tag": " false "}, "its data reject ('kto_tag' is"),
                ({"messages": TALK, "images": ["a.png"]}, "not text (it comes with 'images'"),
                ({"messages": TALK, "image": "a.png"}, "not text (it comes with 'image'"),
                ({"chosen": TALK, "rejected": TALK}, "a rejected answer"),
                ({"messages": "hello"}, "'messages' is no list"),
                ({"messages": [user("a"), {"role": "assistant", "tool_calls": [{}]}]},
                 "without a name"),
                ({"conversations": [{"from": "function_call", "value": "no JSON"}]},
                 "calls a tool"),
                ({"instruction": "a", "output": "b", "history": "c"}, "'history' is no list"),
                ({"messages": None, "id": 1}, "(it has id)"),
                ({"messages": ["a", "b"]}, "turn 1 is no JSON object"),
                ({"messages": [user("a"), {"content": "b"}]}, "turn 2 has neither"),
                ({"messages": [user("a"), {"from": "gpt", "value": "b"}]},
                 "'role' and others 'from'"),
                ({"messages": {"role": ["user", "assistant"], "content": ["a"]}},
                 "differ in length"),
                ({"messages": TALK, "system": ["s"]}, "('system' is of type list)"),
                ({"messages": TALK, "functions": [1]}, "'functions' is no list"),
                ({"messages": [user("a"), assistant("b", reasoning=["h"])]},
                 "('reasoning' of message 2")):
            with self.subTest(row=row):
                self.assertIn(said, self.left_out(row))

    def test_leaves_out_what_is_nested_too_deeply(self):
        for depth in (200, 700, 960, 990, 99_999):
            for begin, end in (("[", "]"), ('{"a":', "}")):
                deep = begin * depth + "1" + end * depth
                for text in ('{"messages": [{"role": "user", "content": "\\ud800", "a": @}]}',
                             '{"messages": [{"role": "assistant", "content": "b"}], "tools": [@]}',
                             '{"messages": @}',
                             '{"instruction": "a", "output": "b", "history": @}'):
                    self.assertRegex(self.left_out(text.replace("@", deep).encode()),
                                     "not JSON|known forms")
        self.assertIn("nested deeper", self.left_out(
            {"messages": TALK, "tools": '[{"a": ' + "[" * 700 + "]" * 700 + "}]"}))

    def test_takes_a_first_turn_of_the_assistants(self):
        row = {"conversations": [{"from": "gpt", "value": "hi"}, {"from": "human", "value": "a"},
                                 {"from": "gpt", "value": "b"}]}
        for template in (CHATML, NEEDS_MESSAGES):
            self.assertEqual(self.trained(row, template), ["hi<|im_end|>\n", "b<|im_end|>\n"])
        preset = "{% if messages[0].role != 'system' %}<|im_start|>system\nYou.<|im_end|>\n" \
                 "{% endif %}"
        for template in (preset + CHATML, preset + NEEDS_MESSAGES,
                         "{% if messages and messages[0].role != 'system' %}<|im_start|>system\n"
                         "You.<|im_end|>\n{% endif %}" + CHATML):
            self.assertEqual(self.trained(row, template), ["hi<|im_end|>\n", "b<|im_end|>\n"])
        self.assertEqual(self.trained(row, DISTILLED), ["hi<|eos|>", "b<|eos|>"])


class Marks(Cases):
    def test_masks_the_turns_that_data_want_masked(self):
        for mark in ({"loss": False}, {"trainable": False}, {"train": False}, {"training": False},
                     {"loss_weight": 0}, {"loss_weight": 0.0}, {"loss_scale": 0.0}, {"weight": 0},
                     {"mask": True}, {"loss_mask": 0}):
            for template, end in ((CHATML, "\n"), (MARKED, "")):
                with self.subTest(mark=mark, marked=template == MARKED):
                    bad = assistant("b", **mark)
                    row = {"messages": [user("a"), bad, *TALK[2:]]}
                    self.assertEqual(self.trained(row, template), ["d<|im_end|>" + end])
                    self.assertIn("b<|im_end|>", self.text(row, template))
                    self.assertEqual(self.left_out({"messages": [user("a"), bad]}, template),
                                     "no assistant turn is marked to be trained on ()")
                    row = {"messages": [*TALK[:2], user("c"), assistant("d", **mark)]}
                    self.assertEqual(self.trained(row, template), ["b<|im_end|>" + end])
                    self.assertIn("its last one", self.left_out(row, template, train_on="last"))
        shared = {"conversations": [{"from": "human", "value": "a"},
                                    {"from": "gpt", "value": "b", "loss": False},
                                    {"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}]}
        self.assertEqual(self.trained(shared), ["d<|im_end|>\n"])
        pieces, _ = self.encode(shared, train_on="all")
        self.assertEqual([text for text, trained in pieces if not trained],
                         ["<|im_start|>assistant\nb<|im_end|>\n"])

    def test_trains_on_turns_whose_marks_say_so_and_weighs_none(self):
        for mark in ({"loss": True}, {"weight": 1}, {"weight": 1.0}, {"mask": False},
                     {"train": None}):
            self.assertEqual(self.trained({"messages": [user("a"), assistant("b", **mark)]}),
                             ["b<|im_end|>\n"])
        for mark in ({"weight": 0.5}, {"loss_scale": 2}, {"train": "no"},
                     {"train_detail": [{"begin_offset": 0, "end_offset": 0, "train": False}]}):
            self.assertIn("neither 0 nor 1", self.left_out(
                {"messages": [user("a"), assistant("b", **mark)]}))


    def test_leaves_out_rows_whose_weight_is_0_and_weighs_none(self):
        for more in ({"messages": TALK}, {"instruction": "a", "output": "b"},
                     {"prompt": "a", "completion": "b"},
                     {"conversations": [{"from": "human", "value": "a"},
                                        {"from": "gpt", "value": "b"}]}):
            for weight in (0, 0.0, False, "0", "0.0"):
                self.assertEqual(self.left_out({**more, "weight": weight}),
                                 "no assistant turn is marked to be trained on "
                                 "(the row's 'weight' is 0)")
            for weight in (1, 1.0, True, "1", None, "", "12 kg", [3], float("nan")):
                self.assertEqual(self.trained({**more, "weight": weight}), self.trained(more))
            for weight in (0.5, 2, -1, "0.5", float("inf"), 10**400):
                self.assertIn("neither 0 nor 1", self.left_out({**more, "weight": weight}))


class Calls(Cases):
    def test_writes_arguments_as_the_template_wants_them(self):
        for given in ({"sku": "M", "n": [1]}, '{"sku": "M", "n": [1]}'):
            row = {"messages": [user("a"), call(given), {"role": "tool", "content": "7"},
                                assistant("b")], "tools": [TOOL]}
            with self.subTest(given=given):
                self.assertEqual(self.trained(row)[0], '<tool_call>{"name": "stock", "arguments": '
                                 '{"sku": "M", "n": [1]}}</tool_call><|im_end|>\n')
                # The token that opens the call is trained on, though the prompt begins like it.
                self.assertEqual(self.trained(row, DISTILLED),
                                 ['<|call|>stock {"sku": "M", "n": [1]}<|eos|>', "b<|eos|>"])

    def test_reads_every_way_to_write_a_call(self):
        plain = {"name": "stock", "arguments": {"sku": "M"}}
        turns = [{"role": "assistant", "content": None, "function_call": plain},
                 {"role": "assistant", "tool_calls": [{"type": "function", "function": plain}]},
                 {"role": "assistant", "tool_calls": [plain]},
                 {"role": "assistant", "tool_calls": json.dumps([{"function": plain}])},
                 {"role": "assistant", "tool_calls": [json.dumps({"function": plain})]},
                 {"role": "function_call", "content": json.dumps(plain)}]
        for turn in turns:
            with self.subTest(turn=turn):
                row = {"messages": [user("a"), turn, {"role": "function", "name": "stock",
                                                      "content": "7"}, assistant("b")]}
                self.assertEqual(self.trained(row), [
                    '<tool_call>{"name": "stock", "arguments": {"sku": "M"}}</tool_call>'
                    '<|im_end|>\n', "b<|im_end|>\n"])
                self.assertIn("<|im_start|>tool\n7<|im_end|>", self.text(row))
        shared = {"conversations": [{"from": "human", "value": "a"},
                                    {"from": "function_call", "value": json.dumps(plain)},
                                    {"from": "observation", "value": "7"},
                                    {"from": "gpt", "value": "b"}]}
        self.assertEqual(self.trained(shared), self.trained(row))
        kept = {**turns[0], "content": "I look."}
        self.assertTrue(self.trained({"messages": [user("a"), kept]})[0].startswith(
            'I look.<tool_call>{"name": "stock"'))

    def test_gives_a_turn_without_words_what_the_template_can_write(self):
        words = CHATML.replace("(message.content or '')", "message.content")
        for turn in (call({"sku": "M"}), call({"sku": "M"}, "")):
            self.assertEqual(self.trained({"messages": [user("a"), turn]}, words),
                             self.trained({"messages": [user("a"), turn]}))

    def test_leaves_away_what_is_null_as_transformers_does(self):
        as_it_is = CHATML.replace("(message.content or '')", "message.content ~ ''")
        row = {"messages": [user("a"), call({"sku": "M"})]}
        self.assertEqual(self.trained(row, as_it_is), self.trained(row))
        self.assertNotIn("None", self.text(row, as_it_is))
        # One that writes calls only where it finds null.
        null = "{% if message.content is none %}{% for call in message.tool_calls %}<|call|>" \
               "{{ call.function.name + ' ' + call.function.arguments }}{% endfor %}<|end|>" \
               "{% else %}{{ message.content }}<|end|>{% endif %}"
        self.assertEqual(
            self.trained(row, "{% for message in messages %}<|{{ message.role }}|>" + null +
                         "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"),
            ['<|call|>stock {"sku": "M"}<|end|>'])

    def test_notices_a_second_call_that_is_not_written(self):
        plain = {"function": {"name": "stock", "arguments": {"sku": "M"}}}
        row = {"messages": [user("a"), assistant(None, tool_calls=[plain, plain])]}
        self.assertEqual(self.trained(row)[0].count("<tool_call>"), 2)
        first = CHATML.replace("in message.tool_calls or []", "in (message.tool_calls or [])[:1]")
        self.assertRegex(self.left_out(row, first), "message 2:.*stock is not there")
        escaped = CHATML.replace("+ call.function.name +",
                                 "+ (call.function.name | tojson(ensure_ascii=True))[1:-1] +")
        self.assertEqual(self.trained(row, escaped), self.trained(row))

    def test_a_template_that_refuses_unknown_tools_gets_its_arguments(self):
        strict = CHATML.replace("{%- for call in message.tool_calls or [] %}", """\
{%- for call in message.tool_calls or [] %}
{%- if call.function.name not in (tools | map(attribute='function.name') | list) %}
{{- raise_exception('unknown tool') }}{%- endif %}""")
        self.assertNotEqual(strict, CHATML)
        call = {"function": {"name": TOOL["function"]["name"], "arguments": '{"city": "Bern"}'}}
        row = {"messages": [user("a"), {"role": "assistant", "tool_calls": [call]}],
               "tools": [TOOL]}
        self.assertEqual(self.trained(row, strict), self.trained(row))

    def test_takes_functions_for_tools(self):
        turns = [user("a"), assistant("b")]
        for functions in ([TOOL["function"]], json.dumps([TOOL["function"]]), [TOOL]):
            self.assertEqual(self.text({"messages": turns, "functions": functions}),
                             self.text({"messages": turns, "tools": [TOOL]}))

    def test_uses_the_template_for_tools(self):
        templates = {"default": CHATML, "tool_use": CHATML.replace("Tools:", "You may call:")}
        row = {"messages": [user("a"), assistant("b")], "tools": [TOOL]}
        self.assertIn("You may call: [", self.text(row, templates))
        self.assertNotIn("You may call", self.text({**row, "tools": []}, templates))

    def test_finds_the_template_for_tools_where_transformers_saves_it(self):
        from corpus.tokenizer_folder import TokenizerFolder
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": [
                {"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]}))
            self.assertEqual(TokenizerFolder(folder).templates, {"default": "a", "tool_use": "b"})
            (folder / "chat_template.jinja").write_text("c")
            (folder / "additional_chat_templates").mkdir()
            (folder / "additional_chat_templates/tool_use.jinja").write_text("\ufeffd")
            found = TokenizerFolder(folder)
            self.assertEqual(found.templates, {"default": "c", "tool_use": "d"})
            self.assertIn("additional_chat_templates/tool_use.jinja", found.companions)
            (folder / "t.jinja").write_text("e")
            self.assertEqual(TokenizerFolder(folder, folder / "t.jinja").templates,
                             {"default": "e"})

    def test_notices_calls_arguments_and_tools_that_are_not_written(self):
        row = {"messages": [user("a"), call({"sku": "M"}), assistant("b")], "tools": [TOOL]}
        self.assertIn("stock is not there",
                      self.left_out(row, CHATML.replace("call.function.name", "'f'")))
        self.assertRegex(self.left_out(row, CHATML.replace("call.function.arguments | tojson", "''")),
                         "'sku'.*stock is not there")
        self.text({"messages": TALK, "tools": [TOOL]}, "{% set tools = none %}" + CHATML)
        self.assertEqual(self.omitted, {"tools": 1})


class Dropped(Cases):
    def test_leaves_out_conversations_of_which_a_message_vanishes(self):
        for role in ("developer", "critic"):
            row = {"messages": [{"role": role, "content": "a"}, *TALK]}
            self.assertEqual(self.left_out(row),
                             f"a message that the template drops (message 1 ({role}))")
        one_system = CHATML.replace("if message.role in", "if (loop.first or message.role != "
                                    "'system') and message.role in")
        row = {"messages": [{"role": "system", "content": "s"}, *TALK[:2],
                            {"role": "system", "content": "a"}, *TALK[2:]]}
        self.assertIn("message 4 (system)", self.left_out(row, one_system))
        self.assertIn("s<|im_end|>", self.text(row))
        hides = CHATML.replace("(message.content or '')", "(message.content if message.content != "
                               "'b' else '')")
        self.assertIn("not among", self.left_out({"messages": TALK}, hides))

    def test_counts_system_texts_that_are_not_used(self):
        turns = [user("a"), assistant("b")]
        system = {"role": "system", "content": "s"}
        for row, unused in (({"messages": [system, *turns], "system": "other"}, {"system": 1}),
                            ({"messages": turns, "system": "s", "system_prompt": "other"},
                             {"system": 1}),
                            ({"messages": [system, *turns], "system": "s"}, {}),
                            ({"messages": turns, "system": "s"}, {})):
            self.assertIn("system\ns<|im_end|>", self.text(row))
            self.assertEqual(self.omitted, unused)

    def test_takes_a_reasoning_that_the_template_writes_otherwise(self):
        thinks = CHATML.replace("(message.content or '')", """(
            '<think>\\n' + message.content.split('</think>')[0][7:].strip() + '\\n</think>\\n\\n'
            if '</think>' in message.content else '')
            + message.content.split('</think>')[-1].strip()""")
        drops = thinks.replace("[0][7:]", "[0][:0]")
        for said in ("<think>hmm</think>b", "<think>\n\nhmm\n</think>\nb",
                     "<think>\nhmm\n</think>\n\nb"):
            row = {"messages": [user("a"), assistant(said)]}
            self.assertEqual(self.trained(row, thinks),
                             ["<think>\nhmm\n</think>\n\nb<|im_end|>\n"])
            self.assertIn("drops or changes it", self.left_out(row, drops))

    def test_says_where_reasoning_is_dropped(self):
        for key in ("reasoning_content", "thinking", "reasoning"):
            row = {"messages": [user("a"), assistant("b", **{key: "hm"})]}
            self.assertEqual(self.left_out(row), "reasoning that the template drops "
                                                 "(message 2 (assistant))")
            self.assertIn("hm", self.trained(row, CHANNELS)[0])
            row = {"messages": [*row["messages"], *TALK[2:]]}
            self.assertNotIn("hm", self.text(row, CHANNELS))
            self.assertEqual(self.omitted, {"reasoning": 1})


class Templates(Cases):
    def test_takes_several_turns_of_templates_that_end_the_last_one_otherwise(self):
        row = {"messages": TALK}
        self.assertEqual(self.encode(row, PHI)[0], [
            ("<|user|>\na<|end|>\n<|assistant|>\n", False), ("b<|end|>\n", True),
            ("<|user|>\nc<|end|>\n<|assistant|>\n", False),
            ("d<|end|>\n<|endoftext|>", True)])
        thinks = {"messages": [user("a"), assistant("b", thinking="h"), user("c"),
                               assistant("d", thinking="i")]}
        for row, reasoning in ((row, ""),
                               (thinks, "<|channel|>analysis<|message|>i<|end|>"
                                         "<|start|>assistant")):
            self.assertEqual(self.encode(row, CHANNELS)[0], [
                ("<|start|>user<|message|>a<|end|><|start|>assistant", False),
                ("<|channel|>final<|message|>b<|end|>", True),
                ("<|start|>user<|message|>c<|end|><|start|>assistant", False),
                (reasoning + "<|channel|>final<|message|>d<|return|>", True)])

    def test_does_not_train_on_a_header_that_nobody_answers(self):
        for row in (TALK, [user("a"), assistant("b"), assistant("d")], [*TALK, user("e")],
                    [assistant("b"), *TALK[2:]]):
            self.assertEqual(self.trained({"messages": row}, COMMAND), ["b<|end|>", "d<|end|>"])

    def test_trains_on_answers_to_a_prompt_that_begins_a_reasoning(self):
        self.assertEqual(self.encode({"messages": TALK}, DISTILLED)[0], [
            ("<s><|User|>a<|Assistant|>", False), ("b<|eos|>", True),
            ("<|User|>c<|Assistant|>", False), ("d<|eos|>", True)])
        # Also those that begin like the reasoning's tag.
        self.assertEqual(self.trained({"messages": [user("a"), assistant("<b>x</b>")]}, DISTILLED),
                         ["<b>x</b><|eos|>"])
        self.assertIn("the trained tokens", self.left_out(
            {"messages": [user("a"), assistant("<think>\nhm\n</think>\n\nb")]}, DISTILLED))


class Bounds(Cases):
    def test_ends_templates_that_do_not_end(self):
        from corpus import bounds
        from unittest import mock
        loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
        row = {"messages": TALK}
        begin = time.process_time()
        with mock.patch.object(bounds, "MOST_CPU_S", 0.3), \
                mock.patch.object(bounds, "MOST_BYTES", 200 << 20):
            for template, said in (
                    (loop, "takes more than"),
                    ("{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}", "writes more than"),
                    ("{{ 'x' * (10 ** 9) }}", "repeats something"),
                    ("{{ messages * (10 ** 9) }}", "repeats something"),
                    ("{{ 9 ** (9 ** 9) }}", "number of more than"),
                    ("{% set n = namespace(x=9) %}{% for a in range(99) %}{% set n.x = n.x * n.x %}"
                     "{% endfor %}", "number of more than"),
                    ("{{ messages[0].content.center(10 ** 9) }}", "too much memory"),
                    ("{% set n = namespace(x='y') %}{% for a in range(99) %}"
                     "{% set n.x = n.x ~ n.x %}{% endfor %}", "too much memory"),
                    ("{{ '%999999999d' | format(messages | length) }}", "too much memory")):
                with self.subTest(template=template):
                    self.assertRegex(self.left_out(row, template),
                                     f"a bound .*{said}")
            with self.assertRaisesRegex(Failure, "t.jinja cannot be compiled"):
                self.left_out(row, "{{ " + "(" * 50_000 + ")" * 50_000 + " }}")
        self.assertLess(time.process_time() - begin, 20)
        self.assertEqual(self.trained(row), ["b<|im_end|>\n", "d<|im_end|>\n"])

    def test_gives_up_on_a_template_that_ends_on_no_conversation(self):
        from corpus import bounds, chat_encode
        from unittest import mock
        with mock.patch.object(bounds, "MOST_CPU_S", 0.1), \
                mock.patch.object(chat_encode, "MOST_ENDLESS", 1):
            with self.assertRaisesRegex(Failure, "t.jinja: .*a bound"):
                self.left_out({"messages": TALK}, "{{ 9 ** (9 ** 9) }}")


class LongTexts(unittest.TestCase):
    def encoder(self, first_space=False):
        from corpus import chat_encode
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = (pre_tokenizers.Metaspace(prepend_scheme="always") if first_space else
                              pre_tokenizers.ByteLevel(add_prefix_space=False))
        made.decoder = (decoders.Metaspace(prepend_scheme="always") if first_space else
                        decoders.ByteLevel())
        made.train_from_iterator(["the wind and the water, waters and winds\n\n über 12"] * 3,
                                 trainers.BpeTrainer(vocab_size=330, show_progress=False,
                                                     special_tokens=["<|im_start|>", "<|im_end|>"],
                                                     initial_alphabet=sorted({
                                                         *pre_tokenizers.ByteLevel.alphabet(),
                                                         *"\n\tü🌊▁_"})))
        return chat_encode.ChatEncoder(chat_encode.ChatSettings(
            made.to_str(), False, {"default": CHATML}, TOKENS, datetime.datetime(2024, 2, 29),
            "t.jinja", None, {}, "assistant", None, False, 0.0, "<|endoftext|>"))

    def test_gives_the_same_tokens_in_pieces(self):
        import random
        from corpus import chat_encode
        from unittest import mock
        seed = 7
        draw = random.Random(seed)
        words = ["the", " ", "wind", "\n", "\n\n", "  ", "über", " 12", "water,", "\t", "🌊", "'s"]
        for first_space in (False, True):
            encoder = self.encoder(first_space)
            for _ in range(20):
                rows = [json.dumps({"messages": [
                    {"role": role, "content": "x" + "".join(draw.choices(words, k=300)) + "y"}
                    for role in ("user", "assistant") * 2]}).encode()]
                whole = encoder.encode(rows).sides["train"]
                sizes, encoded = [], encoder._encoded
                with mock.patch.multiple(chat_encode, LONG_CHARACTERS=200, CUT_TRIES=90,
                                         CUT_CONTEXT=20), mock.patch.object(
                                             encoder, "_encoded",
                                             lambda text: sizes.append(len(text)) or encoded(text)):
                    cut = encoder.encode(rows).sides["train"]
                self.assertEqual((cut.raw, cut.mask), (whole.raw, whole.mask), seed)
                if not first_space:
                    self.assertLess(max(sizes), 201)


class Sources(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-chat-cases-")
        self.addCleanup(self.folder.cleanup)
        self.path = Path(self.folder.name)

    def rows(self, name, content, encoding=None, renamed=None):
        """What parse() makes of each row of a file, and what was reported."""
        from corpus import conversations, documents, messages
        from corpus.report import Report
        if content is not None:
            (self.path / name).write_bytes(content)
        report = Report("test", quiet=True)
        said = self.said = []
        report.skip = lambda where, why: said.append(f"{where}: {why}")
        report.note = said.append
        sources = conversations.find_sources([self.path / name], None, None, report, encoding)
        corpus = conversations.ConversationCorpus(
            sources, documents.ReadOptions(encoding, renamed or {}))
        return [messages.parse(row.content, None, renamed).messages for row in corpus.rows(report)]

    def test_reads_a_list_of_rows_whatever_its_name_and_lines_that_are_lists(self):
        turns = [user("ä"), assistant("b")]
        rows = [{"messages": turns}, {"messages": turns}]
        for content in (json.dumps(rows), json.dumps(rows, indent=1),
                        "".join(json.dumps(turns) + "\n" for _ in rows),
                        "".join(json.dumps(row) + "\n" for row in rows)):
            for name in ("a.jsonl", "a.json"):
                with self.subTest(name=name, content=content[:20]):
                    self.assertEqual(self.rows(name, content.encode()), [turns, turns])

    def test_reads_utf16_and_names_other_encodings(self):
        turns = [user("äö"), assistant("水 b")]
        line = json.dumps({"messages": turns}, ensure_ascii=False) + "\n"
        for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"):
            for name, content in (("a.jsonl", 3 * line),
                                  ("a.json", f"[{line},{line},\n{line}]\n")):
                with self.subTest(encoding=encoding, name=name):
                    self.assertEqual(self.rows(name, content.encode(encoding)), 3 * [turns])
                    self.assertEqual(len(self.said), encoding.startswith(("utf-16", "utf-32")))
        latin = json.dumps({"messages": [user("äö"), assistant("b")]}, ensure_ascii=False)
        self.assertEqual(self.rows("a.jsonl", latin.encode("latin-1"), "latin-1"),
                         [[user("äö"), assistant("b")]])
        for damaged in (b"\xff\xfe{\0\"", b"\xff\xfe{\0\0\xd8\0\xd8"):
            self.assertEqual(self.rows("a.jsonl", damaged), [])
            self.assertIn("damaged", self.said[-1])
        from corpus.left_out import LeftOut
        with self.assertRaisesRegex(LeftOut, "not JSON"):
            self.rows("a.jsonl", latin.encode("latin-1"))

    def test_reads_csv(self):
        renamed = {"question": "instruction", "answer": "output"}
        wanted = [[user('a "1"\n2'), assistant("ä;b")], [user("c"), assistant("d,e")]]
        for separator in ",;\t":
            content = separator.join(["question", "input", "answer"]) + "\r\n" + "\r\n".join(
                separator.join(f'"{cell}"' for cell in cells)
                for cells in (('a ""1""\n2', "", "ä;b"), ("c", "", "d,e"))) + "\r\n"
            for encoding in ("utf-8", "utf-8-sig", "utf-16", "cp1252"):
                given = encoding if encoding == "cp1252" else None
                with self.subTest(separator=separator, encoding=encoding):
                    self.assertEqual(self.rows("a.csv", content.encode(encoding), given, renamed),
                                     wanted)
        self.assertEqual(self.rows("a.csv", b"instruction,output\na,b,c\n\nd,e\n"),
                         [[user("d"), assistant("e")]])
        self.assertEqual(self.said, ["a.csv, row 2: it has 3 cells, and the first row names 2"])
        self.assertEqual(self.rows("a.csv", "instruction,output\nä,b\n".encode("latin-1")), [])
        self.assertIn("--encoding", self.said[0])
        turns = json.dumps([user("a"), assistant("b")]).replace('"', '""')
        self.assertEqual(self.rows("a.csv", f'messages\n"{turns}"\n'.encode()),
                         [[user("a"), assistant("b")]])

    def test_leaves_out_as_a_whole_what_is_in_another_encoding(self):
        good = "instruction,output\n" + "a,b\n" * 10_000
        line = json.dumps({"messages": [user("a"), assistant("b")]}) + "\n"
        for name, content in (("a.csv", good.encode() + b"caf\xe9,c\n"),
                              ("a.csv", good.encode("utf-16") + b"\0\xd8"),
                              ("a.jsonl", (line * 10_000).encode("utf-16") + b"\0\xd8")):
            self.assertEqual(self.rows(name, content), [])
            self.assertRegex(self.said[-1], f"^{name}: .*another encoding")

    def test_tells_an_encoding_by_as_much_wherever_it_is_asked(self):
        from corpus import encodings
        from corpus.source import Source
        for begin in range(500, 5000, 500):  # damaged before and behind the end of the head
            (self.path / "a").write_bytes(("x" * begin).encode("utf-16-le") + b"\0\xd8x\0" * 5000)
            given = Source("a", self.path / "a", 0, "text")
            with encodings.Utf8Reader(given, hashlib.sha256()) as reader:
                self.assertEqual(reader.encoding, encodings.of_file(given))

    def test_reads_no_file_of_a_folder_that_became_a_link(self):
        import pyarrow
        from corpus import conversations, documents
        from corpus.report import Report
        from pyarrow import parquet
        row = {"text": "swordfish", "messages": [user("a"), assistant("swordfish")]}
        away, line = self.path / "away", json.dumps(row)
        away.mkdir()
        for name, text in (("a.txt", "swordfish"), ("a.csv", "text,messages\nswordfish,b\n"),
                           ("a.jsonl", line), ("a.json", f"[{line}]"),
                           ("state.json", '{"_data_files": [{"filename": "a.arrow"}]}')):
            (away / name).write_text(text)
        table = pyarrow.Table.from_pylist([row])
        parquet.write_table(table, away / "a.parquet")
        with pyarrow.OSFile(str(away / "a.arrow"), "wb") as file, \
                pyarrow.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
        report = Report("test", quiet=True)
        said = []
        report.skip = lambda where, why: said.append(why)

        def nothing(_inner, _name):
            pass

        def folder_is_link(inner, _name):
            shutil.rmtree(inner)
            inner.symlink_to(away)

        def file_is_link(inner, name):
            (inner / name).unlink()
            (inner / name).symlink_to(away / name)

        def file_is_pipe(inner, name):
            (inner / name).unlink()
            os.mkfifo(inner / name)

        for change in (nothing, folder_is_link, file_is_link, file_is_pipe):
            for kind, name in ((documents, "a.txt"), (documents, "a.csv"), (documents, "a.jsonl"),
                               (documents, "a.parquet"), (conversations, "a.jsonl"),
                               (conversations, "a.json"), (conversations, "a.csv"),
                               (conversations, "a.parquet"), (conversations, "a.arrow")):
                with self.subTest(kind=kind.__name__, name=name), \
                        tempfile.TemporaryDirectory() as top:
                    inner = Path(top) / "train"
                    shutil.copytree(away, inner)
                    if name == "a.arrow":
                        (Path(top) / "dataset_dict.json").write_text('{"splits": ["train"]}')
                    else:
                        (inner / "state.json").unlink()
                    sources = kind.find_sources([top], [name], None, report)
                    change(inner, name)
                    said.clear()
                    if kind is documents:
                        found = list(documents.Corpus(sources).fragments(report))
                    else:
                        found = list(conversations.ConversationCorpus(sources).rows(report))
                    self.assertEqual(bool(found), change is nothing, said)
                    self.assertEqual(bool(said), change is not nothing)

    def test_names_what_is_damaged_in_parquet(self):
        import pyarrow
        from corpus import documents
        from corpus.encodings import NotText
        from pyarrow import parquet
        turns = [user("a"), assistant("qqqq")]
        parquet.write_table(pyarrow.table({"messages": [turns]}), self.path / "a.parquet",
                            compression="none", use_dictionary=False, write_statistics=False)
        content = (self.path / "a.parquet").read_bytes()
        self.assertEqual(content.count(b"qqqq"), 1)
        self.assertEqual(self.rows("a.parquet", content.replace(b"qqqq", b"qq\xffq")), [])
        self.assertEqual(self.said, ["a.parquet: it is damaged: text in it is not UTF-8"])

        def batches():
            yield 1
            raise pyarrow.ArrowInvalid("Index not\nin bounds")
        given = batches()
        self.assertEqual(documents.next_batch(given), 1)
        with self.assertRaisesRegex(NotText, r"damaged \(Index"):
            documents.next_batch(given)

    def test_says_what_is_odd_in_csv(self):
        for content, wanted, said in (
                ("", [], "a.csv: it is empty"), ("\ufeff\r\n\r\n", [], "a.csv: it is empty"),
                ("\n\ninstruction,output\na,b\n", [["a", "b"]], None),
                ("instruction,output,,\na,b,,\n", [["a", "b"]], None),
                ('instruction,output\na,b\nc,"d\ne,f\n', [["a", "b"]],
                 "a.csv, row 3: it has a quote that nothing closes, up to the file's end"),
                ('instruction,output\na,"b"', [["a", "b"]], None)):
            with self.subTest(content=content):
                self.assertEqual([[turn["content"] for turn in row]
                                  for row in self.rows("a.csv", content.encode())], wanted)
                self.assertEqual(self.said, [said] if said else [])
        with self.assertRaisesRegex(Failure, "a.csv .*a quote"):
            self.rows("a.csv", b'instruction,"output\na,b\n')

    def test_prefers_mapped_columns(self):
        import pyarrow
        from pyarrow import parquet
        renamed = {"question": "instruction", "answer": "output"}
        self.assertEqual(self.rows("a.csv", b"instruction,question,answer,output\nx,a,b,y\n", None,
                                   renamed), [[user("a"), assistant("b")]])
        columns = {"question": ["a"], "instruction": ["x"], "output": ["y"], "answer": ["b"]}
        parquet.write_table(pyarrow.table(columns), self.path / "a.parquet")
        self.assertEqual(self.rows("a.parquet", None, None, renamed),
                         [[user("a"), assistant("b")]])

    def test_reads_columns_of_json_and_what_has_pictures(self):
        import pyarrow
        from corpus.left_out import LeftOut
        from pyarrow import parquet
        turns = [user("[a]"), assistant("1")]
        as_json = pyarrow.json_(pyarrow.string())

        def column(values, kind):
            storage = kind.storage_type if isinstance(kind, pyarrow.BaseExtensionType) else kind
            return pyarrow.array(values, storage).cast(kind)
        contents = column([json.dumps(turn["content"]) for turn in turns], as_json)
        structs = pyarrow.StructArray.from_arrays(
            [pyarrow.array(["user", "assistant"]), contents], ["role", "content"])
        nested = pyarrow.ListArray.from_arrays(pyarrow.array([0, 2], pyarrow.int32()), structs)
        for messages in (column([json.dumps(turns)], as_json), nested,
                         pyarrow.ListArray.from_arrays(
                             pyarrow.array([0, 2], pyarrow.int32()),
                             column([json.dumps(turn) for turn in turns], as_json))):
            parquet.write_table(pyarrow.table({"messages": messages}), self.path / "a.parquet")
            self.assertEqual(self.rows("a.parquet", None), [turns])
        for pictures, has_any in (([b"png"], True), ([None], False), ([[b"x"]], True),
                                  ([[]], False)):
            table = pyarrow.table({"messages": pyarrow.array([turns]), "images": pictures})
            parquet.write_table(table, self.path / "a.parquet")
            with self.subTest(pictures=pictures):
                if has_any:
                    with self.assertRaisesRegex(LeftOut, "it comes with 'images'"):
                        self.rows("a.parquet", None)
                else:
                    self.assertEqual(self.rows("a.parquet", None), [turns])

    def test_says_what_is_wrong_with_a_saved_data_set(self):
        folder = self.path / "saved"
        folder.mkdir()
        for name, contents in (
                ("state.json", ('{"_data_files": 3}', '{"_data_files": [3]}',
                                '{"_data_files": [{}]}',
                                '{"_data_files": [{"filename": "../a"}]}', "[]", "{", "\udcff",
                                '{"_data_files": [{"filename": "gone.arrow"}]}', "[" * 99_999,
                                '{"_data_files": [{"filename": "a\\u0000b"}]}', "{}")),
                ("dataset_dict.json", ('{"splits": 3}', '{"splits": [3]}', '{"splits": ["gone"]}',
                                       '{"splits": {"a": 1}}', "7", '{"splits": ["/etc"]}', ""))):
            for content in contents:
                with self.subTest(name=name, content=content[:40]):
                    (folder / name).write_text(content, errors="surrogateescape")
                    with self.assertRaisesRegex(Failure, r"(saved|train): |[:;] .*save"):
                        self.rows("saved", None)


MISSING = ""
if __name__ == "__main__":
    try:
        tool_packages.need(["tokenizers", "jinja2", "markupsafe", "pyarrow"], "this test")
    except Failure as failure:
        MISSING = str(failure)
    unittest.main()
