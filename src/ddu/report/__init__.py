"""Figures and self-contained HTML pages."""

from ddu.report.figures import (
    as_png,
    corruption_figure,
    corruption_panels,
    entropy_histogram,
    epistemic_histogram,
    promise_figure,
    reliability_diagram,
    risk_coverage_figure,
    roc_figure,
    score_histogram,
    training_figure,
)
from ddu.report.page import Card, inline_svg, make_cards, render_page
from ddu.report.quality_figures import flagged_figure, pair_figure

__all__ = [
    "Card",
    "as_png",
    "corruption_figure",
    "corruption_panels",
    "entropy_histogram",
    "epistemic_histogram",
    "flagged_figure",
    "inline_svg",
    "make_cards",
    "pair_figure",
    "promise_figure",
    "reliability_diagram",
    "render_page",
    "risk_coverage_figure",
    "roc_figure",
    "score_histogram",
    "training_figure",
]
