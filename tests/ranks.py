"""One of several processes that fit together; run by test_distributed.py.

python ranks.py CASE FOLDER

The environment says which rank it is, as torchrun does. `fit` writes what each rank learned to
FOLDER/RANK.safetensors; in the other cases rank 1 dies.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

import ddu
from ddu import distributed
from ddu.detectors.saved import kept_tensors
from ddu.errors import LabelError
from ddu.layers import RBFHead

CLASSES, SAMPLES, HELD_OUT = 3, 600, 300

SHARDS = {
    "uneven": [range(0, 50), range(50, 590), range(590, 600)],
    "empty": [range(0), range(0, 600), range(0)],
    "even": [range(0, 200), range(200, 400), range(400, 600)],
}
"""The rows of each rank. Labels are sorted in half of the cases, so that ranks have classes of their own."""

DETECTORS = {
    "ddu": ddu.DDU,
    "paper": ddu.DDU.paper,
    "low_rank": lambda model: ddu.DDU(model, density={"covariance": "low_rank", "rank": 2}),
    "ledoit_wolf": lambda model: ddu.DDU(model, density={"shrinkage": "ledoit_wolf", "standardize": False}),
    "relative": lambda model: ddu.detectors.Mahalanobis(model, relative=True),
    "sngp": ddu.detectors.SNGP,
}
"""One of each kind of sum."""


def network(name):
    """A network in double precision, the same in every process."""
    torch.manual_seed(0)
    if name == "sngp":
        model: Any = ddu.create_model("resffn4_32", num_classes=CLASSES, in_features=4, head="sngp").double().eval()
        features, head = (lambda x: model.head.features(model.forward_features(x))), model.head.output
    else:
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()
        features, head = model[:-1], model[-1]
    with torch.no_grad():
        x, y = samples(SAMPLES, 0, ordered=False)
        targets = 4.0 * nn.functional.one_hot(y).double()
        head.weight.copy_(torch.linalg.lstsq(features(x), targets, driver="gelsd").solution.T)  # as good as trained
    return model


def samples(count, seed, *, ordered):
    """Points around three centres."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % CLASSES
    y = y.sort().values if ordered else y
    return torch.randn(count, 4, generator=generator, dtype=torch.float64) + y[:, None] - 1, y


def batches(x, y, rows):
    rows = torch.tensor(list(rows), dtype=torch.int64)
    return [(x[part], y[part]) for part in rows.split(64)] if len(rows) else []


def learned(detector):
    """Everything that was learned, by name, in double precision."""
    state = {name: tensor.clone() for name, tensor in kept_tensors(detector).items()}
    densities = detector.score.densities if hasattr(detector, "score") else getattr(detector, "densities", [])
    for index, density in enumerate(densities):
        state |= {f"{index}.{name}": tensor.clone() for name, tensor in density.state_tensors().items()}
        state[f"{index}.covariances"] = density.covariances_
    if hasattr(detector, "score"):
        state |= {name: torch.tensor(getattr(detector.score, name)).double() for name in ("centre", "scale")}
    if hasattr(detector, "posterior"):
        state["scatter"] = detector.posterior.scatter
    return state | {"temperature": torch.tensor(detector.temperature, dtype=torch.float64)}


def fitted(name, shards, ranks):
    """A detector that this rank fitted and calibrated together with the others."""
    ordered = shards == "even"
    detector = DETECTORS[name](network(name))
    x, y = samples(SAMPLES, 1, ordered=ordered)
    mine = range(SAMPLES) if ranks.size == 1 else SHARDS[shards][ranks.rank]
    detector.fit(batches(x, y, mine), progress=False, ranks=ranks)
    x, y = samples(HELD_OUT, 2, ordered=ordered)
    return detector.calibrate(batches(x, y, ranks.share(HELD_OUT)), 0.05, progress=False, ranks=ranks)


def centroids(ranks):
    """The head of DUQ after three steps, each with its share of the batch on every rank."""
    torch.manual_seed(0)
    head = RBFHead(4, CLASSES, momentum=0.9).double()
    for step in range(3):
        x, y = samples(90, step, ordered=True)
        rows = list(ranks.share(90))
        head.update_centroids(x[rows], y[rows])
    return {"centroids": head.centroids, "count": head.count}


def everything(ranks):
    state = {f"duq/{name}": tensor for name, tensor in centroids(ranks).items()}
    for name in DETECTORS:
        for shards in SHARDS:
            state |= {f"{name}/{shards}/{key}": value for key, value in learned(fitted(name, shards, ranks)).items()}
    return {name: value.contiguous() for name, value in state.items()}


def main(case, folder):
    torch.set_num_threads(1)
    with distributed.join() as ranks:
        if case == "fit":
            safetensors.torch.save_file(everything(ranks), folder / f"{ranks.rank}.safetensors")
        elif case == "raises" and ranks.rank == 1:
            raise LabelError("Class 7 has 1 sample.")
        elif case == "killed":
            x, y = samples(SAMPLES, 1, ordered=False)

            def slowly():
                for batch in batches(x, y, range(SAMPLES)):
                    if ranks.rank == 1:
                        os.kill(os.getpid(), signal.SIGKILL)
                    time.sleep(5)
                    yield batch

            ddu.DDU(network("ddu")).fit(slowly(), progress=False, ranks=ranks)
        else:
            ranks.merged(ranks.rank, max)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
