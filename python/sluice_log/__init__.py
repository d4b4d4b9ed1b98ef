"""Sends the metrics of a Sluice run to TensorBoard, Weights & Biases, MLflow and CSV files.

The program is sluice-log (cli.py). Nothing here needs the compiled part of Sluice, or torch.

  tail.py     lines of files that grow, are rotated, and are truncated
  records.py  a line of metrics.jsonl as a Record: names, numbers, a position on the axes
  run.py      a run's folder: its records, events and configuration, and whether it still trains
  outputs.py  shared by all outputs: what was written so far, and from where to write again
  tensorboard.py, wandb.py, mlflow.py, csv_files.py   one kind of output each
  chosen_outputs.py   the outputs that options request
"""

from .chosen_outputs import make_outputs
from .outputs import Failure, Output
from .records import Record, record_of

__all__ = ["Failure", "Output", "Record", "make_outputs", "record_of"]
