"""How the paper's claims about active learning are judged, and what they depend on."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ddu.errors import NotMeasuredError
from ddu.experiments.learning_curves import curve_rows
from ddu.experiments.reproduction import Judgement, mean_value
from ddu.results import Row, Table, tabulate

DENSITY, ENTROPY, RANDOM = "density", "entropy", "random"
PREDICTIVE, INFORMATION = "ensemble_pe", "ensemble_mi"

EPISTEMIC, CONFOUNDED = (DENSITY, INFORMATION), (ENTROPY, PREDICTIVE)
"""Scores that know nothing of ambiguity, and scores that take it for a reason to learn."""

ON_PAR, AHEAD = 0.02, 0.05
"""Mean accuracies that differ by less than the first are on par, by more than the second far apart."""


def curve_tables(rows: Sequence[Row]) -> list[Table]:
    """What each curve comes to."""
    return tabulate(curve_rows(rows))


def judge_clean(rows: Sequence[Row]) -> Judgement:
    """Whether the density is ahead of the entropy of one network, and on par with an ensemble."""
    found = _mean_accuracies(rows)
    best = max(found[PREDICTIVE], found[INFORMATION])
    return Judgement.of(
        {
            f"Density {found[DENSITY]:.2%}, entropy {found[ENTROPY]:.2%}; asked: density ahead": (
                found[DENSITY] > found[ENTROPY]
            ),
            f"Density {found[DENSITY]:.2%}, better score of the ensemble {best:.2%}; asked: density no more than "
            f"{ON_PAR:.0%} behind": found[DENSITY] >= best - ON_PAR,
        }
    )


def judge_dirty(rows: Sequence[Row]) -> Judgement:
    """Whether the two scores that know nothing of ambiguity are far ahead of all others."""
    found = _mean_accuracies(rows)
    epistemic = {name: found.pop(name) for name in EPISTEMIC}
    found.pop(RANDOM, None)  # it is not in the paper
    best = max(found, key=found.__getitem__)
    shares = {
        name: mean_value(curve_rows(rows), "ambiguous_share", detector=name) for name in (DENSITY, INFORMATION, ENTROPY)
    }
    return Judgement.of(
        {
            **{
                f"{name} {value:.2%}, best of the others ({best}) {found[best]:.2%}; asked: {name} at least "
                f"{AHEAD:.0%} ahead": value >= found[best] + AHEAD
                for name, value in epistemic.items()
            },
            f"Ambiguous among the samples acquired by {DENSITY} {shares[DENSITY]:.1%}, {INFORMATION} "
            f"{shares[INFORMATION]:.1%}, {ENTROPY} {shares[ENTROPY]:.1%}; asked: the last highest": (
                max(shares[DENSITY], shares[INFORMATION]) < shares[ENTROPY]
            ),
        }
    )


def _mean_accuracies(rows: Sequence[Row]) -> dict[str, float]:
    """The mean accuracy over the curve of each acquisition function, those that all claims compare among them.

    Curves that do not end at the same number of labels are not compared: accuracy rises with labels.
    """
    ends: dict[tuple[str, int], int] = {}
    for row in rows:
        if row.labels is not None:
            ends[row.detector, row.seed] = max(row.labels, ends.get((row.detector, row.seed), 0))
    for (name, seed), end in ends.items():
        if end < max(ends.values()):
            raise NotMeasuredError(
                f"The curve of {name} with seed {seed} ends at {end:,} labels, and others at {max(ends.values()):,}."
            )
    curves = curve_rows(rows)
    names = dict.fromkeys([DENSITY, ENTROPY, PREDICTIVE, INFORMATION, *(row.detector for row in rows)])
    return {name: mean_value(curves, "mean_accuracy", detector=name) for name in names}


def judge_variants(rows: Sequence[Row]) -> Judgement:
    """With which variants both scores that know nothing of ambiguity are far ahead of both that do."""
    parts: dict[str, bool] = {}
    for variant in dict.fromkeys(row.data for row in rows):
        found = _mean_accuracies([row for row in rows if row.data == variant])
        ahead, behind = ({name: found[name] for name in names} for names in (EPISTEMIC, CONFOUNDED))
        gap = min(ahead.values()) - max(behind.values())
        scores = ", ".join(f"{name} {value:.2%}" for name, value in (ahead | behind).items())
        parts[f"{variant}: a gap of {gap:.2%} ({scores}); asked: at least {AHEAD:.0%}"] = gap >= AHEAD
    return Judgement.of(parts)


def by_variant(rows: Sequence[Row], names: Mapping[str | None, str]) -> list[Row]:
    """The same rows with the name of their variant as the data.

    Args:
        rows: Those of all variants.
        names: The variant of each value of the column `reductions`, in the order wanted.
    """
    order = list(names.values())
    named = [replace(row, data=names[row.reductions]) for row in rows]
    return sorted(named, key=lambda row: order.index(row.data))
