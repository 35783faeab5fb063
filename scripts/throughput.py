"""Measures how many samples per second a CPU core trains on, for the plans of `ddu reproduce NAME --plan`.

python scripts/throughput.py [--scale cpu]

Writes src/ddu/experiments/throughput.json; a network that is there is not measured again. The data is needed. It is the
processor's time of one thread that counts, so other work on the machine does not matter much.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch

from ddu import data
from ddu.data import ArrayDataset
from ddu.experiments.pretrained import HeadSpec
from ddu.experiments.reproduction import SCALES, Work
from ddu.experiments.reproductions import REPRODUCTIONS
from ddu.files import write_json
from ddu.training import fit

FILE = Path(__file__).parents[1] / "src/ddu/experiments/throughput.json"

# Epochs that are timed, after one that is not: the difference leaves out what is done once
SHORT, LONG = 1, 3

# Sets whose inputs have the same shape, so that a network is as fast on both
LIKE = {"dirty_mnist": "mnist", "cifar100": "cifar10"}


def main() -> None:
    """Measures what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=SCALES, default="cpu")
    parser.add_argument("--samples", type=int, default=1_000, help="per epoch")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    content = json.loads(FILE.read_text(encoding="utf-8"))
    speeds = content["samples_per_second"]
    for one in REPRODUCTIONS.values():
        for work in one.experiment(arguments.scale).work():
            of_data, network = work.key
            alike = next((speeds.get(of_data.replace(new, old), {}) for new, old in LIKE.items() if new in of_data), {})
            if network not in speeds.setdefault(of_data, {}):
                speed = alike.get(network) or round(measure(work, arguments.samples), 1)
                speeds[of_data][network] = speed
                print(f"{network} on {of_data}: {speed:,} samples per second", flush=True)
                write_json(FILE, content)


def measure(work: Work, samples: int) -> float:
    """Samples per second in training; of a pretrained backbone, in the forward pass."""
    dataset = data.load(LIKE.get(work.spec.data, work.spec.data))
    if work.side is not None:
        dataset = dataset.like(replace(dataset.info, shape=(dataset.info.shape[0], work.side, work.side)))
    dataset = dataset.subset(range(min(samples, len(dataset))))
    if isinstance(work.spec, HeadSpec):
        return forward(work.spec, dataset)
    seconds = []
    for epochs in (1, SHORT, LONG):
        model = work.spec.make_model(dataset.info)
        recipe = work.spec.recipe.with_changes(epochs=epochs, select="last", samples_per_epoch=None)
        started = time.process_time()
        fit(model, dataset, recipe=recipe, progress=False)
        seconds.append(time.process_time() - started)
    return (LONG - SHORT) * len(dataset) / (seconds[2] - seconds[1])


def forward(spec: HeadSpec, dataset: ArrayDataset) -> float:
    """Inputs per second."""
    model, (inputs, _) = spec.make_model(dataset.info), dataset.__getitems__(range(min(len(dataset), 128)))
    with torch.inference_mode():
        model(inputs)
        started = time.process_time()
        model(inputs)
    return len(inputs) / (time.process_time() - started)


if __name__ == "__main__":
    main()
