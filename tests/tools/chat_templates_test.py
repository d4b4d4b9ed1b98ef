"""Conversations through templates as models have them (chat_cases.py): how calls of tools are
written, what is dropped, and the bounds of a template."""

import json
import tempfile
import unittest
from pathlib import Path

from chat_cases import (CHANNELS, CHATML, COMMAND, Cases, DISTILLED, PHI, TALK, TOOL, assistant,
                        call, missing, user)
from toolbox import Failure  # which chat_cases has made found


def setUpModule():
    if MISSING:
        raise unittest.SkipTest(MISSING)


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
        with mock.patch.object(bounds, "MOST_CPU_S", 0.3):
            self.assertRegex(self.left_out(row, loop), "a bound .*takes more than")
        with mock.patch.object(bounds, "MOST_BYTES", 200 << 20):
            for template, said in (
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
        self.assertEqual(self.trained(row), ["b<|im_end|>\n", "d<|im_end|>\n"])

    def test_gives_up_on_a_template_that_ends_on_no_conversation(self):
        from corpus import bounds, chat_encode
        from unittest import mock
        with mock.patch.object(bounds, "MOST_CPU_S", 0.1), \
                mock.patch.object(chat_encode, "MOST_ENDLESS", 1):
            with self.assertRaisesRegex(Failure, "t.jinja: .*a bound"):
                self.left_out({"messages": TALK}, "{{ 9 ** (9 ** 9) }}")

MISSING = ""
if __name__ == "__main__":
    MISSING = missing()
    unittest.main()
