"""The quality protocol on embedded data: from training to the page."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from ddu import data
from ddu.errors import DataError, InputError
from ddu.experiments import pretrained
from ddu.experiments.pretrained import HeadSpec
from ddu.experiments.quality import Quality
from ddu.experiments.quality_page import Estimate, QualityPage, estimate, mean_of_pairs
from ddu.experiments.quality_pairs import PAIRS, Candidate, Pair, ood_kinds, theirs
from ddu.results import Row, RowFile
from ddu.runs import RunSpec
from ddu.training import Recipe
from tests.experiments.test_pretrained import toy_backbone

CANDIDATES = (
    Candidate("ddu", "ddu"),
    Candidate("softmax", "softmax"),
    Candidate("pytorch-ood KNN", "pytorch-ood KNN"),
)
RUN = RunSpec("lenet", "mnist_5k", Recipe(epochs=1, lr=0.05), method=None, limit=600)
OOD = {"photo_patches": "far", "digits": "near", "flat": "degenerate", "inverted": "degenerate"}


@pytest.fixture
def quality(monkeypatch) -> Quality:
    monkeypatch.setitem(pretrained.BACKBONES, "toy", toy_backbone)
    pairs = (
        Pair("lenet-mnist", "choose", RUN, seeds=(0, 1), limit=100, ood=OOD),
        Pair("toy-digits", "confirm", HeadSpec("toy", "digits"), seeds=(0,), limit=100, ood={"mnist_5k": "near"}),
    )
    return Quality(pairs, CANDIDATES, false_alarm_rate=0.1)


@pytest.mark.filterwarnings("ignore")  # so few samples of so little training
def test_the_protocol_trains_measures_resumes_and_writes_its_page(quality, tmp_path):
    rows = quality.measure(tmp_path, command="make quality", progress=False)
    failed = [row.error for row in rows if row.status == "failed"]
    assert not failed
    aurocs = [row for row in rows if row.metric == "auroc"]
    assert len(aurocs) == 3 * (2 * 4 + 1)  # detectors x (seeds x sets)
    assert {row.metric for row in rows if row.ood} == {"auroc", "auroc_error", "fpr95", "fpr95_error", "detection_rate"}
    # A second call finds everything done, with the rows alone, as in a fresh clone
    networks = (tmp_path / "networks").rename(tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "scores")
    said: list[str] = []
    assert quality.measure(tmp_path, progress=False, say=said.append) == rows
    assert said == []
    assert not (tmp_path / "networks").exists()
    networks.rename(tmp_path / "networks")
    # A detector whose rows are dropped is measured again alone, with the same values
    quality.forget(tmp_path, ["ddu"])
    assert {row.detector for row in quality.rows(tmp_path)} == {"softmax", "pytorch-ood KNN"}
    again = quality.measure(tmp_path, progress=False)
    assert {row.key: row.value for row in again if row.metric == "auroc"} == {row.key: row.value for row in aurocs}

    written = quality.write_page(tmp_path, tmp_path / "docs" / "quality.md", command="make quality")
    assert [path.name for path in written] == ["quality.md", "quality-pairs.png"]
    page = written[0].read_text()
    assert "    make quality\n" in page
    assert "| lenet-mnist | choose |" in page
    assert "| toy-digits | confirm |" in page
    assert "pytorch-ood KNN" in page
    assert "## Degenerate images" in page
    assert "No detector failed." in page


def test_an_unknown_pair_or_detector_is_refused(quality, tmp_path):
    with pytest.raises(InputError, match="There is no pair 'lenet'"):
        quality.only(["lenet"])
    with pytest.raises(InputError, match="There is no detector 'dd'"):
        quality.forget(tmp_path, ["dd"])


@pytest.mark.filterwarnings("ignore")
def test_a_network_that_cannot_be_trained_leaves_the_others(quality, tmp_path):
    missing = replace(quality.pairs[0], name="missing", network=replace(RUN, data="mnist"))
    said: list[str] = []
    rows = replace(quality, pairs=(missing, quality.pairs[1])).measure(
        tmp_path, data_root=tmp_path, progress=False, say=said.append
    )
    assert {row.data for row in rows} == {"digits"}
    assert any(words.startswith("Failed: missing-seed0: DataError: mnist is not in") for words in said)


@pytest.mark.filterwarnings("ignore")
def test_a_trained_network_without_its_data_leaves_the_others(quality, tmp_path, monkeypatch):
    quality.only(["lenet-mnist"]).train(tmp_path, progress=False)
    load_parts = data.load_parts

    def only_digits(name, *arguments, **options):
        if name == "mnist_5k":
            raise DataError("mnist_5k is gone")
        return load_parts(name, *arguments, **options)

    monkeypatch.setattr(data, "load_parts", only_digits)
    said: list[str] = []
    rows = quality.measure(tmp_path, progress=False, say=said.append)
    assert {row.data for row in rows} == {"digits"}
    assert [words for words in said if words.startswith("Failed")] == [
        f"Failed: lenet-mnist-seed{seed}: DataError: mnist_5k is gone" for seed in (0, 1)
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_corrupted_images_are_asked_about(tmp_path):
    random = np.random.default_rng(0)
    sets: dict[str, np.ndarray] = {}
    for part, count in (("train", 400), ("test", 60)):
        labels = np.arange(count) % 10
        pixels = 20 * labels[:, None, None, None] + random.integers(0, 60, (count, 32, 32, 3))
        sets |= {f"x_{part}": pixels.astype(np.uint8), f"y_{part}": labels}
    np.savez(tmp_path / "cifar10.npz", **sets)
    spec = replace(RUN, model="resnet18", data="cifar10", limit=None, options={"width": 0.0625})
    pair = Pair("tiny-cifar10", "choose", spec, seeds=(0,), limit=60, corrupted=4, ood={"flat": "degenerate"})
    quality = Quality((pair,), CANDIDATES, false_alarm_rate=0.1)
    rows = quality.measure(tmp_path / "quality", data_root=tmp_path, progress=False)
    corrupted = [row for row in rows if row.severity is not None and row.detector == "ddu"]
    assert len({(row.ood, row.severity) for row in corrupted}) == 19 * 5 + 1  # and as they are
    assert {row.metric for row in corrupted} >= {"accuracy", "detection_rate"}
    written = quality.write_page(tmp_path / "quality")
    assert "## Corrupted images" in written[0].read_text()
    assert any(path.name.endswith("corruptions.png") for path in written)


def _rows(detector: str, values: dict[tuple[str, int], float], error: float = 0.01, **facts) -> list[Row]:
    """AUROCs by OoD set and seed."""
    network = {"network": RUN.label, "data": "mnist_5k", "run": "12ab", **facts}
    return [
        Row(detector=detector, seed=seed, ood=ood, metric=metric, value=number, **network)
        for (ood, seed), value in values.items()
        for metric, number in (("auroc", value), ("auroc_error", error))
    ]


def _page(rows: list[Row]) -> QualityPage:
    pair = Pair("lenet-mnist", "choose", RUN, seeds=(0, 1), ood=OOD)
    return QualityPage((pair,), CANDIDATES, rows)


def _all_sets(value: float, **others: float) -> dict[tuple[str, int], float]:
    return {(name, seed): others.get(name, value) for name in OOD for seed in (0, 1)}


def test_a_rival_that_is_ahead_is_named():
    page = _page([*_rows("ddu", _all_sets(0.90)), *_rows("pytorch-ood KNN", _all_sets(0.92))]).to_markdown("x", "y")
    assert "More than 0.01 behind on 1 of 1 pairs: lenet-mnist (pytorch-ood KNN, 0.020 ahead)." in page
    page = _page([*_rows("ddu", _all_sets(0.91)), *_rows("pytorch-ood KNN", _all_sets(0.915))]).to_markdown("x", "y")
    assert "On none of 1 pairs is a detector of pytorch-ood more than 0.01 ahead of the default." in page


def test_what_the_energy_does_is_told_where_a_rival_is_ahead():
    facts = {"network": RUN.label, "data": "mnist_5k", "run": "12ab", "metric": "accuracy", "value": 0.74}
    rows = [Row(detector="softmax", seed=seed, **facts) for seed in (0, 1)]
    for name, value in {"ddu": 0.90, "ddu without energy": 0.93, "energy": 0.4, "pytorch-ood KNN": 0.92}.items():
        rows += _rows(name, _all_sets(value))
    page = _page(rows).to_markdown("x", "y")
    assert (
        "0.020 ahead). The network of lenet-mnist is right about 74.0 % of test inputs; its energy alone has 0.400, "
        "and the default without that part 0.930."
    ) in page


def test_degenerate_images_below_what_is_wanted_are_named():
    page = _page(_rows("ddu", _all_sets(0.999, flat=0.5, inverted=0.2))).to_markdown("x", "y")
    assert "Below 0.99 in 1 of 1 cases: flat on lenet-mnist (0.500)." in page
    assert "**0.500 ± 0.020**" in page
    assert "| 0.200 ± 0.020 |" in page  # is reported, not wanted


def test_near_and_far_are_apart_and_degenerate_in_no_mean():
    page = _page(_rows("ddu", _all_sets(0.0, digits=0.8, photo_patches=0.9)))
    (pair,) = page.pairs
    means = [page.summary(pair, "ddu", *kinds) for kinds in (("near",), ("far",), ())]
    assert [one.mean for one in means if one] == pytest.approx([0.8, 0.9, 0.85])


def test_a_seed_without_rows_is_said_to_be_missing():
    page = _page(_rows("ddu", {(name, 0): 0.9 for name in OOD}))
    assert page.pairs[0].seeds == (0,)
    assert "Of the 2 networks, with all seeds, 1 are measured so far" in page.to_markdown("x", "y")


def test_a_seed_with_some_of_its_rows_leaves_the_cell_empty():
    page = _page(_rows("ddu", {**{(name, 0): 0.9 for name in OOD}, ("digits", 1): 0.9}))
    assert page.summary(page.pairs[0], "ddu") is None
    assert "| **ddu** | — | — |" in page.to_markdown("x", "y")


def test_failures_and_what_was_left_out_are_told():
    failure = Row.failed(
        "no memory", detector="ddu", network=RUN.label, data="mnist_5k", seed=0, run="12ab", ood="flat"
    )
    page = replace(_page([failure]), left_out={"ODIN": "It wants gradients."}).to_markdown("x", "y")
    assert "- ddu on mnist_5k against flat: no memory" in page
    assert "- ODIN: It wants gradients." in page


def test_the_loss_of_accuracy_is_that_of_the_same_images():
    facts = {"detector": "ddu", "network": RUN.label, "data": "mnist_5k", "seed": 0, "run": "12ab"}
    rows = [
        Row(**facts, metric="accuracy", value=0.7),  # of all test images
        Row(**facts, ood="cifar10_c:none", severity=0, metric="accuracy", value=0.9),
        Row(**facts, ood="cifar10_c:fog", severity=1, metric="accuracy", value=0.89),
        Row(**facts, ood="cifar10_c:fog", severity=1, metric="detection_rate", value=0.03),
    ]
    page = QualityPage((Pair("lenet-mnist", "choose", RUN, seeds=(0,), corrupted=9, ood=OOD),), CANDIDATES, rows)
    assert "| fog | +1.0 | 3.0 | yes |" in page.to_markdown("x", "y")


def test_the_error_has_that_of_the_seeds_and_that_of_the_samples():
    values = [0.90, 0.92, 0.94]
    found = estimate(values, [0.02, 0.03, 0.04])
    assert found.mean == pytest.approx(0.92)
    assert found.error == pytest.approx(np.hypot(np.std(values, ddof=1) / 3**0.5, 0.03))
    assert estimate([0.9], [0.03]) == Estimate(0.9, 0.03)
    assert mean_of_pairs([Estimate(0.8, 0.03), Estimate(0.9, 0.04)]) == pytest.approx((0.85, 0.025))


def test_every_pair_of_images_has_degenerate_sets_and_never_its_own_data():
    for pair in PAIRS:
        assert pair.data not in pair.kinds
        assert bool(pair.sets("degenerate")) == (pair.data != "clinc150")
    assert "svhn" not in ood_kinds("svhn_6k")
    assert ood_kinds("cifar100")["cifar10"] == "near"
    assert ood_kinds("mnist")["cifar10"] == "far"
    assert len({pair.name for pair in PAIRS}) == len(PAIRS) >= 8
    # The longest training has one seed
    assert sum(len(pair.seeds) >= 3 for pair in PAIRS if isinstance(pair.network, RunSpec)) >= 5


def test_every_detector_of_pytorch_ood_is_measured_or_has_a_reason():
    candidates, reasons = theirs()
    assert {"pytorch-ood KNN", "pytorch-ood ViM", "pytorch-ood Mahalanobis"} <= {one.name for one in candidates}
    assert {"RankFeat", "ODIN", "MCM"} <= reasons.keys()
    assert all(reasons.values())


def test_dropping_rows_keeps_the_others_as_they_were(quality, tmp_path):
    rows = [*_rows("ddu", _all_sets(0.9)), *_rows("softmax", _all_sets(0.8))]
    RowFile(tmp_path / "lenet-mnist.csv").append(rows)
    quality.forget(tmp_path, ["ddu"])
    assert RowFile(tmp_path / "lenet-mnist.csv").read() == [row for row in rows if row.detector == "softmax"]
    assert [path.name for path in tmp_path.iterdir()] == ["lenet-mnist.csv"]
