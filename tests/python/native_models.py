"""Small models of transformers, and helpers for tests of native units."""

import logging
import tempfile
import unittest
import warnings
from pathlib import Path

import torch

import sluice
from small_modules import DEVICE, run_config, torch_adamw
from transformers_test import LLAMA, MISSING, VOCAB

if MISSING is None:
    import transformers

LENGTH = 12
GPT2 = {
    "vocab_size": VOCAB,
    "n_positions": 32,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 2,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
MODELS = {
    "gpt2": ("GPT2", GPT2, {}),
    "llama": ("Llama", LLAMA, {}),
    "tied": ("Llama", LLAMA, {"tie_word_embeddings": True, "pad_token_id": 5}),
    "qwen2": ("Qwen2", LLAMA, {}),
    "qwen3": ("Qwen3", LLAMA, {"head_dim": 16}),
    "mistral": ("Mistral", LLAMA, {"sliding_window": 5}),
    "phi3": (
        "Phi3",
        LLAMA,
        {"sliding_window": 5, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None},
    ),
    "gemma3": (
        "Gemma3Text",
        LLAMA,
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "smollm3": (
        "SmolLM3",
        LLAMA,
        {
            "no_rope_layer_interval": 2,
            "use_sliding_window": True,
            "sliding_window": 5,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": None,
        },
    ),
    "qwen3_5": (
        "Qwen3_5Text",
        LLAMA,
        {
            "head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 12,
            "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        },
    ),
    "dynamic": (
        "Llama",
        LLAMA,
        {
            "max_position_embeddings": 5,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0},
        },
    ),
    "longrope": (
        "Phi3",
        LLAMA,
        {
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": None,
            "original_max_position_embeddings": 9,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 100.0,
                "short_factor": [1.0, 1.25, 1.5, 2.0],
                "long_factor": [1.0, 2.5, 4.0, 7.0],
            },
        },
    ),
}


def make(name, seed=0, **more):
    family, numbers, own = MODELS[name]
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**{**numbers, **own, **more})
    kind = "LMHeadModel" if family == "GPT2" else "ForCausalLM"
    return getattr(transformers, family.removesuffix("Text") + kind)(config).train()


def batches(count, seed=1, rows=2):
    generator = torch.Generator(DEVICE).manual_seed(seed)
    all_ids = [torch.randint(0, VOCAB, (rows, LENGTH), generator=generator) for _ in range(count)]
    return [{"input_ids": ids, "labels": ids.clone()} for ids in all_ids]


def padded(batch, left, labels=True):
    """Makes three tokens of the second row padding. The token after padding is not a label, since a
    hidden token would predict it."""
    mask = torch.ones_like(batch["input_ids"])
    hidden = slice(0, 3) if left else slice(LENGTH - 3, LENGTH)
    mask[1, hidden] = 0
    ids = batch["input_ids"].masked_fill(mask == 0, 5)
    unsaid = mask.roll(1, dims=1) * mask == 0 if left else mask == 0
    labels = ids.masked_fill(unsaid, -100) if labels else ids
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def train(engine, data):
    losses = []
    for batch in data:
        engine.backward(engine(**batch).loss)
        done = engine.step()
        if done is not None:
            losses.append(done.loss)
    return losses


def by_torch(model, data, accumulation=1):
    optimizer = torch_adamw(model)
    losses = []
    for first in range(0, len(data), accumulation):
        optimizer.zero_grad()
        total = 0.0
        for batch in data[first : first + accumulation]:
            loss = model(**batch).loss / accumulation
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses


@unittest.skipIf(MISSING, MISSING)
class NativeCase(unittest.TestCase):
    def setUp(self):
        transformers.logging.set_verbosity_error()
        warnings.simplefilter("ignore")
        logging.getLogger("sluice").setLevel(logging.ERROR)
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def engine(self, model, *args, units="engine", **options):
        engine = sluice.initialize(model, run_config(*args, **options), units=units)
        self.addCleanup(engine.close)
        return engine

    def near(self, losses, expected, msg=None):
        self.assertEqual(len(losses), len(expected))
        for step, (own, other) in enumerate(zip(losses, expected)):
            self.assertAlmostEqual(own, other, delta=1e-5, msg=f"{msg}, step {step}")
