"""From nothing to a fitted, calibrated, saved and explained detector."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Generator, nn
from torch.utils.data import DataLoader, TensorDataset

from ddu.data import DigitsDemoData, LabelledImages, digits_demo_data
from ddu.demo._network import make_network
from ddu.demo._page import make_page
from ddu.demo._scores import Judged, Scores, score
from ddu.demo._training import train
from ddu.detectors import DDU
from ddu.errors import InputError
from ddu.extras import require
from ddu.files import versions, write_json

EPOCHS = 4
FALSE_ALARM_RATE = 0.01

Progress = Callable[[str, float, str], None]
"""Called with a stage, the share of it that is done, and a note."""


@dataclass(frozen=True)
class DemoResult:
    """What the demo leaves.

    Attributes:
        scores: The numbers.
        page: The HTML page.
        detector: The folder of the detector.
        weights: The network's weights.
        metrics: The numbers as JSON, with seed and versions.
    """

    scores: Scores
    page: Path
    detector: Path
    weights: Path
    metrics: Path


def run_demo(
    output: str | os.PathLike[str],
    seed: int = 0,
    *,
    epochs: int = EPOCHS,
    progress: Progress = lambda stage, done, note: None,
) -> DemoResult:
    """Trains a network on digits, puts a detector around it, and judges digits, ambiguous digits and photographs.

    The same seed on the same machine gives the same numbers. Nothing is written before everything is known.

    Args:
        output: The folder to write to: a new or empty one, or that of an earlier demo.
        seed: Decides the split, the mixtures, the patches, the weights and the order of training.
        epochs: Passes over the training digits.
        progress: Is told how far the demo is.
    """
    if not 0 <= seed < 2**63:
        raise InputError(f"The seed must be an integer from 0 to 2^63 - 1. Got {seed} instead.")
    if epochs < 1:
        raise InputError(f"The network needs at least 1 epoch of training. Got {epochs} instead.")
    for module in ("sklearn", "PIL", "matplotlib", "jinja2"):
        require(module, extra="demo", purpose="ddu demo")
    with _one_thread(), _unfinished(Path(output)) as unfinished:
        progress("Draw the data", 0, "")
        data = digits_demo_data(seed)
        tested = len(data.clean) + len(data.ambiguous) + len(data.photos)
        progress("Draw the data", 1, f"{len(data.train):,} to train on, {tested:,} to judge")

        model = make_network(seed)
        for step in train(model, data.train, epochs, Generator().manual_seed(seed)):
            note = f"epoch {step.epoch} of {epochs}, loss {step.loss:.3f}, accuracy {step.accuracy:.0%}"
            progress("Train the network", step.done, note)

        detector, judged = _detect(model, data, progress)
        progress("Write the page", 0, "")
        scores = score(data, judged, detector)
        run = _provenance(seed, epochs)
        (unfinished / "index.html").write_text(make_page(data, judged, scores, run), encoding="utf-8")
        write_json(unfinished / "metrics.json", run | {"scores": asdict(scores)})
        (unfinished / "model.safetensors").write_bytes(safetensors.torch.save(model.state_dict()))
        result = _publish(unfinished, Path(output), detector, scores)
        progress("Write the page", 1, result.page.name)
    return result


def _detect(model: nn.Module, data: DigitsDemoData, progress: Progress) -> tuple[DDU, Judged]:
    progress("Fit the density", 0, "")
    detector = DDU(model).fit(_loader(data.train), progress=False)
    moments = detector.density.moments_
    progress("Fit the density", 1, f"{moments.num_classes} Gaussians of {moments.dim} features")

    uncalibrated = detector.predict(torch.cat([data.clean.images, data.ambiguous.images])).probs
    progress("Calibrate", 0, "")
    detector.calibrate(_loader(data.calibration), FALSE_ALARM_RATE, progress=False)
    progress("Calibrate", 1, f"temperature {detector.temperature:.2f}, false alarms {FALSE_ALARM_RATE:.0%}")

    sets = {"clean": data.clean.images, "ambiguous": data.ambiguous.images, "photos": data.photos}
    judged = {}
    for done, (name, images) in enumerate(sets.items()):
        progress("Judge", done / len(sets), name)
        judged[name] = detector.predict(images)
    progress("Judge", 1, f"{sum(map(len, sets.values())):,} inputs")
    return detector, Judged(**judged, uncalibrated=uncalibrated)


def _loader(data: LabelledImages) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(data.images, data.labels), batch_size=512)


def _provenance(seed: int, epochs: int) -> dict[str, Any]:
    return {
        "command": f"ddu demo --seed {seed}" + (f" --epochs {epochs}" if epochs != EPOCHS else ""),
        "seed": seed,
        "epochs": epochs,
        "versions": versions("scikit-learn"),
    }


@contextmanager
def _one_thread() -> Iterator[None]:
    """Runs torch on one thread: 8 × 8 images are too small to share, and sums do not depend on the number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _unfinished(output: Path) -> Iterator[Path]:
    """A folder inside `output` for files in the making. Interrupted or not, it goes, and so do folders left empty."""
    if output.is_dir() and any(output.iterdir()) and not (output / "metrics.json").is_file():
        raise InputError(
            f"{output} holds files that are not an earlier demo's, and they could be overwritten. "
            "Choose another folder with --output."
        )
    made = [folder for folder in (output, *output.parents) if not folder.exists()]
    try:
        output.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix=".unfinished-", dir=output)
    except FileExistsError as error:
        raise InputError(f"{output} is a file, and the demo writes a folder. Choose another with --output.") from error
    except OSError as error:
        raise InputError(f"Cannot write to {output}: {error.strerror}. Choose another folder with --output.") from error
    try:
        with folder as name:
            yield Path(name)
    finally:
        for empty in made:
            with suppress(OSError):
                empty.rmdir()


def _publish(unfinished: Path, output: Path, detector: DDU, scores: Scores) -> DemoResult:
    """Moves finished files to where they belong, over those of an earlier demo."""
    result = DemoResult(
        scores,
        page=output / "index.html",
        detector=output / "detector",
        weights=output / "model.safetensors",
        metrics=output / "metrics.json",
    )
    detector.save(result.detector)
    for path in (result.weights, result.page, result.metrics):
        os.replace(unfinished / path.name, path)
    return result
