"""sluice generate: its greedy tokens are those of transformers, for imported weights.

The program is the environment's SLUICE.
"""

import json
import subprocess
import sys
import unittest

import torch

from exchange_models import Exchange, PREPARE, SHAPE, loaded, stirred
from reference_gpt import MISSING

if not MISSING:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast


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
