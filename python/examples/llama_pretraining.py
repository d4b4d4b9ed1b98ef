#!/usr/bin/env python3
"""A Llama on text, computed by the engine's own units.

    python llama_pretraining.py --text book.txt --output_dir runs/llama \\
        --model meta-llama/Llama-3.2-1B --bf16

units="engine" requires the engine's own units. A model that they do not support is refused, with
the reason. By default ("auto") PyTorch computes such a model instead; engine.backend says which of the
two does.
"""

import argparse
import math
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, ByT5Tokenizer, LlamaConfig, LlamaForCausalLM

import sluice


def load(name):
    if name is not None:
        return AutoModelForCausalLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)
    torch.manual_seed(1)
    tokenizer = ByT5Tokenizer(extra_ids=0)
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=64, intermediate_size=160, num_hidden_layers=4,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256)
    return LlamaForCausalLM(config), tokenizer


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--text", required=True, metavar="FILE")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--model", help="a folder or a name; without it a small random one")
    parser.add_argument("--length", type=int, default=64, help="tokens of a sequence")
    parser.add_argument("--rows", type=int, default=4, help="sequences of a micro-batch")
    parser.add_argument("--accumulation", type=int, default=2, help="micro-batches of a step")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--nvme", metavar="FOLDER", help="keep AdamW's state there")
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args(argv)

    model, tokenizer = load(args.model)
    tokens = tokenizer(Path(args.text).read_text(encoding="utf-8"), add_special_tokens=False).input_ids
    sequences = torch.tensor(tokens[:len(tokens) // args.length * args.length]).reshape(-1, args.length)
    held_out, sequences = sequences[:args.rows], sequences[args.rows:]
    config = {
        "train_micro_batch_size_per_gpu": args.rows,
        "gradient_accumulation_steps": args.accumulation,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": args.bf16},
        "optimizer": {"type": "AdamW", "params": {"lr": args.lr, "weight_decay": 0.01}},
        "data": {"sequence_length": args.length},  # for planning GPU memory
    }
    if args.nvme is not None:
        config["zero_optimization"] = {"offload_optimizer": {"device": "nvme", "nvme_path": args.nvme}}
    engine = sluice.initialize(model.train(), config, units="engine")

    generator = torch.Generator().manual_seed(2)
    losses = []
    began = time.monotonic()
    while engine.global_step < args.steps:
        batch = sequences[torch.randint(len(sequences), (args.rows,), generator=generator)]
        engine.backward(engine(input_ids=batch, labels=batch).loss)
        done = engine.step()
        if done is not None:
            losses.append(done.loss)
    seconds = time.monotonic() - began
    trained = args.steps * args.accumulation * args.rows * args.length
    print(f"{engine.backend}: {trained / seconds:.0f} tokens/s, loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    with torch.no_grad():
        engine.eval()
        perplexity = math.exp(engine(input_ids=held_out, labels=held_out).loss.item())
    print(f"perplexity of what was held out: {perplexity:.2f}")
    engine.save_checkpoint(args.output_dir)
    model.save_pretrained(Path(args.output_dir) / "model")
    return engine, losses


if __name__ == "__main__":
    main()
