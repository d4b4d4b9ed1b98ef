"""tools/prepare, tested from outside: its output, read by other means.

PRINT_TOKENS names the program that prints what the engine's TokenFile reads.
"""

import hashlib
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import unittest
import unittest.mock
from collections import Counter
from importlib.util import find_spec

sys.dont_write_bytecode = True

from prepared import END, TOOLS, Prepared, random_text


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
        self.assertRegex(said, r"4 files in in .*\*\.txt .*\(2 \.py, .*--glob")
        self.assertIn("1 hidden folders", said)
        self.assertIn("1 links", said)
        self.assertIn("empty.txt: it is empty", said)

    def test_follows_no_link_out_of_a_folder(self):
        secret = self.write("elsewhere/secret.txt", "swordfish")
        self.write("in/a.txt", "eins")
        (self.folder / "in/b.txt").symlink_to("a.txt")
        (self.folder / "in/c.txt").symlink_to(secret)
        (self.folder / "in/d.txt").symlink_to("../elsewhere/secret.txt")
        said = self.prepare("in")
        self.assertEqual(self.documents(), ["eins", "eins"])
        for name in "cd":
            self.assertRegex(said, rf"in/{name}\.txt:.*out of the folder")
        # Links that the user names are read. The hub's cache may have links to its blobs only.
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
            self.assertRegex(said, rf"in/{name}\.txt:.*a regular file")

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
        self.assertIn("a.txt: 3 places", said)
        self.assertRegex(said, r"b\.txt:.*NUL")
        self.assertRegex(said, r"in/e\.txt:.*nowhere")

    def test_reads_utf16_and_refuses_encodings_that_nobody_named(self):
        text = "Grüße, 水 🌊.\r\nzwei\n"
        for encoding in ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"):
            with self.subTest(encoding=encoding):
                self.prepare(self.write("a.txt", text.encode(encoding)), "--overwrite")
                self.assertEqual(self.documents(), [text])
        latin = "Grüße\n" * 300_000  # longer than one read
        self.write("in/a.txt", latin.encode("latin-1"))
        self.write("in/b.txt", "水火🌊木金土".encode("utf-16-le"))  # contains no zero byte
        self.write("in/c.txt", "fine")
        said = self.prepare("in", "--overwrite")
        self.assertEqual(self.documents(), ["fine"])
        self.assertRegex(said, r"a\.txt:.*600000 places.*--encoding.*cp1252")
        self.assertIn("skipped b.txt: it ", said)
        wide = "x" * 4096 + "水" * 600_000  # zero bytes only in the first read
        self.write("head/a.txt", wide.encode("utf-16-le"))
        self.write("head/b.txt", "good ".encode("utf-16") * 300_000 + b"\0\xd8")
        said = self.prepare("head", "--overwrite")
        self.assertEqual(self.documents(), [wide])
        self.assertIn("b.txt: it is damaged", said)
        self.prepare("in/a.txt", "--overwrite", "--encoding", "latin1")
        self.assertEqual("".join(self.documents()), latin)
        self.assertIn("b.txt: it is damaged", self.prepare(
            "in/c.txt", self.write("b.txt", b"\x81"), "--overwrite", "--encoding", "cp1252"))
        result = self.run_tool(self.write("b.txt", b"ab"), "--out", self.out, "--overwrite",
                               "--encoding", "utf-16")
        self.assertIn("UTF-16 stream", result.stderr)
        piped = subprocess.run([sys.executable, "-B", TOOLS / "prepare", "/dev/stdin", "--out",
                                self.out, "--overwrite"], input=latin.encode("latin-1"),
                               stderr=subprocess.PIPE, check=False)
        self.assertEqual(piped.returncode, 1)
        self.assertIn(b"stdin: it is not UTF-8 (600000 places are invalid)", piped.stderr)
        result = self.run_tool("in", "--out", self.out, "--encoding", "klingon")
        self.assertEqual(result.returncode, 2)
        self.assertIn("'klingon'", result.stderr)
        for encoding in ("utf-16", "utf-16-be"):
            lines = "".join(json.dumps({"text": each}) + "\n" for each in ("eins", "zw\n"))
            self.prepare(self.write("a.jsonl", lines.encode(encoding)), "--overwrite")
            self.assertEqual(self.documents(), ["eins", "zw\n"])

    def test_reads_a_column_of_csv(self):
        self.write("a.csv", "id,text\r\n1,\"a, \"\"b\"\"\n\"\r\n2,\r\n3,ü\r\n")
        said = self.prepare("a.csv")
        self.assertEqual(self.documents(), ['a, "b"\n', "ü"])
        self.assertRegex(said, r"a\.csv, row 3:.*'text'")
        result = self.run_tool("a.csv", "--out", self.out, "--overwrite", "--column", "body")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"a\.csv.*'body';.*id, text")
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
        self.assertIn("a.parquet, row 1001: no text", said)
        self.assertRegex(said, r"b\.parquet:.*Parquet file")
        result = self.run_tool(self.folder / "a.parquet", "--out", self.folder / "other")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, "'text';.*id, content")

    def test_reads_a_data_set_by_name(self):
        # Stands in for the package; no network.
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
        self.assertRegex(result.stderr, "'test';.*train, validation")

    def test_a_data_set_that_cannot_be_loaded_is_refused_with_the_reason(self):
        for raised, said in (("ConnectionError('reach')", "cannot be reached"),
                             ("DatasetNotFoundError('no x')", "no data set a/b"),
                             ("DatasetNotFoundError('a gated dataset')", "is gated"),
                             ("ValueError('config')", "loaded: config")):
            self.write("stand-in/datasets.py", "class DatasetNotFoundError(Exception): pass\n"
                       f"def load_dataset(*_):\n    raise {raised}\n")
            result = self.run_tool("--hf-dataset", "a/b:c", "--out", self.out, HF_HUB_OFFLINE="",
                                   PYTHONPATH=str(self.folder / "stand-in"))
            self.assertEqual(result.returncode, 1)
            self.assertIn(said, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1)


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
        for given in ("one", "two", "a.jsonl"):  # a tail, an empty hash, and a hash
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
        # The first of these documents has a hash in the lowest twentieth.
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


if __name__ == "__main__":
    unittest.main()
