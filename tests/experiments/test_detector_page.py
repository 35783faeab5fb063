"""Tables and figures of a file of rows."""

import csv

import pytest
import torch

from ddu.data.corruptions import CORRUPTIONS
from ddu.experiments import Judged, Scores, average_corruptions, summarise, write_report
from ddu.experiments.measure import Subject
from ddu.experiments.ood_sets import expand
from ddu.results import Row, RowFile

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
        folder = Subject(detector, "resnet18", "cifar10", 0, "12ab").scores_folder(tmp_path / "scores")
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
