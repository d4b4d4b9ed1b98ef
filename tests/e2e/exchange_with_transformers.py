"""Whole models are exported to Hugging Face folders and imported from them, with the same meaning.

The program is the environment's SLUICE.
"""

import json
import subprocess
import sys
import unittest

import torch

from exchange_models import Exchange, LENGTH, PREPARE, SHAPE, loaded, stirred
from reference_gpt import MISSING, make_model, mean_loss

if not MISSING:
    from safetensors.torch import load_file
    from transformers import AutoTokenizer, GPT2LMHeadModel, PreTrainedTokenizerFast


class Export(Exchange):
    def setUp(self):
        super().setUp()
        self.config = self.run_file(self.path / "text.bin")
        self.sluice("train", self.config, "--out", self.path / "run")

    def export(self, name, *arguments):
        self.sluice("export", self.path / "run", self.path / name, *arguments)
        return self.path / name

    def test_is_the_model_that_sluice_evaluates_in_each_dtype(self):
        losses = {}
        for dtype, bits in (("fp32", torch.float32), ("bf16", torch.bfloat16),
                            ("fp16", torch.float16)):
            with self.subTest(dtype=dtype):
                folder = self.export(dtype, "--dtype", dtype)
                model = loaded(folder)
                self.assertEqual(model.dtype, bits)
                losses[dtype] = mean_loss(model, self.text, LENGTH)
                self.assertLess(losses[dtype], 4.5)  # it learnt: ln(193) is 5.3
                self.assert_close(self.evaluate(folder, self.config), losses[dtype], 1e-5)
        self.assertEqual(len(set(losses.values())), 3)
        told = self.sluice("export", self.path / "run", self.path / "again").stderr
        self.assertIn("has no tokenizer", told)
        self.assertIn("--tokenizer FILE", told)

    def test_in_several_files_is_the_same_model(self):
        whole = loaded(self.export("whole")).state_dict()
        folder = self.export("parts", "--max-shard-size", "40K")
        self.assertGreater(len(list(folder.glob("model-*.safetensors"))), 2)
        parts = loaded(folder).state_dict()
        self.assertEqual(set(whole), set(parts))
        for name, value in whole.items():
            self.assertTrue(torch.equal(value, parts[name]), name)

    def test_takes_the_checkpoint_that_is_named(self):
        self.sluice("train", self.config, "--out", self.path / "run", "--resume", "--steps", "20")
        newest = self.export("newest")
        for name, arguments in (("number", ("--checkpoint", "10")),
                                ("name", ("--checkpoint", "step-000000010"))):
            named = self.export(name, *arguments)
            self.assertNotEqual((named / "model.safetensors").read_bytes(),
                                (newest / "model.safetensors").read_bytes())
        checkpoint = self.path / "run/checkpoints/step-000000010"
        self.sluice("export", checkpoint, self.path / "folder")
        self.assertEqual((self.path / "folder/model.safetensors").read_bytes(),
                         (self.path / "name/model.safetensors").read_bytes())
        self.assertIn("step-000000020", self.refused("export", self.path / "run",
                                                     self.path / "none", "--checkpoint", "7"))
        self.assertIn("no effect", self.refused("export", checkpoint, self.path / "none",
                                                 "--checkpoint", "10"))
        self.assertFalse((self.path / "none").exists())

    def test_refuses_a_folder_that_is_not_empty(self):
        (self.path / "used").mkdir()
        (self.path / "used/diary.txt").write_text("dear diary", encoding="ascii")
        self.assertIn("not empty", self.refused("export", self.path / "run", self.path / "used"))
        self.assertEqual([file.name for file in (self.path / "used").iterdir()], ["diary.txt"])

    def test_refuses_a_damaged_checkpoint_and_leaves_nothing(self):
        master = next((self.path / "run/checkpoints/step-000000010").glob("master-*"))
        content = bytearray(master.read_bytes())
        content[len(content) // 2] ^= 1
        master.write_bytes(content)
        self.assertIn(master.name, self.refused("export", self.path / "run",
                                                self.path / "out", code=1))
        self.assertFalse((self.path / "out").exists())


class Tokenizers(Exchange):
    def prepared(self, *arguments):
        """A run of one step on text that tools/prepare tokenized; returns its export's
        tokenizer."""
        text = self.path / "book.txt"
        text.write_text("Grüße an alle Köche: das Öl ist heiß. " * 400, encoding="utf-8")
        subprocess.run([PREPARE, text, "--out", self.path / "data", *arguments], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        about = json.loads((self.path / "data/train.bin.json").read_text(encoding="utf-8"))
        self.sluice("train", self.run_file(self.path / "data/train.bin",
                                           vocab=about["vocab_size"]),
                    "--out", self.path / "run", "--steps", "1")
        self.sluice("export", self.path / "run", self.path / "exported")
        config = loaded(self.path / "exported").config
        self.assertEqual(config.eos_token_id, about["tokenizer"]["end_of_text"])
        return AutoTokenizer.from_pretrained(self.path / "exported")

    def check(self, tokenizer):
        text = "Grüße\n an  alle <|endoftext|> 🦆"
        ids = tokenizer.encode(text, split_special_tokens=True)
        self.assertEqual(tokenizer.decode(ids), text)
        self.assertEqual(tokenizer.eos_token, "<|endoftext|>")
        return text, ids

    def test_bytes_are_their_own_numbers(self):
        tokenizer = self.prepared()
        text, ids = self.check(tokenizer)
        self.assertEqual(ids, list(text.encode()))
        self.assertEqual(tokenizer.convert_tokens_to_ids("<|endoftext|>"), 256)
        self.assertEqual(tokenizer.decode(range(32, 127)), bytes(range(32, 127)).decode())

    def test_the_one_beside_the_token_files_goes_along(self):
        self.check(self.prepared("--tokenizer", "bpe", "--vocab-size", "300"))


    def test_a_run_that_was_moved_has_all_that_it_needs(self):
        self.prepared("--tokenizer", "bpe", "--vocab-size", "300")
        words = ("--prompt", "Grüße", "--temperature", "0", "--tokens", "5")
        before = self.sluice("generate", self.path / "run", *words).stdout
        (self.path / "moved").mkdir()
        (self.path / "run").rename(self.path / "moved/run")
        for left in (self.path / "data").iterdir():
            left.unlink()
        run = self.path / "moved/run"
        self.assertEqual(self.sluice("generate", run, *words).stdout, before)
        self.sluice("export", run, self.path / "again")
        for name in ("config.json", "generation_config.json", "tokenizer.json",
                     "tokenizer_config.json"):
            self.assertEqual((self.path / "again" / name).read_bytes(),
                             (self.path / "exported" / name).read_bytes())

    def test_a_tokenizer_that_transformers_saved_again_is_still_the_datas(self):
        self.prepared("--tokenizer", "bpe", "--vocab-size", "300")
        folder = self.path / "hub"
        make_model({**SHAPE, "vocab": 300}, seed=6).save_pretrained(folder)
        PreTrainedTokenizerFast(tokenizer_file=str(self.path / "data/tokenizer.json"),
                                eos_token="<|endoftext|>").save_pretrained(folder)
        self.assertNotEqual((folder / "tokenizer.json").read_bytes(),
                            (self.path / "data/tokenizer.json").read_bytes())
        (self.path / "data/tokenizer.json").unlink()  # only the fingerprint in the sidecar is left
        self.imported("imported", "hub")
        words = ("--resume", "--steps", "1", "--set", f"data.train=[\"{self.path}/data/train.bin\"]",
                 "--set", "run.device=cpu", "--set", "bf16.enabled=false")
        self.sluice("train", self.path / "imported/config.json", *words)
        text = self.path / "book.txt"
        subprocess.run([PREPARE, text, "--out", self.path / "bytes"], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        words = (*words, "--set", f"data.train=[\"{self.path}/bytes/train.bin\"]")
        said = self.refused("train", self.path / "imported/config.json", *words)
        self.assertIn("different tokenizers", said)
        self.assertIn("--any-tokenizer", said)


class Import(Exchange):
    def test_has_transformers_loss_and_bytes_in_every_form(self):
        model = stirred(SHAPE, seed=6)
        for name, dtype, options in (("fp32", torch.float32, {}),
                                     ("shards", torch.float32, {"max_shard_size": "60KB"}),
                                     ("bf16", torch.bfloat16, {}), ("fp16", torch.float16, {})):
            with self.subTest(form=name):
                model.to(dtype).save_pretrained(self.path / name, **options)
                run = self.imported(f"run-{name}", name)
                self.sluice("export", run, self.path / f"back-{name}")
                back = loaded(self.path / f"back-{name}").state_dict()
                for key, value in loaded(self.path / name).state_dict().items():
                    self.assertTrue(torch.equal(value.float(), back[key]), key)
                expected = mean_loss(loaded(self.path / name), self.text, LENGTH)
                config = self.run_file(self.path / "text.bin")
                self.assert_close(self.evaluate(self.path / f"back-{name}", config), expected,
                                  1e-5)

    def test_knows_names_without_the_prefix_and_other_sizes_of_the_feed_forward(self):
        model = make_model(SHAPE, seed=3)
        model.config.n_inner = 80
        model = GPT2LMHeadModel(model.config)
        model.transformer.save_pretrained(self.path / "theirs")
        self.assertIn("wte.weight", load_file(self.path / "theirs/model.safetensors"))
        self.sluice("export", self.imported(), self.path / "back")
        back = loaded(self.path / "back")
        self.assertEqual(back.config.n_inner, 80)
        self.assertTrue(torch.equal(back.transformer.h[1].mlp.c_proj.weight,
                                    model.transformer.h[1].mlp.c_proj.weight))

    def test_a_run_begins_with_it(self):
        model = stirred(SHAPE, seed=6)
        model.save_pretrained(self.path / "theirs")
        run = self.imported()
        text = self.tokens("window.bin", LENGTH + 1, seed=2)  # one sample
        words = ("train", run / "config.json", "--out", run, "--resume", "--steps", "1",
                 "--set", f'data.train=["{self.path / "window.bin"}"]',
                 "--set", "data.dtype=uint16", "--set", f"data.sequence_length={LENGTH}",
                 "--set", "data.validation_fraction=0",
                 "--set", "run.device=cpu", "--set", "model.dropout=0", "--set", "run.seed=5")
        self.sluice(*words, "--set", "bf16.enabled=false")
        expected = mean_loss(model, text, LENGTH)
        self.assert_close(self.metrics("run")[0]["loss"], expected, 1e-5)
        self.assertTrue((run / "checkpoints/step-000000001").is_dir())
        other = self.refused(*words, "--set", "model.heads=2")
        self.assertIn("heads", other)

    def test_refuses_other_architectures_with_what_is_different(self):
        make_model(SHAPE, seed=6).save_pretrained(self.path / "theirs")
        file = self.path / "theirs/config.json"
        config = json.loads(file.read_text(encoding="utf-8"))
        for key, value in (("model_type", "bert"), ("activation_function", "quick_gelu"),
                           ("add_cross_attention", True), ("tie_word_embeddings", None),
                           ("quantization_config", {"bits": 4})):
            with self.subTest(key=key):
                file.write_text(json.dumps({**config, key: value}), encoding="utf-8")
                said = self.refused("import", self.path / "theirs", self.path / "run")
                text = json.dumps(value, separators=(",", ":"))
                self.assertIn(f'"{key}" is {text}', said)
                self.assertFalse((self.path / "run").exists())
        file.write_text(json.dumps({**config, "n_layer": 3}), encoding="utf-8")
        self.assertIn("h.2.", self.refused("import", self.path / "theirs", self.path / "run"))
        self.assertFalse((self.path / "run").exists())


class Described(Exchange):
    """Weights of another model, according to their folder, are refused."""

    OTHERS = {"relu": {"activation_function": "relu"}, "epsilon": {"layer_norm_epsilon": 1e-3},
              "untied": {"tie_word_embeddings": False},
              "inverse": {"scale_attn_by_inverse_layer_idx": True},
              "unscaled": {"scale_attn_weights": False}, "heads": {"n_head": 2}}

    def other(self, name, changes):
        config = make_model(SHAPE, seed=6).config
        for key, value in changes.items():
            setattr(config, key, value)
        torch.manual_seed(6)
        GPT2LMHeadModel(config).save_pretrained(self.path / name)

    def refusals(self, weights):
        config = self.run_file(self.path / "text.bin")
        yield self.refused("eval", config, "--weights", weights, "--data", self.path / "text.bin",
                           "--set", "data.dtype=uint16")
        yield self.refused("train", config, "--out", self.path / "out", "--init-from", weights)
        self.assertFalse((self.path / "out").exists())

    def test_other_models_are_refused_by_eval_and_train(self):
        for name, changes in self.OTHERS.items():
            self.other(name, changes)
            for weights in (self.path / name, self.path / name / "model.safetensors"):
                for said in self.refusals(weights):
                    with self.subTest(name=name, weights=weights, said=said):
                        self.assertIn(f"{name}/config.json", said)
                        self.assertIn(next(iter(changes)), said)

    def test_a_head_of_its_own_is_refused_in_a_bare_file_too(self):
        self.other("untied", self.OTHERS["untied"])
        whole = self.path / "untied/model.safetensors"
        self.assertIn("lm_head.weight", load_file(whole))
        (self.path / "bare").mkdir()
        whole.rename(self.path / "bare/model.safetensors")
        for said in self.refusals(self.path / "bare/model.safetensors"):
            self.assertIn('"lm_head.weight" is not "transformer.wte.weight"', said)
        config = json.loads((self.path / "untied/config.json").read_text(encoding="utf-8"))
        (self.path / "bare/config.json").write_text(
            json.dumps({**config, "tie_word_embeddings": True}), encoding="utf-8")
        self.assertIn("lm_head", self.refused("import", self.path / "bare", self.path / "run"))
        self.assertFalse((self.path / "run").exists())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
