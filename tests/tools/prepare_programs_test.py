"""tools/prepare as a program: a vocabulary that it trains, interruptions, and its command line."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import unittest
import unittest.mock
from importlib.util import find_spec
from pathlib import Path

sys.dont_write_bytecode = True

from prepared import Prepared, random_text

import tool_packages  # on the path that prepared has added
from toolbox import Failure


class Bpe(Prepared):
    @classmethod
    def setUpClass(cls):
        try:
            cls.venv = tool_packages.provide()
        except Failure as failure:
            raise unittest.SkipTest(f"no tokenizers package: {failure}") from failure

    def decode(self, tokens, tokenizer):
        """Decodes with the package itself, in a child process."""
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
        self.assertIn("not a tokenizer.json", result.stderr)
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
            self.write(f"in/{number}.txt", random_text(number, 30_000))  # more than 9 MB in all
        hashes = set()
        for jobs in ("1", "3"):
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
        """A run that has started to write and waits for the rest of its text."""
        big = self.write("big.txt", "line of text\n" * 800_000)
        pipe = self.folder / "pipe.txt"
        os.mkfifo(pipe)
        process = subprocess.Popen(self.command(big, pipe, "--out", self.out, *arguments),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.wait, 60)
        self.addCleanup(process.kill)
        writer = os.open(pipe, os.O_WRONLY)  # returns once the run opens the pipe
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
        workers = children(process.pid)  # some may still be starting
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
                self.assertRegex(result.stderr, r"\Atools/prepare: .* --help .*\n\Z")
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
        for out, why in (("model", "of a preparation"), ("theirs", "holds no data"),
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
                                    (["empty.txt"], "no text in")):
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
        # Stands in for the environment; its pip makes an empty package.
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
        self.assertIn("a.parquet", calls[1])  # it was started again in the environment

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
