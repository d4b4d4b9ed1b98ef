"""Shared by tests of tools/prepare."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from array import array
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent.parent / "tools"
sys.dont_write_bytecode = True
sys.path.insert(0, str(TOOLS))

END = 256  # the end token of the byte tokenizer


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
        """stderr of a run that has to succeed; without validation data unless the arguments ask for
        it."""
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
        """The texts in a file of byte tokens."""
        raw = (self.out / name).read_bytes()
        low, high = raw[0::2], raw[1::2]
        found, begin = [], 0
        while begin < len(high):
            end = high.index(1, begin)  # 256; fails if the last document has no end
            self.assertEqual(low[end], END - 256)
            found.append(low[begin:end].decode())
            begin = end + 1
        return found

    def assert_only(self, *names):
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(names))


def random_text(seed, length):
    """Words and lines, with characters of one to four bytes."""
    draw = random.Random(seed)
    words = ["the", "of", "weight", "strömt", "über", "NVMe", "流れ", "🌊", "\t", "x = 1\n",
             "\n\n"]
    return " ".join(draw.choice(words) for _ in range(length))
