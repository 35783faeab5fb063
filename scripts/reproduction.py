"""Writes docs/reproduction.md from the rows in results/reproduction.

python scripts/reproduction.py
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddu.experiments.reproduction import (
    FIGURES,
    JUDGED,
    Reproduction,
    Scale,
    count_seeds,
    plan,
    read_parts,
    read_rows,
)
from ddu.experiments.reproductions import REPRODUCTIONS
from ddu.results import Row

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs/reproduction.md", ROOT / "results/reproduction"

_INTRODUCTION = """# The paper, reproduced

One command per table or figure: `ddu reproduce list` names them, `ddu reproduce NAME --scale smoke|cpu|paper` runs one
and `ddu reproduce all --scale cpu --plan` says what all of them would train. `paper` is the paper's own set-up,
`smoke` shows that the code runs. `cpu` asks the same questions with smaller networks in the place of the paper's, fewer
samples, epochs and seeds, and sometimes other data: each section says what is smaller.

The plan is in core-hours, the hours of one CPU core. By default networks are trained one after the other. To use all
cores, run `OMP_NUM_THREADS=1 ddu reproduce NAME --workers N`, with N the number of cores: N networks, or N learning
curves, are trained at the same time, with the same rows. Where an experiment goes seed by seed, they are the networks
of one seed; `two-moons`, `five-ensemble` and the heads of `ood-imagenet` are trained one after the other. An
interrupted command resumes: comparisons network by network, learning curves round by round, and `two-moons`,
`five-ensemble` and the toy example of `objective-mismatch`, which take minutes, seed by seed.

This page is written from the rows in `results/reproduction` by `python scripts/reproduction.py`, each name at the
largest scale that was run. No seed is picked and no failed run is left out. One run was replaced, that of
`entropy-variance`: its section says why.

In the tables:

- `ddu_paper` is the paper's detector: minus the log-density of the last features under one Gaussian per class.
  `density` is the same with shrunk covariances.
- `ddu` is this library's default, which the paper does not have: one score of the densities of all stages and the
  energy.
- `ensemble_pe` and `ensemble_mi` are the predictive entropy and the mutual information of an ensemble. At the scale
  `cpu` it has three networks, except in `five-ensemble`.
- `+sn` is a network with spectral norm and, except for SNGP, with average-pooled shortcuts and leaky ReLU. `x0.25` has
  a quarter of the architecture's channels.
- `noisy:` is a set with the noise of Dirty-MNIST."""

_HEAD = ("name", "shows", "scale", "seeds", "the paper's claim", "waits for a GPU: the scale `paper`")


def page() -> str:
    """The page of today."""
    found: dict[str, Scale | None] = {name: _largest(name) for name in REPRODUCTIONS}
    lines = [_HEAD, ("---",) * len(_HEAD), *(_line(one, found[name]) for name, one in REPRODUCTIONS.items())]
    table = "\n".join(f"| {' | '.join(cells)} |".replace("  |", " |") for cells in lines)
    parts = [_part(REPRODUCTIONS[name], scale) for name, scale in found.items() if scale is not None]
    return "\n\n".join([_INTRODUCTION, _summary(found), table, *parts])


def _largest(name: str) -> Scale | None:
    return next((scale for scale in JUDGED if read_rows(RESULTS / name / scale)), None)


def _summary(found: Mapping[str, Scale | None]) -> str:
    """How many names there are, how many claims hold, and what is left to be trained, in a few sentences."""
    verdicts = Counter(
        REPRODUCTIONS[name].judgement(read_rows(RESULTS / name / scale)).verdict
        for name, scale in found.items()
        if scale is not None
    )
    told = "".join(f"{count} × {verdict}, " for verdict, count in verdicts.most_common())
    left = [one for name, one in REPRODUCTIONS.items() if found[name] != "paper" and not _is_the_papers(one, "cpu")]
    planned = dict[str, tuple[int, int]]()
    networks = sum(line.new for one in left for line in plan(one.experiment("paper"), planned))
    return (
        f"The paper's claims, by name: {told}{list(found.values()).count(None)} × not run yet. What waits for a GPU\n"
        f"is the paper's own set-up: {networks:,} networks in all, those that names share counted once."
    )


def _line(one: Reproduction, scale: Scale | None) -> tuple[str, ...]:
    """The cells of a name in the table at the top."""
    if scale is None:
        return one.name, one.shows, "not run yet", "", "", _waiting(one)
    folder = RESULTS / one.name / scale
    parts, experiment = read_parts(folder), one.experiment(scale)
    rows = [row for part in parts.values() for row in part]
    said = f"`{scale}`, which is the paper's set-up" if _is_the_papers(one, scale) else f"`{scale}`"
    absent = [name for name in getattr(experiment, "parts", ()) if name not in parts]
    asked = [getattr(experiment, name, ()) for name in ("detectors", "acquisitions")]
    names = dict.fromkeys(getattr(detector, "name", detector) for detectors in asked for detector in detectors)
    absent += [name for name in names if name not in {row.detector for row in rows}]
    said += f", without {' and '.join(absent)} yet" * bool(absent)
    return (
        *(f"[{one.name}](#{_anchor(one)})", one.shows, said),
        _seeds(parts, len(experiment.seeds)),
        one.judgement(rows).tally,
        "nothing" if scale == "paper" or _is_the_papers(one, scale) else _waiting(one),
    )


def _seeds(parts: Mapping[str, Sequence[Row]], wanted: int) -> str:
    """How many seeds have been measured, by part where they differ."""
    counts = {name: count_seeds(rows) for name, rows in parts.items()}
    told = {name: f"{count} of {wanted}" if count < wanted else f"{count}" for name, count in counts.items()}
    if len(set(told.values())) == 1:
        return max(told.values())
    return "; ".join(f"{name} {words}".strip() for name, words in told.items())


def _is_the_papers(one: Reproduction, scale: Scale) -> bool:
    return one.scales[scale] == one.scales["paper"]


def _waiting(one: Reproduction) -> str:
    """What the paper's scale would train, those that other names share included."""
    if _is_the_papers(one, "cpu"):
        return "nothing"
    experiment = one.experiment("paper")
    lines = plan(experiment, {})
    networks, epochs, seeds = sum(line.new for line in lines), {line.epochs for line in lines}, len(experiment.seeds)
    span = f"{min(epochs)} to {max(epochs)}" if len(epochs) > 1 else f"{min(epochs)}"
    return f"{networks:,} networks of {span} epochs ({seeds} seed{'s' * (seeds > 1)})"


def _part(one: Reproduction, scale: Scale) -> str:
    folder = RESULTS / one.name / scale
    way = f"../{folder.relative_to(ROOT)}/"
    figures = [path.relative_to(folder) for path in sorted(folder.rglob(f"*{FIGURES}"))]
    return one.page(scale, read_parts(folder), figures, way, level=2).strip()


def _anchor(one: Reproduction) -> str:
    """As GitHub makes them of headings."""
    heading = f"{one.name}: {one.shows}".lower()
    return "".join(c for c in heading if c.isalnum() or c in " -").replace(" ", "-")


if __name__ == "__main__":
    PAGE.write_text(page() + "\n")
