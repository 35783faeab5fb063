"""Reports of real runs: small digits, and points of a plane."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from ddu import data
from ddu.diagnostics import Finding
from ddu.errors import ArtifactError, DataError, InputError
from ddu.experiments import RunReport
from ddu.experiments.judging import judge_set
from ddu.experiments.reported import ReportedRun
from ddu.runs import Run, RunSpec, load_run, train_run
from ddu.training import RECIPES

from .elements import Elements
from .moons import write_plane

# Of networks that have hardly learned anything
pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.CalibrationWarning", "ignore::ddu.errors.LabelWarning")


def trained(folder, seed=0, method: str | None = "ddu") -> Run:
    recipe = RECIPES["quick"].with_changes(epochs=2, batch_size=32, samples_per_epoch=768)
    run = train_run(RunSpec("resnet18", "digits", recipe, method, seed, options={"width": 0.0625}), folder)
    assert run is not None
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Run, Run]:
    folder = tmp_path_factory.mktemp("runs")
    return trained(folder / "first"), trained(folder / "second", seed=1)


@pytest.fixture(scope="module")
def report(runs) -> RunReport:
    return RunReport(runs[:1], ("noise",), samples=5)


@pytest.fixture(scope="module")
def subject(report):
    (subject,) = report.measure()
    return subject


@pytest.fixture(scope="module")
def page(report, subject, tmp_path_factory) -> str:
    path = report.write_page([subject], tmp_path_factory.mktemp("page") / "report.html", command="ddu report first")
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def compared(runs, tmp_path_factory) -> str:
    report = RunReport(runs, ("noise",), samples=2)
    return report.write_page(report.measure(), tmp_path_factory.mktemp("page") / "two.html").read_text(encoding="utf-8")


def test_the_numbers_are_those_of_the_saved_detector(runs, subject):
    rows = {(row.metric, row.ood): row.value for row in subject.rows("")}
    for metric in ("accuracy", "nll", "ece", "false_alarm_rate"):
        assert rows[metric, None] == pytest.approx(runs[0].metrics[f"test_{metric}"], rel=1e-5)
    sets = [runs[0].load_data().test, data.load_ood("noise", runs[0].info)]
    known, unknown = (runs[0].detector.predict(data.loader(one)).epistemic for one in sets)
    truth = np.repeat([0, 1], [len(known), len(unknown)])
    assert rows["auroc", "noise"] == pytest.approx(roc_auc_score(truth, torch.cat([known, unknown])), abs=1e-4)


def test_the_most_ambiguous_and_the_most_unknown_follow_the_scores(runs, subject):
    predicted = runs[0].detector.predict(data.loader(runs[0].load_data().test))
    known = np.flatnonzero(np.asarray(predicted.verdict) != "out_of_distribution")
    by_entropy = known[np.argsort(-predicted.aleatoric.numpy()[known], kind="stable")]
    by_score = np.argsort(predicted.epistemic.numpy(), kind="stable")
    assert 5 < len(known) < len(predicted)  # some are left out
    assert subject.test.most_ambiguous(5).tolist() == by_entropy[:5].tolist()
    assert subject.test.most_unknown(5).tolist() == by_score[::-1][:5].tolist()
    assert subject.test.most_familiar(5).tolist() == by_score[:5].tolist()
    assert len(subject.test.most_unknown(10**6)) == len(predicted)


def test_a_card_has_the_picture_the_label_the_prediction_and_the_p_value_of_its_input(runs, subject):
    from ddu.report.page import image_uri

    rows, test = subject.test.most_unknown(5), runs[0].load_data().test
    cards, predicted = subject.test.cards(rows), runs[0].detector.predict(test.__getitems__(rows.tolist())[0])
    assert predicted.p_value is not None
    assert [card.p_value for card in cards] == pytest.approx(predicted.p_value.tolist())
    assert [card.p_value for card in cards] == sorted(card.p_value for card in cards)
    assert [card.label for card in cards] == [test.info.classes[label] for label in predicted.label.tolist()]
    assert [card.truth for card in cards] == [test.info.classes[label] for label in test.labels[rows]]
    pixels = torch.from_numpy(np.asarray(test.inputs[rows.numpy()])).permute(0, 3, 1, 2)
    pixels = pixels / 255 if pixels.dtype == torch.uint8 else pixels
    assert [card.image for card in cards] == [image_uri(one) for one in pixels]


def test_colour_pictures_have_their_colours():
    info = data.DataInfo("squares", (3, 4, 4), ("red",), mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    red = np.zeros((6, 4, 4, 3), np.uint8)
    red[..., 0] = 200

    class Sure:
        temperature = 1.0

        def evidence(self, x):
            from ddu.detectors import Evidence

            return Evidence(torch.zeros(len(x), 1), x.flatten(1).mean(1))

        def decide(self, evidence):
            from ddu.types import Prediction, Verdict

            ones = torch.ones(len(evidence.logits))
            verdicts = np.full(len(ones), Verdict.IN_DISTRIBUTION, dtype=object)
            return Prediction(ones[:, None], ones.long() * 0, ones, evidence.epistemic, p_value=ones,
                              candidates=ones[:, None] > 0, verdict=verdicts)  # fmt: skip

    import base64
    import io

    from PIL import Image

    (card,) = judge_set(Sure(), data.ArrayDataset(red, np.zeros(6, int), info)).cards(torch.tensor([3]))
    assert card.image is not None
    picture = Image.open(io.BytesIO(base64.b64decode(card.image.split(",")[1])))
    assert picture.mode == "RGB"
    assert picture.getpixel((1, 1)) == (200, 0, 0)


def test_the_page_loads_nothing_from_elsewhere(page):
    elements = Elements(page)
    addresses = [str(a[key]) for _, a in elements.found for key in ("src", "href", "srcset") if a.get(key)]
    assert addresses
    assert all(address.startswith(("data:", "#")) for address in addresses)
    assert "http" not in page
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in elements.found}
    assert set(re.findall(r"url\((.)", page)) <= {"#"}


def test_every_figure_and_picture_is_described_and_every_table_has_a_caption(page):
    elements = Elements(page)
    starts = [str(svg["aria-label"]).split(".")[0].split(",")[0].split(":")[0] for svg in elements.named("svg")]
    assert starts == [
        "Histograms of the softmax entropy",
        "Histograms of the epistemic score",
        "ROC curves of the epistemic score",
        "Reliability diagram of the test set",
        "Risk and coverage",
        "The loss after each epoch",
        "The accuracy after each epoch",
    ]
    assert len(elements.named("img")) == 15
    assert all(image["alt"] for image in elements.named("img"))
    assert len(elements.named("caption")) == len(elements.named("table")) == 6
    for name in ("test set", "held out", "noise"):
        assert page.count(f">{name}</text>") >= 2


def test_the_page_tells_the_numbers_and_the_configuration(page, runs, subject):
    rows = {(row.metric, row.ood): row.value for row in subject.rows("")}
    for metric, ood in (("accuracy", None), ("ece", None), ("detection_rate", "noise")):
        assert f"<dd>{100 * rows[metric, ood]:.1f} %</dd>" in page
    assert f'<th scope="row">AUROC noise (%) ↑</th><td class="value">{100 * rows["auroc", "noise"]:.2f}</td>' in page
    for name, value in (("recipe.epochs", "2"), ("data", "digits"), ("options.width", "0.0625")):
        assert f'<th scope="row">{name}</th><td class="setting">{value}</td>' in page
    assert runs[0].fingerprint in page
    assert "<code>ddu report first</code>" in page


def test_training_curves_end_where_the_history_ends(page, runs):
    history = runs[0].history
    assert [row["epoch"] for row in history] == [1, 2]
    last = history[-1]
    assert f"At the end: training {last['train_loss']:.3g}, held out {last['val_loss']:.3g}." in page


def test_a_run_without_a_history_has_a_page_without_curves(report, subject, tmp_path):
    lost = replace(subject, about=ReportedRun(replace(subject.about.run, folder=tmp_path / "other")))
    (tmp_path / "other").mkdir()
    for path in subject.about.folder.iterdir():
        if path.name != "history.csv":
            (tmp_path / "other" / path.name).symlink_to(path)
    page = report.write_page([lost], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "after each epoch" not in page
    assert "<h2>Configuration</h2>" in page


def test_findings_have_their_severity_and_remedy_and_are_absent_where_there_are_none(report, subject, tmp_path):
    found = (
        Finding("problem", "rank", "Class <3> has 12 samples.", 12.0, "Add 50 samples."),
        Finding("ok", "probes", "Fine."),
    )
    told = report.write_page([replace(subject, findings=found)], tmp_path / "report.html").read_text(encoding="utf-8")
    assert '<span class="badge problem">✕ problem</span></td><th scope="row">rank</th>' in told
    assert 'Class &lt;3&gt; has 12 samples.<br><span class="soft">Add 50 samples.</span>' in told
    assert "<td>Fine.</td>" in told
    assert "fit for its work" in told
    without = report.write_page([replace(subject, findings=())], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "fit for its work" not in without


def test_the_doctor_looks_at_every_run(subject, page):
    assert {"rank", "probes", "false alarms"} & {finding.check for finding in subject.findings}
    for finding in subject.findings:
        assert f'<th scope="row">{finding.check}</th>' in page


def test_several_runs_stand_side_by_side_each_with_its_own_numbers(compared, runs):
    accuracies = [f"{100 * run.metrics['test_accuracy']:.2f}" for run in runs]
    row = re.search(r'<th scope="row">accuracy \(%\) ↑</th>(.*?)</tr>', compared)
    assert row is not None
    assert re.findall(r"\d+\.\d\d", row[1]) == accuracies
    for name in ("ddu on first", "ddu on second"):
        assert f'<th scope="col" class="value">{name}</th>' in compared
    assert '<th scope="row">seed</th><td class="setting best">0</td><td class="setting best">1</td>' in compared
    assert '<th scope="row">data</th><td class="setting">digits</td><td class="setting">digits</td>' in compared
    assert len(Elements(compared).named("img")) == 12
    ids = re.findall(r'\bid="([^"]*)"', compared)
    assert len(ids) == len(set(ids))


def test_runs_of_one_name_are_told_apart_by_their_folders(runs, tmp_path):
    folders = []
    for parent, run in zip("ab", runs, strict=True):
        (tmp_path / parent).mkdir()
        folders.append(tmp_path / parent / "run")
        folders[-1].mkdir()
        for path in run.folder.iterdir():
            (folders[-1] / path.name).symlink_to(path)
    assert RunReport(tuple(map(load_run, folders))).names == ["a/run", "b/run"]
    assert RunReport(runs).names == ["first", "second"]


def test_inputs_that_are_no_images_have_cards_without_pictures(tmp_path):
    spec = RunSpec("resffn2_16", "two_moons", RECIPES["two_moons"].with_changes(epochs=1), seed=2, limit=1500)
    run = train_run(spec, tmp_path / "moons")
    assert run is not None
    report = RunReport((run,), (write_plane(tmp_path),), samples=3)
    page = report.write_page(report.measure(), tmp_path / "report.html").read_text(encoding="utf-8")
    elements = Elements(page)
    assert not elements.named("img")
    assert sum(item.get("class") == "plain" for item in elements.named("li")) == 9
    assert ">plane</text>" in page


def test_without_ood_sets_the_page_says_how_to_add_them(runs, tmp_path):
    report = RunReport(runs[:1])
    page = report.write_page(report.measure(), tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<code>--ood</code> adds" in page
    assert "ROC curves" not in page


def test_what_cannot_be_reported_is_refused_in_words(runs, tmp_path):
    with pytest.raises(InputError) as caught:
        RunReport((runs[0], runs[0]))
    assert str(caught.value) == f"{runs[0].folder} is named twice: name each folder once."
    with pytest.raises(InputError) as caught:
        RunReport(runs, ("cifar10_c",))
    assert str(caught.value) == "A page shows at most 6 OoD sets. Got 95: `ddu evaluate` takes any number."
    with pytest.raises(InputError, match="at least one source"):
        RunReport(())
    alone = trained(tmp_path / "alone", method=None)
    with pytest.raises(ArtifactError, match="it has no detector"):
        RunReport((alone,)).measure(say=lambda words: pytest.fail(words))
    with pytest.raises(DataError, match="fashion_mnist is not in"):
        RunReport(runs[:1], ("fashion_mnist",)).measure(data_root=tmp_path)
