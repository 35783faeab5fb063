"""The claims about active learning on made curves."""

from dataclasses import replace

import pytest

from ddu.errors import NotMeasuredError
from ddu.experiments.active_claims import by_variant, curve_tables, judge_clean, judge_dirty, judge_variants
from ddu.experiments.learning_curves import curve_rows

from .rows import row


def curves(ambiguous=None, **means: float):
    """Curves that rise from 0.1 below a mean accuracy to 0.1 above it."""
    return [
        made
        for name, mean in means.items()
        for labels, accuracy in ((20, mean - 0.1), (30, mean + 0.1))
        for made in (
            row(name, accuracy, "accuracy", labels=labels),
            row(name, (ambiguous or {}).get(name, 0.5), "ambiguous_share", labels=labels),
        )
    ]


@pytest.mark.parametrize(("density", "verdict"), [(0.8, "holds"), (0.76, "holds in part"), (0.6, "does not hold")])
def test_on_clean_data_density_must_beat_entropy_and_keep_up_with_the_ensemble(density, verdict):
    assert judge_clean(curves(density=density, entropy=0.7, ensemble_pe=0.75, ensemble_mi=0.8)).verdict == verdict


@pytest.mark.parametrize(
    ("density", "information", "ambiguous", "verdict"),
    [(0.7, 0.7, 0.2, "holds"), (0.7, 0.5, 0.2, "holds in part"), (0.5, 0.5, 0.9, "does not hold")],
)
def test_on_dirty_data_both_epistemic_scores_must_be_far_ahead(density, information, ambiguous, verdict):
    rows = curves(
        {"density": ambiguous, "ensemble_mi": ambiguous},
        **{
            "density": density,
            "ensemble_mi": information,
            "entropy": 0.5,
            "ensemble_pe": 0.5,
            "sngp": 0.55,
            "random": 0.9,
        },
    )
    assert judge_dirty(rows).verdict == verdict


def test_an_acquisition_function_that_was_not_measured_yet_is_named():
    with pytest.raises(NotMeasuredError, match="No row has mean_accuracy of detector=ensemble_pe"):
        judge_clean(curves(density=0.7, entropy=0.5))
    with pytest.raises(NotMeasuredError, match="No row has mean_accuracy of detector=ensemble_mi"):
        judge_dirty(curves(density=0.7, entropy=0.5, ensemble_pe=0.5))


def test_a_curve_that_was_interrupted_is_not_compared_with_whole_ones():
    rows = curves(density=0.8, entropy=0.7, ensemble_pe=0.75, ensemble_mi=0.8)
    rest = [one for one in rows if (one.detector, one.labels) != ("entropy", 30)]
    with pytest.raises(NotMeasuredError, match=r"^The curve of entropy with seed 0 ends at 20 labels, and others at 3"):
        judge_clean(rest)
    whole = [replace(one, data="mnist, other") for one in rows]
    with pytest.raises(NotMeasuredError, match=r"^The curve of entropy with seed 0 ends at 20 labels"):
        judge_variants([*whole, *rest])


def test_a_curve_comes_to_its_mean_its_end_and_the_labels_that_it_took():
    found = {one.metric: one.value for one in curve_rows(curves(density=0.75))}
    assert found == {
        "mean_accuracy": pytest.approx(0.75),
        "accuracy": pytest.approx(0.85),
        "labels_to_70": 30,
        "labels_to_80": 30,
        "ambiguous_share": 0.5,
    }
    (table,) = curve_tables(curves(density=0.75))
    assert [column.metric for column in table.columns] == [
        "accuracy",
        "mean_accuracy",
        "labels_to_70",
        "labels_to_80",
        "ambiguous_share",
    ]


def variants(**gaps: float):
    """Curves of several variants, with so much between what ambiguity confuses and what it does not."""
    return [
        replace(one, reductions=name)
        for name, gap in gaps.items()
        for one in curves(density=0.6 + gap, ensemble_mi=0.7 + gap, entropy=0.5, ensemble_pe=0.6)
    ]


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [({"a": 0.06, "b": 0.1}, "holds"), ({"a": 0.04, "b": 0.06}, "holds in part"), ({"a": 0.0}, "does not hold")],
)
def test_a_variant_has_the_gap_if_both_epistemic_scores_are_far_ahead_of_both_others(gaps, verdict):
    assert judge_variants(by_variant(variants(**gaps), {"a": "first", "b": "second"})).verdict == verdict


def test_rows_of_variants_are_named_and_ordered_by_their_reductions():
    named = by_variant(variants(a=0.1, b=0.2), {"b": "second", "a": "first"})
    assert list(dict.fromkeys((row.reductions, row.data) for row in named)) == [("b", "second"), ("a", "first")]
    assert "first: a gap of 10.00% (density 70.00%" in judge_variants(named).words


def test_each_variant_has_a_table_of_its_own():
    tables = curve_tables(by_variant(variants(a=0.1, b=0.2), {"a": "first", "b": "second"}))
    means = {
        (table.data, line.detector): cell.value.mean
        for table in tables
        for line, cells in zip(table.lines, table.cells, strict=True)
        for column, cell in zip(table.columns, cells, strict=True)
        if column.metric == "mean_accuracy" and cell.value is not None
    }
    assert [table.data for table in tables] == ["first", "second"]
    assert means["first", "density"] == pytest.approx(0.7)
    assert means["second", "density"] == pytest.approx(0.8)
