"""tools/prepare, seen from outside: what it writes, read back by other means.

PRINT_TOKENS names the program that prints what the engine's TokenFile reads.
"""

import hashlib
import json
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
from array import array
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent.parent / "tools"
sys.dont_write_bytecode = True
sys.path.insert(0, str(TOOLS))

import tool_packages
from toolbox import Failure

END = 256  # of the byte tokenizer


class Prepared(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="sluice-prepare-test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.out = self.folder / "out"

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def command(self, *arguments):
        return [sys.executable, "-B", str(TOOLS / "prepare"), *map(str, arguments)]

    def run_tool(self, *arguments, **environment):
        return subprocess.run(self.command(*arguments), cwd=self.folder,
                              env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=250, check=False)

    def prepare(self, *arguments, **environment):
        """stderr of a run that has to succeed; all is trained on unless it says otherwise."""
        if "--validation-fraction" not in arguments and "--hf-dataset" not in arguments:
            arguments += ("--validation-fraction", 0)
        result = self.run_tool(*arguments, "--out", self.out, **environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stderr

    def tokens(self, name="train.bin", out=None):
        path = (out or self.out) / name
        tokens = array("H" if self.sidecar(name, out)["dtype"] == "uint16" else "I")
        tokens.frombytes(path.read_bytes())
        return list(tokens)

    def sidecar(self, name="train.bin", out=None):
        return json.loads(((out or self.out) / f"{name}.json").read_text(encoding="utf-8"))

    def documents(self, name="train.bin"):
        """The texts that the byte tokens of a file spell."""
        raw = (self.out / name).read_bytes()
        low, high = raw[0::2], raw[1::2]
        found, begin = [], 0
        while begin < len(high):
            end = high.index(1, begin)  # 256; fails where the last document does not end
            self.assertEqual(low[end], END - 256)
            found.append(low[begin:end].decode())
            begin = end + 1
        return found

    def assert_only(self, *names):
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(names))


def random_text(seed, length):
    """Words, lines, and characters of one to four bytes."""
    draw = random.Random(seed)
    words = ["the", "of", "weight", "strömt", "über", "NVMe", "流れ", "🌊", "\t", "x = 1\n",
             "\n\n"]
    return " ".join(draw.choice(words) for _ in range(length))


class Bytes(Prepared):
    def test_round_trips_files_of_a_folder_in_order(self):
        texts = {"b/two.txt": "zwei\r\nÄ\n", "a.md": "eins", "b/a/three.txt": "🌊 drei",
                 "c.txt": "\ufefffour"}
        for name, text in texts.items():
            self.write(f"in/{name}", text)
        self.write("in/no.bin", b"\x00\x01")
        self.write("in/.hidden/x.txt", "no")
        self.prepare("in")
        self.assertEqual(self.documents(), ["eins", "🌊 drei", "zwei\r\nÄ\n", "four"])
        self.assertEqual([source["name"] for source in self.sidecar()["sources"]],
                         ["a.md", "b/a/three.txt", "b/two.txt", "c.txt"])
        self.assert_only("in", "out")
        self.assertEqual(sorted(os.listdir(self.out)), ["train.bin", "train.bin.json"])

    def test_says_what_it_leaves_out_of_a_folder(self):
        self.write("in/a.txt", "eins")
        for name in ("x.py", "y.py", "z.html", "README"):
            self.write(f"in/{name}", "text")
        self.write("in/.git/b.txt", "no")
        self.write("in/empty.txt", "")
        (self.folder / "in/link").symlink_to(self.folder)
        said = self.prepare("in")
        self.assertEqual(self.documents(), ["eins"])
        self.assertRegex(said, r"4 files in in match none of \*\.txt .*\(2 \.py, .*--glob")
        self.assertIn("1 hidden folders in in are left out", said)
        self.assertIn("1 links to folders in in are not followed", said)
        self.assertIn("skipped empty.txt: it is empty", said)

    def test_follows_no_link_out_of_a_folder(self):
        secret = self.write("elsewhere/secret.txt", "swordfish")
        self.write("in/a.txt", "eins")
        (self.folder / "in/b.txt").symlink_to("a.txt")
        (self.folder / "in/c.txt").symlink_to(secret)
        (self.folder / "in/d.txt").symlink_to("../elsewhere/secret.txt")
        said = self.prepare("in")
        self.assertEqual(self.documents(), ["eins", "eins"])
        for name in "cd":
            self.assertIn(f"skipped in/{name}.txt: it is a link that leads out of the folder", said)
        # What is named is read; and the hub's cache has links to its blobs, but to none of others.
        self.write("cache/blobs/abc", "zwei")
        (self.folder / "cache/snapshots/rev").mkdir(parents=True)
        (self.folder / "cache/snapshots/rev/a.txt").symlink_to("../../blobs/abc")
        (self.folder / "cache/snapshots/rev/b.txt").symlink_to(secret)
        self.prepare("in/c.txt", "cache/snapshots/rev", "--overwrite")
        self.assertEqual(self.documents(), ["swordfish", "zwei"])

    def test_waits_for_no_pipe_in_a_folder(self):
        self.write("in/a.txt", "eins")
        os.mkfifo(self.folder / "in/b.txt")
        (self.folder / "in/c.txt").symlink_to("b.txt")
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(str(self.folder / "in/d.txt"))
        said = self.prepare("in")
        self.assertEqual(self.documents(), ["eins"])
        for name in "bcd":
            self.assertIn(f"skipped in/{name}.txt: it is not a regular file", said)

    def test_cuts_long_documents_without_changing_them(self):
        text = random_text(1, 700_000)  # several fragments
        no_line_ends = "é" * 2_500_000
        self.write("in/a.txt", text)
        self.write("in/b.txt", no_line_ends)
        self.prepare("in")
        self.assertEqual(self.documents(), [text, no_line_ends])

    def test_describes_what_it_wrote(self):
        path = self.write("a.txt", "hello, hello")
        self.prepare(path)
        tokens, said = self.tokens(), self.sidecar()
        counts = Counter(tokens)
        entropy = -sum(n / len(tokens) * math.log(n / len(tokens)) for n in counts.values())
        self.assertAlmostEqual(said.pop("unigram_entropy_nats"), entropy, 12)
        self.assertEqual(said.pop("sha256"),
                         hashlib.sha256((self.out / "train.bin").read_bytes()).hexdigest())
        self.assertEqual(said.pop("sources"), [
            {"name": "a.txt", "bytes": 12, "sha256": hashlib.sha256(b"hello, hello").hexdigest()}])
        del said["made_with"]
        self.assertEqual(said, {
            "format": "sluice-tokens", "version": 1, "dtype": "uint16", "tokens": 13,
            "vocab_size": 257, "documents": 1, "source_count": 1, "source_bytes": 12,
            "preparation": {"left_out": {}, "replaced": 0},
            "tokenizer": {"kind": "bytes", "end_of_text": 256, "file": None, "sha256": None,
                          "vocabulary_sha256": None}})

    def test_is_read_by_the_engine(self):
        self.prepare(self.write("a.txt", random_text(2, 3000)))
        printed = subprocess.run([os.environ["PRINT_TOKENS"], str(self.out / "train.bin")],
                                 stdout=subprocess.PIPE, text=True, check=True).stdout.split("\n")
        self.assertEqual(printed[:3], ["uint16", "257", ""])
        self.assertEqual([int(line) for line in printed[3:-1]], self.tokens())

    def test_replaces_what_is_damaged_and_skips_what_is_no_text(self):
        self.write("in/a.txt", "Käse, Brötchen, Äpfel: ".encode() + b"caf\xe9 and \xff\xfe.")
        self.write("in/b.txt", b"PK\0\0binary")
        self.write("in/c.txt", "fine")
        self.write("in/d.txt", "")
        (self.folder / "in/e.txt").symlink_to("nowhere")
        said = self.prepare("in")
        self.assertEqual(self.documents(), [
            "Käse, Brötchen, Äpfel: caf\ufffd and \ufffd\ufffd.", "fine"])
        self.assertIn("a.txt: 3 places are not UTF-8", said)
        self.assertIn("skipped b.txt: it has NUL bytes", said)
        self.assertIn("skipped in/e.txt: it is a link that leads nowhere", said)

    def test_reads_utf16_and_refuses_encodings_that_nobody_named(self):
        text = "Grüße, 水 🌊.\r\nzwei\n"
        for encoding in ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"):
            with self.subTest(encoding=encoding):
                self.prepare(self.write("a.txt", text.encode(encoding)), "--overwrite")
                self.assertEqual(self.documents(), [text])
        latin = "Grüße\n" * 300_000  # more than is read at once
        self.write("in/a.txt", latin.encode("latin-1"))
        self.write("in/b.txt", "水火🌊木金土".encode("utf-16-le"))  # no zero byte
        self.write("in/c.txt", "fine")
        said = self.prepare("in", "--overwrite")
        self.assertEqual(self.documents(), ["fine"])
        self.assertIn("skipped a.txt: it is not UTF-8 (600000 places are invalid); name its "
                      "encoding with --encoding, such as cp1252 (Windows)", said)
        self.assertIn("skipped b.txt: it ", said)
        wide = "x" * 4096 + "水" * 600_000  # zero bytes in what is read first only
        self.write("head/a.txt", wide.encode("utf-16-le"))
        self.write("head/b.txt", "good ".encode("utf-16") * 300_000 + b"\0\xd8")
        said = self.prepare("head", "--overwrite")
        self.assertEqual(self.documents(), [wide])
        self.assertIn("skipped b.txt: it is damaged, or in another encoding", said)
        self.prepare("in/a.txt", "--overwrite", "--encoding", "latin1")
        self.assertEqual("".join(self.documents()), latin)
        self.assertIn("b.txt: it is damaged, or in another encoding", self.prepare(
            "in/c.txt", self.write("b.txt", b"\x81"), "--overwrite", "--encoding", "cp1252"))
        result = self.run_tool(self.write("b.txt", b"ab"), "--out", self.out, "--overwrite",
                               "--encoding", "utf-16")
        self.assertIn("in another encoding (UTF-16 stream does not start", result.stderr)
        piped = subprocess.run([sys.executable, "-B", TOOLS / "prepare", "/dev/stdin", "--out",
                                self.out, "--overwrite"], input=latin.encode("latin-1"),
                               stderr=subprocess.PIPE, check=False)
        self.assertEqual(piped.returncode, 1)
        self.assertIn(b"stdin: it is not UTF-8 (600000 places are invalid)", piped.stderr)
        result = self.run_tool("in", "--out", self.out, "--encoding", "klingon")
        self.assertEqual(result.returncode, 2)
        self.assertIn("'klingon' is no encoding that Python knows", result.stderr)
        for encoding in ("utf-16", "utf-16-be"):
            lines = "".join(json.dumps({"text": each}) + "\n" for each in ("eins", "zw\n"))
            self.prepare(self.write("a.jsonl", lines.encode(encoding)), "--overwrite")
            self.assertEqual(self.documents(), ["eins", "zw\n"])

    def test_reads_a_column_of_csv(self):
        self.write("a.csv", "id,text\r\n1,\"a, \"\"b\"\"\n\"\r\n2,\r\n3,ü\r\n")
        said = self.prepare("a.csv")
        self.assertEqual(self.documents(), ['a, "b"\n', "ü"])
        self.assertIn("skipped a.csv, row 3: no text in 'text'", said)
        result = self.run_tool("a.csv", "--out", self.out, "--overwrite", "--column", "body")
        self.assertEqual(result.returncode, 1)
        self.assertIn("a.csv has no column 'body'; it has id, text", result.stderr)
        self.prepare("a.csv", "--overwrite", "--format", "text")
        self.assertTrue("".join(self.documents()).startswith("id,text"))

    def test_keeps_a_character_that_lies_across_two_reads(self):
        text = "a" * ((1 << 20) - 1) + "🌊" + "b" * 10
        self.prepare(self.write("a.txt", text))
        self.assertEqual(self.documents(), [text])


class Records(Prepared):
    def test_reads_json_lines_and_names_what_it_leaves_out(self):
        lines = [json.dumps({"body": "first\nsecond"}), "", json.dumps({"body": "dritte"}),
                 "{broken", json.dumps({"other": "x"}), json.dumps({"body": 3}), "[1]",
                 '{"body": "half a \\ud83c character"}', "[" * 100_000]
        path = self.write("a.jsonl", "\n".join(lines))
        said = self.prepare(path, "--json-key", "body")
        self.assertEqual(self.documents(),
                         ["first\nsecond", "dritte", "half a \ufffd character"])
        for expected in ("skipped a.jsonl:4: not JSON", "a.jsonl:5: no text under 'body'",
                         "a.jsonl:6: no text", "a.jsonl:7: no text", "a.jsonl:9: not JSON"):
            self.assertIn(expected, said)
        kept = json.loads((self.out / "train.bin.json").read_text(encoding="utf-8"))["preparation"]
        self.assertEqual(kept, {"left_out": {"no text under 'body'": 3, "not JSON": 2},
                                "replaced": 1})

    def test_names_ten_of_many_and_counts_the_rest(self):
        path = self.write("a.jsonl", "{}\n" * 500 + '{"text": "a"}')
        result = self.run_tool(path, "--out", self.out)
        self.assertEqual(result.stderr.count("skipped a.jsonl"), 10)
        self.assertIn("500 skipped", result.stdout)

    @unittest.skipUnless(find_spec("pyarrow"), "pyarrow is not there to write a Parquet file with")
    def test_reads_a_column_of_parquet(self):
        import pyarrow
        from pyarrow import parquet
        texts = [f"row {row} ü" for row in range(1000)]
        table = pyarrow.table({"id": list(range(1001)), "content": texts + [None]})
        parquet.write_table(table, self.folder / "a.parquet", row_group_size=100)
        self.write("b.parquet", "this is not Parquet")
        said = self.prepare(self.folder / "a.parquet", self.folder / "b.parquet", "--column",
                            "content")
        self.assertEqual(self.documents(), texts)
        self.assertIn("skipped a.parquet, row 1001: no text", said)
        self.assertIn("skipped b.parquet: not a Parquet file", said)
        result = self.run_tool(self.folder / "a.parquet", "--out", self.folder / "other")
        self.assertEqual(result.returncode, 1)
        self.assertIn("has no column 'text'; it has id, content", result.stderr)

    def test_reads_a_data_set_by_name(self):
        # A stand-in for the package: no network.
        self.write("stand-in/datasets.py", """
class Split(list):
    column_names = ["text"]
def load_dataset(name, config):
    assert (name, config) == ("wikitext", "raw"), (name, config)
    return {"train": Split([{"text": "a"}, {"text": None}, {"text": "b"}]),
            "validation": Split([{"text": "c"}])}
""")
        path = str(self.folder / "stand-in")
        self.prepare("--hf-dataset", "wikitext:raw", PYTHONPATH=path)
        self.assertEqual(self.documents(), ["a", "b"])
        self.assertEqual(self.documents("val.bin"), ["c"])
        shutil.rmtree(self.out)
        self.prepare("--hf-dataset", "wikitext:raw:validation", PYTHONPATH=path)
        self.assertEqual(self.documents(), ["c"])
        result = self.run_tool("--hf-dataset", "wikitext:raw:test", "--out", self.folder / "o2",
                               PYTHONPATH=path)
        self.assertIn("has no split 'test'; it has train, validation", result.stderr)


class Split(Prepared):
    def corpus(self):
        lines = [f"document {number}" for number in range(2000)]
        self.write("a.jsonl", "\n".join(json.dumps({"text": line}) for line in lines))
        return lines

    def test_by_hash_takes_whole_documents_whatever_their_neighbours(self):
        lines = self.corpus()
        self.prepare("a.jsonl", "--validation-fraction", "0.1")
        train, validation = self.documents(), self.documents("val.bin")
        self.assertEqual(sorted(train + validation), sorted(lines))
        self.assertTrue(150 < len(validation) < 250, len(validation))
        self.assertEqual(train, [line for line in lines if line in set(train)], "order is kept")
        self.write("a.jsonl", "\n".join(json.dumps({"text": line}) for line in lines[::-3]))
        self.prepare("a.jsonl", "--validation-fraction", "0.1", "--overwrite")
        self.assertLessEqual(set(self.documents("val.bin")), set(validation))
        self.assertLessEqual(set(self.documents()), set(train))

    def test_by_tail_takes_the_end_from_a_documents_begin(self):
        lines = self.corpus()
        self.prepare("a.jsonl", "--validation-fraction", "0.1", "--split", "tail")
        train, validation = self.documents(), self.documents("val.bin")
        self.assertEqual(train + validation, lines)
        self.assertTrue(190 <= len(validation) <= 205, len(validation))
        for name, documents in (("train.bin", train), ("val.bin", validation)):
            said = self.sidecar(name)
            self.assertEqual(said["documents"], len(documents))
            self.assertEqual(said["tokens"], len(self.tokens(name)))
            counts = Counter(self.tokens(name))
            total = sum(counts.values())
            self.assertAlmostEqual(said["unigram_entropy_nats"], -sum(
                n / total * math.log(n / total) for n in counts.values()), 9)

    def test_cuts_a_single_text(self):
        text = random_text(3, 5000)
        self.prepare(self.write("a.txt", text), "--validation-fraction", "0.25")
        raw = text.encode()
        train, validation = self.tokens(), self.tokens("val.bin")
        self.assertEqual(bytes(train + validation[:-1]), raw)
        self.assertEqual(len(validation), round((len(raw) + 1) * 0.25))

    def test_keeps_a_part_to_validate_on_unless_told_otherwise(self):
        text = random_text(3, 5000)
        self.write("one/a.txt", text)
        self.write("two/a.txt", text)
        self.write("two/b.txt", text[::-1])
        lines = self.corpus()
        for given in ("one", "two", "a.jsonl"):  # a tail, a hash that takes nothing, and a hash
            with self.subTest(given=given):
                out = self.folder / f"of-{given}"
                result = self.run_tool(given, "--out", out)
                self.assertEqual(result.returncode, 0, result.stderr)
                train, validation = self.tokens(out=out), self.tokens("val.bin", out)
                share = len(validation) / len(train + validation)
                self.assertTrue(0.03 < share < 0.07, share)
                self.assertEqual(self.sidecar("val.bin", out)["tokens"], len(validation))
        self.assertEqual(sorted(lines), sorted(
            bytes(token if token != END else 10 for token in
                  self.tokens(out=out) + self.tokens("val.bin", out)).decode().splitlines()))
        self.write("short.txt", "a")
        result = self.run_tool("short.txt", "--out", self.out)
        self.assertIn("there is no val.bin", result.stderr)
        self.assertEqual(sorted(os.listdir(self.out)), ["train.bin", "train.bin.json"])

    def test_trains_on_something_where_a_hash_takes_everything(self):
        # Of these documents' hashes the first one is in the lowest twentieth.
        for number in range(200):
            path = self.write("a.jsonl", json.dumps({"text": f"document {number} " * 50}))
            digest = hashlib.blake2b(f"document {number} ".encode() * 50, digest_size=8).digest()
            if int.from_bytes(digest, "little") < 0.05 * 2 ** 64:
                break
        result = self.run_tool(path, "--out", self.out)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertGreater(len(self.tokens()), 10 * len(self.tokens("val.bin")))

    def test_refuses_to_leave_a_side_empty(self):
        path = self.write("a.jsonl", '{"text": "only one"}')
        for fraction in ("0.000001", "0.999999"):
            result = self.run_tool(path, "--out", self.out, "--validation-fraction", fraction)
            self.assertEqual(result.returncode, 1)
            self.assertIn("leaves nothing in", result.stderr)
            self.assert_only("a.jsonl")


class Bpe(Prepared):
    @classmethod
    def setUpClass(cls):
        try:
            cls.venv = tool_packages.provide()
        except Failure as failure:
            raise unittest.SkipTest(f"no tokenizers package: {failure}") from failure

    def decode(self, tokens, tokenizer):
        """By the package itself, in a process of its own."""
        return self.ask(tokenizer, "t.decode(json.load(sys.stdin), skip_special_tokens=False)",
                        json.dumps(tokens))

    def ask(self, tokenizer, what, text=""):
        script = ("import json, sys, tokenizers; t = tokenizers.Tokenizer.from_file(sys.argv[1]); "
                  f"print(json.dumps({what}))")
        printed = subprocess.run([tool_packages.python_of(self.venv), "-c", script, tokenizer],
                                 input=text, stdout=subprocess.PIPE, text=True, check=True).stdout
        return json.loads(printed)

    def test_decodes_to_the_text_it_was_trained_on_and_encoded(self):
        texts = [random_text(4, 4000), "rare: ☃ \x07 <|endoftext|> still text", "\r\n\t  x"]
        for number, text in enumerate(texts):
            self.write(f"in/{number}.txt", text)
        self.prepare("in", "--tokenizer", "bpe", "--vocab-size", "300")
        tokens, said = self.tokens(), self.sidecar()
        end = said["tokenizer"]["end_of_text"]
        self.assertEqual(tokens.count(end), 3)
        self.assertEqual(self.decode(tokens, self.out / "tokenizer.json"),
                         "".join(text + "<|endoftext|>" for text in texts))
        self.assertEqual((said["tokenizer"]["kind"], said["vocab_size"]), ("bpe", 300))
        self.assertLess(len(tokens), 0.7 * sum(len(text.encode()) for text in texts))
        self.assertEqual(said["tokenizer"]["sha256"], hashlib.sha256(
            (self.out / "tokenizer.json").read_bytes()).hexdigest())
        vocabulary = self.ask(self.out / "tokenizer.json", "t.get_vocab(with_added_tokens=True)")
        meaning = "".join(f"{token} {len(text.encode())} {text}\n"
                          for text, token in sorted(vocabulary.items(), key=lambda item: item[1]))
        self.assertEqual(said["tokenizer"]["vocabulary_sha256"],
                         hashlib.sha256(meaning.encode()).hexdigest())

    def test_uses_a_tokenizer_that_is_given(self):
        path = self.write("a.txt", random_text(5, 4000))
        self.prepare(path, "--tokenizer", "bpe", "--vocab-size", "280")
        first = self.tokens()
        again = self.folder / "again"
        result = self.run_tool(path, "--tokenizer", self.out / "tokenizer.json", "--out", again,
                               "--validation-fraction", 0)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.tokens(out=again), first)
        self.assertEqual(self.sidecar(out=again)["tokenizer"]["kind"], "file")
        result = self.run_tool(path, "--tokenizer", path, "--out", self.folder / "no")
        self.assertIn("this is not a tokenizer.json", result.stderr)
        result = self.run_tool(path, "--tokenizer", self.out / "tokenizer.json", "--end-of-text",
                               "<stop>", "--out", self.folder / "no")
        self.assertIn("has no token <stop>", result.stderr)

    def test_writes_uint32_where_the_vocabulary_needs_it(self):
        vocabulary = {"<|endoftext|>": 70000, "[UNK]": 0, "sea": 65536, "wind": 3}
        self.write("t.json", json.dumps({
            "version": "1.0", "pre_tokenizer": {"type": "Whitespace"},
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}}))
        self.prepare(self.write("a.txt", "wind sea what"), "--tokenizer", "t.json")
        self.assertEqual(self.tokens(), [3, 65536, 0, 70000])
        said = self.sidecar()
        self.assertEqual((said["dtype"], said["vocab_size"]), ("uint32", 70001))
        printed = subprocess.run([os.environ["PRINT_TOKENS"], str(self.out / "train.bin")],
                                 stdout=subprocess.PIPE, text=True, check=True).stdout
        self.assertEqual(printed, "uint32\n70001\n\n3\n65536\n0\n70000\n")

    def test_gives_the_same_bytes_whatever_the_number_of_processes(self):
        for number in range(60):
            self.write(f"in/{number}.txt", random_text(number, 30_000))  # 9 MB and more in all
        hashes = set()
        for jobs in ("1", "2", "3"):
            out = self.folder / f"out{jobs}"
            result = self.run_tool("in", "--out", out, "--tokenizer", "bpe", "--vocab-size", "290",
                                   "--jobs", jobs, "--validation-fraction", "0.2",
                                   "--bpe-sample-mb", "1")
            self.assertEqual(result.returncode, 0, result.stderr)
            hashes.add(tuple((name, hashlib.sha256((out / name).read_bytes()).hexdigest())
                             for name in sorted(os.listdir(out))))
        self.assertEqual(len(hashes), 1)
        self.assertEqual([name for name, _ in next(iter(hashes))],
                         ["tokenizer.json", "train.bin", "train.bin.json", "val.bin",
                          "val.bin.json"])


def children(pid):
    try:
        return [int(child) for child in
                Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except OSError:
        return []


def wait_until(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s until {what}")
        time.sleep(0.02)


class Interrupted(Prepared):
    def start(self, *arguments):
        """A run that has begun to write and waits for the rest of its text."""
        big = self.write("big.txt", "line of text\n" * 800_000)
        pipe = self.folder / "pipe.txt"
        os.mkfifo(pipe)
        process = subprocess.Popen(self.command(big, pipe, "--out", self.out, *arguments),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.wait, 60)
        self.addCleanup(process.kill)
        writer = os.open(pipe, os.O_WRONLY)  # returns when the run has come to it
        self.addCleanup(os.close, writer)
        wait_until(lambda: any(path.stat().st_size > 0
                               for path in self.folder.glob(".out.partial-*/train.bin")),
                   "something was written")
        return process

    def test_leaves_nothing(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            for jobs in ("1", "2"):
                with self.subTest(signal=number, jobs=jobs):
                    process = self.start("--jobs", jobs)
                    process.send_signal(number)
                    _, errors = process.communicate(timeout=60)
                    self.assertEqual(process.returncode, 130)
                    self.assertEqual(errors, "\ntools/prepare: stopped; nothing was written\n")
                    self.assert_only("big.txt", "pipe.txt")
                    (self.folder / "pipe.txt").unlink()

    def test_leaves_the_former_output_as_it_was(self):
        self.prepare(self.write("a.txt", "former"))
        process = self.start("--overwrite", "--jobs", "1")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertEqual(self.documents(), ["former"])

    def test_killed_takes_its_processes_along_and_is_cleaned_up_by_the_next(self):
        process = self.start("--jobs", "2")
        workers = children(process.pid)  # some of them perhaps still on their way
        self.assertGreaterEqual(len(workers), 2)
        process.kill()
        process.communicate(timeout=60)
        wait_until(lambda: not any(os.path.exists(f"/proc/{worker}") and "Z" not in
                                   Path(f"/proc/{worker}/stat").read_text().rsplit(")")[1]
                                   for worker in workers), "the workers are gone")
        self.assertFalse(self.out.exists())
        self.assertEqual(len(list(self.folder.glob(".out.partial-*"))), 1)
        self.prepare(self.write("a.txt", "after"))
        self.assertEqual(list(self.folder.glob(".out.*")), [])
        self.assertEqual(self.documents(), ["after"])


class CommandLine(Prepared):
    def test_explains_itself(self):
        result = self.run_tool("--help")
        self.assertEqual(result.returncode, 0)
        self.assertIn("usage: tools/prepare", result.stdout)
        self.assertRegex(result.stdout, r"--out data/qa \\\n +--tokenizer Qwen3")

    def test_refuses_what_makes_no_sense_with_one_sentence(self):
        self.write("full/notes.txt", "not ours")
        self.write("a.txt", "a")
        for arguments in (["a.txt"], ["--out", "o"], ["a.txt", "--demo-corpus", "o"],
                          ["--demo-corpus", "o", "--out", "p"],
                          ["a.txt", "--out", "o", "--vocab-size", "300"],
                          ["a.txt", "--out", "o", "--tokenizer", "bpe", "--vocab-size", "256"],
                          ["a.txt", "--out", "o", "--validation-fraction", "1"],
                          ["a.txt", "--out", "o", "--validation-fraction", "nan"],
                          ["a.txt", "--out", "o", "--validation-fraction", "0", "--split", "tail"],
                          ["a.txt", "--out", "o", "--end-of-text", "x"],
                          ["a.txt", "--out", "o", "--jobs", "0"],
                          ["a.txt", "--out", "full", "--overwrite"],
                          ["a.txt", "--out", "a.txt", "--overwrite"]):
            with self.subTest(arguments=arguments):
                result = self.run_tool(*arguments)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertRegex(result.stderr, r"\Atools/prepare: .* --help explains .*\n\Z")
        self.assert_only("a.txt", "full")

    def test_overwrites_only_when_told(self):
        path = self.write("a.txt", "one")
        self.prepare(path)
        path.write_text("two", encoding="ascii")
        result = self.run_tool(path, "--out", self.out)
        self.assertEqual(result.returncode, 2)
        self.assertIn("pass --overwrite", result.stderr)
        self.assertEqual(self.documents(), ["one"])
        self.prepare(path, "--overwrite")
        self.assertEqual(self.documents(), ["two"])
        self.assert_only("a.txt", "out")

    def test_replaces_nothing_but_a_preparation(self):
        path = self.write("a.txt", "one")
        self.write("model/tokenizer.json", "{}")
        self.write("model/tokenizer_config.json", "{}")
        self.write("theirs/train.bin", "text")
        self.write("theirs/train.bin.json", '{"format": "other"}')
        self.prepare(path)
        (self.folder / "link").symlink_to("out")
        kept = {each: each.read_bytes() for each in self.folder.rglob("*") if each.is_file()}
        for out, why in (("model", "holds no data of a preparation"), ("theirs", "holds no data"),
                         ("link", "is a link")):
            result = self.run_tool(path, "--out", self.folder / out, "--overwrite")
            self.assertEqual(result.returncode, 2)
            self.assertIn(why, result.stderr)
        self.assertEqual({each: each.read_bytes() for each in self.folder.rglob("*")
                          if each.is_file()}, kept)

    def test_says_what_is_missing(self):
        self.write("in/a.dat", "a")
        self.write("empty.txt", "")
        for arguments, sentence in ((["nowhere"], "nowhere does not exist"),
                                    (["in"], "no file in in matches \\*.txt .*: say which by"),
                                    (["empty.txt"], "there is no text in what was given")):
            result = self.run_tool(*arguments, "--out", self.out)
            self.assertEqual(result.returncode, 1)
            self.assertRegex(result.stderr, sentence)
        self.assert_only("in", "empty.txt")

    def test_says_how_to_get_packages_where_there_is_no_network(self):
        path = self.write("a.txt", "a")
        result = self.run_tool(path, "--out", self.out, "--tokenizer", "bpe",
                               XDG_CACHE_HOME=str(self.folder / "cache"), PIP_NO_INDEX="1",
                               PIP_CONFIG_FILE=os.devnull, PYTHONPATH="")
        if find_spec("tokenizers"):
            self.skipTest("this Python has the tokenizers package")
        self.assertEqual(result.returncode, 1)
        self.assertIn("-m pip install tokenizers==", result.stderr)
        self.assertFalse(self.out.exists())
        self.assertEqual(list((self.folder / "cache/sluice").glob("venv-*/")), [])

    def test_fetches_what_parquet_needs(self):
        if find_spec("pyarrow"):
            self.skipTest("this Python has the pyarrow package")
        # A stand-in for the environment, whose pip makes an empty package.
        with unittest.mock.patch.dict(os.environ, XDG_CACHE_HOME=str(self.folder / "cache")):
            venv = tool_packages.folder()
        site = tool_packages.site_packages(venv)
        site.mkdir(parents=True)
        (venv / ".complete").touch()
        python = self.write(tool_packages.python_of(venv), f"""#!/bin/sh
            echo "$*" >> {self.folder}/calls
            case "$*" in *pip*) mkdir {site}/pyarrow; touch {site}/pyarrow/__init__.py;; esac
            """)
        python.chmod(0o755)
        path = self.write("a.parquet", "")
        result = self.run_tool(path, "--out", self.out, XDG_CACHE_HOME=str(self.folder / "cache"),
                               PYTHONPATH="")
        self.assertEqual(result.returncode, 0, result.stderr)
        calls = (self.folder / "calls").read_text(encoding="utf-8").splitlines()
        self.assertRegex(calls[0], r"-m pip install .* pyarrow==\d+\.\d+\.\d+\Z")
        self.assertIn("a.parquet", calls[1])  # begun again, in there

    def test_makes_the_demo_corpus_of_the_standard_library(self):
        result = self.run_tool("--demo-corpus", self.out)
        self.assertEqual(result.returncode, 0, result.stderr)
        names = [source["name"] for source in self.sidecar()["sources"]]
        self.assertEqual(names, sorted(names))
        self.assertIn("argparse.py", names)
        left_out = {"test", "tests", "site-packages"}
        self.assertFalse([name for name in names if left_out & set(name.split("/"))])
        import argparse
        self.assertIn(Path(argparse.__file__).read_text(encoding="utf-8"),
                      self.documents() + self.documents("val.bin"))


if __name__ == "__main__":
    unittest.main()
