"""The demo's page: the two histograms of the paper's first figure, a gallery, and the numbers."""

from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from ddu.data import DigitsDemoData, LabelledImages
from ddu.demo._scores import FLAT, Judged, Scores
from ddu.report import Card, density_histogram, entropy_histogram, inline_svg, make_cards, render_page
from ddu.types import Prediction

_TEMPLATE = Path(__file__).parent / "page.html"
_GALLERY = 8  # inputs of each set


def make_page(data: DigitsDemoData, judged: Judged, scores: Scores, run: dict[str, Any]) -> str:
    """The HTML of the page.

    Args:
        data: What was judged.
        judged: The verdicts.
        scores: The numbers.
        run: Where they come from: `command`, `seed`, `epochs` and `versions`.
    """
    sets = {"clean digits": judged.clean, "ambiguous digits": judged.ambiguous, "photo patches": judged.photos}
    num_classes = judged.clean.probs.shape[1]
    entropies = {name: one.aleatoric for name, one in sets.items()}
    log_densities = {name: -one.epistemic for name, one in sets.items()}
    generator = Generator().manual_seed(run["seed"])
    return render_page(
        _TEMPLATE,
        scores=scores,
        run=run,
        flat=FLAT,
        entropy_figure=inline_svg(
            entropy_histogram(entropies, scores.entropy_threshold, num_classes),
            f"Histograms of the softmax entropy. {_medians(entropies, 2)}.",
        ),
        density_figure=inline_svg(
            density_histogram(log_densities, scores.density_threshold),
            f"Histograms of the log-density. {_medians(log_densities, 0)}.",
        ),
        clean=_sample(data.clean.images, judged.clean, _truths(data.clean), generator),
        ambiguous=_sample(data.ambiguous.images, judged.ambiguous, _truths(data.ambiguous), generator),
        photos=_sample(data.photos, judged.photos, ["photo patch"] * len(data.photos), generator),
    )


def _sample(images: Tensor, prediction: Prediction, truths: list[str], generator: Generator) -> list[Card]:
    """Cards of inputs drawn at random, whatever became of them."""
    drawn = torch.randperm(len(images), generator=generator)[:_GALLERY]
    return make_cards(images[drawn], prediction[drawn], [truths[i] for i in drawn.tolist()])


def _truths(data: LabelledImages) -> list[str]:
    """The words "digit 3", or "3 and 8" for a mixture."""
    classes = [row.nonzero().flatten().tolist() for row in data.label_probs]
    return [f"digit {both[0]}" if len(both) == 1 else f"{both[0]} and {both[1]}" for both in classes]


def _medians(values: dict[str, Tensor], digits: int) -> str:
    return "Medians: " + ", ".join(f"{name} {float(value.median()):.{digits}f}" for name, value in values.items())
