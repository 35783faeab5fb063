"""The demo: a network learns digits, some of them ambiguous, and is then shown photographs as well.

    ddu demo

Its folder has

demo.json        the specification
run/             the trained network and its detector, an ordinary run: `ddu.runs.load_run("demo/run")`; with examples
                 for the page of `ddu serve demo/run`
judgements.npz   what the detector made of every test input, and the inputs of the gallery
rows.csv         the numbers
index.html       the page
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from ddu import data
from ddu.data.registry import Root
from ddu.data.sources.mnist_5k import mixtures
from ddu.detectors import BaseDetector, Evidence
from ddu.errors import InputError
from ddu.examples import MOST, Group, load_examples
from ddu.experiments.experiment import ROWS, Say, silent
from ddu.experiments.judging import run_facts, uncertainty_histograms, verdict_shares
from ddu.experiments.measure import ask
from ddu.files import FilePath, write_arrays, write_bytes
from ddu.messages import require
from ddu.metrics import accuracy, auroc, expected_calibration_error
from ddu.report import Card, inline_svg, make_cards, render_page
from ddu.results import Row, RowFile, classification_metrics, false_alarm_metrics, latest, ood_metrics
from ddu.resume import keep_settings, one_at_a_time
from ddu.runs import Run, RunSpec, load_run, train_run
from ddu.runs.run import DETECTOR
from ddu.training import RECIPES
from ddu.types import Verdict

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
_EXAMPLES = 500  # training digits that the page of the server looks for neighbours among


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

    def measure(self, folder: FilePath, *, data_root: Root = None, command: str = "", say: Say = silent) -> list[Row]:
        """Trains a network with its detector, judges test inputs and measures how well; see `Experiment.measure`."""
        for module in ("sklearn", "mlxtend", "PIL", "lightning", "matplotlib", "jinja2"):
            require(module, extra="demo", purpose="ddu demo")
        folder = Path(folder)
        with one_at_a_time(folder):
            keep_settings(folder / SETTINGS, "demo", asdict(self))
            say("Train a network on digits, clean and ambiguous, then fit and calibrate its detector")
            run = train_run(
                self.run, folder / RUN, data_root=data_root, command=command, accelerator="cpu", examples=_EXAMPLES
            )
            assert run is not None
            if not (folder / JUDGEMENTS).is_file():
                say("Judge clean digits, ambiguous digits and patches of photographs")
                generator = Generator().manual_seed(self.seed)
                _save(folder / JUDGEMENTS, {name: _judge(run, name, data_root, generator) for name in SETS})
            judged = load_judgements(folder)
            _keep_for_the_page(run, judged)
            measured = _rows(run, judged, command)
            file = RowFile(folder / ROWS)
            done = file.done(row.key for row in measured)
            file.append(row for row in measured if row.key not in done)
            return latest(file.read())

    def write_page(self, folder: FilePath) -> list[Path]:
        """Writes index.html from the rows, the run and the judgements in a folder; nothing is measured."""
        folder = Path(folder)
        run, rows, judged = load_run(folder / RUN), latest(RowFile(folder / ROWS).read()), load_judgements(folder)
        page = render_page(
            Path(__file__).with_name("demo.html"),
            sets=[(name, SETS[name], one) for name, one in judged.items()],
            verdicts=[
                (SETS[name], len(one.labels), one.verdict_shares, meant)
                for (name, one), meant in zip(judged.items(), Verdict, strict=False)
            ],
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
        epistemic: The epistemic score, (input,).
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
        return verdict_shares(self.verdicts)

    def cards(self, detector: BaseDetector) -> list[Card]:
        """The gallery, with the p-values and candidates of the detector."""
        evidence = Evidence(*(torch.from_numpy(one[self.shown]) for one in (self.logits, self.epistemic)))
        images = torch.from_numpy(self.images).permute(0, 3, 1, 2) / 255
        return make_cards(images, detector.decide(evidence), self.truths.tolist())


def load_judgements(folder: FilePath) -> dict[str, Judged]:
    """What the detector of a demo made of each of `SETS`."""
    with np.load(Path(folder, JUDGEMENTS)) as arrays:
        return {name: Judged(*(arrays[f"{name}/{field}"] for field in Judged._fields)) for name in SETS}


def draw_histograms(judged: Mapping[str, Judged], detector: BaseDetector) -> "list[tuple[Figure, str]]":
    """Both uncertainties of each set as histograms, and what they show in words."""
    entropies = {SETS[name]: torch.from_numpy(one.aleatoric) for name, one in judged.items()}
    epistemic = {SETS[name]: torch.from_numpy(one.epistemic) for name, one in judged.items()}
    return uncertainty_histograms(entropies, epistemic, detector, judged[CLEAN].probs.shape[1])


def find_value(rows: Sequence[Row], metric: str, detector: str = "ddu", ood: str | None = None) -> float:
    """The value of the row with this metric, detector ("ddu" is the score, "softmax" the entropy) and OoD set."""
    (value,) = [row.value for row in rows if (row.metric, row.detector, row.ood) == (metric, detector, ood)]
    assert value is not None
    return value


def _judge(run: Run, name: str, data_root: FilePath | None, generator: Generator) -> Judged:
    """Shows a set to the detector of a run, and draws inputs for the gallery, whatever became of them."""
    inputs = data.load_ood(name, run.info, root=data_root)
    evidence, _ = ask(run.detector, data.loader(inputs))
    prediction = run.detector.decide(evidence)
    shown = torch.randperm(len(inputs), generator=generator)[:_CARDS].numpy()
    return Judged(
        logits=evidence.logits.numpy(),
        probs=prediction.probs.numpy(),
        aleatoric=prediction.aleatoric.numpy(),
        epistemic=prediction.epistemic.numpy(),
        verdicts=np.asarray(prediction.verdict).astype(str),
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


def _keep_for_the_page(run: Run, judged: Mapping[str, Judged]) -> None:
    """Puts the scores and the gallery of each set beside the detector, where `ddu serve` finds them."""
    place = run.folder / DETECTOR
    examples = load_examples(place, run.detector.calibration)
    assert examples is not None
    scores = {SETS[name]: torch.from_numpy(one.epistemic[:MOST]).float() for name, one in judged.items()}
    gallery = {SETS[name]: Group(torch.from_numpy(one.images), tuple(one.truths)) for name, one in judged.items()}
    replace(examples, scores={"training": examples.scores["training"], **scores}, gallery=gallery).save(place)


def _rows(run: Run, judged: Mapping[str, Judged], command: str) -> list[Row]:
    """The numbers, all on inputs that were neither trained nor calibrated on."""
    facts = run_facts(run, command)
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
