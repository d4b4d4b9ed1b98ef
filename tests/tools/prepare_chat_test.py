"""tools/prepare --chat, seen from outside: what it writes, read back by other means.

Expectations are pieces of text, each with whether it is trained on, written down by hand; the
tokenizer's own decoder turns what was written into such pieces. Templates are this test's, in the
manner of well-known ones.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from array import array
from itertools import groupby
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent.parent / "tools"
sys.dont_write_bytecode = True
sys.path.insert(0, str(TOOLS))

import reference_packages
import tool_packages
from toolbox import Failure

CHATML = """\
{%- if tools %}<|im_start|>system
Tools: {{ tools | tojson }}<|im_end|>
{% endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

HEADERS = """\
{{- bos_token }}
{%- for message in messages %}
{{- '<|head|>' ~ message['role'] ~ '<|head_end|>\\n\\n' }}
{{- message['content'] | trim ~ '<|turn_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|head|>assistant<|head_end|>\\n\\n' }}
{%- endif %}"""

INST = """\
{{- bos_token -}}
{%- for message in messages -%}
  {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
    {{- raise_exception('user and assistant have to take turns') -}}
  {%- endif -%}
  {%- if message.role == 'user' -%}[INST] {{ message.content }}[/INST]
  {%- else -%}{{ ' ' + message.content + eos_token }}{%- endif -%}
{%- endfor -%}"""

# Writes reasoning, also an empty one, only in turns after the last question.
THINKS = """\
{%- set last = namespace(question=0) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{% set last.question = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- set said = message.content or '' %}
{%- set reasoning = message.reasoning_content or '' %}
{%- if '</think>' in said %}
{%- set reasoning = said.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
{%- set said = said.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' and loop.index0 > last.question and (loop.last or reasoning) %}
{{- '<think>\\n' + reasoning + '\\n</think>\\n\\n' }}
{%- endif %}
{{- said }}
{%- for call in message.tool_calls or [] %}
{{- '<call>' + call.function.name + '</call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

MARKED = """\
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- if message.content == 'stop' %}{% break %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

CHATML_TOKENS = {"eos_token": "<|im_end|>"}
HEADERS_TOKENS = {"bos_token": "<|bos|>",
                  "eos_token": {"__type": "AddedToken", "content": "<|turn_end|>"}}
INST_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|bos|>", "<|head|>", "<|head_end|>", "<|turn_end|>",
            "<s>", "</s>", "[INST]", "[/INST]"]

TALK = [("system", "Be brief. Ü"), ("user", "What flows?"), ("assistant", " Water. 水 🌊 "),
        ("user", "And else?"), ("assistant", "The wind.\nAnd time.")]


def setUpModule():
    if MISSING:
        raise unittest.SkipTest(MISSING)


def messages(*turns):
    return [{"role": role, "content": content} for role, content in turns]


def asked(answer, question="q"):
    return {"messages": messages(("user", question), ("assistant", answer))}


class Prepared(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="sluice-prepare-chat-test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.out = self.folder / "out"

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def rows(self, rows, name="chat.jsonl"):
        return self.write(name, "".join((row if isinstance(row, str) else json.dumps(row)) + "\n"
                                        for row in rows))

    def tokenizer(self, template=CHATML, config=None, name="tok"):
        """A folder with a byte-level BPE, as Hugging Face lays them out."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        made.post_processor = processors.ByteLevel(trim_offsets=True)
        made.train_from_iterator(
            ["user assistant system What flows? Water. And time. The wind."] * 3,
            trainers.BpeTrainer(vocab_size=330, special_tokens=SPECIALS, show_progress=False,
                                initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
        return self.save(made, template, config, name)

    def save(self, made, template, config, name="tok"):
        self.write(f"{name}/tokenizer.json", made.to_str())
        self.write(f"{name}/tokenizer_config.json", json.dumps(config or CHATML_TOKENS))
        if template is not None:
            self.write(f"{name}/chat_template.jinja", template)
        return self.folder / name

    def run_tool(self, *arguments):
        return subprocess.run([sys.executable, "-B", TOOLS / "prepare", *map(str, arguments)],
                              cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=250, check=False)

    def prepare(self, *arguments, tokenizer=None, out=None):
        """A run that has to succeed; all is trained on unless it says otherwise."""
        if "--validation-fraction" not in arguments:
            arguments += ("--validation-fraction", 0)
        result = self.run_tool("--chat", *arguments, "--out", out or self.out, "--tokenizer",
                               tokenizer or "tok")
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def refused(self, *arguments, tokenizer=None, code=1):
        """stderr of a run that has to fail and to leave nothing."""
        result = self.run_tool("--chat", *arguments, "--out", self.out, "--tokenizer",
                               tokenizer or "tok")
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        self.assertFalse(self.out.exists())
        self.assertEqual(list(self.folder.glob(".out*")), [])
        return result.stderr

    def sidecar(self, name="train.bin", out=None):
        return json.loads(((out or self.out) / f"{name}.json").read_text(encoding="utf-8"))

    def documents(self, name="train.bin", out=None):
        """Of each conversation: its tokens, and for each 1 if it is trained on, else 0."""
        path = (out or self.out) / name
        tokens = array("H" if self.sidecar(name, out)["dtype"] == "uint16" else "I")
        tokens.frombytes(path.read_bytes())
        begins = array("Q")
        begins.frombytes(Path(f"{path}.documents").read_bytes())
        bits = Path(f"{path}.mask").read_bytes()
        self.assertEqual(len(bits), (len(tokens) + 7) // 8)
        mask = [bits[token // 8] >> token % 8 & 1 for token in range(len(tokens))]
        self.assertEqual(begins[-1], len(tokens))
        return [(list(tokens[begin:end]), mask[begin:end])
                for begin, end in zip(begins, begins[1:])]

    def pieces(self, name="train.bin", out=None):
        """Of each conversation: its text, in pieces that are trained on (True) and are not."""
        from tokenizers import Tokenizer
        tokenizer = Tokenizer.from_file(str((out or self.out) / "tokenizer.json"))
        return [[(tokenizer.decode([token for token, _ in run], skip_special_tokens=False),
                  bool(trained)) for trained, run in groupby(zip(*document), lambda each: each[1])]
                for document in self.documents(name, out)]

    def trained(self):
        """Of each conversation, what is trained on."""
        return [[text for text, trained in document if trained] for document in self.pieces()]

    def contents(self, out=None):
        """Hashes of the files that do not name their sources."""
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                for path in sorted((out or self.out).iterdir())
                if path.name not in ("train.bin.json", "val.bin.json")}


class Templates(Prepared):
    def test_trains_on_what_follows_the_prompt_of_chatml(self):
        self.tokenizer()
        self.rows([{"messages": messages(*TALK)}])
        self.prepare("chat.jsonl")
        self.assertEqual(self.pieces(), [[
            ("<|im_start|>system\nBe brief. Ü<|im_end|>\n"
             "<|im_start|>user\nWhat flows?<|im_end|>\n<|im_start|>assistant\n", False),
            (" Water. 水 🌊 <|im_end|>\n", True),
            ("<|im_start|>user\nAnd else?<|im_end|>\n<|im_start|>assistant\n", False),
            ("The wind.\nAnd time.<|im_end|>\n", True)]])

    def test_trains_on_what_follows_a_header(self):
        self.tokenizer(HEADERS, HEADERS_TOKENS)
        self.rows([{"messages": messages(*TALK)}])
        self.prepare("chat.jsonl")
        self.assertEqual(self.pieces(), [[
            ("<|bos|><|head|>system<|head_end|>\n\nBe brief. Ü<|turn_end|>"
             "<|head|>user<|head_end|>\n\nWhat flows?<|turn_end|>"
             "<|head|>assistant<|head_end|>\n\n", False),
            ("Water. 水 🌊<|turn_end|>", True),
            ("<|head|>user<|head_end|>\n\nAnd else?<|turn_end|>"
             "<|head|>assistant<|head_end|>\n\n", False),
            ("The wind.\nAnd time.<|turn_end|>", True)]])

    def test_trains_on_what_follows_instructions(self):
        self.tokenizer(INST, INST_TOKENS)
        self.rows([{"messages": messages(*TALK[1:])}])
        self.prepare("chat.jsonl")
        self.assertEqual(self.pieces(), [[
            ("<s>[INST] What flows?[/INST]", False), ("  Water. 水 🌊 </s>", True),
            ("[INST] And else?[/INST]", False), (" The wind.\nAnd time.</s>", True)]])

    def test_trains_on_the_turns_as_they_are_where_reasoning_is_dropped(self):
        self.tokenizer(THINKS)
        prompt = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
        call = {"role": "assistant", "tool_calls": [{"function": {"name": "look"}}]}
        self.rows([
            {"messages": messages(("user", "a"), ("assistant", "A"), ("user", "b"),
                                  ("assistant", "B"))},
            {"messages": messages(("user", "a"), ("assistant", "<think>\nhm\n</think>\n\nA"),
                                  ("user", "b"), ("assistant", "<think>\nso\n</think>\n\nB"))},
            {"messages": [*messages(("user", "a")), call,
                          *messages(("tool", "t"), ("assistant", "A"))]}])
        self.prepare("chat.jsonl")
        empty = "<think>\n\n</think>\n\n"
        self.assertEqual(self.pieces(), [
            [(prompt.format("a"), False), ("A<|im_end|>\n", True), (prompt.format("b"), False),
             (empty + "B<|im_end|>\n", True)],
            [(prompt.format("a"), False), ("A<|im_end|>\n", True), (prompt.format("b"), False),
             ("<think>\nso\n</think>\n\nB<|im_end|>\n", True)],
            [(prompt.format("a"), False), ("<call>look</call><|im_end|>\n", True),
             ("<|im_start|>tool\nt<|im_end|>\n<|im_start|>assistant\n", False),
             (empty + "A<|im_end|>\n", True)]])

    def test_drops_a_reasoning_that_the_prompt_begins(self):
        end = "{{ '<|im_start|>assistant\\n' }}{% endif %}"
        self.tokenizer(THINKS.replace(end, end.replace("\\n", "\\n<think>\\n")))
        prompt = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
        self.rows([{"messages": messages(("user", "a"), ("assistant", "A"), ("user", "b"),
                                         ("assistant", "B"))}])
        self.prepare("chat.jsonl")
        self.assertEqual(self.pieces(), [
            [(prompt.format("a"), False), ("A<|im_end|>\n", True),
             (prompt.format("b") + "<think>\n", False),
             ("\n</think>\n\nB<|im_end|>\n", True)]])

    def test_takes_generation_markers_at_their_word(self):
        self.tokenizer(MARKED)
        self.rows([{"messages": messages(*TALK)}])
        self.prepare("chat.jsonl")
        self.assertEqual(self.trained(),
                         [[" Water. 水 🌊 <|im_end|>", "The wind.\nAnd time.<|im_end|>"]])
        self.assertEqual(self.sidecar()["chat"], {
            "template_sha256": hashlib.sha256(MARKED.encode()).hexdigest(),
            "train_on": "assistant", "mask": "generation markers"})

    def test_trains_on_an_end_of_turn_that_swallows_the_line_behind_it(self):
        for template in (MARKED, CHATML):
            folder = self.tokenizer(template)
            made = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
            for token in made["added_tokens"]:
                token["rstrip"] = True
            self.write("tok/tokenizer.json", json.dumps(made))
            self.rows([{"messages": messages(*TALK)}])
            self.prepare("chat.jsonl", "--overwrite")
            self.assertEqual([text.strip() for text in self.trained()[0]],
                             ["Water. 水 🌊 <|im_end|>", "The wind.\nAnd time.<|im_end|>"])

    def test_gives_templates_what_transformers_gives_them(self):
        template = ("  {% if true %}\n{% endif %}\n{{ bos_token }}{{ pad_token }}{{ image_token }}"
                    "{{ unk_token is defined }}"
                    "{{ tools | tojson(indent=1) }}{{ documents }}"
                    "{% for message in messages %}{{ message.role }}:{{ message.content }}"
                    "{{ message.name }}{{ message.reasoning_content }}<|im_end|>\n{% endfor %}")
        self.tokenizer(template, {"bos_token": {"content": "<s>"}, "pad_token": "</s>",
                                  "unk_token": None, "image_token": "[INST]"})
        row = {"tools": [{"name": "f", "about": "<ä>"}], "messages": [
            {"role": "user", "content": "a", "name": None},
            {"role": "assistant", "content": "b", "name": "n", "thinking": "t"}]}
        self.rows([row, {**row, "tools": json.dumps(row["tools"])}])
        self.prepare("chat.jsonl", "--train-on", "all")
        written = ('<s></s>[INST]False[\n {\n  "name": "f",\n  "about": "<ä>"\n }\n]None'
                   "user:a<|im_end|>\nassistant:bnt<|im_end|>\n")
        self.assertEqual(self.pieces(), 2 * [[(written, True)]])

    def test_equals_transformers(self):
        # transformers finds no token for a marker that begins or ends at a space.
        rows = [{"messages": messages(*((role, text.strip()) for role, text in TALK[1:]))},
                {"messages": messages(("user", "stop"), ("assistant", "it goes on"))[::-1]},
                {"messages": messages(("user", "x"), ("assistant", "y\n\nz  "))}]
        reference = reference_packages.folder()
        if not reference_packages.is_complete():
            self.skipTest("transformers is not there; tools/setup --for=test fetches it")
        script = """
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
told = []
for row in json.load(sys.stdin):
    one = tokenizer.apply_chat_template(row["messages"], return_assistant_tokens_mask=True,
                                        tokenize=True, return_dict=True)
    told.append([one["input_ids"], one["assistant_masks"]])
print(json.dumps(told))
"""
        for template, tokens in ((MARKED, CHATML_TOKENS), (CHATML, CHATML_TOKENS),
                                 (HEADERS, HEADERS_TOKENS), (INST, INST_TOKENS),
                                 (THINKS, CHATML_TOKENS)):
            with self.subTest(template=template):
                given = rows if template != INST else rows[::2]
                self.tokenizer(template, {"tokenizer_class": "PreTrainedTokenizerFast", **tokens})
                self.rows([each for each in given if each["messages"][0]["role"] == "user"])
                self.prepare("chat.jsonl", "--overwrite")
                told = json.loads(subprocess.run(
                    [sys.executable, "-B", "-c", script, "tok"], cwd=self.folder, check=True,
                    input=(self.folder / "chat.jsonl").read_text(encoding="utf-8").replace(
                        "}\n{", "},\n{").join("[]"), stdout=subprocess.PIPE, text=True,
                    env={**os.environ, "PYTHONPATH": str(reference), "HF_HUB_OFFLINE": "1"},
                ).stdout)
                written = [list(each) for each in self.documents()]
                self.assertEqual([each[0] for each in written], [each[0] for each in told])
                if template == MARKED:
                    self.assertEqual(written, told)
                    self.assertTrue(all(1 in mask and 0 in mask for _, mask in told))

    def test_knows_where_tokens_stand_that_begin_with_a_mark_for_spaces(self):
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
        made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                          decoders.Fuse()])
        bytes_and_unknown = ["<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)]
        made.train_from_iterator(["What flows? Water. And else? The wind. And time. Be brief."] * 3,
                                 trainers.BpeTrainer(vocab_size=400, show_progress=False,
                                                     special_tokens=bytes_and_unknown))
        described = json.loads(made.to_str())
        described["added_tokens"] = []
        made = Tokenizer.from_str(json.dumps(described))
        made.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
        self.save(made, INST, INST_TOKENS)
        self.rows([{"messages": messages(*TALK[1:])}])
        self.prepare("chat.jsonl")
        self.assertEqual([[text.strip() for text in each] for each in self.trained()],
                         [["Water. 水 🌊 </s>", "The wind.\nAnd time.</s>"]])
        for tokens, mask in self.documents():
            end = made.token_to_id("</s>")
            self.assertEqual([bit for token, bit in zip(tokens, mask) if token == end], [1, 1])


class Forms(Prepared):
    def setUp(self):
        super().setUp()
        self.tokenizer()
        self.questions = [(f"What flows? {number}", f"Water {number}.") for number in range(30)]
        self.rows([asked(answer, question) for question, answer in self.questions])
        self.prepare("chat.jsonl", "--validation-fraction", "0.3")
        self.expected = self.contents()
        self.assertIn("val.bin.mask", self.expected)

    def assert_same(self, *arguments):
        self.prepare(*arguments, "--validation-fraction", "0.3", "--overwrite")
        self.assertEqual(self.contents(), self.expected)

    def test_recognises_each_rows_form(self):
        rows = []
        for number, (question, answer) in enumerate(self.questions):
            rows.append([
                asked(answer, question),
                {"conversations": [{"from": "human", "value": question},
                                   {"from": "gpt", "value": answer}]},
                {"instruction": question, "output": answer, "input": ""},
                {"conversation": messages(("user", question), ("assistant", answer))},
                {"conversations": asked(answer, question)["messages"], "id": 7},
                {"messages": messages(("user", [{"type": "text", "text": question[:5]},
                                                {"type": "text", "text": question[5:]}]),
                                      ("assistant", answer))}][number % 6])
        self.rows(rows)
        self.assert_same("chat.jsonl")

    def test_reads_sharegpts_speakers_and_alpacas_input(self):
        self.rows([{"system": "s", "instruction": "do", "input": "this", "output": "done"},
                   {"conversations": [{"from": "system", "value": "s"},
                                      {"from": "human", "value": "do\n\nthis"},
                                      {"from": "gpt", "value": "done"}]}])
        self.prepare("chat.jsonl", "--overwrite")
        one, other = self.pieces()
        self.assertEqual(one, other)
        self.assertEqual(one, [("<|im_start|>system\ns<|im_end|>\n<|im_start|>user\ndo\n\nthis"
                                "<|im_end|>\n<|im_start|>assistant\n", False),
                               ("done<|im_end|>\n", True)])

    def test_reads_a_system_text_beside_any_form(self):
        said = messages(("user", "q"), ("assistant", "a"))
        self.rows([{"system": "s", "messages": said}, {"system_prompt": "s", "messages": said},
                   {"system_prompt": "s", "conversations": [{"from": "human", "value": "q"},
                                                            {"from": "gpt", "value": "a"}]},
                   {"system": "other", "messages": messages(("system", "s")) + said}])
        self.prepare("chat.jsonl", "--overwrite")
        pieces = self.pieces()
        self.assertEqual(len(pieces), 4)
        for each in pieces:
            self.assertEqual(each, [("<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nq"
                                     "<|im_end|>\n<|im_start|>assistant\n", False),
                                    ("a<|im_end|>\n", True)])

    def test_obeys_a_form_that_is_named(self):
        self.rows([{**asked("A"), "instruction": "do", "output": "done"}, asked("B")])
        said = self.prepare("chat.jsonl", "--chat-format", "alpaca", "--overwrite").stderr
        self.assertEqual(self.trained(), [["done<|im_end|>\n"]])
        self.assertIn("skipped chat.jsonl:2: in none of the known forms (no text under "
                      "'instruction')", said)

    def table(self):
        import pyarrow
        turn = pyarrow.struct([("content", pyarrow.string()), ("role", pyarrow.string()),
                               ("name", pyarrow.string())])
        return pyarrow.table({
            "id": list(range(30)),
            "messages": pyarrow.array([asked(answer, question)["messages"]
                                       for question, answer in self.questions],
                                      pyarrow.list_(turn))})

    def test_reads_json_that_is_one_list_or_has_a_row_in_each_line(self):
        rows = [asked(f"good {i} é 🌊") for i in range(9)]
        self.write("list.json", "\ufeff \n" + json.dumps(rows, indent=1) + "\n")
        self.write("wide.json", json.dumps(rows, ensure_ascii=False))
        self.write("lines.json", "".join(json.dumps(row) + "\n" for row in rows))
        self.rows(rows)
        self.prepare("chat.jsonl", "--overwrite")
        expected = self.contents()
        for name in ("list.json", "wide.json", "lines.json"):
            with self.subTest(name=name):
                self.prepare(name, "--overwrite")
                self.assertEqual(self.contents(), expected)
        raw, good = (json.dumps(asked(text)).encode() for text in ("bad @", "good"))
        (self.folder / "raw.json").write_bytes(
            b"[%s,\r\n%s]\r\n" % (raw.replace(b"@", b"\xff"), good))
        self.assertIn("raw.json, row 1: not JSON ('utf-8'",
                      self.prepare("raw.json", "--overwrite").stderr)
        self.assertEqual(self.trained(), [["good<|im_end|>\n"]])
        self.write("odd.json", json.dumps([rows[0], "no row", 7]))
        counts = self.prepare("odd.json", "--overwrite").stderr
        self.assertIn("odd.json, row 2: in none of the known forms", counts)
        shutil.rmtree(self.out)
        for text, said in (('[{"messages": []} {', "row 1 of its list: there is no comma"),
                           (json.dumps(rows)[:-9], "row 9 of its list: "),
                           ("[1, 2,", "row 3 of its list: "),
                           (json.dumps(rows) + "x", "goes on behind the end of its list, after 9")):
            with self.subTest(said=said):
                self.write("bad.json", text)
                self.assertIn(said, self.refused("bad.json"))

    def test_reads_parquet(self):
        from pyarrow import parquet
        parquet.write_table(self.table(), self.folder / "chat.parquet", row_group_size=7)
        self.assert_same("chat.parquet")

    def test_takes_keys_that_only_other_rows_have_for_missing(self):
        import pyarrow
        from pyarrow import parquet
        self.tokenizer(CHATML.replace("message.content",
                                      "(message.content or '') + "
                                      "((message.tool_calls or []) | tojson)"))
        calls = [{"role": "assistant", "tool_calls": [
            {"function": {"arguments": {key: "x"}, "name": "f"}}]} for key in "ab"]
        rows = [messages(("user", "q")) + [call] for call in calls]
        for row in rows:
            row[0]["tool_calls"] = []
        self.rows([{"messages": row} for row in rows])
        self.prepare("chat.jsonl", "--train-on", "all", "--overwrite")
        expected = self.contents()
        parquet.write_table(pyarrow.table({"messages": rows}), self.folder / "chat.parquet")
        self.prepare("chat.parquet", "--train-on", "all", "--overwrite")
        self.assertEqual(self.contents(), expected)

    def test_reads_what_datasets_saved(self):
        import pyarrow
        table = self.table()
        for name, begin, end in (("b-0.arrow", 0, 20), ("a-1.arrow", 20, 30)):
            path = self.folder / "saved/train" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with pyarrow.OSFile(str(path), "wb") as file, \
                    pyarrow.ipc.new_stream(file, table.schema) as stream:
                stream.write_table(table.slice(begin, end - begin), max_chunksize=9)
        self.write("saved/train/state.json", json.dumps(
            {"_data_files": [{"filename": "b-0.arrow"}, {"filename": "a-1.arrow"}]}))
        self.assert_same("saved/train")
        self.assertEqual([source["name"] for source in self.sidecar()["sources"]],
                         ["train/b-0.arrow", "train/a-1.arrow"])
        self.write("saved/dataset_dict.json", '{"splits": ["test", "train"]}')
        self.assert_same("saved")

    def test_reads_lists_that_were_saved_as_columns(self):
        import pyarrow
        from pyarrow import parquet
        rows = [{"from": ["human", "gpt"], "value": list(both)} for both in self.questions]
        parquet.write_table(pyarrow.table({"conversations": rows}), self.folder / "chat.parquet")
        self.assert_same("chat.parquet")

    def test_reads_folders(self):
        lines = (self.folder / "chat.jsonl").read_text(encoding="utf-8").splitlines(True)
        self.write("in/a.jsonl", "".join(lines[:11]))
        self.write("in/b/c.ndjson", "".join(lines[11:]))
        self.write("in/notes.txt", "not a conversation")
        self.assert_same("in")


class Reasons(Prepared):
    def left_out(self, rows, *arguments):
        """stdout and stderr of a run over `rows` and one good conversation, which alone is left."""
        self.rows([*rows, asked("good", "is it?")])
        result = self.prepare("chat.jsonl", *arguments, "--overwrite")
        self.assertEqual([each[-1][0] for each in self.pieces()], ["good<|im_end|>\n"])
        self.assertIn(f"{len(rows)} of {len(rows) + 1} conversations are left out", result.stdout)
        # As the counts are said, so they are kept beside the tokens.
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
        self.assertRegex(counts, r"\n +6 in none of the known forms\n")
        self.assertIn("skipped chat.jsonl:1: in none of the known forms (it has text)", names)
        self.assertIn("chat.jsonl:2: in none of the known forms (a message of 'user' without "
                      "'content')", names)
        self.assertEqual(names.count("skipped chat.jsonl"), 3)
        self.assertIn("more is skipped: in none of the known forms", names)

    def test_broken_lines(self):
        self.tokenizer()
        counts, names = self.left_out(["{broken", '{"messages": [', "\x00", "[" * 100_000])
        self.assertRegex(counts, r"\n +4 not JSON\n")
        self.assertIn("skipped chat.jsonl:2: not JSON (", names)

    def test_content_that_is_no_text(self):
        self.tokenizer()
        counts, names = self.left_out([
            asked("a", [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": "x"}]),
            asked("a", 7)])
        self.assertRegex(counts, r"\n +2 content that is not text\n")
        self.assertIn("chat.jsonl:1: content that is not text (a part of type 'image_url', and "
                      "only text can be trained on)", names)

    def test_turns_that_are_weighed(self):
        self.tokenizer()
        turn = {"role": "assistant", "content": "bad"}
        human = {"from": "human", "value": "q"}
        counts, names = self.left_out([
            {"messages": [*messages(("user", "q")), {**turn, "weight": 0}]},
            {"messages": [*messages(("user", "q")), {**turn, "weight": 0.5}]},
            {"messages": [*messages(("user", "q")), {**turn, "train": False}]},
            {"conversations": [human, {"from": "gpt", "value": "bad", "train": False}]}])
        self.assertRegex(counts, r"\n +3 no assistant turn is marked to be trained on\n")
        self.assertRegex(counts, r"\n +1 a turn weighed by its data with neither 0 nor 1\n")
        self.assertIn("chat.jsonl:2: a turn weighed by its data with neither 0 nor 1 ('weight' is "
                      "0.5)", names)

    def test_turns_that_say_nothing(self):
        self.tokenizer()
        counts, names = self.left_out([asked(" \n"), {"messages": messages(("user", "q"))},
                                       {"messages": []}, asked(None),
                                       {"instruction": "i", "output": ""}])
        self.assertRegex(counts, r"\n +3 an empty assistant turn\n")
        self.assertRegex(counts, r"\n +2 no assistant turn\n")
        self.assertIn("skipped chat.jsonl:2: no assistant turn\n", names)

    def test_a_template_that_raises(self):
        self.tokenizer(CHATML.replace("{%- for message in messages %}", """
            {%- for message in messages %}
            {%- if message.content == 'r' %}{{ raise_exception('no r here') }}{% endif %}
            {%- if message.content == 'n' %}{{ 1 + none }}{% endif %}
            {%- if message.content == 'x' %}{{ ''.__class__.__mro__ }}{% endif %}""", 1))
        counts, names = self.left_out([asked("r"), asked("n"), asked("x")])
        self.assertRegex(counts, r"\n +3 the template refuses it\n")
        self.assertIn("chat.jsonl:1: the template refuses it (no r here)", names)
        self.assertIn("chat.jsonl:2: the template refuses it (TypeError: ", names)
        self.assertIn("chat.jsonl:3: the template refuses it (access to attribute '__class__' of "
                      "'str' object is unsafe.)", names)

    def test_text_that_changes_with_what_follows(self):
        # The number of the messages, when there are more than two, is written before them all.
        self.tokenizer("{% if messages | length > 2 %}{{ messages | length }}{% endif %}" + CHATML)
        counts, names = self.left_out([{"messages": messages(*TALK)}])
        self.assertRegex(counts, r"\n +1 text that the template writes differently once more "
                                 r"follows\n")
        self.assertIn("what comes before message 3; --train-on last", names)

    def test_a_prompt_that_answers_do_not_begin_with(self):
        self.tokenizer(CHATML.replace("{%- if add_generation_prompt %}",
                                      "{%- if add_generation_prompt and messages[0].content != "
                                      "'is it?' %}<|bos|>{% elif add_generation_prompt %}"))
        _, names = self.left_out([asked("a")])
        self.assertIn("message 2 does not begin as the generation prompt does", names)

    def test_answers_that_the_template_changes(self):
        self.tokenizer(CHATML.replace("message.content", "message.content | replace('bad', '')"))
        counts, names = self.left_out([asked("so bad"), {"messages": messages(*TALK[1:4], (
            "assistant", "a bad one"))}])
        self.assertRegex(counts, r"\n +2 an assistant turn that is not among the trained tokens\n")
        self.assertIn("chat.jsonl:2: an assistant turn that is not among the trained tokens "
                      "(message 4: the template drops or changes it", names)

    def test_a_token_across_the_border(self):
        self.tokenizer("{% for message in messages %}{{ message.role }}: {{ message.content }}"
                       "<|im_end|>\n{% endfor %}"
                       "{% if add_generation_prompt %}assistant: {% endif %}")
        counts, _ = self.left_out([asked("Water.")])
        self.assertRegex(counts, r"\n +1 an assistant turn that is not among the trained tokens\n")

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
        self.assertIn("chat.jsonl:1: an assistant turn that is not among", result.stderr)

    def test_markers_whose_place_cannot_be_known(self):
        self.tokenizer(MARKED.replace("{%- generation %}", "{% set s %}[{% generation %}").replace(
            "{% endgeneration %}", "{% endgeneration %}{% endset %}{{ s }}"))
        self.rows([asked("a")])
        self.assertIn("1 generation markers whose place is not known", self.refused("chat.jsonl"))

    def test_a_reasoning_that_the_last_turn_loses(self):
        self.tokenizer(THINKS.replace("loop.index0 > last.question and", "false and"))
        rows = [asked("<think>\nhm\n</think>\n\nA")]
        self.assertIn("an assistant turn that is not", self.left_out(rows)[0])

    def test_conversations_that_are_too_long(self):
        self.tokenizer()
        counts, names = self.left_out([asked("long " * 100), asked("longer " * 99)],
                                      "--max-tokens", 60)
        self.assertRegex(counts, r"\n +2 longer than --max-tokens 60\n")
        self.assertRegex(names, r"chat.jsonl:1: longer than --max-tokens 60 \(it has \d{3}\)")

    def test_nothing_is_left_to_train_on_where_the_cut_is_before_the_answer(self):
        self.tokenizer()
        counts, _ = self.left_out([asked("late", "long " * 100)], "--max-tokens", 60,
                                  "--too-long", "cut")
        self.assertRegex(counts, r"\n +1 nothing left to train on\n")

    def test_a_parquet_file_that_is_none(self):
        self.tokenizer()
        self.write("b.parquet", "this is not Parquet")
        self.rows([asked("good")])
        said = self.prepare("b.parquet", "chat.jsonl").stderr
        self.assertIn("skipped b.parquet: not a Parquet file", said)
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
        self.assertIn("1 conversations are cut to 60 tokens", said.stdout)

    def test_gives_the_same_bytes_whatever_the_number_of_processes(self):
        self.tokenizer()
        rows = [asked(f"Water {number}. " * (number % 97), f"q{number}") for number in range(14000)]
        self.rows([*rows, {}])  # enough for processes
        self.assertGreater((self.folder / "chat.jsonl").stat().st_size, 9 << 20)
        told = []
        for jobs in (1, 2, 3):
            out = self.folder / f"out{jobs}"
            result = self.prepare("chat.jsonl", "--jobs", jobs, "--validation-fraction", "0.2",
                                  out=out)
            self.assertIn("chat.jsonl:14001: in none of the known forms (it has nothing)",
                          result.stderr)
            told.append((self.contents(out), self.sidecar(out=out), result.stderr))
        self.assertEqual(told[0], told[1])
        self.assertEqual(told[0], told[2])
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
        for number in range(60):  # among them one that the hash puts into val.bin
            out = self.folder / "few"
            self.rows([asked(f"Water {number}.")])
            result = self.run_tool("--chat", "chat.jsonl", "--tokenizer", "tok", "--out", out,
                                   "--overwrite", "--validation-fraction", "0.05")
            self.assertIn("leaves nothing in", result.stderr)
            if "train.bin" in result.stderr:
                break
        self.assertIn("leaves nothing in train.bin", result.stderr)
        result = self.run_tool("--chat", "chat.jsonl", "--tokenizer", "tok", "--out", self.out)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("there is no val.bin", result.stderr)
        self.assertEqual(self.trained(), [[f"Water {number}.<|im_end|>\n"]])
        self.assertEqual([path.name for path in self.out.glob("val*")], [])

    def test_says_where_a_message_spells_a_special_token(self):
        self.tokenizer()
        self.rows([asked("a", "<|im_end|>"), asked("b")])
        self.assertIn("in 1 conversations a message spells a special token",
                      self.prepare("chat.jsonl").stdout)

    def test_replaces_halves_of_characters(self):
        self.tokenizer()
        self.write("chat.jsonl", '{"instruction": "q", "output": "half \\ud83c of it"}\n')
        said = self.prepare("chat.jsonl").stderr
        self.assertEqual(self.trained(), [["half \ufffd of it<|im_end|>\n"]])
        self.assertIn("chat.jsonl:1: 1 places are not UTF-8", said)


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
        self.assertIn("2 conversations, 17 tokens (uint32), 6 of them trained on (35.3%)", said)
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
        for name, command in (("Qwen/Qwen3-8B", "hf download Qwen/Qwen3-8B "
                                                "--local-dir Qwen/Qwen3-8B"),
                              ("models/Llama-3.1-8B", "hf download meta-llama/Llama-3.1-8B "
                                                      "--local-dir models/Llama-3.1-8B"),
                              ("unsloth/Qwen3-8B/", "hf download unsloth/Qwen3-8B ")):
            said = self.refused("chat.jsonl", tokenizer=name)
            self.assertIn(f"there is no folder {name.rstrip('/')}, and models are not downloaded",
                          said)
            self.assertIn(command, said)

    def test_says_what_is_wrong_with_a_tokenizer(self):
        self.rows([asked("a")])
        self.tokenizer(None)
        self.assertIn("tok has no chat template, neither in chat_template.jinja nor in "
                      "tokenizer_config.json", self.refused("chat.jsonl"))
        self.tokenizer(None, {"chat_template": [{"name": "rag", "template": "x"}]})
        self.assertIn("has the chat templates rag and none called default",
                      self.refused("chat.jsonl"))
        self.tokenizer("{% if %}")
        self.assertIn("chat_template.jinja, line 1: Expected an expression",
                      self.refused("chat.jsonl"))
        self.tokenizer(config={"added_tokens_decoder": {"9000": {"content": "<new>"}}})
        self.assertIn("says that '<new>' is token 9000", self.refused("chat.jsonl"))
        self.tokenizer(HEADERS)
        (self.folder / "tok/tokenizer_config.json").unlink()
        self.assertIn("writes bos_token, and no file says what that is", self.refused("chat.jsonl"))
        self.write("tok/tokenizer_config.json", "{")
        self.assertIn("tokenizer_config.json is not JSON", self.refused("chat.jsonl"))
        (self.folder / "tok/tokenizer.json").unlink()
        self.tokenizer(name="again")
        (self.folder / "again/tokenizer.json").unlink()
        self.assertIn("the folder again has no tokenizer.json",
                      self.refused("chat.jsonl", tokenizer="again"))

    def test_leaves_nothing_where_nothing_is_left(self):
        self.tokenizer()
        self.rows([asked(""), asked(""), {"messages": []}])
        self.assertIn("no conversation is left to train on. Left out, and why: 2 an empty "
                      "assistant turn, 1 no assistant turn\n", self.refused("chat.jsonl"))
        self.rows([])
        self.assertIn("there is no conversation in what was given", self.refused("chat.jsonl"))
        self.write("chat.txt", "text")
        self.assertIn("chat.txt is neither JSON nor Parquet", self.refused("chat.txt"))

    def test_says_which_columns_a_file_has(self):
        import pyarrow
        from pyarrow import parquet
        self.tokenizer()
        parquet.write_table(pyarrow.table({"dialog": ["a"]}), self.folder / "a.parquet")
        self.assertIn("a.parquet has none of the columns messages, conversations, conversation and "
                      "instruction; it has dialog", self.refused("a.parquet"))

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
                self.assertRegex(result.stderr, r"\Atools/prepare: .* --help explains .*\n\Z")
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
    try:
        tool_packages.need(["tokenizers", "jinja2", "markupsafe", "pyarrow"], "this test")
    except Failure as failure:
        MISSING = str(failure)
    unittest.main()
