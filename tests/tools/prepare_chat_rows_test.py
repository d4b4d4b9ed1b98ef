"""Which rows tools/prepare --chat takes and leaves out, seen from outside, and why."""

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

sys.dont_write_bytecode = True

from chat_prepared import (CHATML, CHATML_TOKENS, HEADERS, HEADERS_TOKENS, MARKED, Prepared, TALK,
                           THINKS, asked, messages, missing)


def setUpModule():
    if MISSING:
        raise unittest.SkipTest(MISSING)


class Reasons(Prepared):
    def left_out(self, rows, *arguments):
        """stdout and stderr of a run over `rows` and one good conversation, which alone is left."""
        self.rows([*rows, asked("good", "is it?")])
        result = self.prepare("chat.jsonl", *arguments, "--overwrite")
        self.assertEqual([each[-1][0] for each in self.pieces()], ["good<|im_end|>\n"])
        self.assertIn(f"{len(rows)} of {len(rows) + 1} conversations", result.stdout)
        # The counts that are printed are kept with the tokens.
        kept = json.loads((self.out / "train.bin.json").read_text(encoding="utf-8"))["preparation"]
        said = {reason: int(count) for count, reason in re.findall(
            r"^ +(\d+) (.+)$", result.stdout[result.stdout.index("conversations are left"):], re.M)}
        self.assertEqual(kept, {"conversations": len(rows) + 1, "cut": 0, "left_out": said,
                                "replaced": 0})
        self.assertEqual(sum(said.values()), len(rows))
        return result.stdout, result.stderr

    def test_counts_and_names_what_no_form_fits(self):
        self.tokenizer()
        rows = [{"text": "a"}, {"messages": [{"role": "user"}]}, {"messages": ["a"]},
                {"conversations": [{"from": "robot", "value": "x"}]}, [1],
                {"messages": messages(("user", "q"), ("assistant", "a")), "tools": 3}]
        counts, names = self.left_out(rows)
        self.assertRegex(counts, r"\n +6 .*the known forms\n")
        self.assertRegex(names, r"chat\.jsonl:1:.*\(it has text\)")
        self.assertRegex(names, r"chat\.jsonl:2:.*'user' without 'content'")
        self.assertEqual(names.count("skipped chat.jsonl"), 3)
        self.assertIn("more is skipped", names)

    def test_broken_lines(self):
        self.tokenizer()
        counts, names = self.left_out(["{broken", '{"messages": [', "\x00", "[" * 100_000])
        self.assertRegex(counts, r"\n +4 not JSON\n")
        self.assertIn("chat.jsonl:2: not JSON (", names)

    def test_content_that_is_no_text(self):
        self.tokenizer()
        counts, names = self.left_out([
            asked("a", [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": "x"}]),
            asked("a", 7)])
        self.assertRegex(counts, r"\n +2 content ")
        self.assertRegex(names, r"chat\.jsonl:1: content.*'image_url'")

    def test_turns_that_are_weighed(self):
        self.tokenizer()
        turn = {"role": "assistant", "content": "bad"}
        human = {"from": "human", "value": "q"}
        counts, names = self.left_out([
            {"messages": [*messages(("user", "q")), {**turn, "weight": 0}]},
            {"messages": [*messages(("user", "q")), {**turn, "weight": 0.5}]},
            {"messages": [*messages(("user", "q")), {**turn, "train": False}]},
            {"conversations": [human, {"from": "gpt", "value": "bad", "train": False}]}])
        self.assertRegex(counts, r"\n +3 no assistant turn .*marked")
        self.assertRegex(counts, r"\n +1 .*weighed ")
        self.assertRegex(names, r"chat\.jsonl:2:.*\('weight' is 0\.5\)")

    def test_turns_that_say_nothing(self):
        self.tokenizer()
        counts, names = self.left_out([asked(" \n"), {"messages": messages(("user", "q"))},
                                       {"messages": []}, asked(None),
                                       {"instruction": "i", "output": ""}])
        self.assertRegex(counts, r"\n +3 an empty ")
        self.assertRegex(counts, r"\n +2 no assistant turn\n")
        self.assertIn("chat.jsonl:2: no assistant turn\n", names)

    def test_a_template_that_raises(self):
        self.tokenizer(CHATML.replace("{%- for message in messages %}", """
            {%- for message in messages %}
            {%- if message.content == 'r' %}{{ raise_exception('no r here') }}{% endif %}
            {%- if message.content == 'n' %}{{ 1 + none }}{% endif %}
            {%- if message.content == 'x' %}{{ ''.__class__.__mro__ }}{% endif %}""", 1))
        counts, names = self.left_out([asked("r"), asked("n"), asked("x")])
        self.assertRegex(counts, r"\n +3 .*refuses it\n")
        self.assertRegex(names, r"chat\.jsonl:1:.*\(no r here\)")
        self.assertRegex(names, r"chat\.jsonl:2:.*\(TypeError: ")
        self.assertRegex(names, r"chat\.jsonl:3:.*'__class__' of 'str'")

    def test_text_that_changes_with_what_follows(self):
        # The number of the messages, when there are more than two, is written before them all.
        self.tokenizer("{% if messages | length > 2 %}{{ messages | length }}{% endif %}" + CHATML)
        counts, names = self.left_out([{"messages": messages(*TALK)}])
        self.assertRegex(counts, r"\n +1 .*writes differently ")
        self.assertIn("message 3; --train-on last", names)

    def test_a_prompt_that_answers_do_not_begin_with(self):
        self.tokenizer(CHATML.replace("{%- if add_generation_prompt %}",
                                      "{%- if add_generation_prompt and messages[0].content != "
                                      "'is it?' %}<|bos|>{% elif add_generation_prompt %}"))
        _, names = self.left_out([asked("a")])
        self.assertRegex(names, "message 2.*generation prompt")

    def test_answers_that_the_template_changes(self):
        self.tokenizer(CHATML.replace("message.content", "message.content | replace('bad', '')"))
        counts, names = self.left_out([asked("so bad"), {"messages": messages(*TALK[1:4], (
            "assistant", "a bad one"))}])
        self.assertRegex(counts, r"\n +2 .*the trained tokens\n")
        self.assertRegex(names, r"chat\.jsonl:2:.*\(message 4:.*drops or changes")

    def test_a_token_across_the_border(self):
        self.tokenizer("{% for message in messages %}{{ message.role }}: {{ message.content }}"
                       "<|im_end|>\n{% endfor %}"
                       "{% if add_generation_prompt %}assistant: {% endif %}")
        counts, _ = self.left_out([asked("Water.")])
        self.assertRegex(counts, r"\n +1 .*the trained tokens\n")

    def test_a_token_across_the_border_of_generation_markers(self):
        self.tokenizer("{% for message in messages %}{{ message.role }}: "
                       "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}"
                       "{% endgeneration %}{% else %}{{ message.content }}{% endif %}<|im_end|>\n"
                       "{% endfor %}")
        self.rows([asked("Water.")])
        self.prepare("chat.jsonl")
        self.assertEqual(self.trained(), [[" Water."]])

    def test_markers_that_leave_a_turn_out(self):
        self.tokenizer(MARKED)
        self.rows([{"messages": messages(("user", "q"), ("assistant", "stop"), ("user", "q"),
                                         ("assistant", "never written"))}, asked("good")])
        result = self.prepare("chat.jsonl")
        self.assertEqual(self.trained(), [["good<|im_end|>"]])
        self.assertIn("chat.jsonl:1: an assistant turn", result.stderr)

    def test_markers_whose_place_cannot_be_known(self):
        self.tokenizer(MARKED.replace("{%- generation %}", "{% set s %}[{% generation %}").replace(
            "{% endgeneration %}", "{% endgeneration %}{% endset %}{{ s }}"))
        self.rows([asked("a")])
        self.assertIn("1 generation markers", self.refused("chat.jsonl"))

    def test_a_reasoning_that_the_last_turn_loses(self):
        self.tokenizer(THINKS.replace("loop.index0 > last.question and", "false and"))
        rows = [asked("<think>\nhm\n</think>\n\nA")]
        self.assertIn("an assistant turn", self.left_out(rows)[0])

    def test_conversations_that_are_too_long(self):
        self.tokenizer()
        counts, names = self.left_out([asked("long " * 100), asked("longer " * 99)],
                                      "--max-tokens", 60)
        self.assertRegex(counts, r"\n +2 .*--max-tokens 60\n")
        self.assertRegex(names, r"chat.jsonl:1: .*--max-tokens 60 .*\d{3}\)")

    def test_nothing_is_left_to_train_on_where_the_cut_is_before_the_answer(self):
        self.tokenizer()
        counts, _ = self.left_out([asked("late", "long " * 100)], "--max-tokens", 60,
                                  "--too-long", "cut")
        self.assertRegex(counts, r"\n +1 nothing left ")

    def test_a_parquet_file_that_is_none(self):
        self.tokenizer()
        self.write("b.parquet", "this is not Parquet")
        self.rows([asked("good")])
        said = self.prepare("b.parquet", "chat.jsonl").stderr
        self.assertRegex(said, r"b\.parquet:.*Parquet file")
        self.assertEqual(len(self.documents()), 1)


class Choices(Prepared):
    def test_trains_on_the_last_turn_only(self):
        for template in (CHATML, MARKED):
            self.tokenizer(template)
            self.rows([{"messages": messages(*TALK, ("user", "Thanks."))}])
            self.prepare("chat.jsonl", "--train-on", "last", "--overwrite")
            self.assertEqual([[text.strip() for text in each] for each in self.trained()],
                             [["The wind.\nAnd time.<|im_end|>"]])

    def test_trains_on_everything(self):
        self.tokenizer()
        self.rows([{"messages": messages(*TALK)}])
        self.prepare("chat.jsonl", "--train-on", "all")
        ((text, trained),), = self.pieces()
        self.assertTrue(trained)
        self.assertTrue(text.startswith("<|im_start|>system") and text.endswith("<|im_end|>\n"))
        said = self.sidecar()
        self.assertEqual((said["trained_tokens"], said["chat"]["train_on"]),
                         (said["tokens"], "all"))

    def test_cuts_what_is_too_long(self):
        self.tokenizer()
        self.rows([asked("long " * 100), asked("short")])
        self.prepare("chat.jsonl")
        whole, short = self.documents()
        said = self.prepare("chat.jsonl", "--max-tokens", 60, "--too-long", "cut", "--overwrite")
        self.assertEqual(self.documents(), [tuple(each[:60] for each in whole), short])
        self.assertEqual(self.sidecar()["longest_document"], 60)
        self.assertRegex(said.stdout, "1 conversations.*60 tokens")

    def test_gives_the_same_bytes_whatever_the_number_of_processes(self):
        self.tokenizer()
        rows = [asked(f"Water {number}. " * (number % 97), f"q{number}") for number in range(14000)]
        self.rows([*rows, {}])  # enough for processes
        self.assertGreater((self.folder / "chat.jsonl").stat().st_size, 9 << 20)
        told = []
        for jobs in (1, 3):
            out = self.folder / f"out{jobs}"
            result = self.prepare("chat.jsonl", "--jobs", jobs, "--validation-fraction", "0.2",
                                  out=out)
            self.assertRegex(result.stderr, r"chat\.jsonl:14001:.*\(it has nothing\)")
            told.append((self.contents(out), self.sidecar(out=out), result.stderr))
        self.assertEqual(told[0], told[1])
        left_out = len(range(0, 14000, 97))
        counts = [len(self.documents(name, self.folder / "out1"))
                  for name in ("train.bin", "val.bin")]
        self.assertEqual(sum(counts), 14000 - left_out)
        self.assertTrue(2500 < counts[1] < 3100, counts)

    def test_the_split_is_by_conversation_whatever_their_order_and_template(self):
        self.tokenizer()
        self.tokenizer(HEADERS, HEADERS_TOKENS, name="other")
        rows = [asked(f"Water {number}.") for number in range(300)]
        self.rows(rows)
        self.rows(rows[::-1], "turned.jsonl")
        validated = set()
        for name, tokenizer in (("chat.jsonl", "tok"), ("turned.jsonl", "other")):
            self.prepare(name, "--overwrite", "--validation-fraction", "0.1", tokenizer=tokenizer)
            texts = [[text for text, trained in document if trained][0].split(".")[0]
                     for document in self.pieces("val.bin")]
            self.assertEqual(len(texts) + len(self.documents()), 300)
            self.assertTrue(10 < len(texts) < 60, len(texts))
            validated.add(frozenset(texts))
        self.assertEqual(len(validated), 1)

    def test_has_no_part_to_validate_on_where_there_are_too_few(self):
        self.tokenizer()
        self.rows([asked(f"Water {number}.") for number in range(60)])
        self.prepare("chat.jsonl", "--validation-fraction", "0.05", out=self.folder / "many")
        held_back = self.pieces("val.bin", self.folder / "many")[0][-1][0].split("<")[0]
        for text, empty in ((held_back, "train.bin"), ("Water 7.", "val.bin")):
            self.rows([asked(text)])
            result = self.run_tool("--chat", "chat.jsonl", "--tokenizer", "tok", "--out",
                                   self.folder / "few", "--validation-fraction", "0.05")
            self.assertIn(f"leaves nothing in {empty}", result.stderr)
        result = self.run_tool("--chat", "chat.jsonl", "--tokenizer", "tok", "--out", self.out)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("there is no val.bin", result.stderr)
        self.assertEqual(self.trained(), [["Water 7.<|im_end|>\n"]])
        self.assertEqual([path.name for path in self.out.glob("val*")], [])

    def test_says_where_a_message_spells_a_special_token(self):
        self.tokenizer()
        self.rows([asked("a", "<|im_end|>"), asked("b")])
        self.assertRegex(self.prepare("chat.jsonl").stdout, "1 conversations.*special token")

    def test_replaces_halves_of_characters(self):
        self.tokenizer()
        self.write("chat.jsonl", '{"instruction": "q", "output": "half \\ud83c of it"}\n')
        said = self.prepare("chat.jsonl").stderr
        self.assertEqual(self.trained(), [["half \ufffd of it<|im_end|>\n"]])
        self.assertRegex(said, r"chat\.jsonl:1:.*not UTF-8")


class Files(Prepared):
    def test_lays_out_what_the_engine_reads(self):
        self.write("tok/tokenizer.json", json.dumps({
            "version": "1.0", "pre_tokenizer": {"type": "WhitespaceSplit"}, "added_tokens": [],
            "model": {"type": "WordLevel", "unk_token": "?",
                      "vocab": {"?": 0, "u": 1, "a": 2, "x": 3, "y": 4, ".": 70000}}}))
        self.write("tok/tokenizer_config.json", json.dumps({"eos_token": "."}))
        self.write("tok/chat_template.jinja",
                   "{% for message in messages %}{{ message.role[0] }} "
                   "{{ message.content }} . {% endfor %}"
                   "{% if add_generation_prompt %}a {% endif %}")
        self.rows([asked("x", "y"), asked("y y x", "x x x x")])
        said = self.prepare("chat.jsonl").stdout
        tokens = [1, 4, 70000, 2, 3, 70000, 1, 3, 3, 3, 3, 70000, 2, 4, 4, 3, 70000]
        self.assertEqual((self.out / "train.bin").read_bytes(),
                         b"".join(token.to_bytes(4, "little") for token in tokens))
        self.assertEqual((self.out / "train.bin.documents").read_bytes(),
                         b"".join(place.to_bytes(8, "little") for place in (0, 6, 17)))
        self.assertEqual((self.out / "train.bin.mask").read_bytes(),
                         bytes([0b00110000, 0b11100000, 0b1]))
        described = self.sidecar()
        self.assertEqual({key: described[key] for key in (
            "format", "version", "dtype", "tokens", "vocab_size", "documents", "trained_tokens",
            "longest_document", "sha256")}, {
                "format": "sluice-tokens", "version": 2, "dtype": "uint32", "tokens": 17,
                "vocab_size": 70001, "documents": 2, "trained_tokens": 6, "longest_document": 11,
                "sha256": hashlib.sha256((self.out / "train.bin").read_bytes()).hexdigest()})
        self.assertEqual(described["tokenizer"]["end_of_text"], 70000)
        self.assertEqual(described["chat"]["mask"], "prefix differences")
        self.assertRegex(said, r"2 conversations, 17 tokens \(uint32\), 6.*\(35\.3%\)")
        self.assertRegex(said, r"\n +4 - 7 +1 #+\n +8 - 15 +1 #+\n")

    def test_copies_what_belongs_to_the_tokenizer(self):
        self.tokenizer()
        self.write("tok/special_tokens_map.json", '{"eos_token": "<|im_end|>"}\r\n')
        self.write("tok/generation_config.json", '{"eos_token_id": 1}')
        self.write("tok/model.safetensors", "large")
        self.rows([asked("a")])
        self.prepare("chat.jsonl")
        names = ["chat_template.jinja", "generation_config.json", "special_tokens_map.json",
                 "tokenizer.json", "tokenizer_config.json"]
        self.assertEqual(sorted(os.listdir(self.out)), sorted(
            [*names, "train.bin", "train.bin.documents", "train.bin.json", "train.bin.mask"]))
        for name in names:
            self.assertEqual((self.out / name).read_bytes(),
                             (self.folder / "tok" / name).read_bytes())
        self.prepare("chat.jsonl", "--overwrite", tokenizer=self.out)

    def test_finds_the_template(self):
        other = CHATML.replace("assistant\\n", "assistant\\n\\n")
        self.rows([asked("a")])
        wanted = [["a<|im_end|>\n"]]
        named = [{"name": "tool_use", "template": other}, {"name": "default", "template": CHATML}]
        for config, file, argument in ((CHATML, None, None), (named, None, None),
                                       (other, CHATML, None), (other, other, CHATML)):
            shutil.rmtree(self.folder / "tok", ignore_errors=True)
            self.tokenizer(file, {**CHATML_TOKENS, "chat_template": config})
            arguments = ("--chat-template", self.write("t.jinja", argument)) if argument else ()
            self.prepare("chat.jsonl", "--overwrite", *arguments)
            self.assertEqual(self.trained(), wanted)
            self.assertEqual(self.sidecar()["chat"]["template_sha256"],
                             hashlib.sha256(CHATML.encode()).hexdigest())
        self.assertEqual((self.out / "chat_template.jinja").read_text(encoding="utf-8"), CHATML)
        self.prepare("chat.jsonl", "--overwrite", "--chat-template", "t.jinja",
                     tokenizer="tok/tokenizer.json")
        self.assertEqual(self.trained(), wanted)

    def test_a_model_that_is_not_here_is_to_be_downloaded(self):
        self.write("chat.jsonl", "{}")
        (self.folder / "unsloth").mkdir()  # a name in it is a path
        for name, command in (("unsloth/Qwen3-8B", "hf download unsloth/Qwen3-8B "
                                                   "--local-dir unsloth/Qwen3-8B"),
                              ("models/Llama-3.1-8B", "hf download meta-llama/Llama-3.1-8B "
                                                      "--local-dir models/Llama-3.1-8B"),
                              ("Qwen/Qwen3-8B/", "hf download Qwen/Qwen3-8B ")):
            said = self.refused("chat.jsonl", tokenizer=name)
            self.assertIn(f"no folder {name.rstrip('/')}", said)
            self.assertIn(command, said)

    def test_says_what_is_wrong_with_a_tokenizer(self):
        self.rows([asked("a")])
        self.tokenizer(None)
        self.assertRegex(self.refused("chat.jsonl"),
                         r"tok.*chat_template\.jinja.*tokenizer_config\.json")
        self.tokenizer(None, {"chat_template": [{"name": "rag", "template": "x"}]})
        self.assertRegex(self.refused("chat.jsonl"), "templates rag.*default")
        self.tokenizer("{% if %}")
        self.assertIn("chat_template.jinja, line 1: ",
                      self.refused("chat.jsonl"))
        self.tokenizer(config={"added_tokens_decoder": {"9000": {"content": "<new>"}}})
        self.assertRegex(self.refused("chat.jsonl"), "'<new>'.*9000")
        self.tokenizer(HEADERS)
        (self.folder / "tok/tokenizer_config.json").unlink()
        self.assertIn("writes bos_token", self.refused("chat.jsonl"))
        self.write("tok/tokenizer_config.json", "{")
        self.assertIn("tokenizer_config.json is not JSON", self.refused("chat.jsonl"))
        (self.folder / "tok/tokenizer.json").unlink()
        self.tokenizer(name="again")
        (self.folder / "again/tokenizer.json").unlink()
        self.assertIn("no tokenizer.json",
                      self.refused("chat.jsonl", tokenizer="again"))

    def test_leaves_nothing_where_nothing_is_left(self):
        self.tokenizer()
        self.rows([asked(""), asked(""), {"messages": []}])
        self.assertRegex(self.refused("chat.jsonl"),
                         r"no conversation.*2 an empty.*1 no assistant turn\n")
        self.rows([])
        self.assertIn("no conversation in", self.refused("chat.jsonl"))
        self.write("chat.txt", "text")
        self.assertIn("chat.txt is neither", self.refused("chat.txt"))

    def test_says_which_columns_a_file_has(self):
        import pyarrow
        from pyarrow import parquet
        self.tokenizer()
        parquet.write_table(pyarrow.table({"dialog": ["a"]}), self.folder / "a.parquet")
        self.assertRegex(self.refused("a.parquet"),
                         r"a\.parquet.*conversation and instruction;.*dialog")

    def test_refuses_what_makes_no_sense_with_one_sentence(self):
        self.tokenizer()
        self.rows([asked("a")])
        for arguments in (["--chat", "--tokenizer", "bpe"], ["--chat"],
                          ["--train-on", "last", "--tokenizer", "tok"],
                          ["--chat-template", "x"], ["--max-tokens", "3"],
                          ["--chat", "--tokenizer", "tok", "--too-long", "cut"],
                          ["--chat", "--tokenizer", "tok", "--max-tokens", "0"],
                          ["--chat", "--tokenizer", "tok", "--split", "tail"],
                          ["--chat", "--tokenizer", "tok", "--format", "text"],
                          ["--chat", "--tokenizer", "tok", "--chat-format", "other"]):
            with self.subTest(arguments=arguments):
                result = self.run_tool("chat.jsonl", "--out", self.out, *arguments)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertRegex(result.stderr, r"\Atools/prepare: .* --help .*\n\Z")
        self.assertFalse(self.out.exists())

    def test_takes_a_folder_without_chat_too(self):
        self.tokenizer()
        path = self.write("a.txt", "What flows?")
        outs = []
        for tokenizer in ("tok", "tok/tokenizer.json"):
            out = self.folder / f"text{len(outs)}"
            result = self.run_tool(path, "--tokenizer", tokenizer, "--out", out, "--end-of-text",
                                   "<|im_end|>", "--validation-fraction", 0)
            self.assertEqual(result.returncode, 0, result.stderr)
            outs.append({each.name: each.read_bytes() for each in out.iterdir()})
        self.assertEqual(outs[0], outs[1])
        self.assertEqual(sorted(outs[0]), ["tokenizer.json", "train.bin", "train.bin.json"])
        self.assertEqual(json.loads(outs[0]["train.bin.json"])["version"], 1)


class Parts(unittest.TestCase):
    def test_a_token_is_trained_on_where_all_of_it_is(self):
        from corpus.chat_spans import token_mask
        spans = [(3, 6), (8, 10)]
        for offsets, expected in (
                ([(0, 3), (3, 5), (5, 6), (6, 8), (8, 10)], [0, 1, 1, 0, 1]),
                ([(0, 4), (4, 5), (5, 7), (7, 9), (9, 10)], [0, 1, 0, 0, 1]),  # across borders
                ([(0, 3), (3, 4), (3, 4), (3, 4), (4, 6), (6, 10)], [0, 1, 1, 1, 1, 0]),
                # Without characters: where the one before ended.
                ([(0, 0), (0, 3), (0, 0), (3, 5), (0, 0), (5, 6), (0, 0), (6, 8)],
                 [0, 0, 1, 1, 1, 1, 0, 0]),
                ([], [])):
            self.assertEqual(list(token_mask(offsets, spans)), expected)

    def test_takes_a_list_apart_wherever_what_is_read_ends(self):
        from corpus import records
        from corpus.source import Source
        rows = [{"a": "é🌊\n\"]", "b": [1.5e3, {"c": None}]}, [], "x" * 99, 12345, True, {}]
        with tempfile.TemporaryDirectory() as folder, \
                unittest.mock.patch.object(records, "READ_BYTES", 1):
            path = Path(folder) / "rows.json"
            source = Source("rows.json", path, 0, "json list")
            for text in (json.dumps(rows), json.dumps(rows, ensure_ascii=False, indent=2),
                         "\ufeff\n [ ]", "[]\n"):
                path.write_text(text, encoding="utf-8")
                digest = hashlib.sha256()
                made = [json.loads(row) for _, row, _ in records.json_list(source, digest)]
                self.assertEqual(made, json.loads(text.lstrip("\ufeff")))
                self.assertEqual(digest.digest(), hashlib.sha256(text.encode()).digest())

    def test_finds_the_longest_end_that_begins_a_text(self):
        import random
        from corpus.chat_spans import _end_that_begins
        draw = random.Random(1)
        for _ in range(3000):
            turn = "".join(draw.choices("ab", k=draw.randrange(9)))
            text = "".join(draw.choices("ab", k=draw.randrange(9)))
            wanted = max(length for length in range(len(turn) + 1)
                         if text.startswith(turn[len(turn) - length:]))
            self.assertEqual(_end_that_begins(turn, text), wanted, (turn, text))

    def test_the_present_is_the_begin_of_the_run(self):
        import datetime
        from corpus.chat_template import ChatTemplate
        now = datetime.datetime(2024, 2, 29, 12, 0)
        template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", {}, now)
        self.assertEqual(template.render([], None), ("29 Feb 2024", []))


MISSING = ""
if __name__ == "__main__":
    MISSING = missing()
    unittest.main()
