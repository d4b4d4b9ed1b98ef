"""DeepSpeed files from real projects, unchanged: every key is reported, and they train.

The program is the environment's SLUICE; the files are those of tests/engine/config/.
"""

import json
import sys
import unittest
from pathlib import Path

from sluice_runs import SluiceRuns

FILES = sorted((Path(__file__).resolve().parents[1] / "engine/config/data/deepspeed")
               .glob("*.json"))


# Apex AMP is refused, so a user has to switch it off.
WITHOUT_AMP = ("--set", "amp.enabled=false")


def leaves(section, prefix=""):
    """The paths of all values in a file."""
    for word, value in section.items():
        path = prefix + word
        if isinstance(value, dict) and value:
            yield from leaves(value, path + ".")
        else:
            yield path


class DeepSpeedFiles(SluiceRuns):
    def test_there_are_some(self):
        self.assertEqual(len(FILES), 4)

    def test_every_key_is_told_about(self):
        for file in FILES:
            shown = self.sluice("config", "--deepspeed", file, *WITHOUT_AMP).stdout
            words = set(shown.split())
            for path in leaves(json.loads(file.read_text(encoding="utf-8"))):
                with self.subTest(file=file.name, path=path):
                    parts = path.split(".")
                    itself_or_section = {".".join(parts[:n + 1]) for n in range(len(parts))}
                    self.assertTrue(itself_or_section & words, shown)

    def test_comments_trailing_commas_and_bare_keys_change_nothing(self):
        for file in FILES:
            with self.subTest(file=file.name):
                text = file.read_text(encoding="utf-8").rstrip()
                self.assertTrue(text.endswith("\n}"))
                text = text[:-1] + ', # "x": 1\n}'
                lines = [line + "  # {" if number % 3 else "/* , */" + line + " // }"
                         for number, line in enumerate(text.splitlines())]
                relaxed = "\n".join(lines).replace('"optimizer":', "optimizer :")
                written = self.path / "relaxed.json"
                written.write_text(relaxed, encoding="utf-8")
                with self.assertRaises(ValueError):
                    json.loads(relaxed)
                self.assertEqual(
                    self.sluice("config", "--json", "--deepspeed", written, *WITHOUT_AMP).stdout,
                    self.sluice("config", "--json", "--deepspeed", file, *WITHOUT_AMP).stdout)

    def test_they_train_as_they_are(self):
        self.tokens("train.bin", 20000, seed=5)
        for file in FILES:
            with self.subTest(file=file.name):
                out = self.path / file.stem
                self.sluice(
                    "train", "--deepspeed", file, "--out", out, "--steps", "3",
                    "--set", "model.preset=custom", "--set", "model.layers=2",
                    "--set", "model.hidden=32", "--set", "model.heads=2",
                    "--set", "model.context=16", "--set", "model.vocab=64",
                    "--set", f'data.train=["{self.path / "train.bin"}"]',
                    "--set", "data.dtype=uint16", "--set", "run.device=cpu",
                    "--set", "run.cpu_threads=1", *WITHOUT_AMP,
                    "--set", f'tensorboard.output_path={self.path / "events"}',
                    "--set", f'budget.nvme_paths=["{self.path / "nvme"}"]')
                steps = self.metrics(file.stem)
                self.assertEqual(len(steps), 3)
                self.assertLess(abs(steps[0]["loss"] - 4.16), 0.4)  # ln(64): untrained
                # The third step waits for the second one's update, which waits for the first one's
                # writes. So those are counted, even on a slow drive.
                on_nvme = any(step["nvme_write_bytes"] for step in steps)
                self.assertEqual(on_nvme, "nvme" in file.stem)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
