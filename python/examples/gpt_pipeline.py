#!/usr/bin/env python3
"""A GPT as a list of layers, which stages on several ranks compute: DeepSpeed's pipeline API.

    torchrun --nproc-per-node 4 gpt_pipeline.py --text book.txt --stages 2 --output_dir runs/gpt

Four ranks and two stages are two groups of data ranks. Each stage keeps its parameters, gradients and
AdamW's state where the configuration says, here in RAM or with --nvme on a drive. The embedding and
the head share their weights. Without a launcher there is one rank, and one stage.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import sluice.deepspeed as deepspeed
from sluice.deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from sluice.deepspeed.utils import RepeatingLoader

VOCABULARY = 256  # bytes


class Embedding(nn.Module):
    def __init__(self, width, length):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(length, width)

    @property
    def weight(self):
        return self.words.weight

    def forward(self, tokens):
        return self.words(tokens) + self.places.weight[:tokens.shape[1]]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = (it.view(rows, length, self.heads, -1).transpose(1, 2)
                   for it in self.qkv(self.before(x)).chunk(3, -1))
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.between(x))))


def logits(embedding, hidden):
    return F.linear(hidden, embedding.weight)


def loss_of(predicted, labels):
    return F.cross_entropy(predicted.flatten(0, 1).float(), labels.flatten())


def layers(args):
    of_embedding = ("embedding", Embedding, args.width, args.length)
    return [
        TiedLayerSpec(*of_embedding),
        *(LayerSpec(Block, args.width, args.heads) for _ in range(args.blocks)),
        LayerSpec(nn.LayerNorm, args.width),
        TiedLayerSpec(*of_embedding, forward_fn=logits),
    ]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--text", required=True, metavar="FILE")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--partition", default="parameters", help='or "uniform", or "type:Block"')
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--length", type=int, default=64, help="tokens of a sequence")
    parser.add_argument("--rows", type=int, default=2, help="sequences of a micro-batch")
    parser.add_argument("--batch", type=int, default=8, help="sequences of a step, on all ranks")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--recompute", type=int, default=0, metavar="N", help="N layers at a time")
    parser.add_argument("--nvme", metavar="FOLDER", help="keep parameters and state there")
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args(argv)

    tokens = torch.tensor(list(Path(args.text).read_bytes()))
    count = (len(tokens) - 1) // args.length * args.length
    data = torch.utils.data.TensorDataset(tokens[:count].view(-1, args.length),
                                          tokens[1:count + 1].view(-1, args.length))
    there = {"device": "cpu"} if args.nvme is None else {"device": "nvme", "nvme_path": args.nvme}
    config = {
        "train_batch_size": args.batch,
        "train_micro_batch_size_per_gpu": args.rows,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": args.bf16},
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.01}},
        "zero_optimization": {"stage": 3, "offload_param": there, "offload_optimizer": there},
    }
    module = PipelineModule(layers(args), num_stages=args.stages, loss_fn=loss_of, seed_layers=True,
                            partition_method=args.partition,
                            activation_checkpoint_interval=args.recompute)
    engine, _, loader, _ = deepspeed.initialize(model=module, training_data=data, config=config)
    engine.set_dataloader(RepeatingLoader(loader))
    losses = []
    for step in range(args.steps):
        losses.append(engine.train_batch().item())
        if engine.global_rank == 0 and (step + 1) % 10 == 0:
            print(f"step {step + 1}: loss {losses[-1]:.4f}", flush=True)
    engine.save_checkpoint(args.output_dir)
    return engine, losses


if __name__ == "__main__":
    main()
