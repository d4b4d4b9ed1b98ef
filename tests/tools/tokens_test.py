"""tools/tokens: text as tokens come never ends within a character, and nothing is lost."""

import importlib.util
import random
import sys
import unittest
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
    """A tokenizer whose tokens are bytes; the tokens from 256 on are two, among them halves of
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


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
