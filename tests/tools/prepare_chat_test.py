"""tools/prepare --chat, seen from outside: what it writes, read back by other means.

Expectations are pieces of text, each with whether it is trained on, written down by hand; the
tokenizer's own decoder turns what was written into such pieces. Templates are this test's, in the
manner of well-known ones.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import unittest
import unittest.mock

sys.dont_write_bytecode = True

from chat_prepared import (CHATML, CHATML_TOKENS, HEADERS, HEADERS_TOKENS, INST, INST_TOKENS,
                           MARKED, Prepared, SPECIALS, TALK, THINKS, asked, messages, missing)

import reference_packages  # where chat_prepared has made it found


def setUpModule():
    if MISSING:
        raise unittest.SkipTest(MISSING)


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
        self.assertRegex(said, r"chat\.jsonl:2:.*'instruction'")

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
        self.assertRegex(counts, r"odd\.json, row 2:.*known forms")
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


MISSING = ""
if __name__ == "__main__":
    MISSING = missing()
    unittest.main()
