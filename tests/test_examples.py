"""What is kept of the data beside a detector."""

import json
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch
from scipy.spatial.distance import cdist
from torch import nn

import ddu
from ddu.data import ArrayDataset, DataInfo, Preprocessing, loader
from ddu.detectors import Softmax
from ddu.errors import ArtifactError, DDUWarning, InputError
from ddu.examples import FILE, MOST, Examples, Group, keep_examples, load_examples, penultimate
from tests.small_networks import CLASSES, PREPROCESSING, SHAPE, draw_images, make_network

INFO = DataInfo("drawn", SHAPE, CLASSES, PREPROCESSING.mean, PREPROCESSING.std)


def drawn(count: int, seed: int) -> ArrayDataset:
    images, labels = draw_images(count, seed=seed)
    return ArrayDataset(images.numpy().reshape(count, 12, 12, 1), labels.numpy(), INFO)


@pytest.fixture(scope="module")
def detector():
    made = ddu.DDU(make_network(), class_names=CLASSES).fit(loader(drawn(400, 1)), progress=False)
    return made.calibrate(loader(drawn(400, 2)), 0.05, probes=False, progress=False)


@pytest.fixture(scope="module")
def kept(detector) -> Examples:
    return keep_examples(detector, drawn(400, 1), drawn(400, 2), 50, seed=3, progress=False)


def some(**changes) -> Examples:
    parts = {
        "inputs": torch.zeros(2, 3, 3, 1, dtype=torch.uint8),
        "labels": torch.tensor([0, 1]),
        "features": torch.eye(2),
        "scores": {"training": torch.tensor([1.0, 2.0])},
        "gallery": {"odd": Group(torch.zeros(1, 3, 3, 1, dtype=torch.uint8), ("one",))},
    }
    return Examples(**parts | changes)


def test_examples_are_training_samples_with_their_own_labels_features_and_scores(kept, detector):
    train = drawn(400, 1)
    assert kept.inputs.shape == (50, 12, 12, 1)
    pixels = {image.tobytes(): row for row, image in enumerate(train.inputs)}
    rows = [pixels[image.numpy().tobytes()] for image in kept.inputs]
    assert len(set(rows)) == 50
    inputs, labels = train.__getitems__(rows)
    assert torch.equal(kept.labels, labels)
    torch.testing.assert_close(kept.features, penultimate(detector)(inputs).features)
    scores = detector.evidence(inputs).epistemic.float()
    torch.testing.assert_close(kept.scores["training"], scores, rtol=1e-4, atol=1e-4)


def test_the_gallery_has_held_out_inputs_whose_verdicts_are_those_of_its_groups(kept, detector):
    everything = detector.predict(drawn(400, 2).__getitems__(range(400))[0]).epistemic
    for name, group in kept.gallery.items():
        judged = detector.predict(INFO.preprocessing(group.inputs.numpy()))
        assert set(group.words) <= set(CLASSES)
        if name == "least known":
            assert float(judged.epistemic.min()) > float(everything.median())
        else:
            assert {str(verdict) for verdict in judged.verdict} == {{"typical": "in_distribution"}.get(name, name)}
    assert {"typical", "least known"} <= kept.gallery.keys()


def test_what_is_saved_is_what_is_loaded_in_the_same_order(kept, detector, tmp_path):
    assert load_examples(tmp_path, detector.calibration) is None
    kept.save(tmp_path)
    loaded = load_examples(tmp_path, detector.calibration)
    assert loaded is not None
    for name in ("inputs", "labels", "features"):
        assert torch.equal(getattr(loaded, name), getattr(kept, name))
    assert (list(loaded.scores), list(loaded.gallery)) == (list(kept.scores), list(kept.gallery))
    for name, group in kept.gallery.items():
        assert torch.equal(loaded.gallery[name].inputs, group.inputs)
        assert loaded.gallery[name].words == group.words


def test_examples_of_another_detector_are_not_used_and_another_rate_is_the_same_detector(kept, detector, tmp_path):
    kept.save(tmp_path)
    calibration = detector.calibration
    assert load_examples(tmp_path, replace(calibration, false_alarm_rate=0.1)) is not None
    again = ddu.DDU(detector.model).fit(loader(drawn(400, 5)), progress=False)
    again.calibrate(loader(drawn(400, 2)), 0.05, probes=False, progress=False)
    for other in (again.calibration, None):
        with pytest.warns(DDUWarning, match=r"examples.safetensors has examples of another detector, and is not used"):
            assert load_examples(tmp_path, other) is None


def test_the_nearest_are_those_of_scipy():
    features, asked = torch.randn(40, 5), torch.randn(3, 5)
    examples = some(inputs=torch.zeros(40, 2), labels=torch.zeros(40).long(), features=features)
    distances, rows = examples.nearest(asked, 4)
    reference = cdist(asked.double().numpy(), features.double().numpy())
    np.testing.assert_array_equal(rows.numpy(), reference.argsort(1)[:, :4])
    np.testing.assert_allclose(distances.numpy(), np.sort(reference, 1)[:, :4], rtol=1e-6)
    assert some().nearest(torch.zeros(1, 2), 9)[1].shape == (1, 2)  # there are no more


def test_a_large_image_is_kept_as_a_thumbnail_and_tried_at_its_own_size():
    large = Preprocessing((1, 120, 120), PREPROCESSING.mean, PREPROCESSING.std)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(12), *make_network())
    train, held_out = (drawn(200, seed).shown_by(large) for seed in (1, 2))
    made = ddu.DDU.paper(model).fit(loader(train), progress=False)
    made.calibrate(loader(held_out), 0.05, probes=False, progress=False)
    kept = keep_examples(made, train, held_out, 10, progress=False)
    assert kept.inputs.shape == (10, 64, 64, 1)
    assert kept.gallery["typical"].inputs.shape[1:] == (120, 120, 1)


def test_a_detector_without_features_has_those_of_its_networks_head(detector):
    softmax = Softmax(detector.model)
    inputs = drawn(5, 4).__getitems__(range(5))[0]
    torch.testing.assert_close(penultimate(softmax)(inputs).features, detector.model[:-1](inputs).detach())


def test_pixels_are_the_bytes_that_a_network_was_shown():
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(3, axis=3)
    scale = Preprocessing((3, 16, 16), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    np.testing.assert_array_equal(scale.to_pixels(scale(pixels)), pixels)
    vectors = Preprocessing((2,))
    np.testing.assert_array_equal(vectors.to_pixels(vectors([[0.5, -1.0]])), np.array([[0.5, -1.0]], np.float32))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": torch.zeros(3)}, "each with an input, a label and features"),
        ({"scores": {"test": torch.tensor([torch.nan])}}, "The scores of 'test' must be 1 to 2,000 finite numbers"),
        ({"gallery": {"odd": Group(torch.zeros(2, 3), ("one",))}}, "'odd' has 2 inputs and 1 words"),
        ({"inputs": torch.zeros(2, 3, 3, 1)}, "must be images, bytes"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        some(**changes)


@pytest.mark.parametrize("count", [0, MOST + 1])
def test_more_examples_than_are_kept_are_refused(detector, count):
    with pytest.raises(InputError, match=f"Between 1 and 2,000 training examples can be kept. Got {count:,} instead"):
        keep_examples(detector, drawn(20, 1), drawn(20, 2), count)


def test_a_damaged_file_is_named_and_not_used(tmp_path):
    some().save(tmp_path)
    path = tmp_path / FILE
    whole = path.read_bytes()
    tensors = safetensors.torch.load(whole)
    about = json.dumps({"version": 1, "scores": ["training"], "gallery": {"odd": ["one", "two"]}})
    for content in (
        whole[:-1],
        b"",
        safetensors.torch.save(tensors),
        safetensors.torch.save(tensors, {"ddu-examples": '{"version": 2}'}),
        safetensors.torch.save(tensors, {"ddu-examples": about}),
        safetensors.torch.save({}, {"ddu-examples": about}),
    ):
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match=r"examples.safetensors cannot be read"):
            Examples.load(path)
        with pytest.warns(DDUWarning, match=r"examples.safetensors cannot be read .*, and is not used: --keep-example"):
            assert load_examples(tmp_path, None) is None
