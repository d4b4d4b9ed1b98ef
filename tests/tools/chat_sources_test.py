"""Files of conversations as people have them: which rows are read, and what is said of others."""

import hashlib
import json
import os
import shutil
import tempfile
import unittest
from pathlib import Path

from chat_cases import assistant, missing, user
from toolbox import Failure  # which chat_cases has made found


def setUpModule():
    if MISSING:
        raise unittest.SkipTest(MISSING)


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
    MISSING = missing()
    unittest.main()
