"""sluice data, run as a user would. The program is the environment's SLUICE."""

import array
import json
import os
import pty
import re
import struct
import subprocess
import sys
import unittest

from sluice_program import SLUICE, Program

END = 256
CONFIG = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
          "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
          "model": {"layers": 1, "hidden": 16, "heads": 2, "context": 32, "vocab": 300},
          "data": {"train": ["chat.bin"], "sequence_length": 10, "shuffle_seed": 3,
                   "validation_fraction": 0},
          "run": {"steps": 2, "device": "cpu"}}

# Replies like tools/tokens.
TOOL = """\
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    text = f"({asked['next']})" if "next" in asked else "." if "end" in asked else ""
    os.write(int(sys.argv[sys.argv.index("--reply-fd") + 1]),
             json.dumps({"text": text}).encode() + b"\\n")
"""


class Data(Program):
    def write_tokens(self, name, tokens, vocab=257, kind="bytes", **more):
        (self.path / name).write_bytes(array.array("H", tokens).tobytes())
        (self.path / f"{name}.json").write_text(json.dumps({
            "format": "sluice-tokens", "version": 1, "dtype": "uint16", "tokens": len(tokens),
            "vocab_size": vocab, "tokenizer": {"kind": kind, "end_of_text": END}, **more}),
            encoding="utf-8")

    def write_chat(self, documents, **more):
        """documents: lists of (text, whether it is trained on)."""
        tokens, mask, starts = [], [], [0]
        for document in documents:
            for text, trained in document:
                raw = text.encode()
                tokens += raw
                mask += [trained] * len(raw)
            starts.append(len(tokens))
        self.write_tokens("chat.bin", tokens, version=2, documents=len(documents),
                   trained_tokens=sum(mask), **more)
        (self.path / "chat.bin.documents").write_bytes(struct.pack(f"<{len(starts)}Q", *starts))
        packed = bytearray(-(-len(mask) // 8))
        for at, trained in enumerate(mask):
            packed[at // 8] |= trained << at % 8
        (self.path / "chat.bin.mask").write_bytes(packed)
        return tokens

    def shown(self, *arguments):
        return self.sluice("data", *arguments).stdout

    def as_json(self, *arguments):
        return json.loads(self.shown(*arguments, "--json"))

    def refused(self, *arguments, code=2):
        last = self.sluice("data", *arguments, code=code).stderr.splitlines()[-1]
        self.assertRegex(last, r"\Asluice: \S")
        return last

    def texts(self, shown):
        return ["".join(segment["text"] for segment in part["segments"])
                for sample in shown["samples"] for part in sample["parts"]]


class Documents(Data):
    def setUp(self):
        super().setUp()
        self.write_chat([[("ask ", False), ("say", True)], [("long question ", False),
                        ("one\ntwo", True), ("!", False)], [("none", False)], [("x", True),
                        ("yz", True)]],
                        chat={"train_on": "assistant"},
                        preparation={"conversations": 9, "cut": 2, "replaced": 0, "left_out": {
                            "no assistant turn": 1, "longer than --max-tokens 22": 3,
                            "\x1b]0;x\x07": 1}})

    def test_counts_lengths_and_what_was_left_out(self):
        said = self.shown("chat.bin", "--samples", "0")
        # The first token of the last document is not a target.
        self.assertRegex(said, r"chat\.bin: 36 tokens \(uint16\).*4 documents.*257\n")
        self.assertIn("12 tokens, 33.3% (assistant); 1 document", said)
        self.assertRegex(said, r"3,.*7,.*9\.0,.*22\)")
        self.assertEqual([tuple(map(int, found)) for found in re.findall(
            r"^ +(\d+) +- (\d+) +(\d+)(?: #*)?$", said, re.MULTILINE)],
            [(2, 3, 1), (4, 7, 2), (8, 15, 0), (16, 31, 1)])
        self.assertIn("left out by tools/prepare: 5 of 9 conversations\n"
                      "  3 longer than --max-tokens 22\n  1 no assistant turn\n"
                      "  1 \\x1b]0;x\\x07\ncut by tools/prepare: 2 conversations\n", said)
        self.assertNotIn("sample", said)

    def test_samples_have_what_is_trained_on_in_brackets(self):
        said = self.shown("chat.bin", "--at", "10", "--samples", "1")
        self.assertTrue(said.endswith(
            "--- sample 1 of 1\n[document 1: tokens 7 to 28, 7 targets]\n"
            "  long question \u27e6one\n  two\u27e7!\n"), said)

    def test_every_document_is_shown_once_and_the_seed_changes_the_order(self):
        orders = {}
        for seed in ("0", "0", "1", "2", "3"):
            shown = self.as_json("chat.bin", "--samples", "9", "--seed", seed)
            order = [sample["parts"][0]["document"] for sample in shown["samples"]]
            self.assertEqual(sorted(order), [0, 1, 2, 3])
            self.assertEqual(orders.setdefault(seed, order), order)
        self.assertGreater(len({tuple(order) for order in orders.values()}), 1)

    def test_at_shows_what_holds_the_token_and_what_is_behind(self):
        shown = self.as_json("chat.bin", "--at", "28", "--samples", "2")
        self.assertEqual(self.texts(shown), ["long question one\ntwo!", "none"])
        self.assertIn("0 to 35, not 36", self.refused("chat.bin", "--at", "36"))

    def test_no_more_tokens_are_shown_than_asked_for(self):
        said = self.shown("chat.bin", "--at", "7", "--samples", "1", "--tokens", "4")
        self.assertIn("\n  long\n  ...\n[18 tokens not shown (--tokens)]\n", said)
        self.assertNotIn("question", said)

    def test_rows_say_what_is_cut_padded_and_left_out(self):
        shown = self.as_json("chat.bin", "--sequence-length", "10", "--samples", "9")
        self.assertEqual(shown["rows"]["rows"], 1)
        # 6 and 2 predictions: "none" has no targets, and neither has the first part of the long
        # one.
        self.assertEqual(shown["rows"]["padding"], 2)
        self.assertEqual(shown["rows"]["targets"], 5)
        self.assertEqual(sorted(self.texts(shown)), ["ask say", "xyz"])
        said = self.shown("chat.bin", "--sequence-length", "10", "--samples", "9")
        self.assertIn("1 longer documents", said)
        self.assertIn("5 of 12 targets, 41.7%", said)

    def test_a_row_of_parts_says_which_part_and_how_much_is_padding(self):
        self.write_run()
        said = self.shown("--config", "run.json", "--set", "data.long_documents=split",
                          "--at", "20", "--samples", "1")
        self.assertRegex(said, r"\n--- sample 1 of 1: row \d of 0 to \d, in the order of training\n"
                               r"\[document 1, its tokens 10 to 20 of 22: tokens 17 to 27, "
                               r"7 targets\]\n  ion \u27e6one\n  two\u27e7")

    def write_run(self, **data):
        run = {**CONFIG, "data": {**CONFIG["data"], **data}}
        (self.path / "run.json").write_text(json.dumps(run), encoding="utf-8")

    def test_a_configuration_decides_what_rows_are(self):
        self.write_run(long_documents="drop")
        for words in (("--config", "run.json"), ("chat.bin", "--config", "run.json")):
            shown = self.as_json(*words, "--samples", "9")
            self.assertEqual(shown["rows"]["sequence_length"], 10)
            self.assertEqual(sorted(self.texts(shown)), ["ask say", "xyz"])
            self.assertEqual(shown["rows"]["validation_rows"], 0)
        longer = self.as_json("--config", "run.json", "--sequence-length", "21", "--samples", "9")
        self.assertIn("long question one\ntwo!", self.texts(longer))
        self.write_run(long_documents="drop", validation_fraction=0.3)
        kept = self.as_json("--config", "run.json", "--samples", "9")
        self.assertEqual(kept["rows"]["validation_rows"], 1)
        self.assertEqual(self.texts(kept), ["ask say"])
        # A file other than the run's own is shown in the same way.
        os.rename(self.path / "chat.bin", self.path / "more.bin")
        for suffix in (".json", ".mask", ".documents"):
            os.rename(self.path / f"chat.bin{suffix}", self.path / f"more.bin{suffix}")
        other = self.as_json("more.bin", "--config", "run.json", "--samples", "9")
        self.assertEqual(sorted(self.texts(other)), ["ask say", "xyz"])

    def test_a_token_that_no_row_has_is_named(self):
        self.assertIn("token 30", self.refused("chat.bin", "--sequence-length", "10",
                                                            "--at", "30"))

    def test_a_terminal_gets_colours_unless_it_is_to_be_plain(self):
        words = [os.path.abspath(SLUICE), "data", "chat.bin", "--at", "0", "--samples", "1"]
        for more, coloured in (([], True), (["--plain"], False)):
            ours, theirs = pty.openpty()
            with subprocess.Popen(words + more, cwd=self.path, stdout=theirs,
                                  env={key: value for key, value in os.environ.items()
                                       if key != "NO_COLOR"}) as child:
                os.close(theirs)
                said = b""
                while True:
                    try:
                        raw = os.read(ours, 4096)
                    except OSError:  # the child has ended
                        break
                    if not raw:
                        break
                    said += raw
                child.wait()
            os.close(ours)
            self.assertEqual(b"\x1b[32msay\x1b[0m" in said, coloured, said)
            self.assertEqual("\u27e6say\u27e7".encode() in said, not coloured, said)


class Texts(Data):
    def test_text_that_would_change_a_terminal_is_escaped(self):
        hostile = "a\x1b[31m\x07\r\x9b2J\u202eb\ufeff"
        self.write_tokens("text.bin", list(hostile.encode()) + [END])
        said = self.shown("text.bin")
        self.assertIn("  a\\x1b[31m\\x07\\x0d\\x9b2J\\u202eb\\ufeff<|endoftext|>\n", said)
        self.assertTrue(set(said) <= set(map(chr, range(32, 127))) | {"\n"}, said)
        raw = self.shown("text.bin", "--json")
        self.assertTrue(raw.isascii())
        self.assertNotRegex(raw, r"[\x00-\x09\x0b-\x1f]")
        self.assertEqual(self.texts(json.loads(raw)), [hostile + "<|endoftext|>"])

    def test_documents_of_one_text_are_what_its_end_token_parts(self):
        self.write_tokens("text.bin", list(b"one") + [END] + list(b"three") + [END])
        said = self.shown("text.bin")
        self.assertRegex(said, r"10 tokens \(uint16\).*2 documents")
        self.assertIn("all of it", said)
        self.assertIn("[tokens 0 to 9]\n  one<|endoftext|>three<|endoftext|>\n", said)
        shown = self.as_json("text.bin", "--sequence-length", "4")
        self.assertEqual(shown["rows"]["rows"], 1)
        self.assertEqual(shown["rows"]["targets"], 4)
        self.assertEqual(len(self.texts(shown)[0].replace("<|endoftext|>", "$")), 5)

    def test_tokens_without_a_tokenizer_are_numbers(self):
        (self.path / "raw.bin").write_bytes(array.array("H", [7, 300, 2]).tobytes())
        said = self.shown("raw.bin")
        self.assertIn("tokenizer: unknown", said)
        self.assertIn("\n  7 300 2\n", said)
        wide = self.as_json("raw.bin", "--dtype", "uint16", "--tokens", "2")
        self.assertEqual(self.texts(wide)[0], "7 300")
        (self.path / "wide.bin").write_bytes(array.array("I", [7, 70000]).tobytes())
        self.assertEqual(self.as_json("wide.bin", "--dtype", "uint32")["files"][0]["tokens"], 2)

    def test_a_tokenizer_json_is_read_by_the_tool_that_is_named(self):
        self.write_tokens("text.bin", [1, 0, 1], vocab=2, kind="file")
        about = json.loads((self.path / "text.bin.json").read_text(encoding="utf-8"))
        about["tokenizer"]["end_of_text"] = None
        self.write("text.bin.json", about)
        self.write("tokenizer.json", {"model": {"vocab": {"a": 0, "b": 1}}})
        tool = self.path / self.write("tool", f"#!{sys.executable}\n{TOOL}")
        tool.chmod(0o755)
        said = self.shown("text.bin", "--tokens-tool", tool)
        self.assertIn("tokenizer: ./tokenizer.json (2 tokens)", said)
        self.assertIn("\n  (1)(0)(1).\n", said)
        self.assertIn("absent", self.refused("text.bin", "--tokens-tool", "./absent"))

    def test_what_cannot_be_shown_is_refused_in_a_sentence(self):
        self.write_tokens("text.bin", [1, 2, 65000, 3], vocab=65536, kind="file")
        self.assertRegex(self.refused("text.bin", "--tokenizer", "bytes"),
                         "token 2 is 65000.*257 tokens.*at 256")
        self.assertIn("--tokenizer", self.refused("text.bin", "--tokenizer", "absent"))
        (self.path / "run.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        self.assertIn("vocabulary ends at 299", self.refused("text.bin", "--config", "run.json",
                                                             "--set", "data.sequence_length=2"))
        self.assertIn("starts with text", self.refused("run.json"))
        self.assertIn("name a token file", self.refused())
        self.assertIn("No such file", self.refused("absent"))
        self.write_tokens("newer.bin", [1, 2], version=3)
        self.assertRegex(self.refused("newer.bin", code=1), r"newer\.bin\.json:.*version 3")
        self.write_tokens("cut.bin", [1, 2, 3, 4])
        os.truncate(self.path / "cut.bin", 6)
        self.assertRegex(self.refused("cut.bin", code=1),
                         r"cut\.bin holds 3.*cut\.bin\.json says 4")
        os.truncate(self.path / "cut.bin", 5)
        self.assertIn("cut.bin: has 5 bytes", self.refused("cut.bin", code=1))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
