"""Two moons, the claim in numbers."""

import numpy as np
import pytest
from scipy.spatial import cKDTree
from sklearn.metrics import roc_auc_score

from ddu.errors import InputError
from ddu.experiments import two_moons
from ddu.experiments.two_moons import NETWORKS, TwoMoons
from ddu.results import Row, RowFile

SHORT = TwoMoons(epochs=2, grid=60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "two_moons"
    SHORT.measure(folder, command="ddu reproduce two-moons")
    SHORT.write_page(folder)
    return folder


@pytest.fixture(scope="module")
def rows(folder) -> list[Row]:
    return RowFile(folder / "rows.csv").read()


def value(rows: list[Row], network: str, measure: str) -> float:
    (found,) = [row.value for row in rows if (row.network, row.detector) == (network, measure)]
    assert found is not None
    return found


def test_density_is_low_far_from_the_data(rows):
    for network in NETWORKS:
        assert value(rows, network, "feature density") > 0.99


@pytest.mark.slow
def test_the_density_without_residual_connections_is_almost_as_good_after_more_training(tmp_path):
    rows = TwoMoons(epochs=20, grid=60, members=2).measure(tmp_path)
    plain, smooth = (value(rows, name, "feature density") for name in ("FC-Net", "ResFFN, spectral norm"))
    assert min(plain, smooth) > 0.99  # which of the two is ahead depends on the seed


def test_the_full_experiment_is_no_smaller_than_the_papers():
    assert {work.spec.reductions(work.samples) for work in TwoMoons().work()} == {None}


def test_entropy_does_not_tell_data_from_the_rest_of_the_plane(rows):
    smooth = value(rows, "ResFFN, spectral norm", "feature density")
    for network, measure in (("ResFFN", "softmax entropy"), ("3-ensemble", "predictive entropy")):
        assert value(rows, network, measure) < smooth - 0.1


def test_the_number_is_that_of_scipy_and_scikit_learn(folder, rows):
    arrays = np.load(folder / "arrays.npz")
    grid = np.stack(np.meshgrid(arrays["x"], arrays["y"]), axis=-1).reshape(-1, 2)
    distance, nearest = cKDTree(arrays["points"]).query(grid)
    far = distance > 0.3
    assert 0.5 < far.mean() < 0.9
    # Points of the grid closest to the data stand for it: the number is of the same kind, if not the same
    scores = arrays["FC-Net, feature density"].ravel()
    near = distance < 0.1
    by_sklearn = roc_auc_score(far[near | far], scores[near | far])
    assert value(rows, "FC-Net", "feature density") == pytest.approx(by_sklearn, abs=0.05)
    assert len(set(nearest[near])) > 50


def test_the_figure_has_the_papers_four_panels(folder, rows):
    arrays = np.load(folder / "arrays.npz")
    figure = SHORT.draw(arrays, rows)
    titles = [axes.get_title() for axes in figure.axes]
    assert [title.splitlines()[0] for title in titles] == [
        "ResFFN: softmax entropy",
        "3-ensemble: predictive entropy",
        "ResFFN, spectral norm: feature density",
        "FC-Net: feature density",
    ]
    assert titles[3].endswith(f"AUROC {value(rows, 'FC-Net', 'feature density'):.3f}")
    # Drawn as it is: the most uncertain point of the grid has the highest rank
    mesh = np.asarray(figure.axes[2].collections[0].get_array())
    assert mesh.ravel().argmax() == arrays["ResFFN, spectral norm, feature density"].ravel().argmax()


def test_the_folder_has_rows_that_know_their_run_and_a_figure(folder, rows):
    names = sorted(path.name for path in folder.iterdir() if path.name != ".lock")
    assert names == ["arrays.npz", "experiment.json", "panels.png", "rows.csv"]
    assert len({row.run for row in rows}) == 1
    assert {row.reductions for row in rows} == {"epochs 150 -> 2"}
    assert {row.members for row in rows if row.network == "3-ensemble"} == {3}


def test_a_seed_that_has_rows_is_not_run_again_and_another_is_added(folder, rows, tmp_path, monkeypatch):
    said = []
    assert SHORT.measure(folder, say=said.append) == rows
    assert said == []
    monkeypatch.setattr(two_moons, "fit", stop)
    with pytest.raises(StopError):
        TwoMoons(seeds=(0, 1), epochs=2, grid=60).measure(folder, say=said.append)
    assert said == ["Seed 1: train ResFFN, spectral norm"]
    assert RowFile(folder / "rows.csv").read() == rows


def test_other_settings_are_refused(folder):
    with pytest.raises(InputError) as caught:
        TwoMoons(epochs=3, grid=60).measure(folder)
    assert str(caught.value) == (
        f"The two-moons experiment in {folder} has epochs=2, and this one has epochs=3: "
        "use the same, or another folder."
    )


class StopError(Exception):
    pass


def stop(*arguments, **options):
    raise StopError


def test_the_claim_holds_in_part_where_a_network_without_residual_connections_does_as_well(rows):
    judged = two_moons.judge(rows)
    assert judged.verdict == "holds in part"
    assert judged.words.endswith("asked: lower than the first by at least one per cent: no.")
    assert ("asked: at least 99 %: yes." in judged.words) == (
        value(rows, "ResFFN, spectral norm", "feature density") >= 0.99
    )
