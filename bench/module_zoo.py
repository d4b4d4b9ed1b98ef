"""Trains small random models of all transformers architectures for a task, with the package sluice.
Compares their losses with those of plain PyTorch's AdamW in fp32: in RAM, and on NVMe with
accumulation and checkpointing.

    python3 bench/module_zoo.py --nvme /nvme                          # 10 minutes on two cores
    python3 bench/module_zoo.py --nvme /nvme --match 'Gemma*' --tasks causal-lm

An architecture is skipped if no small model can be made from a few common numbers, if its loss is
random, or if its gradient overflows. It is unstable if PyTorch's own losses change by more than
1e-5 when its parameters are scaled by 1 + 1e-7 (batch normalisation of a few images makes any
rounding large). Then the first step's loss and norm have to agree; otherwise all losses have to.
Exits with 1 if they do not.
"""

import argparse
import collections
import contextlib
import copy
import fnmatch
import inspect
import json
import logging
import math
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tools"))
import reference_packages

reference_packages.use()
import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import sluice

LARGEST = 30_000_000  # parameters
NEAR = 1e-5
LARGEST_NORM = 1e18  # squares of larger numbers overflow in fp32
LR, BETAS, EPS, DECAY = 3e-4, (0.9, 0.98), 1e-8, 0.1
TASKS = {
    "causal-lm": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "classification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "images": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
}
VOCAB, EOS = 64, 2


def keys(value, names):
    return dict.fromkeys(names.split(), value)


# The names that configurations use for the same number.
SMALL = {
    "vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": EOS,
    "decoder_start_token_id": 1, "sep_token_id": EOS, "cls_token_id": 1,
    **keys(32, "hidden_size d_model n_embd dim embed_dim embedding_size image_size"),
    **keys(64, "intermediate_size ffn_dim n_inner hidden_dim d_ff encoder_ffn_dim decoder_ffn_dim"),
    **keys(3, "num_hidden_layers n_layer n_layers num_layers"),
    **keys(2, "encoder_layers decoder_layers num_decoder_layers num_key_value_heads"),
    **keys(4, "num_attention_heads n_head n_heads num_heads encoder_attention_heads"),
    **keys(4, "decoder_attention_heads num_experts num_local_experts n_routed_experts rotary_dim"),
    **keys(8, "head_dim d_kv v_head_dim qk_rope_head_dim qk_nope_head_dim patch_size sliding_window"),
    **keys(64, "max_position_embeddings n_positions max_target_positions max_source_positions"),
    **keys(32, "moe_intermediate_size shared_expert_intermediate_size"),
    **keys(16, "q_lora_rank kv_lora_rank"),
    **keys(1, "n_shared_experts n_group topk_group"),
    "num_experts_per_tok": 2, "mamba_d_state": 8, "state_size": 8, "time_step_rank": 4,
    "attention_window": 4,
    **keys(0.0, "hidden_dropout_prob attention_probs_dropout_prob resid_pdrop embd_pdrop attn_pdrop"),
    **keys(0.0, "dropout attention_dropout activation_dropout classifier_dropout hidden_dropout"),
    **keys(0.0, "dropout_rate embedding_dropout residual_dropout ff_dropout drop_path_rate"),
    **keys(0.0, "qa_dropout seq_classif_dropout summary_last_dropout classifier_dropout_prob"),
    **keys(0.0, "layerdrop encoder_layerdrop decoder_layerdrop router_jitter_noise"),
}  # fmt: skip
# Tried if those make no model: layers of several kinds; latent attention; numbers that are lists.
OTHERWISE = (
    {},
    keys(8, "num_hidden_layers"),
    {"head_dim": 4, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8},
    keys(None, "num_heads hidden_dim embed_dim patch_size"),
)


class LeftOut(Exception):
    pass


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0].replace("\n", " "))
    parser.add_argument("--nvme", required=True, help="folder on the drive")
    parser.add_argument("--tasks", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--match", default="*", help="names of model classes, as of files")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", help="file for a line for each model")
    return parser.parse_args()


def batch(task, generator):
    def draw(*shape, first=3, end=60):
        return torch.randint(first, end, shape, generator=generator)

    if task == "images":
        pixels = torch.randn(2, 3, 32, 32, generator=generator)
        return {"pixel_values": pixels, "labels": draw(2, first=0, end=2)}
    ids = draw(2, 16)
    if task == "causal-lm":
        return {"input_ids": ids, "labels": ids.clone()}
    ids[:, -1] = EOS
    labels = draw(2, 16) if task == "seq2seq" else draw(2, first=0, end=2)
    return {"input_ids": ids, "labels": labels}


def batches(task, count):
    generator = torch.Generator().manual_seed(5)
    return [batch(task, generator) for _ in range(count)]


def small_config(kind, numbers):
    known = inspect.signature(kind.__init__).parameters
    wanted = {key: value for key, value in numbers.items() if value is not None}
    try:
        config = kind(**{key: value for key, value in wanted.items() if key in known})
    except Exception:  # a number that conflicts with the others
        config = kind()
        for key, value in wanted.items():
            if hasattr(config, key):
                with contextlib.suppress(Exception):
                    setattr(config, key, value)
    if getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 1
    return config


def small_model(cls, kind, task):
    """Raises LeftOut with the reason."""
    reason = ""
    for other in OTHERWISE:
        try:
            config = small_config(kind, {**SMALL, **other})
            with torch.device("meta"):
                size = sum(it.numel() for it in cls(copy.deepcopy(config)).parameters())
            if size > LARGEST:
                raise LeftOut(f"{size / 1e6:.0f} million parameters at its smallest")
            torch.manual_seed(0)
            model = cls(config).float().train()
            losses = [copy.deepcopy(model)(**one).loss.item() for one in batches(task, 1) * 2]
        except LeftOut as error:
            reason = str(error)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".replace("\n", " ")[:90]
        else:
            if not math.isfinite(losses[0]):
                raise LeftOut("its loss is not finite")
            if losses[0] != losses[1]:
                raise LeftOut("its loss is random")
            return model
    raise LeftOut(reason)


def by_torch(model, data, accumulation):
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY
    )
    losses, norms = [], []
    for first in range(0, len(data), accumulation):
        optimizer.zero_grad()
        losses.append(0.0)
        for one in data[first : first + accumulation]:
            loss = model(**one).loss / accumulation
            loss.backward()
            losses[-1] += loss.item()
        gradients = [it.grad.double() for it in model.parameters() if it.grad is not None]
        norms.append(torch.stack([it.square().sum() for it in gradients]).sum().sqrt().item())
        optimizer.step()
    return losses, norms


def by_sluice(model, data, accumulation, drive):
    place = {"device": "cpu"} if drive is None else {"device": "nvme", "nvme_path": drive}
    optimizer = {"lr": LR, "betas": BETAS, "eps": EPS, "weight_decay": DECAY, "decayed": "all"}
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "AdamW", "params": optimizer},
        "zero_optimization": {"stage": 3, "offload_param": place, "offload_optimizer": place},
        "run": {"device": "cpu"},
        "placement": {"record_elements": 65536},
    }
    losses, norms = [], []
    with sluice.initialize(model, config, units="hooks") as engine:
        for one in data:
            engine.backward(engine(**one).loss)
            done = engine.step()
            if done is not None:
                losses.append(done.loss)
                norms.append(done.grad_norm)
    return losses, norms


def furthest(some, others):
    off = [abs(one - other) for one, other in zip(some, others, strict=True)]
    return max(off) if all(map(math.isfinite, off)) else math.inf


def moved(model):
    other = copy.deepcopy(model)
    with torch.no_grad():
        for it in other.parameters():
            it.mul_(1 + 1e-7)
    return other


def compare(model, task, accumulation, drive, steps):
    """A verdict, and the largest difference from PyTorch's losses. Raises LeftOut."""
    data = batches(task, steps * accumulation)
    expected, norms = by_torch(copy.deepcopy(model), copy.deepcopy(data), accumulation)
    if not max(norms) < LARGEST_NORM:
        raise LeftOut(f"its gradient is {max(norms):.0e}")
    own = copy.deepcopy(model)
    if drive is not None:
        with contextlib.suppress(Exception):  # not every architecture supports it
            own.gradient_checkpointing_enable({"use_reentrant": False})
    losses, own_norms = by_sluice(own, copy.deepcopy(data), accumulation, drive)
    off = furthest(losses, expected)
    if off <= NEAR:
        return "near", off
    begins_alike = abs(losses[0] - expected[0]) <= NEAR and math.isclose(
        own_norms[0], norms[0], rel_tol=1e-3
    )
    is_unstable = furthest(by_torch(moved(model), data, accumulation)[0], expected) > NEAR
    return "unstable" if begins_alike and is_unstable else "DIFFERS", off


def judge(name, model_type, task, given):
    """A verdict, and its details."""
    off = verdict = None
    try:
        cls = getattr(transformers, name)
        model = small_model(cls, cls.config_class or CONFIG_MAPPING[model_type], task)
        for accumulation, on_drive in ((1, False), (2, True)):
            with tempfile.TemporaryDirectory(dir=given.nvme) as drive:
                verdict, off = compare(
                    model, task, accumulation, drive if on_drive else None, given.steps
                )
            if verdict != "near":
                break
    except LeftOut as error:
        return "left out", str(error)
    except Exception as error:
        return "FAILED", f"{type(error).__name__}: {error}"[:300]
    return verdict, f"{off:.1e}"


def main():
    given = arguments()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    logging.getLogger("sluice").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    counts = collections.Counter()
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(open(given.json, "w", encoding="utf-8")) if given.json else None
        for task in given.tasks:
            seen = set()
            for model_type, names in sorted(TASKS[task].items()):
                name = names if isinstance(names, str) else names[0]
                if name in seen or not fnmatch.fnmatch(name, given.match):
                    continue
                seen.add(name)
                verdict, text = judge(name, model_type, task, given)
                counts[task, verdict] += 1
                print(f"{verdict:9} {name:48} {text}", flush=True)
                if lines is not None:
                    line = {"task": task, "model": name, "verdict": verdict, "text": text}
                    print(json.dumps(line), file=lines, flush=True)
    verdicts = ("near", "unstable", "DIFFERS", "FAILED", "left out")
    print(f"\n{'task':16}" + "".join(f"{it:>10}" for it in verdicts))
    for task in given.tasks:
        print(f"{task:16}" + "".join(f"{counts[task, it]:>10}" for it in verdicts))
    return any(counts[task, it] for task in given.tasks for it in ("DIFFERS", "FAILED"))


if __name__ == "__main__":
    sys.exit(main())
