"""The examples of python/examples, each on a small random model."""

import contextlib
import importlib
import io
import json
import logging
import random
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

import torch

from rank_processes import Ranks
from transformers_test import MISSING

EXAMPLES = Path(__file__).resolve().parents[2] / "python/examples"
sys.path.insert(0, str(EXAMPLES))
WORDS = "the sea and a boat go over in winter with old songs of home".split()
COMMON = [
    "--report_to",
    "none",
    "--disable_tqdm",
    "True",
    "--use_cpu",
    "--logging_steps",
    "1",
    "--save_strategy",
    "no",
]


def text(count=540, seed=1):
    words = random.Random(seed)
    return " ".join(words.choice(WORDS) for _ in range(count))


@unittest.skipIf(MISSING, MISSING)
class Examples(unittest.TestCase):
    def setUp(self):
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        warnings.simplefilter("ignore")
        logging.getLogger("sluice").setLevel(logging.ERROR)
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.text = self.folder / "text.txt"
        self.text.write_text(text())

    def run_example(self, name, *arguments, common=()):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            self.skipTest(str(error))
        with contextlib.redirect_stdout(io.StringIO()) as said:
            result = module.main([str(it) for it in (*arguments, *common)])
        self.said = said.getvalue()
        engine = getattr(result[0], "engine", None)
        if engine is not None:
            engine = getattr(engine, "engine", engine)
            self.addCleanup(engine.close)
        return result

    def test_run_clm(self):
        def run(out, *more):
            return self.run_example(
                "run_clm",
                "--train_file",
                self.text,
                "--output_dir",
                self.folder / out,
                "--block_size",
                32,
                "--do_train",
                "--do_eval",
                "--max_steps",
                12,
                "--per_device_train_batch_size",
                4,
                "--gradient_accumulation_steps",
                2,
                "--learning_rate",
                "3e-3",
                "--warmup_steps",
                2,
                *more,
                common=COMMON[:-2],
            )

        trainer, metrics = run("a", "--save_steps", 8)
        losses = [it["loss"] for it in trainer.state.log_history if "loss" in it]
        self.assertLess(losses[-1], losses[0] - 1)
        self.assertLess(metrics["perplexity"], 40)
        trainer.engine.close()
        again, resumed = run(
            "a", "--save_steps", 8, "--resume_from_checkpoint", self.folder / "a/checkpoint-8"
        )
        self.assertEqual([it["loss"] for it in again.state.log_history if "loss" in it], losses)
        self.assertEqual(resumed["perplexity"], metrics["perplexity"])

    def test_blenderbot_dialogues(self):
        lines = [
            json.dumps({"turns": [text(4, seed), text(3, seed + 50), text(4, seed + 90)]})
            for seed in range(20)
        ]
        path = self.folder / "dialogues.jsonl"
        path.write_text("\n".join(lines))
        trainer, metrics = self.run_example(
            "blenderbot_dialogues",
            "--train_file",
            path,
            "--output_dir",
            self.folder / "bot",
            "--per_device_train_batch_size",
            8,
            "--max_steps",
            20,
            "--learning_rate",
            "3e-3",
            common=COMMON,
        )
        losses = [it["loss"] for it in trainer.state.log_history if "loss" in it]
        self.assertLess(metrics["eval_loss"], losses[0] - 1)
        self.assertEqual(self.said.count("->"), 4)
        self.assertTrue((self.folder / "bot/model.safetensors").exists())

    def test_distilbert_classification(self):
        lines = [
            f"{'up' if seed % 2 else 'down'}\t{'!' * (seed % 2)} {text(5, seed)}"
            for seed in range(80)
        ]
        path = self.folder / "reviews.tsv"
        path.write_text("\n".join(lines))
        trainer, metrics = self.run_example(
            "distilbert_classification",
            "--train_file",
            path,
            "--output_dir",
            self.folder / "out",
            "--per_device_train_batch_size",
            8,
            "--num_train_epochs",
            6,
            "--learning_rate",
            "2e-3",
            "--eval_strategy",
            "epoch",
            "--save_strategy",
            "epoch",
            "--load_best_model_at_end",
            "--save_total_limit",
            1,
            common=COMMON[:-2],
        )
        self.assertEqual(metrics["eval_accuracy"], 1.0)
        self.assertEqual(trainer.state.best_metric, 1.0)
        self.assertEqual(trainer.model.config.id2label, {0: "down", 1: "up"})

    def test_vit_classification(self):
        options = ("--images", 192, "--save", self.folder / "vit")
        engine, metrics = self.run_example("vit_classification", "--epochs", 3, *options)
        self.assertGreater(metrics["accuracy"], 0.8)
        self.assertEqual(self.said.count("epoch"), 3)
        engine.destroy()
        _, metrics = self.run_example("vit_classification", "--epochs", 4, *options)
        self.assertEqual(metrics["epochs"], 1)
        self.assertGreater(metrics["accuracy"], 0.8)

    def test_lora_peft(self):
        state, losses = self.run_example(
            "lora_peft",
            "--text",
            self.text,
            "--save",
            self.folder / "adapters",
            "--nvme",
            self.folder,
            "--steps",
            15,
            "--lr",
            "2e-2",
        )
        self.assertLess(losses[-1], losses[0] - 0.3)
        from safetensors.torch import load_file

        saved = load_file(self.folder / "adapters/adapter_model.safetensors")
        self.assertEqual(len(saved), 4 * 4 * 2)
        for name, value in saved.items():
            own = name.replace("lora_A.", "lora_A.default.").replace("lora_B.", "lora_B.default.")
            self.assertTrue(torch.equal(state[own], value), name)
            self.assertGreater(value.abs().sum(), 0)

    def test_llama_pretraining(self):
        engine, losses = self.run_example(
            "llama_pretraining",
            "--text",
            self.text,
            "--output_dir",
            self.folder / "llama",
            "--nvme",
            self.folder,
        )
        self.addCleanup(engine.close)
        self.assertEqual(engine.backend, "engine")
        self.assertLess(losses[-1], losses[0] - 1)
        self.assertIn("perplexity", self.said)
        self.assertTrue((self.folder / "llama/model/model.safetensors").exists())
        self.assertTrue((self.folder / "llama/checkpoints").is_dir())

    def test_gpt_pipeline(self):
        options = ("--text", self.text, "--output_dir", self.folder / "gpt")
        engine, losses = self.run_example("gpt_pipeline", *options, "--nvme", self.folder)
        self.assertLess(losses[-1], losses[0] - 1)
        self.assertIn("step 30: loss", self.said)
        of_four, again = self.on_four_ranks(*options, "--stages", "2", "--recompute", "1")
        self.assertEqual(of_four, again)
        self.assertLess(of_four[-1], of_four[0] - 1)
        engine.load_checkpoint(self.folder / "gpt")  # of two stages, by one
        self.assertEqual(engine.global_steps, 30)

    def on_four_ranks(self, *options):
        """The losses of the first and the last rank."""
        code = f"""
sys.path.insert(0, {str(EXAMPLES)!r})
import gpt_pipeline
engine, losses = gpt_pipeline.main({[str(it) for it in options]!r})
print(json.dumps(losses))
"""
        codes, texts = Ranks(code, 4).wait()
        self.assertEqual(codes, [0] * 4, "\n".join(texts))
        found = [next(it for it in text.splitlines() if it.startswith("[")) for text in texts]
        return json.loads(found[0]), json.loads(found[-1])

    def test_accelerate_loop(self):
        options = ("--text", self.text, "--output_dir", self.folder / "b", "--epochs", 2)
        model, losses = self.run_example("accelerate_loop", *options)
        self.assertLess(losses[-1], losses[0] - 1)
        batches = len(losses) // 2
        self.assertEqual(batches % 2, 1)  # so an epoch's last step has one of its two
        steps = batches + 1
        self.assertEqual(model.global_steps, steps)
        self.assertEqual(model.get_lr()[0], 0.0)
        model.destroy()
        again, losses = self.run_example("accelerate_loop", *options, "--resume_from_checkpoint")
        self.assertEqual((again.global_steps, losses), (steps, []))


if __name__ == "__main__":
    unittest.main()
