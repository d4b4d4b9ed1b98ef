#!/usr/bin/env python3
"""Trains PEFT's adapters on a frozen model that streams from NVMe, or from RAM.

    python lora_peft.py --model meta-llama/Llama-3.1-8B --text book.txt --nvme /mnt/fast --save a

The base model has no optimizer state. Each of its layers is in memory only while it computes.
"""

import argparse
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import (AutoModelForCausalLM, AutoTokenizer, ByT5Tokenizer, LlamaConfig,
                          LlamaForCausalLM)

import sluice

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]


def load(path):
    if path:
        return AutoTokenizer.from_pretrained(path), AutoModelForCausalLM.from_pretrained(path)
    tokenizer = ByT5Tokenizer(extra_ids=0)
    return tokenizer, LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2))


def configuration(args):
    place = {"device": "nvme", "nvme_path": args.nvme} if args.nvme else {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": args.batch,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": args.bf16},
        "optimizer": {"type": "AdamW", "params": {"lr": args.lr, "weight_decay": 0.0}},
        "zero_optimization": {"stage": 3, "offload_param": place,
                              "offload_optimizer": {"device": "cpu"}},
    }


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", help="default: a small random Llama")
    parser.add_argument("--text", required=True, metavar="FILE")
    parser.add_argument("--save", metavar="DIR", help="for the adapters, in PEFT's form")
    parser.add_argument("--nvme", metavar="DIR", help="where the base is")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args(argv)

    torch.manual_seed(1)
    tokenizer, base = load(args.model)
    model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules=TARGETS,
                                            task_type="CAUSAL_LM"))
    model.print_trainable_parameters()
    tokens = torch.tensor(tokenizer(Path(args.text).read_text(encoding="utf-8"),
                                    add_special_tokens=False).input_ids)
    losses = []
    with sluice.initialize(model, configuration(args)) as engine:
        for _ in range(args.steps):
            starts = torch.randint(len(tokens) - args.length, (args.batch,))
            batch = torch.stack([tokens[start:start + args.length] for start in starts])
            batch = batch.to(engine.device)
            engine.backward(engine(input_ids=batch, labels=batch).loss)
            losses.append(engine.step().loss)
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}; in RAM:",
              ", ".join(f"{what} {size / 2**20:.1f} MiB" for what, size in engine.memory["host"]))
        if args.save:
            model.save_pretrained(args.save)
            state = engine.state_dict()
        else:
            state = None
    return state, losses


if __name__ == "__main__":
    main()
