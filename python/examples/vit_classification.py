#!/usr/bin/env python3
"""Trains a vision transformer on images, with DeepSpeed's names.

    python vit_classification.py --deepspeed_config ds.json --epochs 3 --save runs/vit

The images are generated: crosses, squares and stripes with noise, on noise. If the folder of --save
has a checkpoint, training continues from it.
"""

import argparse

import torch
from torch.utils.data import TensorDataset
from transformers import ViTConfig, ViTForImageClassification

import sluice.deepspeed as deepspeed

CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-3, "weight_decay": 0.05}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 2e-3, "warmup_num_steps": 10}},
    "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"},
                          "offload_optimizer": {"device": "cpu"}},
}
KINDS = ("cross", "square", "stripes")


def draw(count, size, generator):
    """Images [count, 3, size, size] and which of KINDS each is."""
    images = 0.3 * torch.randn(count, 3, size, size, generator=generator)
    kinds = torch.randint(len(KINDS), (count,), generator=generator)
    middle, edge = size // 2, size // 4
    for image, kind in zip(images, kinds):
        if KINDS[kind] == "cross":
            image[:, middle] += 2
            image[:, :, middle] += 2
        elif KINDS[kind] == "square":
            image[:, edge:-edge, edge:-edge] += 2
        else:
            image[:, ::4] += 2
    return TensorDataset(images, kinds)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--save", metavar="DIR")
    deepspeed.add_config_arguments(parser)
    args = parser.parse_args(argv)

    torch.manual_seed(1)
    model = ViTForImageClassification(ViTConfig(
        hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128,
        image_size=16, patch_size=4, num_labels=len(KINDS)))
    generator = torch.Generator().manual_seed(2)
    data = draw(args.images, 16, generator)
    engine, _, loader, schedule = deepspeed.initialize(
        args, model, training_data=data, config=None if args.deepspeed_config else CONFIG)
    first = 0
    if args.save:
        path, state = engine.load_checkpoint(args.save)
        first = state["epoch"] if path else 0
    for epoch in range(first, args.epochs):
        engine.train()
        for images, kinds in loader:
            images, kinds = images.to(engine.device), kinds.to(engine.device)
            loss = engine(pixel_values=images, labels=kinds).loss
            engine.backward(loss)
            engine.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}, lr {schedule.get_last_lr()[0]:.2g}, "
              f"gradient {engine.get_global_grad_norm():.3f}")
        if args.save:
            engine.save_checkpoint(args.save, client_state={"epoch": epoch + 1})
    engine.eval()
    images, kinds = draw(64, 16, generator).tensors
    with torch.no_grad():
        predicted = engine(pixel_values=images.to(engine.device)).logits.argmax(-1).cpu()
    accuracy = (predicted == kinds).float().mean().item()
    print(f"accuracy {accuracy:.2f}")
    return engine, {"accuracy": accuracy, "epochs": args.epochs - first}


if __name__ == "__main__":
    main()
