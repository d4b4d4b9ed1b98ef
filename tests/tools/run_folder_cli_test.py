"""A run's folder: its tokenizer, and what it keeps when it is moved.

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
        self.assertTrue((self.path / "old/checkpoints/step-000000001").is_dir())  # unchanged
        self.assertIn("different tokenizers",
                      self.sluice(*mixed, "--out", "a", "--any-tokenizer").stderr)
        self.sluice("train", "run.json", "--out", "b", *self.of("unknown", "data.validation"))
        self.refused("train", "run.json", "--out", "c", "--set",
                     'data.train=["bytes/train.bin", "other/train.bin"]')

    def test_are_compared_when_a_run_goes_on(self):
        self.sluice("train", "run.json", "--out", "a")
        on = ["train", "run.json", "--resume", "--steps", "2", "--out", "a"]
        self.assertIn("wrote a/checkpoints", self.refused(*on, *self.of("other")))
        kept = (self.path / "a/tokenizer/tokenizer.json").read_bytes()
        self.sluice(*on, *self.of("unknown"))
        on[4] = "3"
        told = self.sluice(*on, *self.of("other"), "--any-tokenizer").stderr
        self.assertIn("different tokenizers", told)
        # Only the fingerprint of that tokenizer is available.
        self.assertIn("keeps its tokenizer, bytes", told)
        self.assertEqual((self.path / "a/tokenizer/tokenizer.json").read_bytes(), kept)
        self.write("other/tokenizer.json", {"model": {"vocab": {"some": 0, "words": 1}}})
        on[4] = "4"
        told = self.sluice(*on, *self.of("other"), "--any-tokenizer").stderr
        self.assertIn("a/tokenizer-before-step-4", told)
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
        # The data had no sidecar, so the run takes the tokenizer of the weights.
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
        self.assertRegex(result, r"a/config\.json.*different models")
        self.assertNotIn("2 layers x 32", result)  # before any plan
        self.sluice(*words, *self.of("unknown"))
        self.assertTrue((self.path / "b/tokenizer/tokenizer.json").exists())

    def test_say_what_is_not_known_and_where_a_vocabulary_is_much_larger(self):
        told = self.sluice("train", "run.json", "--out", "a", *self.of("unknown")).stderr
        self.assertIn("tokenizer is not known", told)
        told = self.sluice("train", "run.json", "--out", "b", "--set", "model.vocab=5000").stderr
        self.assertIn("model.vocab=257", told)
        self.assertNotIn("model.vocab=257",
                         self.sluice("train", "run.json", "--out", "c").stderr)


@unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
class RunFolders(TokenData):
    """A run's folder is complete, wherever it is moved."""

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


def contents(folder):
    """The contents of each file below the folder, and the target of each link."""
    return {str(path.relative_to(folder)):
            os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
            for path in sorted(folder.rglob("*"))}


@unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
class Foreign(TokenData):
    """Folders that are not runs, and runs that were prepared by others."""

    def put(self, files):
        for name, text in files.items():
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).write_text(text, encoding="utf-8")

    def test_is_never_written_to_or_cleared(self):
        model = json.dumps({"model_type": "llama", "hidden_size": 32})
        self.put({"model/config.json": model, "model/tokenizer.json": "{}",
                  "model/trace.json": "{}", "model/tokenizer/vocab.json": "{}",
                  "model/model.safetensors": "weights", "adapter/adapter_config.json": "{}",
                  "adapter/tokenizer.json": "{}", "thesis/thesis.tex": "text",
                  "mine/config.json": (self.path / "run.json").read_text(encoding="utf-8")})
        for name, how in (("model", []), ("model", ["--overwrite"]), ("model", ["--resume"]),
                          ("adapter", ["--resume"]), ("thesis", ["--overwrite"]),
                          ("mine", ["--overwrite"])):
            before = contents(self.path / name)
            with self.subTest(folder=name, how=how):
                said = self.refused("train", "run.json", "--out", name, *how)
                self.assertIn(f"{name} is not a run", said)
                self.assertEqual(contents(self.path / name), before)

    def test_keeps_what_is_put_into_a_run(self):
        self.sluice("train", "run.json", "--out", "a")
        self.put({"a/notes.txt": "mine", "a/tokenizer.json": "mine", "a/metrics.jsonl.old": "mine"})
        self.sluice("train", "run.json", "--out", "a", "--overwrite", "--steps", "2")
        self.assertEqual(len(self.metrics("a")), 2)
        for name in ("notes.txt", "tokenizer.json", "metrics.jsonl.old"):
            self.assertEqual((self.path / "a" / name).read_text(encoding="utf-8"), "mine")
        # A run of an older version has no marker file.
        (self.path / "a/sluice-run.json").unlink()
        (self.path / "a/tokenizer.json").unlink()
        self.sluice("train", "run.json", "--out", "a", "--resume", "--steps", "3")
        self.assertEqual(len(self.metrics("a")), 3)
        # A model that was saved into the run's folder.
        self.put({"a/config.json": json.dumps({"model_type": "llama"})})
        before = contents(self.path / "a")
        self.refused("train", "run.json", "--out", "a", "--overwrite")
        self.refused("train", "run.json", "--out", "a", "--resume")
        self.assertEqual(contents(self.path / "a"), before)

    def test_begins_again_where_a_run_was_killed_as_it_began(self):
        self.put({f"a/{name}": "" for name in ("lock", "sluice-run.json", "sluice-run.json.new")})
        self.sluice("train", "run.json", "--out", "a", "--resume")
        self.assertEqual(len(self.metrics("a")), 1)

    def test_writes_and_removes_nothing_through_a_link(self):
        self.sluice("train", "run.json", "--out", "a", "--set", "run.checkpoint_every=1")
        theirs = self.path / "theirs"
        self.put({"theirs/.bashrc": "alias ls=ls\n", "theirs/tokenizer.json": "{}"})
        resume, overwrite = ["--resume", "--steps", "2"], ["--overwrite"]
        for name, target, how in (("events.jsonl", ".bashrc", resume), ("lock", ".bashrc", resume),
                                  ("config.json.new", "nowhere", overwrite),
                                  ("tokenizer", "", overwrite), ("checkpoints", "", resume)):
            run = self.path / f"run-{name}"
            shutil.copytree(self.path / "a", run)
            place = run / name
            if place.is_dir():
                shutil.rmtree(place)
            place.unlink(missing_ok=True)
            place.symlink_to(theirs / target)
            before = contents(theirs), contents(run)
            with self.subTest(link=name, how=how):
                said = self.refused("train", "run.json", "--out", run.name, *how)
                self.assertIn(f"{run.name}/{name} is a link", said)
                self.assertEqual((contents(theirs), contents(run)), before)
        # A hard link keeps its contents, too.
        (self.path / "a/events.jsonl").unlink()
        os.link(theirs / ".bashrc", self.path / "a/events.jsonl")
        self.sluice("train", "run.json", "--out", "a", "--resume", "--steps", "2")
        self.assertEqual((theirs / ".bashrc").read_text(encoding="utf-8"), "alias ls=ls\n")
        self.assertIn("begin", (self.path / "a/events.jsonl").read_text(encoding="utf-8"))

    def test_takes_a_run_by_a_link_to_its_folder(self):
        self.sluice("train", "run.json", "--out", "a")
        (self.path / "newest").symlink_to("a")
        self.sluice("train", "run.json", "--out", "newest", "--resume", "--steps", "2")
        self.assertEqual(len(self.metrics("a")), 2)


@unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
class Exports(TokenData):
    """Metadata of a model's folder is kept by a run and exported again."""

    def setUp(self):
        super().setUp()
        run = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        del run["bf16"]
        self.write("scratch.json", {**run, "model": {
            "preset": "custom", "family": "llama", "architecture": "qwen3", "layers": 1,
            "hidden": 32, "heads": 2, "context": 16, "vocab": 257, "ffn_multiplier": 2,
            "kv_heads": 2, "head_dim": 16}})
        self.sluice("train", "scratch.json", "--out", "scratch", *self.of("unknown"))
        self.assertIn("--base-name: it is empty",
                      self.refused("export", "scratch", "named", "--base-name", ""))
        self.assertIn("start from a model",
                      self.refused("export", "scratch", "named", "--base-name", "me/x"))
        self.sluice("export", "scratch", "model", "--dtype", "bf16")
        self.config = json.loads((self.path / "model/config.json").read_text(encoding="utf-8"))
        self.config.update(bos_token_id=5, eos_token_id=[7, 9], pad_token_id=3)
        self.write("model/config.json", self.config)
        (self.path / "model/generation_config.json").unlink()
        self.write("run.json", {**run, "model": {"path": "model"}})

    def exported(self, run, name, *more):
        shown = self.sluice("export", run, name, *more).stdout
        return json.loads((self.path / name / "config.json").read_text(encoding="utf-8")), shown

    def test_keep_the_tokens_and_the_type_of_a_model_without_a_tokenizer(self):
        for data, ends in (("unknown", [7, 9]), ("bytes", [7, 9, 256])):
            self.sluice("train", "run.json", "--out", f"of-{data}", *self.of(data))
            config, shown = self.exported(f"of-{data}", f"{data}-out")
            self.assertEqual([config[key] for key in ("bos_token_id", "eos_token_id",
                                                      "pad_token_id")], [5, ends, 3])
            self.assertEqual(config["dtype"], "bfloat16")
            self.assertIn(" as bf16, ", shown)
        config, shown = self.exported("of-unknown", "wide", "--dtype", "fp32")
        self.assertEqual(config["dtype"], "float32")
        # A run that began with random numbers has no type to keep.
        self.assertEqual(self.exported("scratch", "again")[0]["dtype"], "float32")
        self.sluice("import", "model", "imported")
        self.assertEqual(self.exported("imported", "back")[0]["dtype"], "bfloat16")

    def test_call_a_model_what_transformers_calls_it(self):
        self.sluice("train", "run.json", "--out", "a", *self.of("unknown"))
        self.exported("a", "a-out")
        card = (self.path / "a-out/README.md").read_text(encoding="utf-8")
        self.assertIn('- "qwen3"', card)
        self.assertIn("of the qwen3 family", card)
        self.assertNotIn("llama", card)

    def test_name_the_base_of_adapters_and_take_patterns_of_their_products(self):
        lora = ["--set", "recipe.lora.rank=2", *self.of("unknown")]
        targets = ["--set", 'recipe.lora.targets=["q_proj", "v_proj"]']
        self.sluice("train", "run.json", "--out", "a", *lora, *targets)
        self.sluice("export", "a", "adapter")
        path = self.path / "adapter/adapter_config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        self.assertEqual(config["base_model_name_or_path"], "model")
        self.sluice("export", "a", "named", "--base-name", "me/base")
        named = json.loads((self.path / "named/adapter_config.json").read_text(encoding="utf-8"))
        self.assertEqual(named["base_model_name_or_path"], "me/base")
        self.assertIn('base_model: "me/base"',
                      (self.path / "named/README.md").read_text(encoding="utf-8"))
        for pattern in (r".*\.self_attn\.(q|v)_proj",
                        ["model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj"]):
            path.write_text(json.dumps({**config, "target_modules": pattern}), encoding="utf-8")
            self.sluice("train", "run.json", "--out", "b", "--overwrite", "--set",
                        "recipe.lora.adapter=adapter", *self.of("unknown"))
            kept = json.loads((self.path / "b/config.json").read_text(encoding="utf-8"))
            self.assertEqual(kept["recipe"]["lora"]["targets"], ["q_proj", "v_proj"])
        # The hub's name of the base, if its folder has one, but not that of a model from which the
        # folder's model was fine-tuned.
        for run, said, named in (("c", "Qwen/model", "Qwen/model"),
                                 ("d", "Qwen/Qwen3-tiny", "model")):
            self.write("model/config.json", {**self.config, "_name_or_path": said})
            self.sluice("train", "run.json", "--out", run, *lora)
            self.sluice("export", run, f"adapter-{run}")
            text = (self.path / f"adapter-{run}/adapter_config.json").read_text(encoding="utf-8")
            self.assertEqual(json.loads(text)["base_model_name_or_path"], named)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
