"""A GPT trained by PyTorch: transformers' model in fp32, torch's AdamW, clipping and warm-up."""

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))
import reference_packages

reference_packages.use()
MISSING = ""
try:
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.utils import logging
    logging.disable_progress_bar()
except ImportError as missing:
    MISSING = f"transformers cannot be imported ({missing}); tools/setup --for=test installs it"

torch.set_num_threads(1)  # the models are small


def make_model(shape, seed):
    """A model with the keys of a run file's `model`."""
    torch.manual_seed(seed)
    return GPT2LMHeadModel(GPT2Config(
        n_layer=shape["layers"], n_embd=shape["hidden"], n_head=shape["heads"],
        n_positions=shape["context"], vocab_size=shape["vocab"], resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, bos_token_id=None, eos_token_id=None, attn_implementation="eager"))


def windows(tokens, firsts, length):
    """Rows of length + 1 tokens: the inputs, and the target of the last one."""
    return torch.tensor([list(tokens[first:first + length + 1]) for first in firsts])


def loss_in(made, rows):
    return torch.nn.functional.cross_entropy(made.logits.flatten(0, 1), rows[:, 1:].flatten())


def loss_of(model, rows):
    return loss_in(model(rows[:, :-1]), rows)


def mean_loss(model, tokens, length):
    """The mean loss over consecutive windows of `length` tokens."""
    with torch.no_grad():
        firsts = range(0, len(tokens) - length, length)
        return loss_of(model.eval().double(), windows(tokens, firsts, length)).item()


class Training:
    def __init__(self, model, settings, rate_of):
        """`settings`: a run file's optimizer.params; rate_of(updates so far) is the learning rate.

        Biases and norms do not decay, as in Hugging Face's trainer, unless "decayed" is "all".
        """
        self.model = model.train()
        self.rate_of = rate_of
        self.applied = 0
        self.balance_loss = None  # of the last step's experts, without its coefficient
        decays = {True: settings["weight_decay"],
                  False: settings["weight_decay"] if settings.get("decayed") == "all" else 0}
        # gpt-oss has the biases of all experts in one matrix.
        groups = [{"params": [p for name, p in model.named_parameters()
                              if (p.ndim > 1 and not name.endswith("bias")) == matrices],
                   "weight_decay": decay} for matrices, decay in decays.items()]
        self.optimizer = torch.optim.AdamW(groups, betas=settings["betas"], eps=settings["eps"])

    def step(self, micro_batches, clip, skip=False):
        """(loss, gradient norm, rate); with `skip`, no update."""
        self.optimizer.zero_grad()
        rate = self.rate_of(self.applied)
        total = balance = 0
        for rows in micro_batches:
            made = self.model(rows[:, :-1])
            loss = loss_in(made, rows) / len(micro_batches)
            total += loss.item()
            if getattr(self.model.config, "output_router_logits", False):
                share = made.aux_loss / len(micro_batches)
                balance += share.item()
                loss = loss + self.model.config.router_aux_loss_coef * share
            loss.backward()
        self.balance_loss = balance
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip).item()
        if not skip:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
            self.applied += 1
        return total, norm, rate
