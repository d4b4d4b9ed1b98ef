"""The outputs that options request."""

from .csv_files import CsvFiles
from .mlflow import MlflowRun
from .tensorboard import TensorBoard
from .wandb import WandbRun


def make_outputs(options):
    """Makes them from parsed command-line options, or an object with the same attributes."""
    made = []
    if options.tensorboard:
        made.append(TensorBoard(options.tensorboard))
    if options.csv:
        made.append(CsvFiles(options.csv))
    if options.wandb:
        made.append(WandbRun(options.wandb, folder=options.wandb_dir, team=options.wandb_team,
                             group=options.wandb_group, name=options.name,
                             offline=options.wandb_offline))
    if options.mlflow:
        made.append(MlflowRun(options.mlflow, experiment=options.mlflow_experiment,
                              name=options.name))
    return made
