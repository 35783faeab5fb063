"""Figures and self-contained HTML pages."""

from ddu.report.figures import density_histogram as density_histogram
from ddu.report.figures import entropy_histogram as entropy_histogram
from ddu.report.page import Card as Card
from ddu.report.page import inline_svg as inline_svg
from ddu.report.page import make_cards as make_cards
from ddu.report.page import render_page as render_page

__all__ = ["Card", "density_histogram", "entropy_histogram", "inline_svg", "make_cards", "render_page"]
