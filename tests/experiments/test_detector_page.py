"""Tables and figures of a file of rows, with costs as ratios."""

import csv

import pytest
import torch

from ddu.data.corruptions import CORRUPTIONS
from ddu.experiments import Judged, Scores, average_corruptions, cost_ratios, summarise, to_markdown, write_report
from ddu.experiments.scores import scores_folder
from ddu.experiments.trained import expand
from ddu.results import Row, RowFile, RowKey

FACTS = {"network": "resnet18", "data": "cifar10", "seed": 0, "run": "12ab"}
CORRUPTED = expand(["cifar10_c:fog", "cifar10_c:snow"])


def corrupted_rows(detector, value=0.6, **changes):
    """AUROC against fog and, a tenth higher, against snow, rising with severity."""
    return [
        Row(
            **{**FACTS, "detector": detector, "metric": "auroc"} | changes,
            ood=f"cifar10_c:{corruption}",
            severity=severity,
            value=value + more + 0.01 * severity,
        )
        for corruption, more in (("fog", 0.0), ("snow", 0.1))
        for severity in range(1, 6)
    ]


def test_families_of_corruptions_are_written_in_short():
    assert expand(["cifar10_c:fog"]) == tuple(f"cifar10_c:fog:{severity}" for severity in range(1, 6))
    assert expand(["svhn", "cifar10_c:fog:3", "cifar10_c:fog", "svhn"])[:2] == ("svhn", "cifar10_c:fog:3")
    assert len(expand(["svhn", "cifar10_c:fog:3", "cifar10_c:fog", "svhn"])) == 6
    assert len(expand(["cifar10_c"])) == 5 * len(CORRUPTIONS) == 95
    assert expand(["cifar10_c:fgo"]) == ("cifar10_c:fgo",)


def test_corruptions_have_one_column_per_severity_in_tables_and_each_its_line_in_csv(tmp_path):
    file = RowFile(tmp_path / "rows.csv")
    file.append(corrupted_rows("ddu"))
    (table,) = summarise(file.read())
    assert [column.heading for column in table.columns][:2] == [
        "AUROC 2 corruptions severity 1 (%) ↑",
        "AUROC 2 corruptions severity 2 (%) ↑",
    ]
    assert [cell.value.mean for cell in table.cells[0] if cell.value] == pytest.approx([0.66, 0.67, 0.68, 0.69, 0.70])
    write_report(file.path)
    with (tmp_path / "table.csv").open() as lines:
        assert len(list(csv.DictReader(lines))) == 10


def test_a_mean_lacks_no_corruption_and_says_what_failed():
    rows = [row for row in corrupted_rows("ddu") if row.severity != 3]
    lost = [
        Row.failed("no file", **FACTS, detector="ddu", ood=f"cifar10_c:{one}", severity=3) for one in ("fog", "snow")
    ]
    found = average_corruptions([*rows, *lost, *corrupted_rows("softmax")])
    assert {row.severity for row in found if row.detector == "ddu" and row.value is not None} == {1, 2, 4, 5}
    (failed,) = (row for row in found if row.status == "failed")
    assert (failed.ood, failed.severity) == ("2 corruptions", 3)
    assert failed.error == "cifar10_c:fog: no file; cifar10_c:snow: no file"
    one = corrupted_rows("ddu")[:5]
    assert average_corruptions(one) == one


def test_many_corrupted_sets_share_one_figure(tmp_path):
    torch.manual_seed(0)

    def judged():
        return Judged(torch.randn(50), torch.rand(50))

    file = RowFile(tmp_path / "rows.csv")
    for detector in ("ddu", "softmax"):
        folder = scores_folder(tmp_path / "scores", RowKey(detector, "resnet18", "cifar10", 0, "12ab"))
        scores = Scores(torch.randn(50, 3), torch.arange(50) % 3, 1.0, 2.0, judged(), {})
        for name in ("svhn", *CORRUPTED):
            scores = scores.with_ood(name, judged())
            scores.save(folder, name)
        scores.save(folder)
        file.append([Row(**FACTS, detector=detector, ood="svhn", metric="auroc", value=0.9)])
        file.append(corrupted_rows(detector))
    figures = {path.name for path in write_report(file.path) if path.suffix == ".png"}
    assert figures == {
        "auroc-by-severity.png",
        *("roc-svhn.png", "risk-coverage-svhn.png", "risk-coverage-cifar10.png"),
        *("scores-ddu.png", "scores-softmax.png", "reliability-ddu.png", "reliability-softmax.png"),
    }
    one = [row for row in file.read() if row.severity is None or (row.ood, row.severity) == ("cifar10_c:fog", 2)]
    figures = {path.name for path in write_report(file.path, one) if path.suffix == ".png"}
    assert {"roc-cifar10_c-fog-2.png", "risk-coverage-cifar10_c-fog-2.png"} < figures
    assert "auroc-by-severity.png" not in figures
    apart = [row for row in file.read() if (row.ood, row.severity) in {("cifar10_c:fog", 1), ("cifar10_c:snow", 2)}]
    assert "auroc-by-severity.png" not in {path.name for path in write_report(file.path, apart)}


def rows(detector, *, training, inference, seed=0, network="resnet18", members=1, data="mnist"):
    facts = {"detector": detector, "network": network, "data": data, "seed": seed, "run": "12ab", "members": members}
    return [
        Row(**facts, metric="training_seconds", value=training),
        Row(**facts, metric="seconds_per_thousand", value=inference),
        Row(**facts, metric="accuracy", value=0.9),
    ]


DDU = rows("ddu", training=120.0, inference=0.3, network="resnet18+sn")
SOFTMAX = rows("softmax", training=100.0, inference=0.25)
ENSEMBLE = rows("ensemble_mi", training=500.0, inference=1.25, members=5)


def ratios(found):
    return {(row.detector, row.seed, row.metric): row.value for row in found}


def test_costs_are_divided_by_those_of_the_softmax():
    assert ratios(cost_ratios([*DDU, *SOFTMAX, *ENSEMBLE])) == {
        ("ddu", 0, "training_ratio"): 1.2,
        ("ddu", 0, "inference_ratio"): 1.2,
        ("softmax", 0, "training_ratio"): 1.0,
        ("softmax", 0, "inference_ratio"): 1.0,
        ("ensemble_mi", 0, "training_ratio"): 5.0,
        ("ensemble_mi", 0, "inference_ratio"): 5.0,
    }


def test_without_a_softmax_the_first_detector_is_the_measure():
    found = ratios(cost_ratios([*ENSEMBLE, *DDU]))
    assert found["ddu", 0, "training_ratio"] == 0.24
    assert cost_ratios([]) == []


def test_each_seed_is_divided_by_its_own():
    second = [*rows("ddu", training=90.0, inference=1.0, seed=1, network="resnet18+sn")]
    second += rows("softmax", training=30.0, inference=1.0, seed=1)
    found = ratios(cost_ratios([*DDU, *SOFTMAX, *second]))
    assert found["ddu", 1, "training_ratio"] == 3.0
    assert not cost_ratios([*SOFTMAX, *rows("ddu", training=1.0, inference=1.0, seed=2)])[2:]


def test_each_training_set_has_a_measure_of_its_own():
    other = rows("energy", training=10.0, inference=0.5, data="svhn")
    other += rows("ddu", training=15.0, inference=0.5, network="resnet18+sn", data="svhn")
    found = {(row.data, row.detector): row.value for row in cost_ratios([*SOFTMAX, *DDU, *other])[::2]}
    assert found == {("mnist", "softmax"): 1, ("mnist", "ddu"): 1.2, ("svhn", "energy"): 1, ("svhn", "ddu"): 1.5}
    same = rows("softmax", training=20.0, inference=1.0, data="svhn")
    assert [row.value for row in cost_ratios([*SOFTMAX, *same])] == [1, 1, 1, 1]
    assert (
        "A ratio of 1 is the cost of softmax on resnet18, trained on mnist; of energy on resnet18, trained on svhn."
    ) in to_markdown([*SOFTMAX, *other])


def test_the_summary_has_the_ratios_side_by_side():
    (table,) = summarise([*DDU, *SOFTMAX, *ENSEMBLE])
    assert [column.metric for column in table.columns] == ["accuracy", "training_ratio", "inference_ratio"]
    assert [line.detector for line in table.lines] == ["ddu", "softmax", "ensemble_mi"]


def test_the_page_says_whose_costs_are_one_and_what_failed():
    lost = Row.failed("out of memory", detector="duq", network="resnet18", data="mnist", seed=0, run="12ab")
    page = to_markdown([*DDU, *SOFTMAX, lost])
    assert "A ratio of 1 is the cost of softmax on resnet18." in page
    assert "| ddu | resnet18+sn | 120.0 | 1.200 | 0.3000 | 1.200 |" in page
    assert "- Failed: duq on resnet18, seed 0: out of memory" in page


def test_a_failure_stays_in_the_table_of_a_detector_that_has_costs():
    later = Row.failed("out of memory", detector="ddu", network="resnet18+sn", data="mnist", seed=0, run="12ab")
    only_svhn = Row.failed(
        "no file", detector="softmax", network="resnet18", data="mnist", seed=0, run="12ab", ood="svhn"
    )
    (table,) = summarise([*DDU, *SOFTMAX, later, only_svhn])
    assert table.failures == (later, only_svhn)
    assert [line.detector for line in table.lines] == ["ddu", "softmax"]
    made_good = [later, *DDU, *SOFTMAX]
    assert summarise(made_good)[0].failures == ()


def test_rows_may_come_one_at_a_time():
    assert summarise(iter([*DDU, *SOFTMAX])) == summarise([*DDU, *SOFTMAX])
