"""TRL's trainers by inheritance (sluice.transformers.TrainerMixin), compared with the plain
ones."""

import sys
import tempfile
import unittest
import warnings
from pathlib import Path

import torch

from transformers_test import LLAMA, MISSING

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import reference_packages

reference_packages.use("trl")
try:
    import pyarrow
    import transformers
    import trl
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers

    import sluice.transformers as by_sluice
except ImportError as error:
    MISSING = MISSING or f"{error}: tools/setup --for=test installs it"

ZERO = {"zero_optimization": {"stage": 3}}
STEPS = 4


def tokenizer():
    """A byte tokenizer."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {it: i for i, it in enumerate([*letters, "<pad>", "<eos>"])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>"
    )


def make(kind="LlamaForCausalLM", **more):
    torch.manual_seed(0)
    sizes = {**LLAMA, "vocab_size": 258, "pad_token_id": 256, "eos_token_id": 257, **more}
    return getattr(transformers, kind)(transformers.LlamaConfig(**sizes))


@unittest.skipIf(MISSING, MISSING)
class Trainers(unittest.TestCase):
    def setUp(self):
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        warnings.simplefilter("ignore")
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def losses(self, kind, arguments, model, rows, **more):
        trainer = kind(
            model=model,
            args=arguments(
                output_dir=str(self.folder / "out"),
                per_device_train_batch_size=2,
                gradient_accumulation_steps=2,
                max_steps=STEPS,
                learning_rate=1e-3,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
            ),
            # An explicit fingerprint, since datasets cannot pickle tables of new releases of Arrow.
            train_dataset=Dataset(pyarrow.Table.from_pylist(rows), fingerprint="rows"),
            processing_class=tokenizer(),
            **more,
        )
        trainer.pop_callback(transformers.PrinterCallback)
        trainer.train()
        made = [it["loss"] for it in trainer.state.log_history if "loss" in it]
        self.assertEqual(len(made), STEPS)
        if isinstance(trainer, by_sluice.TrainerMixin):
            self.assertEqual(trainer.engine.applied_step, STEPS)
            trainer.engine.close()
        return made

    def compare(self, plain, arguments, rows, make_model=make, **others):
        class Mine(by_sluice.TrainerMixin, plain):
            pass

        models = [{name: it() for name, it in others.items()} for _ in range(2)]
        expected = self.losses(plain, arguments, make_model(), rows, **models[0])
        losses = self.losses(Mine, arguments, make_model(), rows, **models[1], sluice=ZERO)
        for one, other in zip(losses, expected):
            self.assertAlmostEqual(one, other, delta=2e-4 * abs(other))

    def test_fine_tuning(self):
        rows = [{"text": f"{i} and {i} are {2 * i}."} for i in range(12)]
        self.compare(trl.SFTTrainer, trl.SFTConfig, rows)

    def test_preferences(self):
        rows = [
            {"prompt": f"{i}+{i}=", "chosen": f"{2 * i}", "rejected": f"{3 * i + 1}"}
            for i in range(12)
        ]
        self.compare(trl.DPOTrainer, trl.DPOConfig, rows, ref_model=make)

    def test_rewards(self):
        rows = [{"chosen": f"{i}+{i}={2 * i}", "rejected": f"{i}+{i}=?"} for i in range(12)]
        self.compare(
            trl.RewardTrainer,
            trl.RewardConfig,
            rows,
            lambda: make("LlamaForSequenceClassification", num_labels=1),
        )


if __name__ == "__main__":
    sys.exit(unittest.main())
