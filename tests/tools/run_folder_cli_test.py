"""A run's folder from outside: its tokenizer, and what it takes along when it is moved.

SLUICE is the program; SLUICE_HAS_ENGINE=1 when it was built with LibTorch.
"""

import json
import os
import shutil
import subprocess
import sys
import unittest

from sluice_program import HAS_ENGINE, SLUICE, TokenData


class Tokenizers(TokenData):
    def test_are_compared_between_training_and_validation(self):
        self.sluice("train", "run.json", "--out", "old")
        mixed = ["train", "run.json", *self.of("other", "data.validation")]
        said = self.refused(*mixed, "--out", "old", "--overwrite")
        self.assertIn("data.validation", said)
        self.assertIn("--any-tokenizer", said)
        self.assertTrue((self.path / "old/checkpoints/step-000000001").is_dir())  # nothing is lost
        self.assertIn("different tokenizers",
                      self.sluice(*mixed, "--out", "a", "--any-tokenizer").stderr)
        self.sluice("train", "run.json", "--out", "b", *self.of("unknown", "data.validation"))
        self.refused("train", "run.json", "--out", "c", "--set",
                     'data.train=["bytes/train.bin", "other/train.bin"]')

    def test_are_compared_when_a_run_goes_on(self):
        self.sluice("train", "run.json", "--out", "a")
        on = ["train", "run.json", "--resume", "--steps", "2", "--out", "a"]
        self.assertIn("the run that wrote a/checkpoints", self.refused(*on, *self.of("other")))
        kept = (self.path / "a/tokenizer/tokenizer.json").read_bytes()
        self.sluice(*on, *self.of("unknown"))
        on[4] = "3"
        told = self.sluice(*on, *self.of("other"), "--any-tokenizer").stderr
        self.assertIn("different tokenizers", told)
        # Of that one there is nothing but its fingerprint.
        self.assertIn("the run keeps its tokenizer, bytes", told)
        self.assertEqual((self.path / "a/tokenizer/tokenizer.json").read_bytes(), kept)
        self.write("other/tokenizer.json", {"model": {"vocab": {"some": 0, "words": 1}}})
        on[4] = "4"
        told = self.sluice(*on, *self.of("other"), "--any-tokenizer").stderr
        self.assertIn("the one before it is in a/tokenizer-before-step-4", told)
        self.assertEqual((self.path / "a/tokenizer-before-step-4/tokenizer.json").read_bytes(),
                         kept)
        self.assertEqual((self.path / "a/tokenizer/tokenizer.json").read_bytes(),
                         (self.path / "other/tokenizer.json").read_bytes())

    def test_are_compared_with_the_weights_that_are_begun_with_or_evaluated(self):
        self.sluice("train", "run.json", "--out", "a", "--save-weights", "a/w.safetensors")
        for command in (["train", "run.json", "--out", "b", "--init-from", "a/w.safetensors"],
                        ["eval", "run.json", "--weights", "a/w.safetensors"]):
            with self.subTest(command=command[0]):
                self.assertIn("different tokenizers", self.refused(*command, *self.of("other")))
                self.sluice(*command, *self.of("unknown"))
        self.sluice("eval", "run.json", "--weights", "a/w.safetensors", *self.of("other"),
                    "--any-tokenizer")
        # The data had no sidecar: what is known of the weights is known of the run.
        self.assertEqual((self.path / "b/tokenizer/tokenizer.json").read_bytes(),
                         (self.path / "a/tokenizer/tokenizer.json").read_bytes())
        self.assertEqual(json.loads((self.path / "b/tokenizer/generation_config.json").read_text()),
                         {"bos_token_id": 256, "eos_token_id": 256})

    def test_are_compared_where_a_run_that_was_to_go_on_begins(self):
        self.sluice("train", "run.json", "--out", "a", "--save-weights", "a/w.safetensors")
        words = ["train", "run.json", "--out", "b", "--resume", "--set",
                 "model.init_from=a/w.safetensors"]
        said = self.refused(*words, *self.of("other"))
        self.assertIn("different tokenizers", said)
        result = self.sluice(*words, "--set", "model.layers=2", code=2).stderr
        self.assertIn("a/config.json describes another model", result)
        self.assertNotIn("2 layers x 32", result)  # before any plan
        self.sluice(*words, *self.of("unknown"))
        self.assertTrue((self.path / "b/tokenizer/tokenizer.json").exists())

    def test_say_what_is_not_known_and_where_a_vocabulary_is_much_larger(self):
        told = self.sluice("train", "run.json", "--out", "a", *self.of("unknown")).stderr
        self.assertIn("the data's tokenizer is not known", told)
        told = self.sluice("train", "run.json", "--out", "b", "--set", "model.vocab=5000").stderr
        self.assertIn("model.vocab=257", told)
        self.assertNotIn("model.vocab=257",
                         self.sluice("train", "run.json", "--out", "c").stderr)


@unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
class RunFolders(TokenData):
    """A run's folder is whole by itself, wherever it lies."""

    def test_goes_on_in_the_folder_that_it_was_moved_or_copied_to(self):
        self.sluice("train", "run.json", "--out", "a", "--set", "run.checkpoint_every=1")
        kept = json.loads((self.path / "a/config.json").read_text(encoding="utf-8"))
        self.assertEqual(kept["run"]["dir"], "")
        self.assertEqual(kept["data"]["train"], [str(self.path / "bytes/train.bin")])
        shutil.copytree(self.path / "a", self.path / "elsewhere/copy")
        before = sorted(os.listdir(self.path / "a/checkpoints"))
        told = subprocess.run([SLUICE, "train", "copy/config.json", "--resume", "--steps", "2"],
                              cwd=self.path / "elsewhere", check=False, capture_output=True,
                              text=True, timeout=240)
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertEqual(sorted(os.listdir(self.path / "a/checkpoints")), before)
        self.assertIn("step-000000002", os.listdir(self.path / "elsewhere/copy/checkpoints"))

    def test_goes_on_with_the_data_in_its_folder_before_its_first_checkpoint_too(self):
        self.sluice("train", "run.json", "--out", "a", "--steps", "1", "--set",
                    "run.checkpoint_at_end=false", "--set", "run.checkpoint_minutes=0")
        self.assertNotIn("checkpoints", os.listdir(self.path / "a"))
        shutil.copytree(self.path / "bytes", self.path / "a/data")
        self.sluice("train", "a/config.json", "--resume", "--set",
                    'data.train=["a/data/train.bin"]', "--steps", "1", "--set",
                    "run.checkpoint_at_end=true")
        kept = json.loads((self.path / "a/config.json").read_text(encoding="utf-8"))
        self.assertEqual(kept["data"]["train"], ["data/train.bin"])
        (self.path / "a").rename(self.path / "moved")
        shutil.rmtree(self.path / "bytes")
        self.sluice("train", "moved/config.json", "--resume", "--steps", "2")
        self.assertEqual(len(self.metrics("moved")), 2)

    def test_generates_and_exports_without_its_data(self):
        self.sluice("train", "run.json", "--out", "a")
        words = ["--prompt", "some", "--tokens", "5", "--temperature", "0"]
        text = self.sluice("generate", "a", *words).stdout
        (self.path / "bytes/train.bin.json").unlink()
        (self.path / "a").rename(self.path / "moved")
        self.assertEqual(self.sluice("generate", "moved", *words).stdout, text)
        shown = self.sluice("export", "moved", "out").stdout
        self.assertIn("tokenizer: bytes", shown)
        self.assertEqual(json.loads((self.path / "out/generation_config.json").read_text()),
                         {"bos_token_id": 256, "eos_token_id": 256})
        shutil.rmtree(self.path / "moved/tokenizer")
        told = self.sluice("export", "moved", "bare").stderr
        self.assertIn("--tokenizer FILE", told)
        self.assertNotIn("tokenizer.json", os.listdir(self.path / "bare"))
        self.sluice("export", "moved", "named", "--tokenizer", "bytes")
        self.assertIn("tokenizer.json", os.listdir(self.path / "named"))
        self.assertIn("--tokenizer FILE", self.refused("generate", "moved", *words))

    def test_a_copied_configuration_names_no_folder(self):
        self.sluice("train", "run.json", "--out", "a")
        shutil.copy(self.path / "a/config.json", self.path / "mine.json")
        self.assertIn("--out", self.refused("train", "mine.json"))
        self.sluice("train", "mine.json", "--out", "b")

    def test_overwriting_removes_the_tokenizer_of_the_run_before(self):
        self.sluice("train", "run.json", "--out", "a")
        self.assertTrue((self.path / "a/tokenizer/tokenizer.json").exists())
        (self.path / "a/tokenizer/diary.txt").write_text("dear diary", encoding="ascii")
        self.sluice("train", "run.json", "--out", "a", "--overwrite", *self.of("unknown"))
        self.assertEqual(os.listdir(self.path / "a/tokenizer"), ["diary.txt"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
