"""The demo, run for real on few digits: once from Python, once from the command line."""

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import ddu
from ddu import data
from ddu.cli import main
from ddu.data.sources.mnist_5k import mixtures
from ddu.errors import InputError
from ddu.examples import load_examples
from ddu.experiments import demo as module
from ddu.experiments.demo import AMBIGUOUS, CLEAN, PHOTOS, TEXTURED, Demo, find_value, load_judgements
from ddu.results import Row, RowFile
from ddu.runs import load_run

from .elements import Elements

FEW = Demo(seed=3, epochs=1, limit=1800)
COMMAND = "ddu demo --seed 3 --epochs 1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A finished demo."""
    folder = tmp_path_factory.mktemp("demos") / "demo"
    FEW.measure(folder, command=COMMAND)
    FEW.write_page(folder)
    return folder


@pytest.fixture(scope="module")
def rows(folder) -> list[Row]:
    return RowFile(folder / "rows.csv").read()


@pytest.fixture(scope="module")
def page(folder) -> str:
    return (folder / "index.html").read_text(encoding="utf-8")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_the_folder_has_the_page_the_rows_the_judgements_and_an_ordinary_run(folder, rows):
    assert files(folder) == ["demo.json", "index.html", "judgements.npz", "rows.csv", "run"]
    run = load_run(folder / "run")
    assert run.spec == FEW.run
    for row in rows:
        assert (row.seed, row.run, row.command) == (3, run.fingerprint, COMMAND)
        assert (row.network, row.data) == ("resnet18 x0.125+sn", "dirty_mnist_5k")
        assert f"torch {torch.__version__}" in str(row.versions)


def test_the_run_judges_an_image_file(folder, tmp_path):
    from PIL import Image

    digits, predicted = data.load(CLEAN, "test"), load_judgements(folder)[CLEAN]
    Image.fromarray(digits.inputs[7, ..., 0]).save(tmp_path / "digit.png")
    prediction = load_run(folder / "run").predict(tmp_path / "digit.png")
    assert int(prediction.label) == predicted.probs[7].argmax()
    assert float(prediction.epistemic) == pytest.approx(float(predicted.epistemic[7]), rel=1e-3)


def test_the_page_of_the_server_finds_scores_and_a_gallery_of_each_set(folder):
    kept = load_examples(folder / "run" / "detector", load_run(folder / "run").detector.calibration)
    judged = load_judgements(folder)
    assert kept is not None
    assert list(kept.scores) == ["training", *module.SETS.values()]
    for name, words in module.SETS.items():
        np.testing.assert_allclose(kept.scores[words].numpy(), judged[name].epistemic, rtol=1e-6)
        np.testing.assert_array_equal(kept.gallery[words].inputs.numpy(), judged[name].images)
        assert kept.gallery[words].words == tuple(judged[name].truths)


def test_the_rows_are_what_the_saved_detector_gives(folder, rows):
    run = load_run(folder / "run")
    sets = {name: data.load_ood(name, run.info) for name in (CLEAN, AMBIGUOUS, PHOTOS)}
    judged = {name: run.detector.predict(one.__getitems__(range(len(one)))[0]) for name, one in sets.items()}

    def reference(negative: list[torch.Tensor], positive: torch.Tensor) -> float:
        truth = np.repeat([0, 1], [sum(map(len, negative)), len(positive)])
        return float(roc_auc_score(truth, torch.cat([*negative, positive]).numpy()))

    for metric, name in (("accuracy_clean", CLEAN), ("accuracy_ambiguous", AMBIGUOUS)):
        right = judged[name].label == torch.from_numpy(sets[name].labels)
        assert find_value(rows, metric) == pytest.approx(float(right.double().mean()))
    textured = sets[PHOTOS].inputs.reshape(len(sets[PHOTOS]), -1).std(1) >= 0.02 * 255
    for detector, score in (("softmax", "aleatoric"), ("ddu", "epistemic")):
        clean, ambiguous, photos = (getattr(one, score) for one in judged.values())
        # Batches of another size round otherwise
        for metric, ood, expected in (
            ("auroc", PHOTOS, reference([clean, ambiguous], photos)),
            ("auroc_clean", PHOTOS, reference([clean], photos)),
            ("auroc", TEXTURED, reference([clean, ambiguous], photos[textured])),
            ("auroc_ambiguous", None, reference([clean], ambiguous)),
        ):
            assert find_value(rows, metric, detector, ood) == pytest.approx(expected, abs=1e-4)
    verdicts = np.concatenate([np.asarray(judged[name].verdict) for name in (CLEAN, AMBIGUOUS)])
    assert find_value(rows, "false_alarm_rate") == pytest.approx(np.mean(verdicts == "out_of_distribution"), abs=1e-3)
    shares = load_judgements(folder)[PHOTOS].verdict_shares
    assert find_value(rows, "detection_rate", ood=PHOTOS) == shares["out_of_distribution"]
    assert sum(shares.values()) == pytest.approx(1)
    assert find_value(rows, "accuracy_ambiguous_best") == pytest.approx(mixtures("test").shares.max(1).mean())
    assert 0 < find_value(rows, "ece_by_chance") < 0.1


def test_the_gallery_names_the_digits_of_a_mixture(folder):
    judged, mixed = load_judgements(folder)[AMBIGUOUS], mixtures("test")
    labels = data.load(CLEAN, "test").labels
    for row, words in zip(judged.shown, judged.truths, strict=True):
        assert words == " and ".join(map(str, sorted(labels[mixed.parents[row]])))
        assert str(judged.labels[row]) in words.split(" and ")


def test_the_page_loads_nothing_from_elsewhere(page):
    elements = Elements(page)
    addresses = [
        str(a[key]) for _, a in elements.found for key in ("src", "href", "xlink:href", "srcset") if a.get(key)
    ]
    assert addresses
    assert all(address.startswith(("data:", "#")) for address in addresses)
    assert "http" not in page
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in elements.found}
    assert set(re.findall(r"url\((.)", page)) <= {"#"}
    assert "@import" not in page


def test_the_page_has_both_histograms_and_a_described_gallery_of_each_set(page):
    elements = Elements(page)
    descriptions = [str(svg["aria-label"]) for svg in elements.named("svg")]
    assert [words.split(".")[0] for words in descriptions] == [
        "Histograms of the softmax entropy",
        "Histograms of the epistemic score",
    ]
    pictures = [str(image["alt"]) for image in elements.named("img")]
    assert len(pictures) == 24
    assert all(re.fullmatch(r"digit \d", words) for words in pictures[:8])
    assert all(re.fullmatch(r"\d and \d", words) for words in pictures[8:16])
    assert pictures[16:] == ["photo patch"] * 8
    for name in ("clean digits", "ambiguous digits", "photo patches"):
        assert page.count(f">{name}</text>") == 2


def test_the_page_tells_the_numbers_and_where_they_come_from(page, rows):
    for metric, ood in (("accuracy_clean", None), ("ece", None), ("detection_rate", PHOTOS)):
        assert f"{100 * find_value(rows, metric, ood=ood):.1f} %" in page
    for _, metric, ood in module.COMPARISONS:
        for detector in ("softmax", "ddu"):
            assert f"{find_value(rows, metric, detector, ood):.3f}</td>" in page
    assert f"<code>{COMMAND}</code>" in page
    assert "Seed 3." in page
    assert f"torch {torch.__version__}" in page


def test_a_finished_demo_is_not_run_again_and_its_page_is_written_from_what_is_there(folder, page, monkeypatch):
    before = (folder / "rows.csv").read_bytes()
    monkeypatch.setattr(module, "_judge", None)
    FEW.measure(folder)
    FEW.write_page(folder)
    assert (folder / "rows.csv").read_bytes() == before
    assert (folder / "index.html").read_text(encoding="utf-8") == page


def test_rows_that_a_killed_process_did_not_write_are_added(folder, rows):
    content = (folder / "rows.csv").read_text()
    try:
        (folder / "rows.csv").write_text("".join(content.splitlines(keepends=True)[:-3]))
        again = FEW.measure(folder, command=COMMAND)
        assert {row.key: row.value for row in again} == {row.key: row.value for row in rows}
    finally:
        (folder / "rows.csv").write_text(content)


def test_the_command_repeats_a_seed_and_prints_the_numbers(folder, rows, tmp_path, monkeypatch, capsys):
    again = tmp_path / "demo"
    monkeypatch.setattr(Demo, "run", FEW.run)
    monkeypatch.setattr(sys, "argv", ["ddu", "demo", "--seed", "3", "--epochs", "1", "--output", str(again)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    assert [row.value for row in RowFile(again / "rows.csv").read()] == [row.value for row in rows]
    weights = "run/model.safetensors"
    assert (again / weights).read_bytes() == (folder / weights).read_bytes()

    printed, progress = capsys.readouterr()
    for metric, ood in (("auroc", PHOTOS), ("auroc_ambiguous", None)):
        pair = [find_value(rows, metric, detector, ood) for detector in ("softmax", "ddu")]
        assert re.search(" +".join(f"{value:.3f}" for value in pair), printed)
    assert re.search(rf"Accuracy, clean digits +{find_value(rows, 'accuracy_clean'):.1%}", printed)
    assert re.search(rf"ECE, as trained +{find_value(rows, 'ece_uncalibrated'):.3f}", printed)
    shares = " +".join(f"{share:.1%}" for share in load_judgements(folder)[PHOTOS].verdict_shares.values())
    assert re.search(rf"1,000 photo patches +{shares}", printed)
    for words in ("Train a network", "epoch 1 of 1: loss", "Judge clean digits"):
        assert words in progress
    assert f"ddu predict {again / 'run'} digit.png" in printed


class StopError(Exception):
    pass


def stop(*arguments, **options):
    raise StopError


def test_a_demo_that_was_interrupted_after_its_training_is_resumed(folder, rows, tmp_path, monkeypatch):
    shutil.copytree(folder / "run", tmp_path / "demo" / "run")
    shutil.copy(folder / "demo.json", tmp_path / "demo")
    monkeypatch.setattr(ddu.runs.run, "fit", stop)  # what is trained is not trained again
    with monkeypatch.context() as patched:
        patched.setattr(module, "_judge", stop)
        with pytest.raises(StopError):
            FEW.measure(tmp_path / "demo")
    assert files(tmp_path / "demo") == ["demo.json", "run"]
    assert [row.value for row in FEW.measure(tmp_path / "demo")] == [row.value for row in rows]


def test_a_demo_that_fails_before_it_begins_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "keep_settings", stop)
    with pytest.raises(StopError):
        FEW.measure(tmp_path / "new")
    assert files(tmp_path) == []


def refusal(demo: Demo, output: Path) -> str:
    """The message with which a demo is refused before it does anything."""
    with pytest.raises(InputError) as caught:
        demo.measure(output, say=stop)
    return str(caught.value)


def test_another_demo_in_the_folder_is_refused(folder):
    message = refusal(Demo(seed=6, epochs=1, limit=1800), folder)
    assert message == f"The demo in {folder} has seed=3, and this one has seed=6: use the same, or another folder."


def test_a_file_is_no_place_for_a_demo(tmp_path):
    (tmp_path / "demo").write_text("precious")
    assert refusal(FEW, tmp_path / "demo") == f"{tmp_path}/demo is a file, or inside one: choose a folder."
    assert (tmp_path / "demo").read_text() == "precious"


def test_a_folder_with_other_files_is_refused_and_stays_as_it_is(tmp_path):
    (tmp_path / "index.html").write_text("precious")
    message = refusal(FEW, tmp_path)
    assert message == f"{tmp_path} holds files that do not belong to a demo: choose another folder."
    assert files(tmp_path) == ["index.html"]


def test_seeds_and_epochs_out_of_range_are_refused():
    with pytest.raises(InputError) as caught:
        Demo(seed=-1)
    assert str(caught.value) == "The seed must be an integer from 0 to 2^63 - 1. Got -1 instead."
    with pytest.raises(InputError) as caught:
        Demo(epochs=0)
    assert str(caught.value) == "The network needs at least 1 epoch of training. Got 0 instead."
