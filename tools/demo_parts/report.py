"""What tools/demo prints at its end."""

import json
import math
import os
import shlex
import statistics
from array import array
from collections import Counter, namedtuple

from corpus.output import entropy_nats
from toolbox import ROOT, read_json, say

SLUICE = ROOT / "build/bin/sluice"
END = "<|endoftext|>"

# Validation text, in tokens and in bytes. The entropies are the costs of predicting each byte, or
# each token, by its frequency in this very text: no model that only counts does better.
HeldBack = namedtuple("HeldBack", "tokens bytes byte_nats token_nats vocab")


def held_back(corpus):
    """Reads corpus/val.bin, whose tokens are byte pairs."""
    tokenizer = read_json((corpus / "tokenizer.json").read_text(encoding="utf-8"))
    spelled = {token: text for text, token in tokenizer["model"]["vocab"].items()}
    tokens = array("H")
    tokens.frombytes((corpus / "val.bin").read_bytes())
    counts = Counter(tokens)
    by_byte = Counter()
    for token, count in counts.items():
        # Each byte is spelled by one character.
        for byte in "" if spelled[token] == END else spelled[token]:
            by_byte[byte] += count
    return HeldBack(len(tokens), sum(by_byte.values()), entropy_nats(by_byte),
                    entropy_nats(counts), len(spelled))


def learned(text, metrics):
    """Lines that explain the loss. Losses per token and per byte are comparable by the average
    number of bytes that a token represents."""
    losses = [(step["step"], step["val_loss"]) for step in metrics
              if step.get("val_loss") is not None]
    if not losses:
        return ["what the model has learned is not known: no validation loss was written"]
    step, loss = losses[-1]
    bytes_per_token = text.bytes / text.tokens
    model, by_tokens = loss / bytes_per_token, text.token_nats / bytes_per_token
    untrained = math.log(text.vocab) / bytes_per_token
    beaten = [name for name, rival in (("bytes", text.byte_nats), ("tokens", by_tokens))
              if model < rival]
    verdict = {0: "This is above both so far: give it more --steps.",
               1: f"This is below that of {''.join(beaten)} only, so far: give it more --steps.",
               2: "This is below both: it predicts from what came before."}[len(beaten)]
    return [f"loss on text held back: {untrained:.2f} nats per byte untrained -> {model:.2f} after "
            f"step {step} ({loss:.2f} per token of {bytes_per_token:.2f} bytes)",
            f"The model is as unsure of each byte as among {math.exp(model):.1f} equally likely "
            f"ones (e^{model:.2f}).",
            "A unigram model, which only counts how often things occur, has "
            f"{text.byte_nats:.2f} by bytes and {by_tokens:.2f} by tokens. {verdict}"]


def speed(metrics):
    """The median speed of the steps, and the traffic of the drive."""
    tokens_per_s = statistics.median(step["tokens_per_s"] for step in metrics)
    read, written = (sum(step[f"nvme_{way}_bytes"] for step in metrics) / 1e9
                     for way in ("read", "write"))
    return (f"speed: {tokens_per_s:,.0f} tokens/s; {read:.1f} GB were read from the drive and "
            f"{written:.1f} GB written")


def times(seconds):
    return "time: " + ", ".join(f"{name} {_duration(value)}" for name, value in seconds.items())


def _duration(seconds):
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def near(path):
    return shlex.quote(min(os.path.relpath(path), os.path.abspath(path), key=len))


def setting(key, *paths):
    relative = [min(os.path.relpath(path), os.path.abspath(path), key=len) for path in paths]
    return "--set " + shlex.quote(f"{key}={json.dumps(relative)}")


def next_steps(folder, vocab, longer):
    """Commands to copy. `longer`: the one that trains this model further."""
    own, larger = folder.path.parent / "own", folder.path.parent / "larger"
    train = f"{near(SLUICE)} train {near(folder.run / 'config.json')} --out"
    prepare, readme = near(ROOT / "tools/prepare"), near(ROOT / "README.md")
    plan = f"{near(SLUICE)} plan {near(ROOT / 'configs/gpt2_xl_24gb.json')}"
    return f"""
what next:
  {longer}
      this model, trained longer
  {prepare} {readme} --out {near(own)} --tokenizer bpe --vocab-size {vocab}
  {train} {near(own)}-run {setting("data.train", own / "train.bin")} \\
      {setting("data.validation", own / "val.bin")}
      your own text: files or folders in the place of README.md
  {train} {near(larger)} --set model.layers=12
      a larger model: 38M parameters, four times the time
  {plan} --gpu rtx4090 --ram 64
      GPT-2 XL (1.56B) on your GPU: put in its name and your RAM (sluice plan --list-gpus)"""


def say_all(folder, text, metrics, seconds):
    first, *more = learned(text, metrics)
    say(first)
    for line in more:
        print(f"    {line}")
    if metrics:
        say(speed(metrics))
    say(times(seconds))
    say(f"checkpoints and metrics.jsonl are in {near(folder.run)}")
