"""Gives what a run of Sluice writes down to TensorBoard, Weights & Biases, MLflow and CSV files.

The program is sluice-log (cli.py). Nothing here needs the compiled part of Sluice, or torch.

  tail.py     lines of files that grow, are begun anew in parts, and are cut
  records.py  a line of metrics.jsonl as a Record: names, numbers, a place on the axes
  run.py      a run's folder: its records, its events, its configuration, whether it still goes on
  outputs.py  what all outputs share: what was written so far, and from where to write again
  tensorboard.py, wandb.py, mlflow.py, csv_files.py   one kind of output each
  chosen_outputs.py   which of them options ask for
"""

from .chosen_outputs import make_outputs
from .outputs import Failure, Output
from .records import Record, record_of

__all__ = ["Failure", "Output", "Record", "make_outputs", "record_of"]
