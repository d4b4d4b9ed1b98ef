"""Whole models are exported to Hugging Face folders and imported from them, with the same meaning.

The program is the environment's SLUICE.
"""

import json
import re
import subprocess
import sys
import unittest
from pathlib import Path

import torch

from reference_gpt import GPT2LMHeadModel, MISSING, make_model, mean_loss
from sluice_runs import SLUICE, SluiceRuns

if not MISSING:
    from safetensors.torch import load_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

MICRO, LENGTH = 4, 24
SHAPE = {"layers": 2, "hidden": 48, "heads": 4, "context": 32, "vocab": 193, "dropout": 0.1}
WINDOWS = 4 * MICRO + 1
TOKENS = WINDOWS * LENGTH + 1 + 7
PREPARE = Path(__file__).resolve().parents[2] / "tools/prepare"


def stirred(shape, seed, by=0.1):
    """A model with weights so large that each of them matters."""
    model = make_model(shape, seed)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(by * torch.randn_like(value))
    return model


def loaded(folder, **options):
    model, info = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True, **options)
    problems = {problem: names for problem, names in info.items() if names}
    assert not problems, problems
    return model


@unittest.skipIf(MISSING, MISSING)
class Exchange(SluiceRuns):
    def setUp(self):
        super().setUp()
        self.text = self.tokens("text.bin", TOKENS, seed=9)

    def run_file(self, train, **model):
        return self.write_run({
            "train_micro_batch_size_per_gpu": MICRO,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
            "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"},
                                  "offload_optimizer": {"device": "nvme"},
                                  "stage3_param_persistence_threshold": 0},
            "model": {**SHAPE, **model},
            "data": {"train": [str(train)], "sequence_length": LENGTH},
            "run": {"steps": 10, "device": "cpu", "cpu_threads": 1, "eval_batches": 1},
            "budget": {"nvme_paths": [str(self.path / "nvme")]}})

    def refused(self, *arguments, code=2):
        done = subprocess.run([SLUICE, *map(str, arguments)], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def imported(self, name="run", source="theirs"):
        self.sluice("import", self.path / source, self.path / name)
        return self.path / name

    def evaluate(self, weights, config):
        shown = self.sluice("eval", config, "--weights", weights, "--data",
                            self.path / "text.bin", "--set", "data.dtype=uint16").stdout
        return float(re.match(r"loss (\S+) ", shown).group(1))

    def assert_close(self, ours, expected, bound):
        self.assertLess(abs(ours - expected), bound * expected, f"{ours}, expected {expected}")


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


class Generate(Exchange):
    """Imported weights of transformers: its greedy tokens are ours."""

    FP32 = ("--set", "run.device=cpu", "--set", "run.cpu_threads=1", "--set", "bf16.enabled=false")

    def generate(self, run, prompt, *arguments, options=FP32):
        return self.sluice("generate", run, "--prompt", prompt, *options, *arguments).stdout

    def greedy(self, model, ids, count):
        """The ids that follow, by whole forward passes."""
        ids = list(ids)
        begin = len(ids)
        with torch.no_grad():
            for _ in range(count):
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        return ids[begin:]

    def test_greedy_bytes_are_transformers(self):
        model = stirred({**SHAPE, "vocab": 257, "context": 64}, seed=6, by=0.3).eval()
        model.save_pretrained(self.path / "theirs")
        run = self.imported()
        nvme = (*self.FP32, "--set", "zero_optimization.offload_param.device=nvme", "--set",
                "zero_optimization.stage3_param_persistence_threshold=0", "--set",
                f'budget.nvme_paths=["{self.path / "nvme"}"]')
        for prompt in ("a", "The drive", "Grüße, und 🦆"):
            with self.subTest(prompt=prompt):
                expected = self.greedy(model, prompt.encode(), 40)
                self.assertGreater(len(set(expected)), 4)  # else the test proves little
                if 256 in expected:
                    expected = expected[:expected.index(256)]
                words = ("--tokenizer", "bytes", "--temperature", "0", "--tokens", "40")
                text = bytes(expected).decode(errors="replace") + "\n"
                self.assertEqual(self.generate(run, prompt, *words), text)
                self.assertEqual(self.generate(run, prompt, *words, options=nvme), text)
        self.assertFalse(list((self.path / "nvme").iterdir()))

    def test_slides_when_the_context_is_full(self):
        model = stirred({**SHAPE, "vocab": 257}, seed=6, by=0.3).eval()
        model.save_pretrained(self.path / "theirs")
        context, ids, expected = SHAPE["context"], list(b"context"), []
        for _ in range(3 * context):
            token, = self.greedy(model, ids, 1)
            if token == 256:
                break
            expected.append(token)
            ids.append(token)
            if len(ids) > context:
                ids = ids[-(context // 2):]
        self.assertGreater(len(expected), context)
        shown = self.generate(self.imported(), "context", "--tokenizer", "bytes", "--temperature",
                              "0", "--tokens", len(expected))
        self.assertEqual(shown, bytes(expected).decode(errors="replace") + "\n")

    def test_greedy_text_by_a_tokenizer_file_is_transformers(self):
        text = self.path / "book.txt"
        text.write_text("Grüße an alle Köche: das Öl ist heiß 🦆. " * 100, encoding="utf-8")
        subprocess.run([PREPARE, text, "--out", self.path / "data", "--tokenizer", "bpe",
                        "--vocab-size", "290"], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(self.path / "data/tokenizer.json"),
                                            eos_token="<|endoftext|>")
        model = stirred({**SHAPE, "vocab": len(tokenizer), "context": 64}, seed=8, by=0.3).eval()
        model.save_pretrained(self.path / "theirs")
        tokenizer.save_pretrained(self.path / "theirs")
        run = self.imported()
        for prompt in ("Grüße an", "das Öl", "🦆 und <|endoftext|>"):
            with self.subTest(prompt=prompt):
                ids = tokenizer.encode(prompt, split_special_tokens=True)
                new = self.greedy(model, ids, 20)
                if tokenizer.eos_token_id in new:
                    new = new[:new.index(tokenizer.eos_token_id)]
                expected = tokenizer.decode(ids + new)[len(prompt):]
                self.assertEqual(self.generate(run, prompt, "--temperature", "0", "--tokens",
                                               "20"), expected + "\n")

    def test_a_chat_is_what_transformers_makes_of_its_template(self):
        own = Tokenizer(models.BPE())
        own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        own.decoder = decoders.ByteLevel()
        own.train_from_iterator(["What is a sluice? A gate. " * 9], trainers.BpeTrainer(
            vocab_size=280, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        own.add_special_tokens(["<s>", "</s>", "<|turn|>"])
        own.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", own.token_to_id("<s>")),
                                                  ("</s>", own.token_to_id("</s>"))])
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=own, bos_token="<s>", eos_token="</s>")
        tokenizer.chat_template = """{{ bos_token }}{% for each in messages %}<|turn|>{{ each.role
            }}: {{ each.content | trim }}{{ eos_token }}
            {% endfor %}{% if add_generation_prompt %}<|turn|>assistant:{% endif %}"""
        model = stirred({**SHAPE, "vocab": len(tokenizer), "context": 128}, seed=8, by=0.3).eval()
        model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.save_pretrained(self.path / "theirs")
        tokenizer.save_pretrained(self.path / "theirs")
        run = self.imported()
        words = ("--temperature", "0", "--tokens", "20")
        asked, told = "What is a </s>?", {"role": "system", "content": "Öl"}
        chat = [{"role": "user", "content": asked}]

        def expected(ids):
            new = self.greedy(model, ids, 20)
            new = new[:new.index(tokenizer.eos_token_id)] if tokenizer.eos_token_id in new else new
            return tokenizer.decode(ids + new)[len(tokenizer.decode(ids)):] + "\n"

        def templated(messages):
            return tokenizer.apply_chat_template(messages, add_generation_prompt=True,
                                                 return_dict=False)
        self.assertEqual(self.generate(run, asked, "--chat", *words), expected(templated(chat)))
        self.assertEqual(self.generate(run, asked, "--chat", "--system", "Öl", *words),
                         expected(templated([told, *chat])))
        # A plain text gets the tokenizer's first token, but not its last.
        self.assertEqual(self.generate(run, "a sluice", *words),
                         expected([tokenizer.bos_token_id,
                                   *tokenizer.encode("a sluice", add_special_tokens=False)]))
        (self.path / "other.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
        other = ("--chat", "--chat-template", self.path / "other.jinja")
        self.assertEqual(self.generate(run, "a sluice", *other, *words),
                         expected(tokenizer.encode("a sluice", add_special_tokens=False)))
        (self.path / "other.jinja").write_text("{{ raise_exception('not so') }}")
        self.assertRegex(self.refused("generate", run, "--prompt", "x", *other),
                         "--chat:.*refuses it: not so")
        self.assertIn("add --chat",
                      self.refused("generate", run, "--prompt", "x", "--system", "y"))
        self.assertIn("no chat template", self.refused(
            "generate", run, "--prompt", "x", "--chat", "--tokenizer", "bytes"))
        for name in ("chat_template.jinja", "tokenizer_config.json"):
            (run / "tokenizer" / name).unlink()
        self.assertIn("has no chat template",
                      self.refused("generate", run, "--prompt", "x", "--chat"))

    def test_a_seed_is_a_text_and_what_cannot_be_is_refused(self):
        stirred({**SHAPE, "vocab": 257}, seed=6).save_pretrained(self.path / "theirs")
        run = self.imported()
        words = ("--tokenizer", "bytes", "--tokens", "30", "--temperature", "2")
        first = self.generate(run, "x", *words, "--seed", "1")
        self.assertEqual(self.generate(run, "x", *words, "--seed", "1"), first)
        self.assertNotEqual(self.generate(run, "x", *words, "--seed", "2"), first)
        # A choice of one token is greedy.
        self.assertEqual(self.generate(run, "x", *words, "--top-k", "1"),
                         self.generate(run, "x", "--tokenizer", "bytes", "--tokens", "30",
                                       "--temperature", "0"))
        self.assertIn("--tokenizer", self.refused("generate", run, "--prompt", "x"))
        self.assertIn("--top-p", self.refused("generate", run, "--prompt", "x", "--top-p", "0"))
        self.assertIn("empty", self.refused("generate", run, "--prompt", "", "--tokenizer",
                                            "bytes"))
        self.assertIn("none.json", self.refused("generate", run, "--prompt", "x", "--tokenizer",
                                                self.path / "none.json"))

    def ending(self, prompt, count):
        """A model without an end token, and its greedy tokens: one of them may become the end
        token."""
        model = stirred({**SHAPE, "vocab": 257, "context": 64}, seed=6, by=0.3).eval()
        expected = self.greedy(model, prompt.encode(), count)
        model.config.eos_token_id = model.generation_config.eos_token_id = None
        return model, expected

    def stopped(self, folder, prompt, count):
        """The tokens that transformers' own generate() adds."""
        ids = torch.tensor([list(prompt.encode())])
        made = loaded(folder).generate(ids, max_new_tokens=count, do_sample=False,
                                       attention_mask=torch.ones_like(ids))[0]
        return made[ids.shape[1]:].tolist()

    def test_ends_where_transformers_ends(self):
        prompt, count = "The drive", 40
        words = ("--tokenizer", "bytes", "--temperature", "0", "--tokens", count)
        for where in ("config.json", "generation_config.json"):
            for ends in (1, 2):
                with self.subTest(where=where, ends=ends):
                    model, whole = self.ending(prompt, count)
                    end = next(token for token in whole[8:] if token not in whole[:8])
                    eos = end if ends == 1 else [255, end]
                    theirs = self.path / f"theirs-{where}-{ends}"
                    model.save_pretrained(theirs)
                    for name in ("config.json", "generation_config.json"):
                        said = json.loads((theirs / name).read_text(encoding="utf-8"))
                        said.pop("eos_token_id", None)
                        said.pop("_from_model_config", None)
                        if name == where:
                            said.update(eos_token_id=eos, bos_token_id=7)
                        (theirs / name).write_text(json.dumps(said), encoding="utf-8")
                    if where == "config.json":
                        (theirs / "generation_config.json").unlink()
                    run = self.imported(f"run-{where}-{ends}", theirs.name)
                    kept = whole[:whole.index(end)]
                    self.assertEqual(self.stopped(theirs, prompt, count), [*kept, end])
                    text = bytes(kept).decode(errors="replace") + "\n"
                    self.assertEqual(self.generate(run, prompt, *words), text)
                    on = bytes(token for token in whole if token < 256)
                    self.assertEqual(self.generate(run, prompt, *words, "--ignore-eos"),
                                     on.decode(errors="replace") + "\n")
                    out = self.path / f"out-{where}-{ends}"
                    self.sluice("export", run, out)
                    self.assertEqual(self.stopped(out, prompt, count), [*kept, end])
                    for name in ("config.json", "generation_config.json"):
                        said = json.loads((out / name).read_text(encoding="utf-8"))
                        self.assertEqual((said["eos_token_id"], said["bos_token_id"]), (eos, 7))

    def test_a_tokenizer_file_does_not_hide_what_ends_the_models_texts(self):
        prompt, count = "The drive", 40
        model, whole = self.ending(prompt, count)
        end = next(token for token in whole[8:] if token not in whole[:8])
        model.generation_config.eos_token_id = end
        model.save_pretrained(self.path / "theirs")
        run = self.imported()
        self.sluice("export", run, self.path / "bytes", "--tokenizer", "bytes")
        kept = bytes(whole[:whole.index(end)]).decode(errors="replace") + "\n"
        for tokenizer in ("bytes", self.path / "bytes/tokenizer.json"):
            self.assertEqual(self.generate(run, prompt, "--tokenizer", tokenizer, "--temperature",
                                           "0", "--tokens", count), kept)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
