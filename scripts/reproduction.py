"""Writes docs/reproduction.md from the rows in results/reproduction.

python scripts/reproduction.py
"""

from pathlib import Path

from ddu.experiments.reproduction import FIGURES, SCALES, Reproduction, Scale, read_rows
from ddu.experiments.reproductions import REPRODUCTIONS

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs/reproduction.md", ROOT / "results/reproduction"

_INTRODUCTION = """# The paper, reproduced

One command per table or figure: `ddu reproduce list` names them, `ddu reproduce NAME --scale smoke|cpu|paper` runs one
and `ddu reproduce all --scale cpu --plan` says what all of them would train. `paper` is the paper's own set-up, `cpu`
keeps its protocol with less of everything, `smoke` shows that the code runs. An interrupted command resumes.

This page is written from the rows in `results/reproduction` by `python scripts/reproduction.py`, each name at the
largest scale that was run. No seed is picked and no failed run is left out."""


def page() -> str:
    """The page of today."""
    found: dict[str, Scale | None] = {name: _largest(name) for name in REPRODUCTIONS}
    lines = [_line(one, found[name]) for name, one in REPRODUCTIONS.items()]
    table = "\n".join(["| name | shows | scale | seeds | the paper's claim |", "|---|---|---|---|---|", *lines])
    parts = [_part(REPRODUCTIONS[name], scale) for name, scale in found.items() if scale is not None]
    return "\n\n".join([_INTRODUCTION, table, *parts])


def _largest(name: str) -> Scale | None:
    return next((scale for scale in SCALES if read_rows(RESULTS / name / scale)), None)


def _line(one: Reproduction, scale: Scale | None) -> str:
    if scale is None:
        return f"| {one.name} | {one.shows} | not run yet | | |"
    rows = read_rows(RESULTS / one.name / scale)
    said = "`cpu`, which is the paper's set-up" if one.scales[scale] == one.scales["paper"] else f"`{scale}`"
    seeds, verdict = len({row.seed for row in rows}), one.judge(rows).verdict
    return f"| [{one.name}](#{_anchor(one)}) | {one.shows} | {said} | {seeds} | {verdict} |"


def _part(one: Reproduction, scale: Scale) -> str:
    folder = RESULTS / one.name / scale
    way = f"../{folder.relative_to(ROOT)}/"
    figures = [path.relative_to(folder) for path in sorted(folder.rglob(f"*{FIGURES}"))]
    return one.page(scale, read_rows(folder), figures, way, level=2).strip()


def _anchor(one: Reproduction) -> str:
    """As GitHub makes them of headings."""
    heading = f"{one.name}: {one.shows}".lower()
    return "".join(c for c in heading if c.isalnum() or c in " -").replace(" ", "-")


if __name__ == "__main__":
    PAGE.write_text(page() + "\n")
