"""Evaluates the expressions on standard input, which the Python package refuses, and prints what it
says of each as JSON.

Names are those of small_modules.py, and of a `module` that has an `engine`, and micro-batch x.
"""

import json
import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from torch import nn

import sluice

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from small_modules import batches, initialize, run_config, tower  # noqa: E402


def said(expression, names):
    try:
        eval(expression, names)
    except Exception as error:
        return f"{type(error).__name__}: {error}".replace(os.getcwd(), "FOLDER")
    return ""


def main():
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    module, (x,) = tower(), batches(1)
    with tempfile.TemporaryDirectory() as folder, initialize(module) as engine:
        os.chdir(folder)
        names = {"torch": torch, "nn": nn, "sluice": sluice, "tower": tower, "x": x,
                 "run_config": run_config, "module": module, "engine": engine}
        found = [said(expression, names) for expression in sys.stdin.read().splitlines()]
        os.chdir("/")
    json.dump(found, sys.stdout)


main()
