"""The demo, run for real with a single epoch: once from Python, once from the command line."""

import json
import re
import sys
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import ddu
from ddu.cli import main
from ddu.data import digits_demo_data
from ddu.demo import DemoResult, load_network, run_demo
from ddu.errors import InputError

SEED = 5


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> DemoResult:
    return run_demo(tmp_path_factory.mktemp("python") / "demo", SEED, epochs=1)


@pytest.fixture(scope="module")
def page(result) -> str:
    return result.page.read_text(encoding="utf-8")


class Elements(HTMLParser):
    """Every opening tag with its attributes."""

    def __init__(self, page: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_folder_holds_the_page_the_detector_the_weights_and_the_numbers(result):
    assert files(result.page.parent) == ["detector", "index.html", "metrics.json", "model.safetensors"]
    written = json.loads(result.metrics.read_text())
    assert written["scores"] == asdict(result.scores)
    assert (written["seed"], written["epochs"]) == (SEED, 1)
    assert written["command"] == "ddu demo --seed 5 --epochs 1"
    assert written["versions"]["ddu"] == ddu.__version__
    assert written["versions"]["torch"] == torch.__version__


def test_the_detector_that_was_saved_gives_the_numbers_that_were_printed(result):
    detector = ddu.load(result.detector, load_network(result.weights))
    data, scores = digits_demo_data(SEED), result.scores
    clean, ambiguous, photos = map(detector.predict, (data.clean.images, data.ambiguous.images, data.photos))

    def reference(negative: list[torch.Tensor], positive: torch.Tensor) -> float:
        truth = np.repeat([0, 1], [sum(map(len, negative)), len(positive)])
        return float(roc_auc_score(truth, torch.cat([*negative, positive]).numpy()))

    assert scores.accuracy_clean == (clean.label == data.clean.labels).double().mean()
    assert scores.accuracy_ambiguous == (ambiguous.label == data.ambiguous.labels).double().mean()
    for kind, of in (("entropy", "aleatoric"), ("density", "epistemic")):
        c, a, p = (getattr(one, of) for one in (clean, ambiguous, photos))
        textured = data.photos.flatten(1).std(1) >= 0.02
        assert getattr(scores.photos_vs_digits, kind) == pytest.approx(reference([c, a], p), abs=1e-12)
        assert getattr(scores.photos_vs_clean, kind) == pytest.approx(reference([c], p), abs=1e-12)
        assert getattr(scores.textured_photos_vs_digits, kind) == pytest.approx(
            reference([c, a], p[textured]), abs=1e-12
        )
        assert getattr(scores.ambiguous_vs_clean, kind) == pytest.approx(reference([c], a), abs=1e-12)
    verdicts = np.concatenate([np.asarray(clean.verdict), np.asarray(ambiguous.verdict)])
    assert scores.false_alarm_rate == np.mean(verdicts == "out_of_distribution")
    assert scores.verdicts["photos"]["out_of_distribution"] == np.mean(
        photos.verdict == np.array("out_of_distribution")
    )
    for shares in scores.verdicts.values():
        assert sum(shares.values()) == pytest.approx(1)


def test_even_one_epoch_shows_what_each_uncertainty_is_for(result):
    scores = result.scores
    assert scores.accuracy_clean > 0.9
    assert scores.photos_vs_digits.density > 0.97
    assert scores.photos_vs_digits.density > scores.photos_vs_digits.entropy
    assert scores.ambiguous_vs_clean.entropy > 0.85
    assert scores.ambiguous_vs_clean.entropy > scores.ambiguous_vs_clean.density
    assert scores.false_alarm_rate < 0.03
    assert 0 < scores.ece_by_chance < 0.1


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
        "Histograms of the log-density",
    ]
    pictures = [str(image["alt"]) for image in elements.named("img")]
    assert len(pictures) == 24
    assert all(re.fullmatch(r"digit \d", words) for words in pictures[:8])
    assert all(re.fullmatch(r"\d and \d", words) for words in pictures[8:16])
    assert pictures[16:] == ["photo patch"] * 8
    for name in ("clean digits", "ambiguous digits", "photo patches"):
        assert page.count(f">{name}</text>") == 2
    for words in ("in distribution", "ambiguous", "out of distribution"):
        assert f"</span> {words}</span>" in page


def test_the_page_tells_the_numbers_and_where_they_come_from(page, result):
    scores = result.scores
    for share in (scores.accuracy_clean, scores.ece, scores.verdicts["photos"]["out_of_distribution"]):
        assert f"{100 * share:.1f} %" in page
    for pair in (scores.photos_vs_digits, scores.photos_vs_clean, scores.ambiguous_vs_clean):
        assert f"{pair.entropy:.3f}</td>" in page
        assert f"{pair.density:.3f}</td>" in page
    assert "<code>ddu demo --seed 5 --epochs 1</code>" in page
    assert "Seed 5." in page
    assert f"torch {torch.__version__}" in page


def test_the_command_repeats_a_seed_to_the_last_byte_and_prints_the_numbers(result, tmp_path, monkeypatch, capsys):
    again = tmp_path / "demo"
    monkeypatch.setattr(sys, "argv", ["ddu", "demo", "--seed", str(SEED), "--epochs", "1", "--output", str(again)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    for path in (result.page, result.metrics, result.weights):
        assert (again / path.name).read_bytes() == path.read_bytes()
    assert files(again / "detector") == files(result.detector)

    printed, bars = capsys.readouterr()
    scores = result.scores
    for pair in (scores.photos_vs_digits, scores.ambiguous_vs_clean):
        assert re.search(rf"{pair.entropy:.3f} +{pair.density:.3f}", printed)
    assert re.search(rf"Accuracy, clean digits +{scores.accuracy_clean:.1%}", printed)
    assert re.search(rf"ECE, as trained +{scores.ece_uncalibrated:.3f}", printed)
    shares = " +".join(f"{share:.1%}" for share in scores.verdicts["photos"].values())
    assert re.search(rf"1,000 photo patches +{shares}", printed)
    for stage in ("Draw the data", "Train the network", "Fit the density", "Calibrate", "Judge", "Write the page"):
        assert re.search(rf"{stage}.*100%", bars)

    code = printed[printed.index("import ddu") :]
    names: dict[str, ddu.DDU] = {}
    exec(code, names)
    assert names["detector"].temperature == scores.temperature


class StopError(Exception):
    pass


def stop_at(stage: str):
    def progress(at: str, done: float, note: str) -> None:
        if at == stage:
            raise StopError

    return progress


def test_an_interrupted_demo_leaves_nothing_behind_and_torch_as_it_was(tmp_path):
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    with pytest.raises(StopError):
        run_demo(tmp_path / "new" / "demo", epochs=1, progress=stop_at("Train the network"))
    assert files(tmp_path) == []
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_an_interrupted_demo_leaves_an_earlier_one_whole(tmp_path):
    (tmp_path / "metrics.json").write_text("{}")
    (tmp_path / "index.html").write_text("the earlier page")
    with pytest.raises(StopError):
        run_demo(tmp_path, epochs=1, progress=stop_at("Train the network"))
    assert files(tmp_path) == ["index.html", "metrics.json"]
    assert (tmp_path / "index.html").read_text() == "the earlier page"


def refusal(output: Path, **arguments) -> str:
    """The message with which a demo is refused before it does anything."""
    with pytest.raises(InputError) as caught:
        run_demo(output, progress=stop_at("Draw the data"), **arguments)
    return str(caught.value)


def test_a_file_is_no_place_for_a_demo(tmp_path):
    (tmp_path / "demo").write_text("precious")
    message = refusal(tmp_path / "demo")
    assert message == f"{tmp_path}/demo is a file, and the demo writes a folder. Choose another with --output."
    assert (tmp_path / "demo").read_text() == "precious"


def test_a_place_that_cannot_be_written_to_is_refused():
    message = refusal(Path("/dev/null/demo"))
    assert message == "Cannot write to /dev/null/demo: Not a directory. Choose another folder with --output."


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "index.html").write_text("precious")
    assert refusal(tmp_path) == (
        f"{tmp_path} holds files that are not an earlier demo's, and they could be overwritten. "
        "Choose another folder with --output."
    )


def test_seeds_and_epochs_out_of_range_are_refused(tmp_path):
    message = refusal(tmp_path / "demo", seed=-1)
    assert message == "The seed must be an integer from 0 to 2^63 - 1. Got -1 instead."
    message = refusal(tmp_path / "demo", epochs=0)
    assert message == "The network needs at least 1 epoch of training. Got 0 instead."
