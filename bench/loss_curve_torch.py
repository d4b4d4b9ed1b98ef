"""PyTorch's side of loss_curve: runs under a Python with torch and transformers.

  loss_curve_torch.py init JOB    makes and saves the model that both sides begin with
  loss_curve_torch.py train JOB   trains it; prints a JSON line {step, loss, lr, norm} per step

JOB is a JSON file that loss_curve writes.
"""

import array
import contextlib
import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tools"))
import reference_packages  # noqa: E402

reference_packages.use()

import torch  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel  # noqa: E402
from transformers.utils import logging  # noqa: E402

logging.disable_progress_bar()


def init(job):
    shape = job["shape"]
    torch.manual_seed(job["seed"])
    GPT2LMHeadModel(GPT2Config(
        n_layer=shape["layers"], n_embd=shape["hidden"], n_head=shape["heads"],
        n_positions=shape["context"], vocab_size=shape["vocab"], resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, bos_token_id=None, eos_token_id=None)).save_pretrained(job["start"])


def batches(job, device):
    tokens = array.array("H")
    with open(job["tokens"], "rb") as file:
        tokens.frombytes(file.read())
    if sys.byteorder == "big":
        tokens.byteswap()
    length, micro = job["sequence"], job["micro"]
    for begin in range(0, len(job["firsts"]), micro):
        rows = [list(tokens[first:first + length + 1])
                for first in job["firsts"][begin:begin + micro]]
        yield torch.tensor(rows, device=device)


def rate_of(job, step):
    """DeepSpeed's linear WarmupLR: stepped after each update, the first one counted as 0."""
    return job["lr"] * min(1.0, max(0, step - 2) / job["warmup"])


def train(job):
    device = torch.device(job["device"])
    if device.type == "cpu":
        torch.set_num_threads(job["threads"])
    model = GPT2LMHeadModel.from_pretrained(job["start"]).float()
    model.to(device).train()
    # Biases and norms do not decay, as in our own configurations.
    groups = [{"params": [p for p in model.parameters() if (p.ndim > 1) == decays],
               "weight_decay": job["weight_decay"] if decays else 0.0} for decays in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=job["betas"], eps=job["eps"])
    cast = (torch.autocast(device.type, dtype=torch.bfloat16) if job["precision"] == "bf16"
            else contextlib.nullcontext())
    drawn = batches(job, device)
    for step in range(1, job["steps"] + 1):
        optimizer.zero_grad()
        total = torch.zeros((), device=device)
        for _ in range(job["accumulation"]):
            rows = next(drawn)
            with cast:
                logits = model(rows[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1),
                                                     rows[:, 1:].flatten())
            (loss / job["accumulation"]).backward()
            total += loss.detach() / job["accumulation"]
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), job["clip"])
        for group in optimizer.param_groups:
            group["lr"] = rate_of(job, step)
        optimizer.step()
        print(json.dumps({"step": step, "loss": total.item(), "lr": rate_of(job, step),
                          "norm": norm.item()}), flush=True)


def main():
    with open(sys.argv[2], encoding="utf-8") as file:
        job = json.load(file)
    {"init": init, "train": train}[sys.argv[1]](job)


if __name__ == "__main__":
    main()
