"""tools/demo in a copy of the tree: with a small model, few sources, and a tools/setup that builds
nothing.

SLUICE is the program; SLUICE_HAS_ENGINE=1 when it was built with LibTorch.
"""

import fcntl
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import unittest
import unittest.mock
from array import array
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
sys.path[:0] = [str(TREE / "tools"), str(TREE / "tests/e2e")]

import tool_packages
from corpus import encode
from demo_parts import report
from demo_parts.folder import DemoFolder
from failing_mount import MIB, FullDisk
from toolbox import Failure

HAS_ENGINE = os.environ.get("SLUICE_HAS_ENGINE") == "1"
WAIT_S = 250
VOCAB = 300
# Replaces tools/prepare: runs it with a few of the sources, some of them to be held back. Not by
# runpy, which changes sys.argv[0]: prepare starts that again under the Python with its packages.
FEW_SOURCES = """#!/usr/bin/env python3
import os
import sys
sys.dont_write_bytecode = True
from corpus import documents, encode
everything = documents.standard_library
def some(folder):
    sources, side_of = everything(folder), encode.side_by_hash(0.02)
    held_back = [source for source in sources if side_of(
        source.path.read_text(encoding="utf-8", errors="replace")) == "val"]
    chosen = {source.name for source in (*sources[:40], *held_back[:3])}
    return [source for source in sources if source.name in chosen or "ALL_SOURCES" in os.environ]
documents.standard_library = some
with open(__file__ + "-itself", encoding="utf-8") as file:
    exec(compile(file.read(), file.name, "exec"))
"""


class Tree(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-demo-test-", dir=os.getcwd())
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        shutil.copytree(TREE / "tools", self.root / "tools",
                        ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(TREE / "configs", self.root / "configs")
        shutil.copy(TREE / "README.md", self.root)
        self.write("tools/setup", "#!/usr/bin/env python3\nopen('set-up', 'w').close()\n")
        os.rename(self.root / "tools/prepare", self.root / "tools/prepare-itself")
        self.write("tools/prepare", FEW_SOURCES).chmod(0o755)
        configuration = json.loads((TREE / "configs/demo.json").read_text(encoding="utf-8"))
        self.model = configuration["model"]
        self.model.update(layers=2, hidden=32, heads=2, context=16, vocab=VOCAB)
        configuration["data"]["sequence_length"] = 16
        configuration["run"].update(cpu_threads=1, device="cpu")
        self.write("configs/demo.json", json.dumps(configuration))
        (self.root / "build/bin").mkdir(parents=True)
        if HAS_ENGINE:
            (self.root / "build/bin/sluice").symlink_to(os.path.abspath(os.environ["SLUICE"]))
        self.out = self.root / "out/demo"

    def write(self, name, content):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        return path

    def start(self, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-B", "tools/demo", *map(str, arguments)], cwd=self.root,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def demo(self, *arguments, code=0):
        process = self.start(*arguments)
        said, _ = process.communicate(timeout=WAIT_S)
        self.assertEqual(process.returncode, code, said)
        self.assertNotIn("Traceback", said)
        return said

    def all_files(self):
        return {str(path.relative_to(self.root)): path.read_bytes()
                for path in self.root.rglob("*") if path.is_file()}

    def refused(self, *arguments):
        """Refused with one sentence, before anything is built, and with all files unchanged."""
        before = self.all_files()
        said = self.demo(*arguments, code=2)
        self.assertRegex(said, r"\Atools/demo: .*; tools/demo --help .*\n\Z")
        self.assertEqual(self.all_files(), before)
        return said

    def corpus(self, kind="bpe", vocab=VOCAB):
        """Writes a minimal corpus."""
        for name in ("train", "val"):
            self.write(f"out/demo/corpus/{name}.bin", "a b c ")
            self.write(f"out/demo/corpus/{name}.bin.json", json.dumps(
                {"tokens": 3, "vocab_size": vocab, "tokenizer": {"kind": kind}}))
        self.write("out/demo/corpus/tokenizer.json", "{}")

    def run_folder(self, step, data="../corpus/train.bin", **shape):
        """Writes a minimal run."""
        self.write("out/demo/run/config.json", json.dumps(
            {"model": {**self.model, **shape}, "data": {"train": [data]}}))
        self.write(f"out/demo/run/checkpoints/step-{step:09}/manifest.json", "{}")


class Folders(Tree):
    """Their contents are kept, or refused with advice. The program cannot be built."""

    def setUp(self):
        super().setUp()
        self.write("tools/setup", "open('set-up', 'w').close()\nraise SystemExit(1)\n")

    def set_up_runs(self, *arguments):
        said = self.demo(*arguments, code=1)
        self.assertRegex(said, r"\Atools/demo: set-up failed; .*\n\Z")
        self.assertTrue((self.root / "set-up").exists())

    def test_that_are_files_are_refused(self):
        self.write("out/demo", "a file")
        self.assertIn("with --out", self.refused())

    def test_with_a_run_of_another_model_are_refused_with_two_ways_out(self):
        self.corpus()
        self.run_folder(5, hidden=64)
        said = self.refused("--steps", 100)
        self.assertIn("hidden 64", said)
        self.assertIn("trained to step 5", said)
        self.assertRegex(said, "--out DIR.*--overwrite")
        self.set_up_runs("--out", "elsewhere")
        self.set_up_runs("--overwrite")

    def test_with_a_run_of_other_data_are_refused(self):
        self.corpus()
        self.run_folder(5, data="/data/train.bin")
        self.assertIn("to step 5", self.refused())

    def test_with_the_same_model_or_a_run_that_saved_nothing_are_continued(self):
        self.corpus()
        self.write("out/demo/notes.txt", "mine")
        self.run_folder(5)
        self.set_up_runs("--steps", 3)
        shutil.rmtree(self.out / "run/checkpoints")
        self.write("out/demo/run/config.json", "{}")
        self.set_up_runs()
        self.assertEqual((self.out / "notes.txt").read_text(encoding="utf-8"), "mine")

    def test_belong_to_one_demo_at_a_time(self):
        self.out.mkdir(parents=True)
        held = os.open(self.out, os.O_RDONLY)
        self.addCleanup(os.close, held)
        fcntl.flock(held, fcntl.LOCK_EX)
        self.assertIn("another demo", self.refused())

    def test_with_a_corpus_that_cannot_be_used_are_refused_with_the_reason(self):
        folder = DemoFolder(self.out)
        self.assertEqual(folder.why_no_corpus(VOCAB), "")
        self.corpus()
        self.assertIsNone(folder.why_no_corpus(VOCAB))
        self.assertRegex(folder.why_no_corpus(1024), "300 tokens.*1024")
        (self.out / "corpus/tokenizer.json").unlink()
        self.assertIn("tokenizer.json is missing", self.refused())
        self.corpus("bytes", 257)
        self.assertIn("bytes, not byte pairs", self.refused())
        self.corpus()
        self.write("out/demo/corpus/train.bin", "a b ")
        self.assertIn("train.bin is not as long", self.refused())
        (self.out / "corpus/train.bin.json").unlink()
        self.assertIn("no description", self.refused())
        self.set_up_runs("--overwrite")

    @unittest.skipIf(FullDisk.unavailable(), FullDisk.unavailable())
    def test_on_a_full_disk_and_a_read_only_one_are_refused_with_a_sentence(self):
        disk = FullDisk(2 * MIB)
        self.addCleanup(disk.close)
        disk.fill()
        sentence = r"\Atools/demo: .*: {}; --out names another folder\n\Z"
        self.assertRegex(self.demo("--out", disk.path / "demo", code=1),
                         sentence.format("No space left on device"))
        subprocess.run(["mount", "-o", "remount,ro", disk.path], check=True)
        self.assertRegex(self.demo("--out", disk.path / "demo", code=1),
                         sentence.format("Read-only file system"))


class Words(unittest.TestCase):
    def test_convert_a_token_s_loss_to_a_byte_s(self):
        said = self.learned(6.5, 3.5)
        self.assertRegex(said,
                         rf"{math.log(1024) / 2.5:.2f} nats.*1\.40.*step 20 \(3\.50.*2\.50 bytes\)")
        self.assertRegex(said, rf"{math.exp(1.4):.1f}.*\(e\^1\.40\)")
        self.assertRegex(said, r"3\.00 by bytes.*2\.40 by tokens")

    def test_are_true_whatever_the_numbers_are(self):
        self.assertIn("below both", self.learned(5.99))
        self.assertIn("bytes only", self.learned(6.01))
        self.assertIn("This is above both", self.learned(7.6))
        self.assertIn("is not known", self.learned(None))

    def learned(self, *losses):
        text = report.HeldBack(tokens=1000, bytes=2500, byte_nats=3.0, token_nats=6.0, vocab=1024)
        return " ".join(report.learned(text, [
            {"step": 10 * (number + 1), "val_loss": loss} for number, loss in enumerate(losses)]))

    def test_count_the_bytes_of_what_was_held_back(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            # Byte-level tokenizers write \u0120 for a space.
            vocabulary = {"<|endoftext|>": 0, "a": 1, "\u0120": 2, "\u0120aa": 3}
            (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}),
                                                   encoding="utf-8")
            (folder / "val.bin").write_bytes(array("H", [1, 3, 2, 0]).tobytes())
            text = report.held_back(folder)
        self.assertEqual((text.tokens, text.bytes, text.vocab), (4, 5, 4))
        self.assertAlmostEqual(text.token_nats, math.log(4))
        self.assertAlmostEqual(text.byte_nats,
                               -(3 / 5 * math.log(3 / 5) + 2 / 5 * math.log(2 / 5)))


@unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
class Runs(Tree):
    @classmethod
    def setUpClass(cls):
        try:
            tool_packages.provide()
        except Failure as failure:
            raise unittest.SkipTest(f"no tokenizers package: {failure}") from failure

    def metrics(self):
        lines = (self.out / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def wait_for(self, process, condition):
        deadline = time.monotonic() + WAIT_S
        while not condition():
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def stop(self, process):
        """Sends what a Ctrl-C in a terminal sends."""
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=WAIT_S)
        self.assertEqual(process.returncode, 130, said)
        self.assertNotIn("Traceback", said)
        return said

    def test_train_with_a_stop_and_say_what_was_learned_and_what_to_do_next(self):
        self.write("out/demo/notes.txt", "mine")
        said = self.demo("--steps", 60)
        self.assertRegex(said, r"interrupted after [345]\d of 60 steps")
        self.assertEqual([step["step"] for step in self.metrics()], list(range(1, 61)))
        text = report.held_back(self.out / "corpus")
        held_back = sum(len(path.read_bytes()) for path in self.held_back_sources())
        self.assertEqual(text.bytes, held_back)
        loss = self.metrics()[-1]["val_loss"] * text.tokens / text.bytes
        self.assertRegex(said, rf"-> {loss:.2f} .*step 60 \(")
        self.assertIn("\nclass Reader:", said)
        self.assertRegex(said, r"==> speed: [\d,]+ tokens/s; ")
        self.assertRegex(said, "==> time: .*set-up .*corpus .*training .*text ")
        self.next_commands_work(said.partition("\nwhat next:\n")[2])

        # The first of these commands trained longer. A repetition trains nothing and prints
        # everything.
        self.assertEqual(len(self.metrics()), 120)
        before = (self.out / "run/metrics.jsonl").read_bytes()
        again = self.demo("--steps", 60)
        self.assertIn("to step 120", again)
        self.assertIn("after step 120 (", again)
        self.assertEqual((self.out / "run/metrics.jsonl").read_bytes(), before)
        corpus = (self.out / "corpus/train.bin").stat().st_mtime_ns
        self.demo("--steps", 2, "--overwrite")
        self.assertEqual([step["step"] for step in self.metrics()], [1, 2])
        self.assertEqual((self.out / "corpus/train.bin").stat().st_mtime_ns, corpus)
        self.assertEqual((self.out / "notes.txt").read_text(encoding="utf-8"), "mine")

    def held_back_sources(self):
        """Validation sources, by the rule of tools/prepare."""
        sidecar = json.loads((self.out / "corpus/val.bin.json").read_text(encoding="utf-8"))
        library = Path(sysconfig.get_paths()["stdlib"])
        side = encode.side_by_hash(sidecar["made_with"]["validation_fraction"])
        read = [library / source["name"] for source in sidecar["sources"]]
        return [path for path in read if side(path.read_text(encoding="utf-8")) == "val"]

    def next_commands_work(self, said):
        commands = re.findall(r"^  ((?:tools|build)/(?:.*\\\n)*.*)$", said, re.MULTILINE)
        self.assertEqual([command.split()[0:2] for command in commands],
                         [["tools/demo", "--steps"], ["tools/prepare", "README.md"],
                          ["build/bin/sluice", "train"], ["build/bin/sluice", "train"],
                          ["build/bin/sluice", "plan"]])
        for command in commands:
            with self.subTest(command=command):
                done = subprocess.run(command, shell=True, cwd=self.root, check=False,
                                      stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                      timeout=WAIT_S)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        own = json.loads((self.root / "out/own/val.bin.json").read_text(encoding="utf-8"))
        self.assertEqual(own["sources"][0]["name"], "README.md")

    def test_stopped_while_training_continue(self):
        process = self.start("--steps", 100000)
        self.wait_for(process, lambda: (self.out / "run/metrics.jsonl").exists() and self.metrics())
        said = self.stop(process)
        done = len(self.metrics())
        self.assertIn(f"stopped, saved at step {done}; continue with\n\n"
                      "  tools/demo --steps 100000\n", said)
        said = self.demo("--steps", done + 2)
        self.assertIn(f"checkpoint of step {done}\n", said)
        self.assertEqual([step["step"] for step in self.metrics()], list(range(1, done + 3)))

    def test_stopped_while_the_corpus_is_made_leave_nothing_half_done(self):
        with unittest.mock.patch.dict(os.environ, ALL_SOURCES="1"):  # which take a while
            process = self.start("--steps", 1)
        self.wait_for(process, lambda: list(self.out.glob(".corpus.partial-*")))
        self.assertIn("nothing is lost", self.stop(process))
        self.assertEqual(os.listdir(self.out), ["nvme"])
        self.demo("--steps", 1)

    @unittest.skipIf(FullDisk.unavailable(), FullDisk.unavailable())
    def test_on_a_disk_that_fills_up_continue_once_there_is_room(self):
        disk = FullDisk(64 * MIB)
        self.addCleanup(disk.close)
        out = disk.path / "demo"
        self.demo("--steps", 2, "--out", out)
        disk.fill()
        said = self.demo("--steps", 4, "--out", out, code=1)
        self.assertIn("What was trained to step 2 is saved. Then continue with\n\n"
                      f"  tools/demo --steps 4 --out {out}\n", said)
        disk.free()
        self.assertIn("checkpoint of step 2\n",
                      self.demo("--steps", 4, "--out", out))

    def test_killed_are_not_mixed_with_the_next(self):
        process = self.start("--steps", 100000)
        self.wait_for(process, lambda: (self.out / "run/metrics.jsonl").exists() and self.metrics())
        process.kill()
        process.wait()
        # The training continues alone, and keeps its folder locked.
        self.assertRegex(self.demo("--steps", 1, code=1), "(?s)sluice train .*exit code 2")
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and self.is_ours(folder):
                os.kill(int(folder.name), signal.SIGKILL)
        self.demo("--steps", 1)
        self.assertEqual(len(self.metrics()), 1)

    def is_ours(self, folder):
        try:
            return (os.readlink(folder / "cwd") == str(self.root) and
                    b"sluice" in (folder / "cmdline").read_bytes().split(b"\0")[0])
        except OSError:
            return False


if __name__ == "__main__":
    unittest.main()
