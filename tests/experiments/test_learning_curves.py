"""Learning curves: measured, kept, resumed, and summed up."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from torch.nn.utils import parametrize

from ddu.active import ACQUISITION_FUNCTIONS, ActiveLearner
from ddu.detectors import METHODS, Method, Softmax, register
from ddu.engines import Processes, using
from ddu.errors import InputError
from ddu.experiments.active_protocols import PROTOCOLS, find_protocol, read_source
from ddu.experiments.learning_curves import (
    Curve,
    LearningCurves,
    curve_figure,
    curve_table,
    labels_to_reach,
    summarise_curves,
)
from ddu.results import Row, RowFile

TINY = {"epochs": 2, "samples_per_epoch": 64}


def protocol(until=50, **changes):
    return find_protocol("dirty_digits", until=until, **TINY | changes)


def curves(until=50, acquisition="density", seed=0, exclude_above=None, **changes):
    return LearningCurves(protocol(until, **changes), (acquisition,), (seed,), exclude_above)


def timeless(rows):
    return [replace(row, value=0 if row.metric == "round_seconds" else row.value, command=None) for row in rows]


def kept(folder):
    return RowFile(folder / "rows.csv").read()


def values(rows, metric):
    return {row.labels: row.value for row in rows if row.metric == metric}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a curve that was not interrupted, and its rows."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, curves().measure(folder, command="ddu active")


@pytest.fixture(scope="module")
def source():
    return read_source(PROTOCOLS["dirty_digits"])


@pytest.mark.slow
def test_curves_that_are_measured_at_the_same_time_are_those_of_one_after_the_other(tmp_path):
    both, said = replace(curves(until=30), acquisitions=("density", "random")), []
    with using(Processes(2)):
        rows = both.measure(tmp_path / "together", say=said.append)
    assert said == ["2 curves, 2 at a time"]
    alone = both.measure(tmp_path / "alone")
    assert sorted(timeless(rows), key=repr) == sorted(timeless(alone), key=repr)


def test_a_curve_is_kept_as_it_is_measured(whole, source):
    folder, rows = whole
    assert kept(folder) == rows
    assert list(values(rows, "accuracy")) == list(values(rows, "round_seconds")) == [20, 30, 40, 50]
    assert {row.run for row in rows} == {rows[0].run}
    assert rows[0].reductions == "epochs 10 -> 2; samples_per_epoch 640 -> 64"
    assert (rows[0].detector, rows[0].network, rows[0].members) == ("density", "resffn2_64+sn", 1)
    assert (rows[0].data, rows[0].command) == ("dirty_digits", "ddu active")
    # The clean digits are the first hundred of the pool
    curve = Curve(protocol(), "density")
    learner = curve.learner(curve.sets(source)).resume(folder / "learners" / "density-seed0")
    acquired = [index for record in learner.records[:2] for index in record.indices]
    shares = values(rows, "ambiguous_share")
    assert list(shares) == [30, 40, 50]
    assert shares[40] == sum(index >= 100 for index in acquired) / 20


@pytest.mark.parametrize("missing", ["nothing", "state", "row", "one metric"])
def test_a_curve_that_was_killed_in_a_round_has_no_duplicate_and_no_hole(missing, whole, tmp_path, monkeypatch):
    _, rows = whole
    with monkeypatch.context() as patch:
        append, save, rounds = RowFile.append, ActiveLearner.save, []

        def save_or_die(learner, folder):
            rounds.append(folder)
            if not (missing == "state" and len(rounds) == 2):
                save(learner, folder)

        def append_or_die(file, new):
            new = list(new)
            if len(rounds) == 2 and missing in ("row", "one metric"):
                append(file, new[:1] if missing == "one metric" else [])
                raise KeyboardInterrupt
            append(file, new)
            if len(rounds) == 2:
                raise KeyboardInterrupt

        patch.setattr(ActiveLearner, "save", save_or_die)
        patch.setattr(RowFile, "append", append_or_die)
        with pytest.raises(KeyboardInterrupt):
            curves().measure(tmp_path)
    assert timeless(curves().measure(tmp_path)) == timeless(rows)
    assert timeless(kept(tmp_path)) == timeless(rows)


def test_a_finished_curve_is_not_measured_again_even_without_its_learner(whole, tmp_path, monkeypatch):
    folder, rows = whole
    monkeypatch.setattr(ActiveLearner, "measure", None)
    assert curves().measure(folder) == rows
    shutil.copy(folder / "rows.csv", tmp_path)
    assert curves().measure(tmp_path) == rows


def test_a_second_command_waits_and_finds_what_the_first_one_measured(tmp_path, capsys):
    rounds = curves(until=30, acquisition="random").rounds(tmp_path)
    rows = next(rounds)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(curves(until=30, acquisition="random").measure, tmp_path)
        while "Another command is working in" not in capsys.readouterr().err:
            assert not second.done()
        rows += [row for more in rounds for row in more]
        assert second.result(timeout=60) == rows == kept(tmp_path)


def test_rows_that_were_lost_are_made_from_the_learner(whole, tmp_path, monkeypatch):
    folder, rows = whole
    shutil.copytree(folder / "learners", tmp_path / "learners")
    monkeypatch.setattr(ActiveLearner, "measure", None)
    assert curves().measure(tmp_path, command="ddu active") == rows


def test_a_longer_curve_begins_with_the_shorter_one(whole, tmp_path):
    _, rows = whole
    shorter = curves(until=30).measure(tmp_path)
    assert list(values(shorter, "accuracy")) == [20, 30]
    assert timeless(curves(until=50).measure(tmp_path)) == timeless(rows)
    assert timeless(kept(tmp_path)) == timeless(rows)


def test_a_shorter_curve_is_the_beginning_of_what_is_there(whole):
    folder, rows = whole
    assert list(values(curves(until=30).measure(folder), "accuracy")) == [20, 30]
    assert kept(folder) == rows


def test_a_pool_that_runs_out_ends_the_curve_for_good(tmp_path, monkeypatch):
    small = curves(until=150, acquisition="random", pool=10, ambiguous=15)
    rows = small.measure(tmp_path)
    assert list(values(rows, "accuracy")) == [20, 30, 40, 45]
    monkeypatch.setattr(ActiveLearner, "measure", None)
    assert small.measure(tmp_path) == kept(tmp_path) == rows


def test_other_seeds_and_acquisition_functions_are_other_curves(whole, tmp_path):
    folder, rows = whole
    shutil.copy(folder / "rows.csv", tmp_path)
    (other, *_) = curves(until=20, acquisition="random").measure(tmp_path)
    assert (other.detector, other.labels, other.run != rows[0].run) == ("random", 20, True)
    (seed, *_) = curves(until=20, seed=1).measure(tmp_path)
    assert (seed.seed, seed.run) == (1, rows[0].run)
    assert kept(tmp_path)[: len(rows)] == rows
    assert {path.name for path in (tmp_path / "learners").iterdir()} >= {"random-seed0", "density-seed1"}


def test_a_curve_with_other_settings_is_refused_by_its_learner_and_by_its_rows(whole, tmp_path):
    folder, _ = whole
    with pytest.raises(
        InputError,
        match=r"^The learner in \S+density-seed0 has epochs=2, and this one has epochs=3: use the same, or another ",
    ):
        curves(epochs=3).measure(folder)
    with pytest.raises(InputError, match=r" has acquisition=Top\(.*\), and this one has acquisition=ExcludeOutliers"):
        curves(exclude_above=0.9).measure(folder)
    shutil.copy(folder / "rows.csv", tmp_path)
    with pytest.raises(
        InputError,
        match=r"^The curve of density with seed 0 in \S+rows\.csv has reductions=epochs 10 -> 2; .*, and this one has "
        r"reductions=.*; candidates above quantile 0\.9 excluded: use the same, or another folder\.$",
    ):
        curves(exclude_above=0.9).measure(tmp_path)


def test_a_curve_does_not_mix_members_trained_together_and_alone(source, tmp_path, monkeypatch):
    ensemble, plain = Curve(protocol(), "ensemble_mi"), Curve(protocol(), "density")
    assert ensemble.learner(ensemble.sets(source)).trains_together
    assert not plain.learner(plain.sets(source)).trains_together
    rows = curves(20, "ensemble_mi").measure(tmp_path)
    shutil.rmtree(tmp_path / "learners")
    monkeypatch.setattr(ActiveLearner, "trains_together", False)
    with pytest.raises(
        InputError, match=rf" has run={rows[0].run}, and this one has run=\w+: use the same, or another"
    ):
        curves(20, "ensemble_mi").measure(tmp_path)


def test_a_page_is_written_from_the_rows_alone(whole, tmp_path):
    folder, _ = whole
    shutil.copy(folder / "rows.csv", tmp_path)
    assert [path.name for path in curves().write_page(tmp_path)] == ["curves.png", "table.md"]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "| density | resffn2_64+sn | 1 |" in (tmp_path / "table.md").read_text()


def test_a_wrong_name_is_found_before_anything_is_read():
    with pytest.raises(InputError, match=r"^There is no acquisition function 'densty'\. Did you mean 'density'\?$"):
        curves(acquisition="densty")


# The learner of a curve


def test_networks_are_those_of_the_method(source):
    def network(name):
        curve = Curve(protocol(), name)
        return curve.learner(curve.sets(source)).model_factory()

    assert any(parametrize.is_parametrized(module) for module in network("density").modules())
    assert not any(parametrize.is_parametrized(module) for module in network("entropy").modules())


def test_a_learner_is_given_every_set_for_what_it_was_drawn_for(source):
    curve = Curve(protocol(), "entropy")
    sets = curve.sets(source)
    learner = curve.learner(sets)
    assert learner.validation is sets.validation
    assert learner.test is sets.test
    assert learner.labelled is sets.labelled
    assert learner.pool is sets.pool
    assert learner.oracle is not None
    assert np.array_equal(learner.oracle(np.array([3, 1])), sets.pool.labels[[3, 1]])


@pytest.mark.parametrize("name", [name for name in ACQUISITION_FUNCTIONS if name != "density_vgg"])
def test_every_acquisition_function_learns_a_round(name, source):
    curve = Curve(find_protocol("digits", epochs=2, samples_per_epoch=320, lr=0.01), name)
    learner = curve.learner(curve.sets(source))
    record = learner.step()
    assert len(set(record.indices)) == 10
    assert (record.accuracy or 0) > 0.2  # by chance it is 0.1
    proposal = learner.propose(3)
    assert np.isfinite([proposal.scores, proposal.epistemic, proposal.aleatoric]).all()


@pytest.mark.parametrize("name", ACQUISITION_FUNCTIONS)
def test_every_network_takes_the_reduced_images(name, real_data):
    curve = Curve(find_protocol("mnist", "cpu"), name)
    sets = curve.sets(read_source(curve.protocol, real_data))
    inputs, _ = sets.test.__getitems__([0, 1])
    assert curve.learner(sets).model_factory()(inputs).shape == (2, 10)


def test_a_registered_detector_is_an_acquisition_function(monkeypatch, tmp_path):
    class Mine(Softmax):
        name = "mine"

    monkeypatch.setattr("ddu.detectors.registry.METHODS", dict(METHODS))
    register(Method("mine", Mine))
    rows = curves(until=30, acquisition="mine").measure(tmp_path)
    assert {(row.detector, row.network) for row in rows} == {("mine", "resffn2_64")}


# The page


def point(acquisition="density", seed=0, labels=20, accuracy=0.5, ambiguous=None, **changes):
    """The rows of a round."""
    facts = {"network": "resnet18", "data": "mnist", "run": "12ab", **changes}
    values = {"accuracy": accuracy, "ambiguous_share": ambiguous, "round_seconds": 2.0}
    return [
        Row(detector=acquisition, seed=seed, labels=labels, metric=metric, value=value, **facts)
        for metric, value in values.items()
        if value is not None
    ]


def joined(rounds):
    return [row for rows in rounds for row in rows]


CURVES = [
    *joined(point(seed=0, labels=n, accuracy=a) for n, a in ((20, 0.7), (25, 0.92), (30, 0.89), (35, 0.96))),
    *joined(point(seed=1, labels=n, accuracy=a) for n, a in ((20, 0.8), (25, 0.80), (30, 0.90), (35, 0.94))),
    *joined(point("random", labels=n, accuracy=a, members=3) for n, a in ((20, 0.7), (25, 0.75), (30, 0.79))),
]


def test_labels_to_reach_are_the_first_that_do():
    assert labels_to_reach({20: 0.5, 25: 0.9, 30: 0.8}, 0.9) == 25
    assert labels_to_reach({20: 0.5}, 0.9) is None


def test_a_seed_that_never_gets_there_counts_with_the_end_of_its_curve():
    late = [point("late", seed, labels, float(labels >= 200)) for seed in range(5) for labels in (20, 200, 300)]
    lucky = [
        point("lucky", seed, labels, float(seed == 0 and labels >= 100)) for seed in range(5) for labels in (100, 300)
    ]
    slow, once = summarise_curves(joined(late + lucky))
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
    twice = [*point(labels=20, accuracy=0.5), *point(labels=20, accuracy=0.6)]
    assert summarise_curves(twice)[0].accuracy[20].mean == 0.6


def test_the_table_says_what_was_needed_and_what_was_reduced():
    table = curve_table([*CURVES, *point("entropy", reductions="epochs 100 -> 3")])
    same = curve_table(joined(point(name, reductions="epochs 100 -> 3") for name in ("density", "random")))
    assert same.splitlines()[0].endswith(" over seeds. Reduced from the full protocol: epochs 100 -> 3.")
    assert table == (
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
    dirty = [*point(labels=20), *point(labels=25, ambiguous=0.4), *point(labels=30, ambiguous=0.5)]
    _, shares = curve_figure(dirty).axes
    assert shares.get_lines()[0].get_ydata() == pytest.approx([0.4, 0.5])
    with pytest.raises(InputError, match=r"^There are no rows of learning curves to draw\.$"):
        curve_figure([])
