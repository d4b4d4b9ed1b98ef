#!/usr/bin/env python3
"""A language model in Accelerate's loop: its data loader and its tracking, the engine's training.

    python accelerate_loop.py --text book.txt --output_dir runs/b

In a DeepSpeed loop under Accelerate, accelerator.backward() calls backward() and step() of the
engine. step() and zero_grad() of what prepare() returns do nothing there. The same holds for what
initialize() returns here.
"""

import argparse
import math
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import ByT5Tokenizer, GPT2Config, GPT2LMHeadModel, get_scheduler

import sluice.deepspeed as deepspeed


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--text", required=True, metavar="FILE")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--per_device_train_batch_size", type=int, default=4)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--weight_decay", type=float, default=0.01)
    parser.add_argument("--num_warmup_steps", type=int, default=2)
    parser.add_argument("--resume_from_checkpoint", action="store_true")
    args = parser.parse_args(argv)

    accelerator = Accelerator()
    torch.manual_seed(1)
    tokenizer = ByT5Tokenizer(extra_ids=0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=64, n_layer=4, n_head=4,
                                       n_positions=64, bos_token_id=1, eos_token_id=1))
    text = Path(args.text).read_text(encoding="utf-8")
    tokens = tokenizer(text, add_special_tokens=False).input_ids
    blocks = torch.tensor(tokens[:len(tokens) // 64 * 64]).reshape(-1, 64)
    loader = accelerator.prepare(DataLoader(TensorDataset(blocks), shuffle=True,
                                            batch_size=args.per_device_train_batch_size))

    no_decay = ("bias", "ln_1.weight", "ln_2.weight", "ln_f.weight")
    named = list(model.named_parameters())
    groups = [
        {"params": [parameter for name, parameter in named if not name.endswith(no_decay)],
         "weight_decay": args.weight_decay},
        {"params": [parameter for name, parameter in named if name.endswith(no_decay)],
         "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=args.learning_rate)
    steps = args.epochs * math.ceil(len(loader) / args.gradient_accumulation_steps)
    schedule = get_scheduler("cosine", optimizer, args.num_warmup_steps, steps)
    config = {
        "train_micro_batch_size_per_gpu": args.per_device_train_batch_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"},
                              "offload_optimizer": {"device": "cpu"}},
    }
    model, optimizer, _, schedule = deepspeed.initialize(
        model=model, optimizer=optimizer, lr_scheduler=schedule, config=config)

    first = 0
    if args.resume_from_checkpoint:
        _, state = model.load_checkpoint(args.output_dir)
        first = state["epoch"]
    losses = []
    for epoch in range(first, args.epochs):
        model.train()
        for number, (batch,) in enumerate(loader):
            loss = model(input_ids=batch, labels=batch).loss
            model.set_gradient_accumulation_boundary(
                (number + 1) % args.gradient_accumulation_steps == 0 or number + 1 == len(loader))
            model.backward(loss)
            model.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        accelerator.print(f"epoch {epoch + 1}: step {model.global_steps}, loss {losses[-1]:.4f}, "
                          f"lr {schedule.get_last_lr()[0]:.2g}")
        model.save_checkpoint(args.output_dir, client_state={"epoch": epoch + 1})
    model.save_16bit_model(args.output_dir)
    return model, losses


if __name__ == "__main__":
    main()
