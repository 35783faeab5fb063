"""The page's files, and what it asks the server for."""

import base64
import io
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from ddu.bundles import Bundle
from ddu.data import ArrayDataset, DataInfo
from ddu.examples import keep_examples
from ddu.serving.page import PUBLIC
from ddu.serving.page.routes import histograms
from ddu.sources import DetectorSource
from tests.serving.servers import grey_images, make_source, png, served


def train_set(source: DetectorSource, count: int = 40) -> ArrayDataset:
    """Inputs that a source may have been trained on."""
    shape, generator = source.preprocessing.shape, np.random.default_rng(1)
    inputs = grey_images(count, seed=1)[..., None] if len(shape) == 3 else generator.random((count, *shape))
    info = DataInfo("drawn", shape, ("ant", "bee", "cat"), source.preprocessing.mean, source.preprocessing.std)
    return ArrayDataset(inputs, generator.integers(0, 3, count), info)


def with_examples(source: DetectorSource, folder) -> DetectorSource:
    train = train_set(source)
    keep_examples(source.detector, train, train, 40, progress=False).save(folder)
    return DetectorSource(
        source.name, source.detector, source.preprocessing, source.fingerprint, source.description, folder
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return with_examples(make_source(), tmp_path_factory.mktemp("detector"))


@pytest.fixture(scope="module")
def client(source):
    with served(source) as client:
        yield client


def pixels(uri: str) -> np.ndarray:
    head, _, text = uri.partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))


def test_every_file_is_served_with_a_strict_policy(client):
    for path, kind in (("/", "text/html"), ("/page/page.css", "text/css"), ("/page/page.js", "text/javascript")):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, kind)
        policy = dict(rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert path in PUBLIC


def test_the_files_name_no_other_host_and_have_nothing_that_the_policy_forbids(client):
    page = client.get("/").text
    addresses = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert {"page/page.css", "page/page.js", "docs"} <= set(addresses)
    assert not [address for address in addresses if "//" in address]
    assert not re.search(r"<style|<script(?! type=\"module\" src=)|\sstyle=|\son\w+=", page)
    for path in ("/page/page.css", "/page/page.js"):
        text = client.get(path).text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|@import|url\(|innerHTML|eval\(", text)


def test_the_token_is_asked_for_what_the_files_show(source):
    with served(source, token="secret") as client:
        assert [client.get(path).status_code for path in sorted(PUBLIC)] == [200] * 3
        assert client.get("/page/about").status_code == 401
        assert client.post("/page/nearest", json={"inputs": grey_images(1)[0].tolist()}).status_code == 401
        assert client.get("/page/about", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_the_page_is_told_thresholds_histograms_and_a_gallery(client, source):
    about = client.get("/page/about").json()
    calibration = source.detector.calibration
    assert about["shape"] == [1, 8, 8]
    assert (about["name"], about["classes"], about["examples"]) == ("tiny", ["ant", "bee", "cat"], 40)
    assert about["thresholds"] == {
        "p_value": calibration.false_alarm_rate,
        "epistemic": calibration.epistemic_threshold,
        "entropy": calibration.entropy_threshold,
    }
    assert [(one["name"], one["count"]) for one in about["histograms"]["sets"]] == [("held-out", 400), ("training", 40)]
    for name, group in source.examples.gallery.items():
        found = about["gallery"][name]
        assert [one["word"] for one in found] == list(group.words)
        np.testing.assert_array_equal([pixels(one["image"]) for one in found], group.inputs[..., 0].numpy())


def test_a_sample_of_the_gallery_is_judged_as_the_input_that_it_is(client, source):
    (sample, *_) = client.get("/page/about").json()["gallery"]["least known"]
    (row,) = client.post(json={"image": sample["image"]}).json()["predictions"]
    train = train_set(source)
    scores = source.predict(train.inputs[..., 0]).epistemic
    assert row["epistemic"] == pytest.approx(float(scores.max()), rel=1e-4)


def test_the_nearest_example_of_a_training_input_is_itself(client, source):
    train = train_set(source)
    for row in (0, 7):
        image = train.inputs[row, ..., 0]
        answer = client.post("/page/nearest", data=png(image), headers={"content-type": "image/png"})
        first, *others = answer.json()["nearest"]
        np.testing.assert_array_equal(pixels(first["image"]), image)
        assert (first["word"], first["distance"]) == (train.info.classes[train.labels[row]], pytest.approx(0, abs=1e-4))
        distances = [one["distance"] for one in others]
        assert len(distances) == 5
        assert distances == sorted(distances)


def test_what_cannot_be_judged_has_no_neighbours(client):
    refused = client.post("/page/nearest", data=b"no image", headers={"content-type": "image/png"})
    assert refused.status_code == 422
    assert "not an image" in refused.json()["error"]


def test_vectors_have_neighbours_and_a_gallery_as_well(tmp_path):
    source = with_examples(make_source((4,)), tmp_path)
    train = train_set(source)
    with served(source) as client:
        about = client.get("/page/about").json()
        assert about["shape"] == [4]
        assert len(about["gallery"]["least known"][0]["vector"]) == 4
        answer = client.post("/page/nearest", json={"inputs": [train.inputs[5].tolist()]})
    assert answer.json()["nearest"][0]["vector"] == pytest.approx(train.inputs[5].tolist(), rel=1e-6)


def test_without_examples_there_is_the_histogram_of_held_out_scores_alone():
    with served(make_source()) as client:
        about = client.get("/page/about").json()
        assert (about["examples"], about["gallery"], about["drift"]) == (0, {}, True)
        assert [one["name"] for one in about["histograms"]["sets"]] == ["held-out"]
        refused = client.post("/page/nearest", json={"inputs": grey_images(1)[0].tolist()})
        assert refused.status_code == 404
        assert "--keep-examples" in refused.json()["error"]


def test_a_bundle_has_thresholds_histograms_and_a_gallery_and_no_neighbours(source, tmp_path):
    source.detector.export(tmp_path / "bundle", grey_images(40), preprocessing=source.preprocessing)
    with served(source) as client:
        known = client.get("/page/about").json()
    with served(Bundle(tmp_path / "bundle")) as client:
        about = client.get("/page/about").json()
    assert about["thresholds"] == pytest.approx(known["thresholds"])
    assert about["histograms"] == known["histograms"] | {"sets": known["histograms"]["sets"][:1]}
    assert (about["examples"], about["gallery"]) == (0, {})
    source.examples.save(tmp_path / "bundle" / "detector")
    with served(Bundle(tmp_path / "bundle")) as client:
        about = client.get("/page/about").json()
        refused = client.post("/page/nearest", json={"inputs": grey_images(1)[0].tolist()})
    assert (about["histograms"], about["gallery"]) == (known["histograms"], known["gallery"])
    assert about["examples"] == 0
    assert (refused.status_code, refused.json()["error"]) == (
        404,
        "A bundle is a graph without features: the detector finds the nearest examples.",
    )


def test_bars_hold_every_input_those_beyond_the_axis_in_the_first_and_last(source):
    calibration = source.detector.calibration
    threshold = calibration.epistemic_threshold
    far = torch.tensor([-1e9, threshold, 1e9, 1e9])
    found = histograms(calibration, {"far": far})
    edges, (held_out, others) = np.array(found["edges"]), found["sets"]
    assert others["shares"][0] == 0.25
    assert others["shares"][-1] == 0.5
    assert sum(held_out["shares"]) == pytest.approx(1)
    scores = calibration.held_out.epistemic.numpy()
    inside = (scores >= edges[10]) & (scores < edges[20])
    assert sum(held_out["shares"][10:20]) == pytest.approx(inside.mean())
    assert edges[0] < scores.min() < threshold < edges[-1]


def test_a_prediction_has_what_each_part_of_its_score_contributes():
    source = make_source(paper=False)
    with served(source) as client:
        (row,) = client.post(json={"inputs": grey_images(1)[0].tolist()}).json()["predictions"]
        assert list(row["parts"]) == source.detector.part_names
        assert sum(row["parts"].values()) == pytest.approx(row["epistemic"], rel=1e-4)
        outputs = client.get("/v2/models/tiny").json()["outputs"]
    assert {"name": "parts", "datatype": "FP32", "shape": [-1, len(row["parts"])]} in outputs


def test_scores_that_are_calibrated_per_class_have_no_single_threshold():
    source = make_source()
    source.detector.calibration = replace(source.detector.calibration, false_alarm_rate=0.2, per_class=True)
    with served(source) as client:
        about = client.get("/page/about").json()
    assert about["thresholds"]["epistemic"] is None
    assert sum(about["histograms"]["sets"][0]["shares"]) == pytest.approx(1)
