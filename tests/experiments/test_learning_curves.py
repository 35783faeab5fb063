"""Learning curves: measured, kept, gone on with, and summed up."""

from dataclasses import replace

import pytest

from ddu.active import (
    METHODS,
    PROTOCOLS,
    CurvePoint,
    curve_figure,
    curve_table,
    find_protocol,
    labels_to_reach,
    measure_curve,
    summarise_curves,
)
from ddu.errors import InputError
from ddu.results import RowFile

TINY = {"epochs": 2, "samples_per_epoch": 64}


def protocol(until=50, **changes):
    return find_protocol("dirty_digits", until=until, **TINY | changes)


def timeless(points):
    return [replace(point, seconds=0, command=None) for point in points]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A curve that was not interrupted, and its file."""
    file = RowFile(tmp_path_factory.mktemp("whole") / "curves.csv", CurvePoint)
    return list(measure_curve(protocol(), "density", 0, file, command="ddu active")), file


def test_a_curve_is_kept_as_it_is_measured(whole):
    points, file = whole
    assert file.read() == points
    assert [point.labels for point in points] == [20, 30, 40, 50]
    assert [len(point.indices) for point in points] == [10, 10, 10, 0]
    assert points[0].reductions == "epochs 10 -> 2; samples_per_epoch 640 -> 64"
    assert (points[0].network, points[0].members, points[0].command) == ("resffn2_64+sn", 1, "ddu active")
    # The clean digits are the first hundred of the pool
    acquired = [index for point in points[:2] for index in point.indices]
    assert points[2].ambiguous == sum(index >= 100 for index in acquired) / 20
    assert points[0].ambiguous is None


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_curve_goes_on_where_it_was(kept, whole, tmp_path):
    points, _ = whole
    file = RowFile(tmp_path / "curves.csv", CurvePoint)
    file.append(points[:kept])
    assert timeless(measure_curve(protocol(), "density", 0, file)) == timeless(points)
    assert timeless(file.read()) == timeless(points)


def test_a_finished_curve_is_not_measured_again(whole, monkeypatch):
    points, file = whole
    monkeypatch.setattr("ddu.active._curves.draw_sets", None)
    assert list(measure_curve(protocol(), "density", 0, file)) == points


def test_a_longer_curve_begins_with_the_shorter_one(whole, tmp_path):
    points, _ = whole
    file = RowFile(tmp_path / "curves.csv", CurvePoint)
    list(measure_curve(protocol(until=30), "density", 0, file))
    assert [point.labels for point in file.read()] == [20, 30]
    assert timeless(measure_curve(protocol(until=50), "density", 0, file)) == timeless(points)


def test_a_shorter_curve_is_the_beginning_of_what_is_there(whole, tmp_path):
    points, _ = whole
    file = RowFile(tmp_path / "curves.csv", CurvePoint)
    file.append(points[:3])  # interrupted on its way to 50
    shorter = list(measure_curve(protocol(until=30), "density", 0, file))
    assert [point.labels for point in shorter] == [20, 30]
    assert file.read() == points[:3]


def test_a_pool_that_runs_out_ends_the_curve_for_good(tmp_path):
    file = RowFile(tmp_path / "curves.csv", CurvePoint)
    small = protocol(until=150, pool=10, ambiguous=15)
    points = list(measure_curve(small, "random", 0, file))
    assert [point.labels for point in points] == [20, 30, 40, 45]
    assert list(measure_curve(small, "random", 0, file)) == points
    assert file.read() == points


def test_a_network_gets_images_that_are_large_enough(tmp_path):
    reduced = find_protocol("mnist", "cpu")
    assert METHODS["density"].adapt(reduced) == reduced
    vgg = METHODS["density_vgg"].adapt(reduced)
    assert vgg.image_size == 16
    assert "image_size original -> 16" in (vgg.reductions() or "")
    assert METHODS["density_vgg"].adapt(PROTOCOLS["mnist"]) == PROTOCOLS["mnist"]


def test_other_seeds_and_acquisitions_are_other_curves(whole, tmp_path):
    points, _ = whole
    file = RowFile(tmp_path / "curves.csv", CurvePoint)
    file.append(points)
    other = list(measure_curve(protocol(until=20), "random", 0, file))
    assert [(point.acquisition, point.labels) for point in other] == [("random", 20)]
    assert [point.seed for point in measure_curve(protocol(until=20), "density", 1, file)] == [1]
    assert file.read()[: len(points)] == points


def test_a_curve_that_was_made_otherwise_is_not_gone_on_with(whole):
    with pytest.raises(
        InputError,
        match=r"has a curve of density with seed 0 whose reductions are 'epochs 10 -> 2; .*', and these are "
        r"'epochs 10 -> 3; .*': choose another folder\.$",
    ):
        list(measure_curve(protocol(epochs=3), "density", 0, whole[1]))
    with pytest.raises(InputError, match=r"candidates above quantile 0\.9 left out': choose another folder\.$"):
        list(measure_curve(protocol(), "density", 0, whole[1], leave_out_above=0.9))


# What curves say


def point(acquisition="density", seed=0, labels=20, accuracy=0.5, **changes):
    facts = {
        "network": "resnet18",
        "members": 1,
        "data": "mnist",
        "ambiguous": None,
        "acquired": None,
        "reductions": None,
        "command": None,
        "versions": "ddu",
        "seconds": 2.0,
    }
    return CurvePoint(acquisition=acquisition, seed=seed, labels=labels, accuracy=accuracy, **facts | changes)


CURVES = [
    *(point(seed=0, labels=labels, accuracy=a) for labels, a in ((20, 0.7), (25, 0.92), (30, 0.89), (35, 0.96))),
    *(point(seed=1, labels=labels, accuracy=a) for labels, a in ((20, 0.8), (25, 0.80), (30, 0.90), (35, 0.94))),
    *(point("random", labels=labels, accuracy=a, members=3) for labels, a in ((20, 0.7), (25, 0.75), (30, 0.79))),
]


def test_labels_to_reach_are_the_first_that_do():
    assert labels_to_reach({20: 0.5, 25: 0.9, 30: 0.8}, 0.9) == 25
    assert labels_to_reach({20: 0.5}, 0.9) is None


def test_a_seed_that_never_gets_there_counts_with_the_end_of_its_curve():
    late = [point("late", seed, labels, float(labels >= 200)) for seed in range(5) for labels in (20, 200, 300)]
    lucky = [
        point("lucky", seed, labels, float(seed == 0 and labels >= 100)) for seed in range(5) for labels in (100, 300)
    ]
    slow, once = summarise_curves(late + lucky)
    needed = [summary.labels[0.9] for summary in (slow, once)]
    assert [value and value.mean for value in needed] == [200, (100 + 4 * 300) / 5]
    assert (slow.reached[0.9], once.reached[0.9]) == (5, 1)


def test_a_summary_is_the_mean_and_the_standard_error_over_seeds():
    density, random = summarise_curves(CURVES)
    assert (density.acquisition, density.seeds, random.seeds) == ("density", 2, 1)
    assert density.accuracy[25].mean == pytest.approx(0.86)
    assert density.accuracy[25].standard_error == pytest.approx(0.06)
    assert [needed and needed.mean for needed in density.labels.values()] == [22.5, 27.5, 35]
    assert density.reached == {0.8: 2, 0.9: 2, 0.95: 1}
    assert random.labels == {0.8: None, 0.9: None, 0.95: None}
    assert (density.seconds, random.seconds) == (8, 6)


def test_of_a_point_that_was_measured_twice_the_later_counts():
    twice = [point(labels=20, accuracy=0.5), point(labels=20, accuracy=0.6)]
    assert summarise_curves(twice)[0].accuracy[20].mean == 0.6


def test_the_table_says_what_was_needed_and_what_was_reduced():
    table = curve_table([*CURVES, point("entropy", reductions="epochs 100 -> 3")])
    same = curve_table([point(name, reductions="epochs 100 -> 3") for name in ("density", "random")])
    assert same.title.endswith(" over seeds. Reduced from the full protocol: epochs 100 -> 3.")
    assert table.to_markdown() == (
        "Active learning on mnist, labels needed to reach an accuracy: mean ± standard error over seeds. Reduced from "
        "the full protocol by entropy: epochs 100 -> 3.\n"
        "\n"
        "| acquisition | network | seeds | to 80 % | to 90 % | to 95 % | at the end |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n"
        "| density | resnet18 | 2 | 22 ± 2 | 28 ± 2 | > 35 (1 of 2 seeds) | 95.0 ± 1.0 % at 35 |\n"
        "| random | 3 x resnet18 | 1 | - | - | - | 79.0 % at 30 |\n"
        "| entropy | resnet18 | 1 | - | - | - | 50.0 % at 20 |\n"
    )


def test_the_figure_draws_every_curve_and_the_ambiguous_share_where_there_is_one():
    (axes,) = curve_figure(CURVES).axes
    drawn = {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}
    assert set(drawn) == {"density: 22 ± 2, 28 ± 2, > 35 (1 of 2 seeds)", "random: -, -, -"}
    legend = axes.get_legend()
    assert legend is not None
    assert legend.get_title().get_text() == "labels to 80, 90, 95 %"
    density, _ = drawn.values()
    assert density.get_xdata().tolist() == [20, 25, 30, 35]
    assert density.get_ydata() == pytest.approx([0.75, 0.86, 0.895, 0.95])
    assert axes.get_xlabel() == "labels\nmean ± standard error over 2 seeds"
    dirty = [point(labels=20), point(labels=25, ambiguous=0.4), point(labels=30, ambiguous=0.5)]
    _, shares = curve_figure(dirty).axes
    assert shares.get_lines()[0].get_ydata() == pytest.approx([0.4, 0.5])
    with pytest.raises(InputError, match=r"^There are no points of learning curves to draw\.$"):
        curve_figure([])
