"""A run: one network trained on one set with the detector of its method, in a folder that knows how it was made.

spec = RunSpec("resnet18", "mnist", find_recipe("quick"), options={"width": 0.25})
train_run(spec, "runs/mnist")
load_run("runs/mnist").predict(["a.png", "b.png"])  # without the data set
"""

from ddu.runs.run import Run, RunData, check_classes, data_digest, is_finished, load_run, split_rows, train_run
from ddu.runs.spec import RunSpec, input_options, network_label

__all__ = [
    "Run",
    "RunData",
    "RunSpec",
    "check_classes",
    "data_digest",
    "input_options",
    "is_finished",
    "load_run",
    "network_label",
    "split_rows",
    "train_run",
]
