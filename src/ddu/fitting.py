"""A detector around a network that was not trained here, in a folder that is a source by itself.

source.json           the network, its preprocessing, the data, versions and commit
model.safetensors     the weights of a network of timm's or torchvision's; the function of a module loads its own
detector.safetensors  the fitted and calibrated detector
examples.safetensors  examples of the data, if they are kept
"""

import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ddu import artifacts, data, distributed, provenance
from ddu.data import ArrayDataset, Preprocessing
from ddu.data.registry import Root, listed
from ddu.detectors import BaseDetector, find_method, load
from ddu.detectors.passes import Judged, Learned
from ddu.engines import OneByOne, current_engine
from ddu.errors import DDUWarning, InputError
from ddu.examples import check_count, keep_examples, load_examples
from ddu.files import FilePath, write_bytes, write_json
from ddu.networks import Network, first_batch, is_of_library, open_network
from ddu.resume import one_at_a_time, read_settings, refuse_changes
from ddu.runs import check_classes, data_digest
from ddu.sources import SOURCE, WEIGHTS

_LOADED: dict[str, Any] = {}

# What may differ between two commands that fit the same detector
_PROVENANCE = ("command", "versions", "commit")


class FitData(NamedTuple):
    """The samples that a detector learns from, those that it is calibrated on, and what these are in words."""

    train: ArrayDataset
    held_out: ArrayDataset
    calibration: str


@dataclass(frozen=True)
class FitSpec:
    """Everything that decides a fitted detector, but for weights and samples.

    Attributes:
        network: `module:function`, `timm:NAME` or `torchvision:NAME`; see `ddu.networks.open_network`.
        data: What the network was trained on, as of `ddu.data.load`: the training split, or all of it.
        calibration: Data that the network was not trained on: the test split, or all of it. None takes the split `val`
            of `data`; where there is none, a share of the samples is held out.
        held_out: That share.
        preprocessing: How the network is shown an input; None asks the network first, and then the data.
        method: The registered method whose detector is fitted.
        false_alarm_rate: The rate that the detector is calibrated for.
        seed: Decides which samples are held out, and which are used.
        limit: Use at most so many samples of `data`; None uses all.
        options: For timm's or torchvision's function that makes the network; `num_classes` is that of the data.
        skip_bad: Leave out images that cannot be read.
    """

    network: str
    data: str
    calibration: str | None = None
    held_out: float = 0.2
    preprocessing: Preprocessing | None = None
    method: str = "ddu"
    false_alarm_rate: float = 0.01
    seed: int = 0
    limit: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    skip_bad: bool = False

    def load_data(self, root: Root = None) -> FitData:
        """What to fit and what to calibrate on."""
        everything = data.load(self.data, root=root, skip_bad=self.skip_bad)
        if self.limit is not None:
            everything = everything.subset(data.draw(everything, self.limit, seed=self.seed))
        if self.calibration is None and "val" not in data.list_splits(self.data, root=root):
            train, kept = data.split(everything, self.held_out, seed=self.seed)
            return FitData(everything.subset(train), everything.subset(kept), f"{self.held_out:.0%} of {self.data}")
        name = self.calibration or self.data
        splits = data.list_splits(name, root=root)
        split = "val" if self.calibration is None else "test" if "test" in splits else splits[0]
        held_out = data.load(name, split, root=root, skip_bad=self.skip_bad)
        if held_out.info.classes != everything.info.classes:
            raise InputError(
                f"{self.data} has the classes {listed(everything.info.classes)}, and {name} has "
                f"{listed(held_out.info.classes)}: calibrate on the same classes in the same order."
            )
        return FitData(everything, held_out, f"{name}, {split}")

    def open_network(self, num_classes: int, weights: FilePath | None = None) -> Network:
        """The network for so many classes."""
        options = {"num_classes": num_classes, **self.options} if is_of_library(self.network) else self.options
        return open_network(self.network, weights=weights, options=options)

    def make_detector(self, network: Network, class_names: tuple[str, ...]) -> BaseDetector:
        """The detector around the network; not fitted yet."""
        method = find_method(self.method)
        if method.members > 1:
            raise InputError(f"{method.name} needs {method.members} networks, and there is one: choose another method.")
        detector = method.make(network.model, class_names=class_names)
        if not detector.can_save:
            raise InputError(f"{method.name} cannot be saved: choose another method.")
        return detector


def fit_detector(
    spec: FitSpec,
    output: FilePath,
    *,
    weights: FilePath | None = None,
    data_root: Root = None,
    command: str = "",
    batch_size: int = 128,
    workers: int = 0,
    progress: bool | None = None,
    examples: int | None = None,
) -> BaseDetector:
    """Fits and calibrates a detector around a network, and writes it to a folder that `ddu.sources` opens.

    A folder that has this detector already is left as it is, and one that has another is refused. Processes that
    `torchrun` starts share the passes over the data, and the first one writes: see `ddu.distributed`. With the engine
    of a cluster, its workers do so: see `ddu.engines`.

    Args:
        spec: What to fit.
        output: The folder, new or empty.
        weights: The safetensors file of a network of timm's or torchvision's.
        data_root: Where the data is; see `ddu.data.load`.
        command: The command to record with the detector.
        batch_size: Inputs per forward pass.
        workers: Processes that read the data.
        progress: `True` shows bars, `False` none; by default they appear if it takes long, on a terminal.
        examples: Keep so many training examples beside the detector, for the page of the server: see `ddu.examples`. A
            folder that has this detector can be given them later.
    """
    folder = Path(output)
    if examples is not None:
        check_count(examples)
    with distributed.join() as ranks, ExitStack() as stack:
        if ranks.is_main:
            stack.enter_context(one_at_a_time(folder))
        else:
            progress = False
            stack.enter_context(warnings.catch_warnings(action="ignore", category=DDUWarning))
        begun = read_settings(folder / SOURCE, "detector")
        parts = spec.load_data(data_root)
        classes = parts.train.info.classes
        network = spec.open_network(len(classes), weights)
        preprocessing = spec.preprocessing or network.preprocessing or parts.train.preprocessing
        settings = _settings(spec, network, preprocessing, parts, command)
        train, held_out = (part.shown_by(preprocessing) for part in (parts.train, parts.held_out))

        def keep(detector: BaseDetector) -> BaseDetector:
            if examples is not None and ranks.is_main and load_examples(folder, detector.calibration) is None:
                keep_examples(detector, train, held_out, examples, seed=spec.seed, progress=progress).save(folder)
            return detector

        if begun is not None:
            were, are = ({k: v for k, v in one.items() if k not in _PROVENANCE} for one in (begun, settings))
            refuse_changes(f"The detector in {folder}", were, are)
            if (folder / artifacts.FILE).is_file():
                return keep(load(folder, network.model))
        detector = spec.make_detector(network, classes)
        # This also finds the layers, before workers get the detector
        _check_samples(spec, network, detector, train, held_out)
        if isinstance(engine := current_engine(), OneByOne):
            here = {"workers": workers, "progress": progress, "check": ranks.check}
            together, passes = ranks, Passes(lambda: parts, detector, preprocessing, batch_size, **here)
        else:
            together, passes = engine, Passes(partial(_load, spec, data_root), detector, preprocessing, batch_size)
        if detector.needs_fit:
            detector.fit_parts([together.over(len(train), passes.learn, progress=progress)])
        judged = together.over(len(held_out), passes.judge, progress=progress)
        detector.calibrate_parts([judged], false_alarm_rate=spec.false_alarm_rate)
        if not ranks.is_main:
            return detector
        write_json(folder / SOURCE, settings)
        if weights is not None:
            write_bytes(folder / WEIGHTS, Path(weights).read_bytes())
        detector.save(folder)
        return keep(detector)


@dataclass(frozen=True)
class Passes:
    """Passes over some rows of the data of a fit, which processes and workers share.

    Attributes:
        load: Gives the data; a worker elsewhere reads it itself.
        detector: The detector, with its network.
        preprocessing: How the network is shown an input.
        batch_size: Inputs per forward pass.
        workers: Processes that read the data.
        progress: As of `fit_detector`.
        check: Called before each batch.
    """

    load: Callable[[], FitData]
    detector: BaseDetector
    preprocessing: Preprocessing
    batch_size: int
    workers: int = 0
    progress: bool | None = False
    check: Callable[[], None] | None = None

    def learn(self, rows: range) -> Learned:
        """What the detector learns from some rows of the training data."""
        train = self.load().train
        return self.detector.learn_part(
            self._loader(train, rows),
            expected_samples=len(train),
            whole=len(rows) == len(train),
            progress=self.progress,
            check=self.check,
        )

    def judge(self, rows: range) -> Judged:
        """What the detector finds in some rows of the held-out data."""
        loader = self._loader(self.load().held_out, rows)
        return self.detector.judge_part(loader, progress=self.progress, check=self.check)

    def _loader(self, part: ArrayDataset, rows: range) -> Iterable[Any]:
        some = part if len(rows) == len(part) else part.subset(rows)
        return data.loader(some.shown_by(self.preprocessing), self.batch_size, workers=self.workers)


def _load(spec: FitSpec, data_root: Root) -> FitData:
    """The data of a worker, which keeps it for its next part."""
    key = spec, data_root
    if _LOADED.get("key") != key:
        _LOADED.update(key=key, data=spec.load_data(data_root))
    return _LOADED["data"]


def _check_samples(
    spec: FitSpec, network: Network, detector: BaseDetector, train: ArrayDataset, held_out: ArrayDataset
) -> None:
    """What labels and counts would stop after the pass, they stop before it."""
    classes = len(train.info.classes)
    if detector.needs_every_class:
        check_classes(train, classes, spec.limit)
    own_shape = spec.preprocessing or network.preprocessing
    outputs = first_batch(
        detector.tap,
        train.__getitems__([0])[0],
        spec.network,
        whose="" if own_shape else f"{spec.data}'s",
        way_out="Give the data that it was trained on, or with --preprocessing the shape that it takes.",
    ).logits.shape[1]
    if outputs != classes:
        raise InputError(
            f"{spec.network} has {outputs:,} outputs, and {spec.data} has {classes:,} classes: give data with a class "
            "for each output, in their order, or a network with these outputs alone."
        )
    detector.check_held_out(len(held_out), spec.false_alarm_rate)


def _settings(
    spec: FitSpec, network: Network, preprocessing: Preprocessing, parts: FitData, command: str
) -> dict[str, Any]:
    """The content of source.json."""
    content = asdict(spec) | {
        "network": {
            "name": network.name,
            "options": dict(network.options),
            "weights": artifacts.model_fingerprint(network.model),
        },
        "preprocessing": preprocessing.to_json(),
        "calibration": parts.calibration,
        "digest": data_digest(parts.train, parts.held_out),
        "samples": {"fitted": len(parts.train), "held_out": len(parts.held_out)},
        "command": command,
        "versions": provenance.versions("timm", "torchvision", "safetensors"),
        "commit": provenance.commit(),
    }
    del content["options"]  # those of the network
    return json.loads(json.dumps(content))
