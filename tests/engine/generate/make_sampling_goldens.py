#!/usr/bin/env python3
"""Writes data/sampling.json: what transformers' warpers leave of some logits, in double.

Run it with the torch wheel's Python, after tools/setup --for=test.
"""

import json
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[2] / "tools"))
import reference_packages

reference_packages.use()
from transformers import (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper,
                          __version__)

LOGITS = {
    "spread": [round(3 * x, 3) for x in torch.randn(
        40, generator=torch.Generator().manual_seed(4)).tolist()],
    "ties": [1.0, 0.5, 0.5, 0.5, 0.25, 0.25, -1.0, 1.0],
    "one_certain": [30.0, 0.0, -1.0, 2.0],
    "equal": [0.125] * 8,
    "two": [0.0, -0.5],
}
SETTINGS = [(temperature, top_k, top_p)
            for temperature in (1.0, 0.7, 2.5) for top_k in (0, 1, 2, 3, 100)
            for top_p in (1.0, 0.95, 0.6, 0.3, 1e-6)]


def probabilities(logits, temperature, top_k, top_p):
    scores = torch.tensor([logits], dtype=torch.float64)
    ids = torch.zeros((1, 1), dtype=torch.long)
    if temperature != 1.0:
        scores = TemperatureLogitsWarper(temperature)(ids, scores)
    if top_k != 0:
        scores = TopKLogitsWarper(top_k)(ids, scores)
    if top_p < 1.0:
        scores = TopPLogitsWarper(top_p)(ids, scores)
    return torch.softmax(scores, dim=-1)[0].tolist()


def main():
    cases = [{"logits": name, "temperature": temperature, "top_k": top_k, "top_p": top_p,
              "probabilities": [round(p, 12) for p in
                                probabilities(logits, temperature, top_k, top_p)]}
             for name, logits in LOGITS.items() for temperature, top_k, top_p in SETTINGS]
    lines = ",\n".join(json.dumps(case) for case in cases)
    (HERE / "data/sampling.json").write_text(
        f'{{"transformers": "{__version__}",\n"logits": {json.dumps(LOGITS)},\n'
        f'"cases": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
