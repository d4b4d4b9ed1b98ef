"""Small random modules and configurations for the tests of the package sluice. With
SLUICE_TEST_DEVICE=cuda the same tests run on a GPU."""

import copy
import hashlib
import os
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import sluice

DEVICE = os.environ.get("SLUICE_TEST_DEVICE", "cpu")
# Placements of parameters and state.
PLACES = ("cpu", "nvme", "mixed") + (("gpu",) if DEVICE == "cuda" else ())
VOCAB, WIDTH, LENGTH = 50, 16, 12
ADAMW = {"lr": 1e-2, "betas": [0.9, 0.98], "eps": 1e-8, "weight_decay": 0.1}


if DEVICE == "cuda":
    # Deterministic kernels and full fp32 precision.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.allow_tf32 = False
    torch.set_default_device(DEVICE)


class Block(nn.Module):
    def __init__(self, width=WIDTH, dropout=0.0):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class Tower(nn.Module):
    """An embedding, blocks, and a head that shares the embedding's weights. Returns the loss."""

    def __init__(self, blocks=4, dropout=0.0, tied=True, checkpointed=False):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout=dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.checkpointed = checkpointed

    def hidden(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.norm(x)

    def logits(self, tokens):
        return self.head(self.hidden(tokens))

    def forward(self, tokens):
        logits = self.logits(tokens)[:, :-1].flatten(0, 1).float()
        return F.cross_entropy(logits, tokens[:, 1:].flatten())


def tower(seed=0, **options):
    torch.manual_seed(seed)
    return Tower(**options)


def twin(module):
    return copy.deepcopy(module)


def batches(count, seed=1, rows=2):
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return [torch.randint(0, VOCAB, (rows, LENGTH), generator=generator) for _ in range(count)]


def run_config(accumulation=1, place="cpu", drive=None, **more):
    """`place`: where parameters and state are stored, one of PLACES; "nvme" and "mixed" use the
    folder `drive`."""
    zero = {
        "stage": 3,
        "stage3_param_persistence_threshold": 0,
        "offload_param": {"device": "cpu"},
        "offload_optimizer": {"device": "cpu"},
    }
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "AdamW", "params": {**ADAMW, "decayed": "all"}},
        "zero_optimization": zero,
        "run": {"device": DEVICE, "seed": 3},
        "placement": {"record_elements": 65536},
    }
    if place == "nvme":
        zero["offload_param"] = {"device": "nvme", "nvme_path": str(drive), "buffer_count": 3}
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": str(drive)}
    if place == "mixed":
        zero["sub_group_size"] = 700
        zero["offload_param"] = {"device": "nvme", "nvme_path": str(drive)}
        zero["offload_optimizer"] = {"device": "auto", "nvme_path": str(drive)}
        of_gpu = 0.3 if DEVICE == "cuda" else 0
        config["placement"]["optimizer_fractions"] = {"gpu": of_gpu, "cpu": 0.5 - of_gpu, "nvme": 0.5}
        config["placement"]["overlap_update"] = False
    if place == "gpu":
        zero["offload_param"] = zero["offload_optimizer"] = {"device": "none"}
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(config.get(key), dict):
            config[key].update(value)
        else:
            config[key] = value
    return config


def torch_adamw(module):
    return torch.optim.AdamW(
        [it for it in module.parameters() if it.requires_grad],
        lr=ADAMW["lr"],
        betas=tuple(ADAMW["betas"]),
        eps=ADAMW["eps"],
        weight_decay=ADAMW["weight_decay"],
    )


def train(engine, micro_batches):
    """Trains; returns the losses of the steps."""
    losses = []
    for tokens in micro_batches:
        engine.backward(engine(tokens))
        done = engine.step()
        if done is not None:
            losses.append(done.loss)
    return losses


def train_by_torch(module, optimizer, micro_batches, accumulation=1, clip=None):
    losses = []
    for first in range(0, len(micro_batches), accumulation):
        optimizer.zero_grad()
        total = 0.0
        for tokens in micro_batches[first : first + accumulation]:
            loss = module(tokens)
            (loss / accumulation).backward()
            total += loss.item() / accumulation
        if clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
        losses.append(total)
    return losses


def masters(engine):
    """A hash of the master weights of all trained parameters, bit by bit."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        engine.save_weights(path)
        return hashlib.sha256(path.read_bytes()).hexdigest()


def initialize(module, **options):
    return sluice.initialize(module, run_config(**options))
