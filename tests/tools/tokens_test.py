"""tools/tokens: streamed text never ends within a character, and no text is lost."""

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
from importlib.machinery import SourceFileLoader
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools/tokens"


def tool():
    sys.path.append(str(TOOL.parent))
    loader = SourceFileLoader("tokens", str(TOOL))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("tokens", loader))
    loader.exec_module(module)
    return module


def decode(ids):
    """A tokenizer whose tokens are bytes; tokens from 256 on are two bytes, some with halves of
    characters."""
    raw = bytearray()
    for token in ids:
        raw += bytes([token]) if token < 256 else bytes([token % 256, 0xA6])
    return raw.decode(errors="replace")


class Decoder(unittest.TestCase):
    def setUp(self):
        self.decoder = tool().Decoder(decode)

    def pieces(self, ids):
        return [self.decoder.next(token) for token in ids] + [self.decoder.end()]

    def test_gives_a_character_with_its_last_token(self):
        self.assertEqual(self.pieces("aé🦆".encode()), ["a", "", "é", "", "", "", "🦆", ""])
        self.assertEqual(self.pieces([0xF0, 0x9F + 256, 0x86]), ["", "", "🦆", ""])

    def test_goes_on_from_the_tokens_before(self):
        self.decoder.begin(list("Grüße".encode()))
        self.assertEqual(self.pieces("é".encode()), ["", "é", ""])

    def test_shows_what_is_no_character_once_that_is_sure(self):
        self.assertEqual(self.pieces([0xFF, 0x41]), ["", "\ufffdA", ""])
        self.assertEqual(self.pieces([0xE2, 0x82]), ["", "", "\ufffd"])
        self.assertEqual("".join(self.pieces([0xFF] * 500)), "\ufffd" * 500)

    def test_pieces_are_the_whole_text_whatever_the_tokens_are(self):
        draw = random.Random(3)
        for _ in range(300):
            text = "".join(draw.choice("aé€🦆 ") for _ in range(20)).encode()
            ids = [token if draw.random() > 0.05 else draw.randrange(512) for token in text]
            self.assertEqual("".join(self.pieces(ids)), decode(ids), ids)


BUSY_S = 2  # less than the 10 s that bounds.py allows
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
# Starts tools/tokens like `sluice generate`, sends a request that takes long, and prints its pid.
PARENT = """
import json, socket, subprocess, sys, time
here, there = socket.socketpair()
child = subprocess.Popen([*sys.argv[1:], "--reply-fd", "0"], stdin=there)
here.sendall(b'{"chat": [{"role": "user", "content": "a"}]}\\n')
print(child.pid, flush=True)
time.sleep(60)
"""


class Ends(unittest.TestCase):
    def setUp(self):
        sys.path.append(str(TOOL.parent))
        import tool_packages
        from toolbox import Failure
        try:
            packages = tool_packages.folder_with(["tokenizers", "jinja2", "markupsafe"])
        except Failure as failure:
            self.skipTest(str(failure))
        sys.path.append(str(packages))
        folder = tempfile.TemporaryDirectory(prefix="sluice-tokens-test-")
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name)
        (self.path / "tokenizer.json").write_text(json.dumps({
            "version": "1.0", "added_tokens": [],
            "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0}}}))
        (self.path / "chat_template.jinja").write_text(ENDLESS)
        self.words = [sys.executable, "-B", str(TOOL), str(self.path / "tokenizer.json"), "--chat"]

    def test_ends_with_its_parent_though_a_template_does_not(self):
        for end in (signal.SIGKILL, signal.SIGINT):
            with subprocess.Popen([sys.executable, "-c", PARENT, *self.words],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                  text=True) as parent:
                child = int(parent.stdout.readline())
                busy = self.is_busy(child)
                parent.send_signal(end)
            gone = self.is_gone(child)
            self.assertTrue(busy)
            self.assertTrue(gone)

    def is_busy(self, process):
        """Stops it after it has used more CPU time than its start takes."""
        for _ in range(1200):
            used_s = self.used_s(process)
            if used_s is None or used_s > BUSY_S:
                return used_s is not None
            time.sleep(0.05)
        return False

    def is_gone(self, process):
        """It ends before the bound on templates would end it. That bound is on CPU time, so a slow
        machine has as long as it needs."""
        for _ in range(600):
            used_s = self.used_s(process)
            if used_s is None:
                return True
            if used_s > BUSY_S + 3:
                break
            time.sleep(0.05)
        os.kill(process, signal.SIGKILL)
        return False

    def used_s(self, process):
        """Its CPU time so far; None once it has ended."""
        try:
            fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if fields[2] == "Z" else int(fields[13]) / os.sysconf("SC_CLK_TCK")

    def test_answers_that_a_template_does_not_end(self):
        from corpus import bounds
        from toolbox import Failure
        chat = tool().Chat(str(self.path / "tokenizer.json"), None)
        with unittest.mock.patch.object(bounds, "MOST_CPU_S", 0.2), \
                self.assertRaisesRegex(Failure, "exceeds a bound: it takes more than"):
            chat.ids([{"role": "user", "content": "a"}])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
