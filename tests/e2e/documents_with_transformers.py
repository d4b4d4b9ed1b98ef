"""What sluice does with documents, compared with transformers: losses, masks, and the folder to
which a run trained on them is exported.

The programs are the environment's SLUICE.
"""

import csv
import io
import json
import math
import re
import shutil
import subprocess
import sys
import unittest

import torch

import llama_with_transformers as llama  # as a module: its tests must not run here
from llama_with_transformers import CASES, PREPARE, chat_tokenizer, loaded, make_model
from reference_gpt import MISSING
from sluice_runs import SluiceRuns

if not MISSING:
    import transformers
    from huggingface_hub import ModelCard
    from transformers import AutoTokenizer, GenerationConfig

ROW = 24  # tokens predicted
LENGTHS = [25, 15, 12, 60, 9, 2, 11, 26, 73, 5]
NO_TARGET = 6  # a document without targets


class OfDocuments(SluiceRuns):
    write_documents = llama.Llamas.write_documents
    assert_close = llama.Llamas.assert_close
    refused = llama.Llamas.refused

    def run_words(self, **more):
        settings = {"data.sequence_length": ROW, "run.device": "cpu", "run.cpu_threads": 1,
                    "bf16.enabled": "false", "train_micro_batch_size_per_gpu": 3, **more}
        return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


@unittest.skipIf(MISSING, MISSING)
class Losses(OfDocuments):
    def setUp(self):
        super().setUp()
        self.documents, self.masks = self.write_documents(LENGTHS)
        self.masks[NO_TARGET][1:] = False
        self.masks[NO_TARGET][0] = True  # the first token is not a target
        self.rewrite_mask()

    def rewrite_mask(self):
        import numpy
        bits = torch.cat(self.masks).numpy()
        numpy.packbits(bits, bitorder="little").tofile(self.path / "chat.bin.mask")
        sidecar = self.path / "chat.bin.json"
        about = json.loads(sidecar.read_text(encoding="utf-8"))
        about["trained_tokens"] = int(bits.sum())
        sidecar.write_text(json.dumps(about), encoding="utf-8")

    def expected(self, model):
        """document -> (targets, loss) by transformers, in pieces if it is longer than a row."""
        losses = {}
        for number, (document, mask) in enumerate(zip(self.documents, self.masks)):
            targets, total = 0, 0.0
            for begin in range(0, len(document) - 1, ROW):
                piece = document[begin:begin + ROW + 1]
                labels = torch.where(mask[begin:begin + ROW + 1], piece, -100)
                labels[0] = -100
                counted = int((labels != -100).sum())
                if counted:
                    with torch.no_grad():
                        loss = model(piece[None], labels=labels[None]).loss.item()
                    total += loss * counted
                    targets += counted
            if targets:
                losses[number] = (targets, total / targets)
        return losses

    def evaluated(self, folder, *arguments, **more):
        return self.sluice("eval", self.file, "--weights", folder, "--data",
                           self.path / "chat.bin", *arguments, *self.run_words(**more)).stdout

    def test_each_document_has_the_loss_that_transformers_gives_it(self):
        for case in CASES:
            with self.subTest(case=case):
                model = make_model(case)
                folder = self.path / case
                model.save_pretrained(folder)
                self.file = self.write_run({"model": {"path": str(folder)}})
                model.config.output_router_logits = False  # losses without the balance loss
                expected = self.expected(model.double().eval())
                self.assertNotIn(NO_TARGET, expected)
                shown = json.loads(self.evaluated(folder, "--by-document", "--json"))
                found = {one["document"]: one for one in shown["documents"]}
                self.assertEqual({number: one["targets"] for number, one in found.items()},
                                 {number: targets for number, (targets, _) in expected.items()})
                for number, (_, loss) in expected.items():
                    self.assert_close(found[number]["loss"], loss, 2e-6)
                    self.assert_close(found[number]["perplexity"], math.exp(loss), 2e-5)
                self.check_summary(shown, expected)

    def check_summary(self, shown, expected):
        targets = sum(targets for targets, _ in expected.values())
        mean = sum(targets * loss for targets, loss in expected.values()) / targets
        of_documents = sum(loss for _, loss in expected.values()) / len(expected)
        self.assertEqual(shown["tokens"], targets)
        self.assert_close(shown["loss"], mean, 2e-6)
        self.assert_close(shown["mean_of_documents"]["loss"], of_documents, 2e-6)
        self.assertEqual(shown["documents_without_targets"], len(LENGTHS) - len(expected))
        by_loss = sorted(expected, key=lambda number: expected[number][1])
        self.assertEqual(shown["best"]["document"], by_loss[0])
        self.assertEqual(shown["worst"]["document"], by_loss[-1])

    def test_table_csv_and_json_say_the_same_whatever_goes_together(self):
        folder = self.path / "model"
        make_model("qwen3").save_pretrained(folder)
        self.file = self.write_run({"model": {"path": str(folder)}})
        rows = list(csv.DictReader(io.StringIO(self.evaluated(folder, "--by-document", "--csv"))))
        shown = json.loads(self.evaluated(folder, "--by-document", "--json"))
        self.assertEqual([(row["file"], int(row["document"]), int(row["targets"]),
                           float(row["loss"]), float(row["perplexity"])) for row in rows],
                         [(one["file"], one["document"], one["targets"], one["loss"],
                           one["perplexity"]) for one in shown["documents"]])
        table = self.evaluated(folder, "--by-document")
        self.assertEqual([list(map(int, found)) for found in
                          re.findall(r"^(\d+) +(\d+) +\d", table, re.MULTILINE)],
                         [[one["document"], one["targets"]] for one in shown["documents"]])
        self.assertIn(f"\nbest: document {shown['best']['document']}, loss", table)
        self.assertIn("\n1 document without a token to predict\n", table)
        # The same without the flag, if no document is cut, and in micro-batches of one row.
        plain = json.loads(self.evaluated(folder, "--json", **{"data.long_documents": "split"}))
        self.assert_close(plain["loss"], shown["loss"], 1e-7)
        self.assertEqual(plain["tokens"], shown["tokens"])
        alone = json.loads(self.evaluated(folder, "--by-document", "--json",
                                          train_micro_batch_size_per_gpu=1))
        for one, other in zip(shown["documents"], alone["documents"]):
            self.assert_close(other["loss"], one["loss"], 1e-6)

    def test_several_files_and_the_end_of_a_file_keep_their_numbers(self):
        folder = self.path / "model"
        make_model("llama").save_pretrained(folder)
        shutil.copytree(self.path, self.path / "second", ignore=lambda at, names: [
            name for name in names if not name.startswith("chat.bin")])
        self.file = self.write_run({"model": {"path": str(folder)}})
        first, second = self.path / "chat.bin", self.path / "second/chat.bin"
        one = json.loads(self.evaluated(folder, "--by-document", "--json"))
        both = json.loads(self.evaluated(folder, second, "--by-document", "--json"))
        self.assertEqual([(each["file"], each["document"]) for each in both["documents"]],
                         [(str(file), each["document"]) for file in (first, second)
                          for each in one["documents"]])
        table = self.evaluated(folder, second, "--by-document")
        self.assertEqual(table.count(str(second)), len(one["documents"]))
        # The last documents of the training data, if they are the validation data.
        words = ("eval", self.file, "--weights", folder, "--by-document", "--json",
                 *self.run_words(**{"data.train": f'["{first}"]',
                                    "data.validation_fraction": 0.3}))
        tail = json.loads(self.sluice(*words).stdout)
        self.assertEqual([each["document"] for each in tail["documents"]], [7, 8, 9])
        for each in tail["documents"]:
            found, = (other for other in one["documents"] if other["document"] == each["document"])
            self.assert_close(each["loss"], found["loss"], 1e-6)

    def test_what_has_no_documents_is_refused(self):
        folder = self.path / "model"
        make_model("llama").save_pretrained(folder)
        self.file = self.write_run({"model": {"path": str(folder)}})
        self.tokens("text.bin", 400, seed=1)
        words = ("eval", self.file, "--weights", folder, *self.run_words())
        self.assertIn("text.bin has no document", self.refused(
            *words, "--data", self.path / "text.bin", "--by-document"))
        self.assertIn("--batches", self.refused(*words, "--data", self.path / "chat.bin",
                                                "--by-document", "--batches", "1"))
        self.assertIn("--by-document", self.refused(*words, "--data", self.path / "chat.bin",
                                                    "--csv"))


CARD = """\
---
license: llama3.2
license_link: LICENSE
license_name: "a name: with a colon"   # as the hub has it
tags:
- license: none
---
license: mit
"""


@unittest.skipIf(MISSING, MISSING)
class Papers(OfDocuments):
    def setUp(self):
        super().setUp()
        self.tokenizer = chat_tokenizer()
        self.theirs = self.path / "Tiny-Llama"
        model = make_model("llama", max_position_embeddings=512)
        model.generation_config = GenerationConfig(temperature=0.3, top_p=0.9, do_sample=True,
                                                   eos_token_id=256)
        model.save_pretrained(self.theirs)
        self.tokenizer.save_pretrained(self.theirs)
        (self.theirs / "README.md").write_text(CARD, encoding="utf-8")
        self.conversations = [
            [{"role": "user", "content": f"What is {i} and {i}?"},
             {"role": "assistant", "content": f"It is {2 * i}.\x1b[2J"},
             {"role": "user", "content": "Sure?"},
             {"role": "assistant", "content": "Yes. " * (i % 4 + 1)}] for i in range(12)]
        lines = [{"messages": messages} for messages in self.conversations]
        lines.insert(4, {"messages": [{"role": "user", "content": "?"}]})
        (self.path / "chat.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        subprocess.run([PREPARE, "--chat", self.path / "chat.jsonl", "--out", self.path / "chat",
                        "--tokenizer", self.theirs, "--validation-fraction", "0"], check=True,
                       capture_output=True)
        self.data = self.path / "chat/train.bin"

    def train(self, out, steps, **more):
        file = self.write_run({
            "model": {"path": str(self.theirs)}, "data": {"train": [str(self.data)]},
            "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
            "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 2}}})
        self.sluice("train", file, "--out", self.path / out, "--steps", steps,
                    *self.run_words(**{"data.sequence_length": 256,
                                       "data.validation_fraction": 0.2, **more}))

    def test_data_shows_what_transformers_masks(self):
        shown = json.loads(self.sluice("data", self.data, "--samples", 99, "--tokens", 0,
                                       "--json").stdout)
        file, = shown["files"]
        self.assertEqual(file["preparation"]["left_out"], {"no assistant turn": 1})
        self.assertEqual(file["documents"], 12)
        parts = sorted((part for sample in shown["samples"] for part in sample["parts"]),
                       key=lambda part: part["document"])
        self.assertEqual(len(parts), 12)
        targets = 0
        for part, messages in zip(parts, self.conversations):
            made = self.tokenizer.apply_chat_template(messages, return_dict=True,
                                                      return_assistant_tokens_mask=True)
            self.assertEqual(part["tokens"], len(made["input_ids"]))
            self.assertEqual(part["targets"], sum(made["assistant_masks"]))
            targets += part["targets"]
            text = "".join(segment["text"] for segment in part["segments"])
            self.assertEqual(text, self.tokenizer.decode(made["input_ids"]))
            self.assertEqual("".join(segment["text"] for segment in part["segments"]
                                     if segment["trained"]),
                             "".join(message["content"] + "<|im_end|>" for message in messages
                                     if message["role"] == "assistant"))
        self.assertEqual(file["targets"], targets)

    def test_data_shows_the_rows_that_the_run_trains_on(self):
        self.train("run", 1, **{"data.long_documents": "cut", "data.sequence_length": 100})
        said = (self.path / "stderr").read_text(encoding="utf-8")
        rows, trained = map(int, re.search(
            r"training data: \d+ documents in (\d+) rows of 100 tokens.*; (\d+) tokens are trained",
            said).groups())
        shown = json.loads(self.sluice(
            "data", "--config", self.path / "run/config.json", "--samples", rows, "--tokens", 0,
            "--json").stdout)
        self.assertEqual(shown["rows"]["rows"], rows)
        self.assertEqual(shown["rows"]["targets"], trained)
        self.assertEqual(len(shown["samples"]), rows)
        parts = [part for sample in shown["samples"] for part in sample["parts"]]
        self.assertEqual(sum(part["targets"] for part in parts), trained)
        self.assertLess(trained, shown["files"][0]["targets"])
        for sample in shown["samples"]:
            self.assertEqual(sum(part["tokens"] - 1 for part in sample["parts"]) +
                             sample["padding"], 100)
        # The others are validation data.
        self.assertLess(len(parts), 12)

    def test_the_exported_folder_says_what_it_is_and_loads(self):
        self.train("run", 6)
        shutil.rmtree(self.theirs)  # the run has all that it needs
        self.sluice("export", self.path / "run", f"{self.path}/ours/")
        loaded(self.path / "ours")
        generation = GenerationConfig.from_pretrained(self.path / "ours")
        self.assertEqual((generation.temperature, generation.top_p, generation.do_sample),
                         (0.3, 0.9, True))
        self.assertIn(256, [generation.eos_token_id, *([generation.eos_token_id] if isinstance(
            generation.eos_token_id, int) else generation.eos_token_id)])
        self.assertEqual(AutoTokenizer.from_pretrained(self.path / "ours").encode("What?"),
                         self.tokenizer.encode("What?"))
        card = ModelCard.load(self.path / "ours/README.md")
        about = card.data.to_dict()
        self.assertEqual(about["base_model"], "Tiny-Llama")
        self.assertEqual(about["library_name"], "transformers")
        self.assertEqual(about["license"], "llama3.2")
        self.assertEqual(about["license_name"], "a name: with a colon")
        self.assertNotIn("license_link", about)  # the file that it names is not in this folder
        self.assertEqual(about["tags"], ["sluice", "llama"])
        steps = self.metrics("run")
        tokens = self.data.stat().st_size // 2
        for line in (f"- training data: `chat/train.bin`, {tokens} tokens in 12 documents",
                     "- steps: 6\n", f"- tokens seen: {6 * 3 * 256} (18 sequences",
                     "- batch: 3 sequences of 256 tokens (1 x 3)", "WarmupDecayLR (",
                     "AdamW (lr 0.001, ", "- precision: fp32",
                     f"- training loss of the last step: {steps[-1]['loss']:.6g}",
                     f"- last evaluation loss: {steps[-1]['val_loss']:.6g} (perplexity ",
                     'AutoModelForCausalLM.from_pretrained("ours")', "Written by Sluice "):
            self.assertIn(line, card.text)
        self.assertNotIn(str(self.path), card.content)

    def test_an_import_that_was_not_trained_says_so(self):
        self.sluice("import", self.theirs, self.path / "run")
        shutil.rmtree(self.theirs)
        self.sluice("export", self.path / "run", self.path / "ours")
        loaded(self.path / "ours")
        card = ModelCard.load(self.path / "ours/README.md")
        self.assertEqual(card.data.base_model, "Tiny-Llama")
        self.assertIn("were not trained further", card.text)
        self.assertNotIn("## Training", card.text)
        self.assertEqual(GenerationConfig.from_pretrained(self.path / "ours").temperature, 0.3)

    def test_the_base_of_a_base_and_the_hubs_cache_are_named(self):
        cache = self.path / "models--some--Model-7B/snapshots/0a1b"
        shutil.copytree(self.theirs, cache)
        (cache / "README.md").unlink()
        self.theirs = cache
        self.train("run", 1)
        # A run that begins with these weights.
        checkpoint, = (self.path / "run/checkpoints").iterdir()
        self.sluice("train", self.path / "run/config.json", "--out", self.path / "more",
                    f"--resume={checkpoint}", "--steps", 2)
        for name in ("run", "more"):
            self.sluice("export", self.path / name, self.path / f"{name}-out")
            card = ModelCard.load(self.path / f"{name}-out/README.md")
            self.assertEqual(card.data.base_model, "some/Model-7B")
            self.assertIsNone(card.data.license)
            self.assertRegex(card.text, "license.*`some/Model-7B`")

    def test_weights_of_nothing_have_a_card_and_a_generation_config_too(self):
        self.tokens("text.bin", 2000, seed=1)
        file = self.write_run({
            "model": {"layers": 1, "hidden": 16, "heads": 2, "context": 16, "vocab": 64},
            "data": {"train": [str(self.path / "text.bin")], "dtype": "uint16"}})
        self.sluice("train", file, "--out", self.path / "run", "--steps", 2,
                    *self.run_words(**{"data.sequence_length": 16}))
        (self.path / "text.bin").unlink()
        self.sluice("export", self.path / "run", self.path / "ours")
        self.assertIsNone(GenerationConfig.from_pretrained(self.path / "ours").eos_token_id)
        transformers.AutoModelForCausalLM.from_pretrained(self.path / "ours")
        card = ModelCard.load(self.path / "ours/README.md")
        self.assertIsNone(card.data.base_model)
        self.assertIn("trained from random weights", card.text)
        self.assertIn("`text.bin`\n", re.sub("`[^`]*/", "`", card.text))
        self.assertNotIn("AutoTokenizer", card.text)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
