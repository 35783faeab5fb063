"""Renews the promises in docs/thresholds.md: the table of error rates, the numbers of candidates, and the picture.

    make guide

Trains a small network on 2,000 of the embedded digits, calibrates its detector on 1,500 and tests it on 1,500. Takes
half a minute.
"""

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

import ddu
from ddu import data
from ddu.errors import InputError
from ddu.report import promise_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
TRAIN, HELD_OUT, EPOCHS = 2000, 1500, 4
RATES = (0.05, 0.03, 0.02, 0.01)
CURVE = (0.02, 0.025, 0.03, 0.035, 0.04, 0.05, 0.06, 0.08)
COVERAGES = (0.8, 0.85, 0.9, 0.95, 0.975, 0.99)


def digits() -> tuple[Tensor, Tensor]:
    """All 5,000 digits as a network takes them, in random order."""
    parts = [batch for split in ("train", "test") for batch in data.loader(data.load("mnist_5k", split))]
    images, labels = (torch.cat(column) for column in zip(*parts, strict=True))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return images[order], labels[order]


def train(x: Tensor, y: Tensor) -> nn.Module:
    """A small convolutional network."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 10)),
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=0.002)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()
    return model.eval()


def shares(prediction: ddu.Prediction, y: Tensor) -> dict[str, float]:
    """What came of a prediction."""
    verdict, right = np.asarray(prediction.verdict), (prediction.label == y).numpy()
    ambiguous, known = verdict == ddu.Verdict.AMBIGUOUS, verdict == ddu.Verdict.IN_DISTRIBUTION
    assert prediction.candidates is not None
    return {
        "ambiguous": float(ambiguous.mean()),
        "ambiguous and right": float(right[ambiguous].mean()),
        "wrong": float((~right[known]).mean()),
        "covered": float(prediction.candidates[torch.arange(len(y)), y].double().mean()),
        "several": float((prediction.candidates.sum(1) > 1).double().mean()),
    }


def side_by_side(figures: "list[Figure]", picture: Path) -> None:
    """Figures of one height as one picture."""
    from matplotlib import image, pyplot

    pixels = []
    for figure in figures:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=130, facecolor="white")
        buffer.seek(0)
        pixels.append(image.imread(buffer))
    pyplot.imsave(picture, np.concatenate(pixels, axis=1))


def main() -> None:
    """Rewrites the table and the numbers in docs/thresholds.md, and docs/images/promises.png."""
    torch.set_num_threads(1)
    x, y = digits()
    model = train(x[:TRAIN], y[:TRAIN])
    held_out, test, truth = (x[TRAIN:][:HELD_OUT], y[TRAIN:][:HELD_OUT]), x[TRAIN + HELD_OUT :], y[TRAIN + HELD_OUT :]
    detector = ddu.DDU(model).fit([(x[:TRAIN], y[:TRAIN])])
    batches = list(ddu.features.extract(detector.tap, [held_out]))

    def calibrated(**options: Any) -> dict[str, float]:
        return shares(detector.calibrate(batches, **options).predict(test), truth)

    lines = ["| `error_rate` | ambiguous | of these right | of `in_distribution` wrong |", "|---|---|---|---|"]
    for rate in (None, *RATES):
        try:
            found = calibrated(error_rate=rate)
        except InputError as error:
            offered = re.search(r"accept an error rate of [\d.]+\d", str(error))
            assert offered is not None
            lines.append(f'| {rate} | refused: "{offered[0]}" | | |')
            continue
        cells = f"{found['ambiguous']:.0%} | {found['ambiguous and right']:.0%} | {found['wrong']:.1%}"
        lines.append(f"| {rate or 'default'} | {cells.replace('%', ' %')} |")
    curve = []
    for rate in CURVE:
        try:
            curve.append((rate, calibrated(error_rate=rate)))
        except InputError:  # it cannot be promised
            continue
    sets = [calibrated(coverage=coverage) for coverage in COVERAGES]
    chosen = sets[COVERAGES.index(0.95)]
    left = {
        "ambiguous": [one["ambiguous"] for _, one in curve],
        "wrong, of in_distribution": [one["wrong"] for _, one in curve],
    }
    right = {
        "right class among them": [one["covered"] for one in sets],
        "several candidates": [one["several"] for one in sets],
    }
    figures = [
        promise_figure("error rate that is promised", [rate for rate, _ in curve], left),
        promise_figure("coverage of the candidates that is promised", COVERAGES, right),
    ]
    side_by_side(figures, ROOT / "docs/images/promises.png")
    accuracy = float((detector.predict(test).label == truth).double().mean())
    page = ROOT / "docs/thresholds.md"
    text = page.read_text()
    for pattern, new in (
        (r"(?<=with )[\d.]+ %(?= accuracy)", f"{accuracy:.1%}".replace("%", " %")),
        (r"\| `error_rate` \|.*?\n(?=\n)", "\n".join(lines) + "\n"),
        (r"(?<=In the example, )[\d.]+ %", f"{chosen['covered']:.1%}".replace("%", " %")),
        (r"\d+ %(?= of them more than one)", f"{chosen['several']:.0%}".replace("%", " %")),
    ):
        text, times = re.subn(pattern, lambda _, new=new: new, text, flags=re.DOTALL)
        assert times == 1, pattern
    page.write_text(text)


if __name__ == "__main__":
    main()
