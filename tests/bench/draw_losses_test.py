#!/usr/bin/env python3
"""bench/draw_losses: what it reads, says and refuses."""

import json
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent.parent / "bench"


class DrawLosses(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_of(self, name, losses, more=""):
        lines = [json.dumps({"step": step, "loss": loss}) for step, loss in losses]
        path = self.folder / f"{name}.jsonl"
        path.write_text("\n".join(lines) + "\n" + more, encoding="utf-8")
        return f"{name}={path}"

    def draw(self, *runs, code=0):
        done = subprocess.run([sys.executable, "-B", str(BENCH / "draw_losses"), *runs, "-o",
                               str(self.folder / "out.svg")], capture_output=True, text=True,
                              timeout=60, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def test_says_how_far_runs_are_apart(self):
        one = self.run_of("one", [(step, 4.0) for step in range(1, 21)])
        # Step 7 was made twice; the last line was cut off; one step has no loss.
        two = self.run_of("two", [(7, 9.0), *((step, 4.0 + step / 100) for step in range(1, 21))],
                          '{"step": 21, "loss": null}\n{"step": 22, "lo')
        said = self.draw(one, two).stdout
        self.assertIn("one: 4.0000", said)
        self.assertRegex(said, r"two: 4\.1950.*0\.2000 from one\n")
        picture = (self.folder / "out.svg").read_text(encoding="utf-8")
        xml.etree.ElementTree.fromstring(picture)
        self.assertIn("two - one", picture)

    def test_refuses_what_is_no_run(self):
        one = self.run_of("one", [(1, 4.0)])
        self.assertIn("NAME=METRICS", self.draw("one", code=2).stderr)
        self.assertIn("that exists", self.draw("one=nowhere.jsonl", code=2).stderr)
        self.assertIn("at most 4", self.draw(*[one] * 5, code=2).stderr)
        empty = self.run_of("empty", [])
        self.assertIn("no run", self.draw(empty, code=1).stderr)


if __name__ == "__main__":
    unittest.main()
