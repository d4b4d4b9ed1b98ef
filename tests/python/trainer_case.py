"""Shared by tests of transformers' Trainer: rows, models, and a comparison with the plain one."""

import tempfile
import unittest
import warnings
from pathlib import Path

import torch

from transformers_test import MISSING, MODELS, make, micro_batches

if not MISSING:
    import transformers
    from transformers import TrainingArguments

    import sluice.transformers as by_sluice


ZERO = {
    "stage": 3,
    "stage3_param_persistence_threshold": 0,
    "offload_param": {"device": "cpu"},
    "offload_optimizer": {"device": "cpu"},
}


STEPS = 20


class Rows(torch.utils.data.Dataset):
    def __init__(self, name, count, seed=1):
        made = micro_batches(name, count, seed)
        self.rows = [{key: value[0] for key, value in it.items()} for it in made]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        return self.rows[number]


def noisy_gpt2(seed=0):
    numbers = {**MODELS["gpt2"][2], "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
    torch.manual_seed(seed)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**numbers))


def logged(trainer, key="loss"):
    return [it[key] for it in trainer.state.log_history if key in it]


@unittest.skipIf(MISSING, MISSING)
class TrainerCase(unittest.TestCase):
    def setUp(self):
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        warnings.simplefilter("ignore")
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def arguments(self, kind=None, **more):
        options = {
            "output_dir": str(self.folder / "out"),
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 3,
            "max_steps": STEPS,
            "learning_rate": 1e-3,
            "weight_decay": 0.1,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            "use_cpu": True,
            "seed": 5,
            **more,
        }
        return (kind or TrainingArguments)(**options)

    def trainer(self, name="gpt2", model=None, kind=None, args=None, sluice=None, **more):
        kind = kind or by_sluice.Trainer
        if issubclass(kind, by_sluice.TrainerMixin):
            more["sluice"] = sluice or {"zero_optimization": ZERO}
        made = kind(
            model=model or make(name),
            args=args or self.arguments(),
            train_dataset=Rows(name, 20),
            eval_dataset=Rows(name, 5, seed=2),
            **more,
        )
        made.pop_callback(transformers.PrinterCallback)
        self.addCleanup(lambda: self.end(made))
        return made

    def end(self, trainer):
        """Closes the engine, so that another one may write to its folders."""
        if getattr(trainer, "engine", None) is not None:
            trainer.engine.close()

    def nvme(self):
        drive = {"device": "nvme", "nvme_path": str(self.folder)}
        return {
            "zero_optimization": {
                **ZERO,
                "offload_param": {**drive, "buffer_count": 3},
                "offload_optimizer": drive,
            }
        }
