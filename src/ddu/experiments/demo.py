"""The demo: a network learns digits, some of them ambiguous, and is then shown photographs as well.

    ddu demo

Its folder has

demo.json        the specification
run/             the trained network and its detector, an ordinary run: `ddu.runs.load_run("demo/run")`
judgements.npz   what the detector made of every test input, and the inputs of the gallery
rows.csv         the numbers
index.html       the page
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from ddu import data
from ddu.data.sources.mnist_5k import mixtures
from ddu.detectors import BaseDetector
from ddu.errors import InputError
from ddu.experiments.experiment import ROWS, Say
from ddu.extras import require
from ddu.files import write_arrays, write_bytes, write_json
from ddu.measures import entropy
from ddu.metrics import accuracy, auroc, expected_calibration_error
from ddu.report import Card, density_histogram, entropy_histogram, inline_svg, make_cards, render_page
from ddu.results import Row, RowFile, classification_metrics, false_alarm_metrics, latest, ood_metrics, source
from ddu.resume import one_at_a_time, read_settings, refuse_changes
from ddu.runs import Run, RunSpec, load_run, train_run
from ddu.training import RECIPES
from ddu.types import Prediction, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPOCHS = 5
SETTINGS, RUN, JUDGEMENTS, PAGE = "demo.json", "run", "judgements.npz", "index.html"

CLEAN, AMBIGUOUS, PHOTOS = "mnist_5k", "ambiguous_mnist_5k", "photo_patches"
TEXTURED = "photo_patches with texture"
FLAT = 0.02  # a patch whose brightness has a smaller standard deviation has no texture: sky, a blurred background

SETS = {CLEAN: "clean digits", AMBIGUOUS: "ambiguous digits", PHOTOS: "photo patches"}
"""What is judged, and its name on the page."""

COMPARISONS = (
    ("photo patches, all digits", "auroc", PHOTOS),
    ("photo patches, clean digits", "auroc_clean", PHOTOS),
    ("photo patches with texture, all digits", "auroc", TEXTURED),
    ("ambiguous digits, clean digits", "auroc_ambiguous", None),
)
"""Which sets are told apart, and the metric and the OoD set of the rows that say how well."""

_CARDS = 8  # per set in the gallery


@dataclass(frozen=True)
class Demo:
    """The specification of the demo.

    Attributes:
        seed: Decides the held-out digits, the weights, the order of training and the gallery.
        epochs: Passes over the training digits.
        limit: Use at most this many of the training digits; None uses all.
    """

    seed: int = 0
    epochs: int = EPOCHS
    limit: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise InputError(f"The seed must be an integer from 0 to 2^63 - 1. Got {self.seed} instead.")
        if self.epochs < 1:
            raise InputError(f"The network needs at least 1 epoch of training. Got {self.epochs} instead.")

    @property
    def run(self) -> RunSpec:
        """The run; how it trains was chosen by time and by the accuracy on clean digits, not by the photographs."""
        recipe = RECIPES["quick"].with_changes(epochs=self.epochs, batch_size=64, lr=0.1)
        return RunSpec("resnet18", "dirty_mnist_5k", recipe, seed=self.seed, limit=self.limit, options={"width": 0.125})

    def measure(
        self,
        folder: str | os.PathLike[str],
        *,
        data_root: str | os.PathLike[str] | None = None,
        command: str = "",
        say: Say = lambda words: None,
    ) -> list[Row]:
        """Trains a network with its detector, judges test inputs and measures how well; see `Experiment.measure`."""
        for module in ("sklearn", "mlxtend", "PIL", "lightning", "matplotlib", "jinja2"):
            require(module, extra="demo", purpose="ddu demo")
        folder = Path(folder)
        with one_at_a_time(folder):
            begun = read_settings(folder / SETTINGS, "demo")
            refuse_changes(f"The demo in {folder}", begun or asdict(self), asdict(self))
            write_json(folder / SETTINGS, asdict(self))
            say("Train a network on digits, clean and ambiguous, then fit and calibrate its detector")
            run = train_run(self.run, folder / RUN, data_root=data_root, command=command, accelerator="cpu")
            assert run is not None
            if not (folder / JUDGEMENTS).is_file():
                say("Judge clean digits, ambiguous digits and patches of photographs")
                generator = Generator().manual_seed(self.seed)
                _save(folder / JUDGEMENTS, {name: _judge(run, name, data_root, generator) for name in SETS})
            measured = _rows(run, load_judgements(folder), command)
            file = RowFile(folder / ROWS)
            done = file.done(row.key for row in measured)
            file.append(row for row in measured if row.key not in done)
            return latest(file.read())

    def write_page(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Writes index.html from the rows, the run and the judgements in a folder; nothing is measured."""
        folder = Path(folder)
        run, rows, judged = load_run(folder / RUN), latest(RowFile(folder / ROWS).read()), load_judgements(folder)
        page = render_page(
            Path(__file__).with_name("demo.html"),
            sets=[(name, SETS[name], one) for name, one in judged.items()],
            value=partial(find_value, rows),
            comparisons=COMPARISONS,
            textured=TEXTURED,
            flat=FLAT,
            figures=[inline_svg(figure, words) for figure, words in draw_histograms(judged, run.detector)],
            run=run,
            row=rows[0],
        )
        write_bytes(folder / PAGE, page.encode())
        return [folder / PAGE]


class Judged(NamedTuple):
    """A set of test inputs, and what the detector made of it.

    Attributes:
        logits: As trained, (input, class).
        probs: Probabilities after temperature scaling, (input, class).
        aleatoric: Their entropy, (input,).
        epistemic: Minus the log-density of the features, (input,).
        verdicts: Words, (input,).
        labels: The drawn label of a digit, or the photograph of a patch, (input,).
        has_texture: Whether the brightness of the image varies, (input,).
        shown: The inputs of the gallery, (card,).
        images: Their pixels, (card, height, width, channel).
        truths: What they really are, in words, (card,).
    """

    logits: np.ndarray
    probs: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray
    verdicts: np.ndarray
    labels: np.ndarray
    has_texture: np.ndarray
    shown: np.ndarray
    images: np.ndarray
    truths: np.ndarray

    @property
    def verdict_shares(self) -> dict[str, float]:
        """The share of each verdict."""
        return {str(verdict): float(np.mean(self.verdicts == verdict)) for verdict in Verdict}

    @property
    def cards(self) -> list[Card]:
        """The gallery."""
        probs, aleatoric, epistemic = (torch.from_numpy(one[self.shown]) for one in self[1:4])
        judged = Prediction(probs, probs.argmax(1), aleatoric, epistemic, verdict=self.verdicts[self.shown])
        images = torch.from_numpy(self.images).permute(0, 3, 1, 2) / 255
        return make_cards(images, judged, self.truths.tolist())


def load_judgements(folder: str | os.PathLike[str]) -> dict[str, Judged]:
    """What the detector of a demo made of each of `SETS`."""
    with np.load(Path(folder, JUDGEMENTS)) as arrays:
        return {name: Judged(*(arrays[f"{name}/{field}"] for field in Judged._fields)) for name in SETS}


def draw_histograms(judged: Mapping[str, Judged], detector: BaseDetector) -> "list[tuple[Figure, str]]":
    """Both uncertainties of each set as histograms, and what they show in words."""
    assert detector.entropy_threshold is not None
    assert detector.epistemic_threshold is not None
    entropies = {SETS[name]: torch.from_numpy(one.aleatoric) for name, one in judged.items()}
    log_densities = {SETS[name]: torch.from_numpy(-one.epistemic) for name, one in judged.items()}
    num_classes = judged[CLEAN].probs.shape[1]
    return [
        (
            entropy_histogram(entropies, detector.entropy_threshold, num_classes),
            f"Histograms of the softmax entropy. {_medians(entropies, 2)}.",
        ),
        (
            density_histogram(log_densities, -detector.epistemic_threshold),
            f"Histograms of the log-density. {_medians(log_densities, 0)}.",
        ),
    ]


def find_value(rows: Sequence[Row], metric: str, detector: str = "ddu", ood: str | None = None) -> float:
    """The value of the row with this metric, detector ("ddu" is the density, "softmax" the entropy) and OoD set."""
    (value,) = [row.value for row in rows if (row.metric, row.detector, row.ood) == (metric, detector, ood)]
    assert value is not None
    return value


def _judge(run: Run, name: str, data_root: str | os.PathLike[str] | None, generator: Generator) -> Judged:
    """Shows a set to the detector of a run, and draws inputs for the gallery, whatever became of them."""
    inputs, calibration = data.load_ood(name, run.info, root=data_root), run.detector.calibration
    assert calibration is not None
    evidence = [run.detector.evidence(images) for images, _ in data.loader(inputs)]
    logits, epistemic = (torch.cat(column) for column in zip(*evidence, strict=True))
    scaled = logits / calibration.temperature
    shown = torch.randperm(len(inputs), generator=generator)[:_CARDS].numpy()
    return Judged(
        logits=logits.numpy(),
        probs=torch.softmax(scaled, 1).numpy(),
        aleatoric=entropy(scaled).numpy(),
        epistemic=epistemic.numpy(),
        verdicts=calibration.verdicts(epistemic, entropy(scaled)).astype(str),
        labels=inputs.labels,
        has_texture=inputs.inputs.reshape(len(inputs), -1).std(1) >= 255 * FLAT,
        shown=shown,
        images=inputs.inputs[shown],
        truths=_truths(name, inputs.labels)[shown],
    )


def _truths(name: str, labels: np.ndarray) -> np.ndarray:
    """What each input of a set really is: "digit 3", "3 and 8" or "photo patch"."""
    if name == AMBIGUOUS:
        digits = data.load(CLEAN, "test").labels[mixtures("test").parents]
        return np.array([f"{first} and {second}" for first, second in np.sort(digits, 1)])
    return np.array(["photo patch" if name == PHOTOS else f"digit {label}" for label in labels])


def _save(path: Path, judged: Mapping[str, Judged]) -> None:
    arrays = {f"{name}/{field}": array for name, one in judged.items() for field, array in one._asdict().items()}
    write_arrays(path, arrays)


def _rows(run: Run, judged: Mapping[str, Judged], command: str) -> list[Row]:
    """The numbers, all on inputs that were neither trained nor calibrated on."""
    facts = {
        "network": run.spec.label,
        "data": run.spec.data,
        "seed": run.spec.seed,
        "run": run.fingerprint,
        "reductions": run.reductions,
        **source(command),
    }
    return [
        Row(detector=detector, ood=ood, metric=metric, value=value, **facts)
        for detector, ood, values in _values(judged, run.detector)
        for metric, value in values.items()
    ]


def _values(judged: Mapping[str, Judged], detector: BaseDetector) -> Iterator[tuple[str, str | None, dict[str, float]]]:
    """Detector, OoD set, and the metrics."""
    assert detector.epistemic_threshold is not None
    logits, probs, aleatoric, epistemic, labels = (
        {name: torch.from_numpy(getattr(one, field)) for name, one in judged.items()}
        for field in ("logits", "probs", "aleatoric", "epistemic", "labels")
    )
    yield (
        "ddu",
        None,
        {
            **classification_metrics(_joined(logits), _joined(labels), detector.temperature),
            "ece_by_chance": _ece_by_chance(_joined(probs)),
            "accuracy_clean": accuracy(probs[CLEAN], labels[CLEAN]),
            "accuracy_ambiguous": accuracy(probs[AMBIGUOUS], labels[AMBIGUOUS]),
            "accuracy_ambiguous_best": float(mixtures("test").shares.max(1).mean(dtype=float)),
            "temperature": detector.temperature,
        },
    )
    rates = false_alarm_metrics(_joined(epistemic), detector.epistemic_threshold, epistemic[PHOTOS])
    yield "ddu", None, {"false_alarm_rate": rates["false_alarm_rate"]}
    yield "ddu", PHOTOS, {"detection_rate": rates["detection_rate"]}
    for name, scores in (("ddu", epistemic), ("softmax", aleatoric)):
        textured = scores[PHOTOS][torch.from_numpy(judged[PHOTOS].has_texture)]
        yield name, None, {"auroc_ambiguous": auroc(scores[CLEAN], scores[AMBIGUOUS])}
        yield name, PHOTOS, ood_metrics(_joined(scores), scores[PHOTOS])
        yield name, PHOTOS, {"auroc_clean": auroc(scores[CLEAN], scores[PHOTOS])}
        yield name, TEXTURED, ood_metrics(_joined(scores), textured)


def _joined(values: Mapping[str, Tensor]) -> Tensor:
    """Of clean digits, then of ambiguous ones."""
    return torch.cat([values[CLEAN], values[AMBIGUOUS]])


def _ece_by_chance(probs: Tensor, draws: int = 100) -> float:
    """The mean calibration error over labels that are drawn from the probabilities themselves."""
    labels = torch.multinomial(probs, draws, replacement=True, generator=Generator().manual_seed(0))
    return sum(expected_calibration_error(probs, drawn) for drawn in labels.T) / draws


def _medians(values: Mapping[str, Tensor], digits: int) -> str:
    return "Medians: " + ", ".join(f"{name} {float(value.median()):.{digits}f}" for name, value in values.items())
