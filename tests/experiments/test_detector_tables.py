"""Tables of a comparison: what was measured, and costs as ratios."""

from ddu.experiments import cost_ratios, summarise, to_markdown
from ddu.results import Row


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
