"""Typical scripts that use DeepSpeed's names, and their equivalents in plain PyTorch."""

import json


import sluice.deepspeed as deepspeed

gathered = deepspeed.zero.GatheredParameters
CPU = {"device": "cpu"}


def ds_config(accumulation=1, **more):
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
        "zero_optimization": {"stage": 3, "offload_param": CPU, "offload_optimizer": CPU},
        **more,
    }


def without_optimizer(**more):
    config = ds_config(**more)
    del config["optimizer"]
    return config


def split(module, lr=3e-3):
    """Typical parameter groups: matrices decay, and here have a rate of their own."""
    return [
        {"params": [it for it in module.parameters() if it.dim() > 1], "weight_decay": 0.1},
        {"params": [it for it in module.parameters() if it.dim() < 2], "weight_decay": 0, "lr": lr},
    ]


def initialize(module, config=None, **more):
    return deepspeed.initialize(model=module, config=config or ds_config(), **more)


def train(engine, micro_batches):
    losses = []
    for tokens in micro_batches:
        loss = engine(tokens)
        is_last = engine.is_gradient_accumulation_boundary()
        engine.backward(loss)
        engine.step()
        if is_last:
            losses.append(engine.engine.last_step.loss)
    return losses


def train_by_torch(module, optimizer, micro_batches, accumulation=1, schedule=None):
    losses = []
    for first in range(0, len(micro_batches), accumulation):
        optimizer.zero_grad()
        total = 0.0
        for tokens in micro_batches[first : first + accumulation]:
            loss = module(tokens) / accumulation
            loss.backward()
            total += loss.item()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        losses.append(total)
    return losses


def close(got, expected):
    return all(abs(one - other) < 1e-5 for one, other in zip(got, expected))


def text_of(**more):
    return json.dumps(ds_config(**more))
