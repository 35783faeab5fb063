"""A run: one network trained on one set with the detector of its method, in a folder that knows how it was made.

spec = RunSpec("resnet18", "mnist", find_recipe("quick"), options={"width": 0.25})
train_run(spec, "runs/mnist")
load_run("runs/mnist").predict(["a.png", "b.png"])  # without the data set
"""

from ddu.runs.folder import Run as Run
from ddu.runs.folder import RunData as RunData
from ddu.runs.folder import data_digest as data_digest
from ddu.runs.folder import load_run as load_run
from ddu.runs.spec import RunSpec as RunSpec
from ddu.runs.spec import input_options as input_options
from ddu.runs.spec import network_label as network_label
from ddu.runs.train import is_finished as is_finished
from ddu.runs.train import split_rows as split_rows
from ddu.runs.train import train_run as train_run

__all__ = [
    "Run",
    "RunData",
    "RunSpec",
    "data_digest",
    "input_options",
    "is_finished",
    "load_run",
    "network_label",
    "split_rows",
    "train_run",
]
