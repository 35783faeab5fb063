"""docs/theory.md shows what scripts/theory.py prints."""

from pathlib import Path

from scripts import theory

PAGE = (Path(__file__).parents[2] / "docs/theory.md").read_text()


def test_the_tables_of_the_page_are_those_of_the_script(monkeypatch):
    monkeypatch.setattr(theory, "DRAWS", 100)
    monkeypatch.setattr(theory, "BATCHES", 2)
    shown = [line.split(" | ") for line in PAGE.splitlines()]
    for table in (theory.covariances(), theory.variances()):
        for line in table.splitlines():
            name, _, *formulas = line.split(" | ")  # Monte Carlo aside, which takes many draws
            assert [name, *formulas] in [[first, *rest] for first, _, *rest in (row for row in shown if len(row) > 2)]
    assert theory.objectives() in PAGE
