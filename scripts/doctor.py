"""Measures what the doctor finds on networks that are fit for density and on others: docs/doctor.md.

    python scripts/doctor.py FOLDER     # trains ten small networks into it, in about fifteen minutes on one core

Prints the table, and writes it into docs/doctor.md. The limits of the checks were chosen on the networks marked
"chosen on", and are confirmed on the others. The doctor sees held-out data alone; the AUROC of the paper's detector on
real OoD data is what it should have foretold. The data is looked for in DDU_DATA.
"""

import argparse
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import ddu
from ddu import data
from ddu.data import ArrayDataset
from ddu.diagnostics import Diagnosis
from ddu.experiments.pretrained import HeadSpec, TrainedHead, train_head
from ddu.metrics import auroc
from ddu.runs import Run, RunSpec, train_run
from ddu.training import Recipe

PAGE = Path(__file__).parents[1] / "docs" / "doctor.md"

_PLAIN = {"spectral_norm": None, "sensitive": False}
_LENET = Recipe(epochs=12, lr=0.02, schedule="one_cycle", batch_size=64)
_RESNET = Recipe(epochs=4, lr=0.1, schedule="one_cycle", batch_size=64)
_DIGITS, _CLOTHES, _PHOTOS = "dirty_mnist_5k", "fashion_mnist", "cifar10"


def _run(model: str, name: str, recipe: Recipe, **options: Any) -> RunSpec:
    return RunSpec(model, name, recipe, method=None, limit=5000, options=options)


CHOSEN_ON = {
    "lenet-dirty-0": _run("lenet", _DIGITS, _LENET, **_PLAIN),
    "resnet-sn-dirty-0": _run("resnet18", _DIGITS, _RESNET, width=0.125),
}
CONFIRMED_ON = {
    "efficientnet-cifar10": HeadSpec("efficientnet_lite0", _PHOTOS, size=64, limit=3000),
    "resnet-plain-dirty-0": _run("resnet18", _DIGITS, _RESNET, width=0.125, **_PLAIN),
    "lenet-fashion-0": _run("lenet", _CLOTHES, _LENET, **_PLAIN),
    "resnet-sn-fashion-0": _run("resnet18", _CLOTHES, _RESNET, width=0.125),
    "vgg-fashion-0": _run("vgg16", _CLOTHES, replace(_RESNET, lr=0.05), width=0.125, **_PLAIN),
    "lenet-cifar10-0": _run("lenet", _PHOTOS, _LENET, **_PLAIN),
    "resnet-sn-cifar10-0": _run("resnet18", _PHOTOS, replace(_RESNET, epochs=6), width=0.125),
    "mobilenet-svhn": HeadSpec("mobilenet_v2", "svhn_6k", size=64, limit=3000),
}
# What the networks have never seen, and the doctor neither
OOD = {
    _DIGITS: ("fashion_mnist", "svhn"),
    _CLOTHES: ("mnist", "svhn"),
    _PHOTOS: ("svhn", "mnist"),
    "svhn_6k": ("cifar10", "mnist"),
}
_HEAD = (
    "| network, data | | held-out accuracy | last layer alone: worst probe | findings of `DDU.paper` | default score: "
    "worst probe | findings of `DDU` | ratios, 1 % and 99 % | real OoD, last layer alone |"
)


def main() -> None:
    """Trains, diagnoses and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the networks are kept; finished ones are reused")
    folder = parser.parse_args().folder
    warnings.simplefilter("ignore")
    rows = [_HEAD, "|---" * 9 + "|"]
    for role, networks in (("chosen on", CHOSEN_ON), ("confirmed on", CONFIRMED_ON)):
        for name, spec in networks.items():
            trained = train_head(spec, folder / name) if isinstance(spec, HeadSpec) else train_run(spec, folder / name)
            assert trained is not None
            rows.append(measured(trained, role))
            print(rows[-1], flush=True)
    table = "\n".join(rows)
    between = re.compile(r"(<!-- measured -->\n).*?(<!-- end -->)", re.DOTALL)
    PAGE.write_text(between.sub(lambda marks: f"{marks[1]}\n{table}\n\n{marks[2]}", PAGE.read_text()))


def measured(trained: Run | TrainedHead, role: str) -> str:
    """One row of the table."""
    model, sets, spec = trained.load_model(), trained.load_data(), trained.spec
    paper, default = (diagnosed(detector, sets) for detector in (ddu.DDU.paper(model), ddu.DDU(model)))
    known = scores(paper[0], sets.validation)
    unknown = {
        name: auroc(known, scores(paper[0], sample(data.load_ood(name, trained.info)))) for name in OOD[spec.data]
    }
    layer = paper[1].tables["layers"][-1]
    lower = min(layer["pairs_lower"], layer["local_lower"])
    upper = max(layer["pairs_upper"], layer["local_upper"])
    cells = [
        f"{spec.label}, {spec.data}",
        role,
        f"{accuracy(model, sets.validation):.1%}",
        worst(paper[1]),
        in_words(paper[1]),
        worst(default[1]),
        in_words(default[1]),
        f"{lower:.2f}, {upper:.2f}",
        ", ".join(f"{name} {area:.3f}" for name, area in unknown.items()),
    ]
    return f"| {' | '.join(cells)} |"


def diagnosed(detector: ddu.DDU, sets: Any) -> tuple[ddu.DDU, Diagnosis]:
    """A detector that is fitted and calibrated for a rate of 5 %, and its diagnosis."""
    detector.fit(data.loader(sets.train)).calibrate(data.loader(sets.validation), 0.05, probes=False)
    return detector, ddu.diagnose(detector, sets.validation, train=sets.train)


def worst(diagnosis: Diagnosis) -> str:
    """The AUROC of the probe that the score sees worst, of those that are plainly unknown."""
    finding = next(one for one in diagnosis.findings if one.check == "probes")
    name = next(row["probe"] for row in diagnosis.tables["probes"] if row["auroc"] == finding.value)
    return f"{finding.value:.3f} ({name.removeprefix('images of ').removeprefix('images with ')})"


def in_words(diagnosis: Diagnosis) -> str:
    """The findings that are warnings or worse."""
    return ", ".join(f"{one.severity}: {one.check}" for one in diagnosis.at_least("warning")) or "none"


def sample(samples: ArrayDataset) -> ArrayDataset:
    """At most 1,000 of them."""
    return samples.subset(np.random.default_rng(0).permutation(len(samples))[:1000])


def scores(detector: ddu.DDU, samples: ArrayDataset) -> torch.Tensor:
    """How unknown each sample is."""
    return torch.cat([detector.evidence(inputs).epistemic for inputs, _ in data.loader(samples)])


def accuracy(model: nn.Module, samples: ArrayDataset) -> float:
    """The share of right predictions."""
    with torch.no_grad():
        right = [model(inputs).argmax(1) == labels for inputs, labels in data.loader(samples)]
    return float(torch.cat(right).double().mean())


if __name__ == "__main__":
    main()
