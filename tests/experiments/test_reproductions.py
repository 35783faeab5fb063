"""Every reproduction runs at its smallest scale, resumes, and says whether the paper's claim holds."""

import shutil
from dataclasses import replace

import pytest

from ddu.errors import InputError
from ddu.experiments import REPRODUCTIONS, Judgement, reproduction
from ddu.experiments.reproduction import (
    NOT_JUDGED,
    SCALES,
    Work,
    count_new,
    mean_value,
    plan,
    read_rows,
    training_samples,
)
from ddu.experiments.training_pool import sharing_networks
from ddu.results import Row, paper_tables
from ddu.runs import RunSpec
from ddu.training import RECIPES

# One of those that share their code runs in every test
SLOW = {
    *("ood-cifar100", "ablation-cifar10", "ablation-cifar100", "feature-collapse", "dirty-mnist"),
    *("active-mnist", "active-dirty-mnist", "active-cifar10", "active-variants", "objective-mismatch", "more-data"),
}

# Two hours on two cores for three seeds, and curves that only look for a reason
ONE_SEED = {"active-cifar10", "active-variants"}


# The machine that the scale cpu is for
CORES = 2


def core_hours_per_seed(one):
    times = [work.hours for work in one.experiment("cpu").work()]
    assert None not in times, "run `python scripts/throughput.py`"
    return sum(times)


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """The folder that all names of this file share their networks in."""
    return tmp_path_factory.mktemp("networks")


# Networks that hardly learn anything from a few samples
@pytest.mark.filterwarnings("ignore::ddu.errors.DDUWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in REPRODUCTIONS]
)
def test_it_runs_at_the_smallest_scale_and_is_not_run_again(name, networks, tmp_path):
    one, said = REPRODUCTIONS[name], []
    folder = tmp_path / name
    with sharing_networks(networks):
        rows = one.experiment("smoke").measure(folder, command="ddu reproduce", say=said.append)
    assert all(row.status == "ok" for row in rows)
    assert {row.key for row in rows} == {row.key for row in read_rows(folder)}
    assert said
    assert one.judgement(rows).missing == ""
    page, *files = one.write_page("smoke", folder)
    text = page.read_text()
    assert text.startswith(f"# {name}: {one.shows}\n\n**The paper's claim:** {one.claim}\n\n**{NOT_JUDGED}**\n\n")
    assert one.judged_by not in text
    assert all(file.is_file() for file in files)
    assert all(f"]({file.relative_to(folder)})" in text for file in files if file.suffix == ".png")
    # With the rows alone, as in a fresh clone
    for left_out in ("networks", "scores", "learners"):
        for path in list(folder.rglob(left_out)):
            shutil.rmtree(path)
    with sharing_networks(tmp_path / "networks"):
        assert one.experiment("smoke").measure(folder) == rows
    assert not list(tmp_path.rglob("metrics.json"))
    assert one.write_page("smoke", folder)[0].read_text() == text


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_it_has_three_scales_and_what_they_train_is_known(name):
    one = REPRODUCTIONS[name]
    assert one.name == name
    assert set(one.scales) == set(SCALES)
    assert len(one.experiment("cpu").seeds) == (1 if name in ONE_SEED else 3)
    assert len(one.experiment("cpu", 2).seeds) == 2
    assert core_hours_per_seed(one) <= CORES


def test_what_was_seen_at_the_scale_cpu_is_on_its_page_alone():
    one = replace(
        REPRODUCTIONS["two-moons"], judge=lambda _: Judgement.of({"it is so": True}), seen="Something was seen."
    )
    pages = {
        scale: one.page(scale, {"": [Row("d", "n", "two_moons", 0, "12ab", metric="auroc", value=1.0)]}, [])
        for scale in SCALES
    }
    assert {scale for scale, page in pages.items() if "Seen at this scale: Something was seen." in page} == {"cpu"}


def test_core_hours_follow_from_samples_epochs_networks_and_throughput(monkeypatch):
    monkeypatch.setattr(reproduction, "throughput", lambda: {"mnist": {"lenet": 250.0}})
    spec = RunSpec("lenet", "mnist", RECIPES["mnist"], options={"spectral_norm": None, "sensitive": False})
    work = Work(spec, 10_000, networks=2)
    assert work.hours == pytest.approx(10_000 * 0.9 * 50 * 2 / 250 / 3600)
    assert work._replace(scored=9_000).hours == pytest.approx((10_000 * 0.9 * 50 + 3_000) * 2 / 250 / 3600)
    unknown = Work(replace(spec, model="vgg16"), 10_000)
    assert unknown.hours is None


def test_what_an_epoch_sees_is_the_recipes_where_it_says_so(monkeypatch):
    monkeypatch.setattr(reproduction, "throughput", lambda: {"mnist, 14 pixels": {"lenet": 100.0}})
    recipe = RECIPES["quick"].with_changes(epochs=2, samples_per_epoch=360)
    spec = RunSpec("lenet", "mnist", recipe, options={"spectral_norm": None, "sensitive": False})
    assert Work(spec, 20, side=14).hours == pytest.approx(720 / 100 / 3600)
    assert Work(spec, 20).hours is None


def test_heads_that_cost_more_have_a_throughput_of_their_own():
    spec = RunSpec("resnet18", "cifar10", RECIPES["quick"], options={"head": "sngp", "sensitive": False})
    assert Work(spec, 20).key == ("cifar10", "resnet18+sn, sngp")


def test_all_names_but_active_learning_take_at_most_ten_hours_of_all_cores():
    counted = [one for name, one in REPRODUCTIONS.items() if not name.startswith("active")]
    assert sum(len(one.experiment("cpu").seeds) * core_hours_per_seed(one) for one in counted) <= 10 * CORES


@pytest.mark.filterwarnings("ignore::ddu.errors.DDUWarning")
def test_names_that_share_their_networks_train_each_once_and_the_plan_counts_so(tmp_path):
    shared, planned, new = tmp_path / "networks", dict[str, tuple[int, int]](), 0
    for name in ("ood-cifar10", "cifar10-c"):
        experiment = REPRODUCTIONS[name].experiment("smoke")
        with sharing_networks(shared):
            rows = experiment.measure(tmp_path / name)
        assert all(row.status == "ok" for row in rows)
        assert not (tmp_path / name / "networks").exists()
        counts = [count_new(work, len(experiment.seeds), planned) for work in experiment.work()]
        assert sum(counts) < sum(work.networks for work in experiment.work()) or new == 0
        new += sum(counts)
        assert len(list(shared.glob("*/run.json"))) == new


@pytest.mark.parametrize("name", ["active-mnist", "two-moons", "five-ensemble", "ood-imagenet"])
def test_networks_that_no_other_name_finds_are_all_new(name):
    experiment = REPRODUCTIONS[name].experiment("cpu")
    works, seeds, planned = experiment.work(), len(experiment.seeds), dict[str, tuple[int, int]]()
    assert sum(count_new(work, seeds, planned) for work in works) == seeds * sum(work.networks for work in works)


def test_more_seeds_of_what_was_planned_are_new():
    work, planned = Work(RunSpec("lenet", "mnist", RECIPES["mnist"]), 100, networks=2), dict[str, tuple[int, int]]()
    assert [count_new(work, seeds, planned) for seeds in (1, 3, 2)] == [2, 4, 0]
    assert count_new(work._replace(networks=5), 3, planned) == 9


def test_networks_that_are_trained_alike_are_one_line_of_a_plan():
    curves = REPRODUCTIONS["active-mnist"].experiment("cpu", 2)
    smooth, straight = plan(curves, {})
    assert (smooth.network, straight.network) == ("resnet18 x0.25+sn", "resnet18 x0.25")
    works = curves.work()
    assert smooth.networks + straight.networks == sum(work.networks for work in works)
    assert smooth.new + straight.new == 2 * sum(work.networks for work in works)
    hours = [[one.hours or 0.0 for one in found] for found in ((smooth, straight), works)]
    assert sum(hours[0]) == pytest.approx(2 * sum(hours[1]))


def test_a_plan_does_not_repeat_what_was_planned_and_names_all_corruptions_as_one_set():
    planned = dict[str, tuple[int, int]]()
    assert all(line.new for line in plan(REPRODUCTIONS["ood-cifar10"].experiment("cpu"), planned))
    lines = plan(REPRODUCTIONS["cifar10-c"].experiment("cpu"), planned)
    assert [(line.new, line.hours, line.against) for line in lines] == [(0, 0, ("cifar10_c",))] * len(lines)


def test_the_samples_are_the_papers_up_to_the_limit():
    assert training_samples("cifar10") == 50_000
    assert training_samples("cifar10", 2_000) == 2_000
    assert training_samples("one_d", 9_999) == 1_000


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [((True, True), "holds"), ((True, False), "holds in part"), ((False, False), "does not hold")],
)
def test_a_claim_holds_if_all_of_its_parts_do(parts, verdict):
    assert Judgement.of(dict(zip("ab", parts, strict=True))).verdict == verdict


def test_a_judgement_is_a_list_of_answers_with_their_number():
    judgement = Judgement.of({"a": True, "b": False, "c": True})
    assert judgement.tally == "holds in part: 2 of 3 parts"
    assert judgement.to_markdown() == "- yes: a.\n- **no**: b.\n- yes: c."
    assert Judgement.of({"a": True}).tally == "holds"


def test_a_page_of_rows_that_cannot_be_judged_yet_says_what_is_missing():
    facts = {"network": "resnet18", "data": "cifar10", "seed": 0, "run": "12ab", "metric": "auroc"}
    rows = [Row(detector="softmax", ood="svhn", value=0.9, **facts)]
    page = REPRODUCTIONS["ood-cifar10"].page("cpu", {"": rows}, [])
    assert "**At the scale `cpu` it cannot be judged yet.**\n\nNo row has auroc of detector=ddu_paper" in page
    stand_in = (
        "Smaller than the paper's: networks wide_resnet28_10, resnet50, resnet110, densenet121 -> resnet18 x0.25."
    )
    assert stand_in in page


def test_a_page_says_how_its_rows_are_smaller_than_the_papers():
    facts = {"network": "resnet18", "data": "cifar10", "seed": 0, "run": "12ab", "metric": "auroc", "ood": "svhn"}
    rows = [
        Row(detector="softmax", value=0.9, reductions="width 1 -> 0.25; epochs 350 -> 12", **facts),
        Row(detector="ddu_paper", value=0.9, reductions="width 1 -> 0.25; epochs 200 -> 12", **facts),
    ]
    page = REPRODUCTIONS["ood-cifar10"].page("cpu", {"": rows}, [])
    assert "-> resnet18 x0.25; width 1 -> 0.25; epochs 200 to 350 -> 12." in page


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ablation-cifar10", "networks wide_resnet28_10 -> resnet18 x0.25"),
        ("cifar10-c", "networks wide_resnet28_10, resnet50, resnet110, densenet121 -> resnet18 x0.25"),
        (
            "ood-imagenet",
            "networks resnet50, wide_resnet50_2, vgg16 -> efficientnet_lite0 with new head, mobilenet_v2 with new "
            "head; data imagenet -> cifar100; OoD sets imagenet_o -> svhn, tiny_imagenet, mnist",
        ),
        ("objective-mismatch", "networks wide_resnet28_10 -> resnet18 x0.25"),
        (
            "entropy-variance",
            "networks wide_resnet28_10+sn -> lenet; data cifar10 -> mnist; OoD sets svhn -> fashion_mnist",
        ),
    ],
)
def test_a_page_says_what_stands_in_for_the_papers_networks_and_data(name, words):
    assert REPRODUCTIONS[name].smaller("cpu", []) == f"Smaller than the paper's: {words}."
    assert REPRODUCTIONS[name].smaller("paper", []) == ""


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        ({"": 2}, "`x/rows.csv`, measured by `ddu reproduce more-data --scale cpu --seeds 2`."),
        (
            {"a": 1, "b": 1},
            "`x/a/rows.csv`, `x/b/rows.csv`, measured by `ddu reproduce more-data --scale cpu --seeds 1`.",
        ),
        (
            {"": 3, "b": 1},
            "`x/rows.csv` (3 seeds), `x/b/rows.csv` (1 seed), measured by "
            "`ddu reproduce more-data --scale cpu --seeds N` with as many seeds.",
        ),
    ],
)
def test_a_page_ends_with_the_files_of_its_rows_and_their_seeds(seeds, words):
    facts = {"detector": "d", "network": "n", "data": "cifar10", "run": "12ab", "metric": "auroc", "value": 0.5}
    parts = {name: [Row(seed=seed, **facts) for seed in range(count)] for name, count in seeds.items()}
    assert REPRODUCTIONS["more-data"].page("cpu", parts, [], "x/").splitlines()[-1] == f"Rows: {words}"


def test_a_width_is_no_other_network():
    assert REPRODUCTIONS["dirty-mnist"].smaller("cpu", []) == ""
    assert REPRODUCTIONS["feature-collapse"].smaller("cpu", []) == ""


@pytest.mark.parametrize(
    ("name", "metric", "ood", "papers"),
    [
        ("ood-cifar10", "auroc", "svhn", {"wide_resnet28_10", "wide_resnet28_10+sn", "5 x wide_resnet28_10"}),
        ("ood-cifar100", "auroc", "svhn", {"wide_resnet28_10", "wide_resnet28_10+sn", "5 x wide_resnet28_10"}),
        (
            *("ablation-cifar10", "auroc", "svhn"),
            {f"{name}{sn}" for name in ("wide_resnet28_10", "vgg16") for sn in ("", "+sn")}
            | {"5 x wide_resnet28_10", "5 x vgg16"},
        ),
        ("dirty-mnist", "auroc", "fashion_mnist", {"lenet", "vgg16", "resnet18+sn"}),
    ],
)
def test_the_papers_figures_stand_beside_the_networks_of_the_scale_cpu(name, metric, ood, papers):
    experiment = REPRODUCTIONS[name].experiment("cpu")
    facts = {"data": experiment.data, "seed": 0, "run": "12ab", "reductions": "fewer samples"}
    rows = [
        Row(
            detector=one.name,
            network=experiment.spec(one.network, 0).label,
            members=one.members,
            metric=metric,
            ood=ood,
            value=0.9,
            **facts,
        )
        for one in experiment.detectors
    ]
    (table,) = REPRODUCTIONS[name].make_tables(rows)
    text = table.to_markdown().partition("The paper's figures, at its own scale")[2]
    assert {line.split(" | ")[1] for line in text.splitlines()[4:]} == papers


@pytest.mark.parametrize(
    ("name", "labels", "data"),
    [
        ("ood-cifar10", ["ood_wrn", "ood_resnet50", "ood_resnet110", "ood_densenet121"], "cifar10"),
        ("ood-cifar100", ["ood_wrn", "ood_resnet50", "ood_resnet110", "ood_densenet121"], "cifar100"),
        ("ood-imagenet", ["ood_imagenet"], "imagenet"),
        ("ablation-cifar10", ["ood_2"], "cifar10"),
        ("ablation-cifar100", ["ood_3"], "cifar100"),
        ("more-data", ["kendall_viz"], None),
    ],
)
def test_the_papers_own_numbers_pass_its_claims(name, labels, data):
    assert REPRODUCTIONS[name].judge(rows_of_the_paper(labels, data)).verdict == "holds"


def rows_of_the_paper(labels, data):
    """The paper's tables as rows; its density stands for the shrunk one too, which it does not have."""
    facts = {"seed": 0, "run": "paper"}
    return [
        Row(
            detector=detector,
            network=one.network if one.subset is None else f"{one.network}, {100 * one.subset:g} % of the data",
            data=one.data,
            ood=one.ood,
            members=one.members,
            metric=one.metric,
            value=one.mean,
            **facts,
        )
        for table in paper_tables()
        if table.label.removeprefix("table:") in labels
        for one in table.figures
        if data in (None, one.data)
        for detector in (*one.detectors, *(["density"] if "ddu_paper" in one.detectors else []))
    ]


def test_a_mean_is_over_the_rows_with_all_attributes():
    facts = {"network": "lenet", "data": "mnist", "run": "12ab", "metric": "auroc"}
    rows = [
        Row(detector=name, seed=seed, ood=ood, value=value, **facts)
        for name, seed, ood, value in (("a", 0, "x", 0.5), ("a", 1, "x", 0.7), ("a", 0, "y", 0.1), ("b", 0, "x", 0.2))
    ]
    assert mean_value(rows, "auroc", detector="a", ood="x") == pytest.approx(0.6)
    with pytest.raises(InputError, match=r"^No row has auroc of detector=c\.$"):
        mean_value(rows, "auroc", detector="c")
