"""Figures and self-contained HTML pages."""

from ddu.report._evaluation_figures import corruption_figure as corruption_figure
from ddu.report._evaluation_figures import reliability_diagram as reliability_diagram
from ddu.report._evaluation_figures import risk_coverage_figure as risk_coverage_figure
from ddu.report._evaluation_figures import roc_figure as roc_figure
from ddu.report._evaluation_figures import score_histogram as score_histogram
from ddu.report.figures import density_histogram as density_histogram
from ddu.report.figures import entropy_histogram as entropy_histogram
from ddu.report.page import Card as Card
from ddu.report.page import inline_svg as inline_svg
from ddu.report.page import make_cards as make_cards
from ddu.report.page import render_page as render_page

__all__ = [
    "Card",
    "corruption_figure",
    "density_histogram",
    "entropy_histogram",
    "inline_svg",
    "make_cards",
    "reliability_diagram",
    "render_page",
    "risk_coverage_figure",
    "roc_figure",
    "score_histogram",
]
