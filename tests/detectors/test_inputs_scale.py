"""Images on another scale than those of the fit are warned of; unknown images on the same scale are not."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import ddu
from ddu import data
from ddu.data.corruptions.catalogue import corrupt
from ddu.detectors import Softmax
from ddu.detectors.inputs import Channels
from ddu.errors import ScaleWarning
from tests.artifacts.files import manifest_of, refusal, sign

MEAN, STD = torch.tensor([0.5, 0.4]).view(1, 2, 1, 1), torch.tensor([0.25, 0.2]).view(1, 2, 1, 1)


def shares(samples=200, seed=0):
    """Images from 0 to 1, of which the brighter half of the first channel is class 1."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(samples) % 2
    x = torch.rand(samples, 2, 6, 6, generator=generator) ** (1 + 2 * (1 - y)).view(-1, 1, 1, 1)
    x[:, :, 0, 0], x[:, :, 0, 1] = 0, 1
    return x, y


def normalised(samples=200, seed=0):
    x, y = shares(samples, seed)
    return (x - MEAN) / STD, y


@pytest.fixture
def model():
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2))
    with torch.no_grad():
        model.get_parameter("2.weight").copy_(torch.tensor([[-3.0, -1.0], [3.0, 1.0]]))
        model.get_parameter("2.bias").zero_()
    return model


def told(detector, x):
    """What predicting says of the scale."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ScaleWarning)
        detector.predict(x)
    return [str(one.message) for one in caught]


def channels(x, batches=1):
    seen = Channels()
    for part in x.chunk(batches):
        seen.add(part)
    return seen


def test_moments_and_ranges_are_those_of_all_pixels_whatever_the_batches():
    x = 3 * torch.randn(30, 2, 5, 7) + torch.tensor([100.0, -2.0]).view(1, 2, 1, 1)
    pixels = x.double().transpose(0, 1).flatten(1).numpy()
    for seen in (channels(x), channels(x, 7)):
        # Each image is summed up in single precision
        np.testing.assert_allclose(seen.mean, pixels.mean(1), rtol=1e-6)
        np.testing.assert_allclose(seen.deviation, pixels.std(1), rtol=1e-6)
        np.testing.assert_array_equal(seen.least, pixels.min(1))
        np.testing.assert_array_equal(seen.most, pixels.max(1))
    np.testing.assert_allclose(channels(x, 7).mean, channels(x).mean, rtol=1e-12)
    np.testing.assert_allclose(channels(x, 7).deviation, channels(x).deviation, rtol=1e-12)


@pytest.mark.parametrize("factor", [1e-15, 1.0, 1e25])
def test_the_moments_of_any_scale_that_an_image_can_have_are_known(factor):
    x = factor * torch.randn(6, 3, 5, 7)
    deviation = x.double().transpose(0, 1).flatten(1).std(1, correction=0).numpy()
    np.testing.assert_allclose(channels(x).deviation, deviation, rtol=1e-6)
    half = torch.randn(6, 3, 5, 7).half()
    np.testing.assert_allclose(channels(half).deviation, channels(half.float()).deviation, rtol=1e-6)


def test_unnormalised_shares_are_warned_of_once_with_both_numbers(model):
    detector = ddu.DDU(model).fit([normalised()]).calibrate([normalised(seed=1)], 0.05)
    assert told(detector, shares(8, seed=2)[0]) == [
        "The inputs are not scaled as those of the fit: these 8 images range from 0 to 1 (mean 0.367, deviation "
        "0.322), and the fit saw images that range from -2 to 3 (mean -0.269, deviation 1.48). A network answers such "
        "inputs with confidence, and wrongly: give them the transform of the training data, such as "
        "torchvision.transforms.Normalize(mean, std) after ToTensor()."
    ]
    assert told(detector, shares(8, seed=2)[0]) == []
    with pytest.warns(ScaleWarning) as caught:
        ddu.DDU(model).fit([normalised()]).predict(shares(9)[0].numpy())
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("fit", "x"),
    [
        (normalised, 255 * shares(8, seed=2)[0]),
        (shares, 255 * shares(8, seed=2)[0]),
        (shares, normalised(8, seed=2)[0]),
        (lambda: (255 * shares()[0], shares()[1]), shares(8, seed=2)[0]),
    ],
    ids=["bytes for normalised", "bytes for shares", "normalised for shares", "shares for bytes"],
)
def test_other_mistakes_are_warned_of(model, fit, x):
    assert len(told(ddu.DDU(model).fit([fit()]), x)) == 1


@pytest.mark.parametrize(
    "kind", ["same", "black", "white", "flat", "contrast", "noise", "one odd", "few", "bright", "pale"]
)
@pytest.mark.parametrize("fit", [normalised, shares])
def test_unknown_images_of_the_same_scale_are_left_alone(model, fit, kind):
    detector, x = ddu.DDU(model).fit([fit()]), fit(16, seed=2)[0]
    low, high = x.amin((0, 2, 3), keepdim=True), x.amax((0, 2, 3), keepdim=True)
    unknown = {
        "same": x,
        "black": low.expand_as(x),
        "white": high.expand_as(x),
        "flat": x[:, :, :1, 2:3].expand_as(x),
        "contrast": 0.2 * x + 0.8 * x.mean((2, 3), keepdim=True),
        "noise": low + (high - low) * torch.rand(x.shape),
        "one odd": torch.cat([x, 1000 * x[:1]]),
        "few": 255 * x[:7],
        "bright": (x + high) / 2,
        "pale": 0.3 + 0.7 * torch.rand(x.shape),
    }[kind]
    assert told(detector, unknown) == []


def test_vectors_and_extracted_features_have_no_scale(model):
    x, y = torch.randn(60, 2), torch.arange(60) % 2
    detector = ddu.DDU(nn.Linear(2, 2), features=None).fit([(x + 3 * y[:, None], y)])
    assert told(detector, 1000 * x) == []
    assert told(ddu.DDU(model).fit([normalised()]), ddu.DDU(model).tap(255 * shares()[0])) == []


def test_calibration_on_another_scale_is_warned_of(model):
    with pytest.warns(ScaleWarning, match="these 200 images range from 0 to 1 "):
        ddu.DDU(model).fit([normalised()]).calibrate([shares(seed=1)], 0.05)


def test_a_detector_without_a_fit_knows_the_scale_of_its_calibration(model):
    detector = Softmax(model).calibrate([normalised(seed=1)], 0.05, probes=False)
    assert told(detector, normalised(16)[0]) == []
    assert len(told(detector, 255 * shares(16)[0])) == 1


def test_a_fit_that_is_forgotten_takes_its_scale_along(model):
    detector = ddu.DDU.paper(model).fit([normalised()])
    detector.fit_features(torch.randn(100, 2), torch.arange(100) % 2)
    assert told(detector, 255 * shares(8)[0]) == []


def test_the_scale_is_saved_and_bad_content_refused(model, tmp_path):
    detector = ddu.DDU(model).fit([normalised()]).calibrate([normalised(seed=1)], 0.05)
    detector.save(tmp_path)
    assert told(ddu.load(tmp_path, model), normalised(16, seed=2)[0]) == []
    assert told(ddu.load(tmp_path, model), 255 * shares(8, seed=2)[0])[0].endswith("after ToTensor().")
    ddu.load(tmp_path, model).save(tmp_path / "again")
    assert len(told(ddu.load(tmp_path / "again", model), 255 * shares(8, seed=2)[0])) == 1

    _, tensors = ddu.artifacts.load_artifact(tmp_path)
    good = tensors.pop("inputs.channels")
    sign(tmp_path, manifest_of(tmp_path), tensors)  # as older files are
    assert told(ddu.load(tmp_path, model), 255 * shares(8, seed=2)[0]) == []
    for bad in ({"channels": good.float()}, {"channels": good[:3]}, {"channels": -good}, {"rows": good}):
        sign(tmp_path, manifest_of(tmp_path), tensors | {f"inputs.{name}": tensor for name, tensor in bad.items()})
        assert "The inputs' tensor" in refusal(tmp_path, model)
    sign(tmp_path, manifest_of(tmp_path), tensors | {"inputs.channels": good * torch.nan})
    assert "must be finite" in refusal(tmp_path, model)


@pytest.mark.parametrize("known", ["cifar10", "mnist"])
def test_real_unknown_sets_are_left_alone_and_real_mistakes_are_found(real_data, known):
    train = data.load(known, "train", root=real_data)
    mean, std = (torch.tensor(value).view(1, -1, 1, 1) for value in (train.info.mean, train.info.std))

    def batch(dataset, count=64):
        return torch.stack([dataset[i][0] for i in range(count)])

    seen = channels(batch(train, 1024), 2)

    def warns(x):
        seen.has_told = False
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ScaleWarning)
            seen.warn_of_scale(x)
        return bool(caught)

    test = batch(data.load(known, "test", root=real_data))
    share = test * std + mean
    others = ("svhn", "cifar100", "fashion_mnist", "flat", "black", "white", "noise", "inverted")
    unknown = {name: batch(data.load_ood(name, train.info, root=real_data)) for name in others}
    if known == "cifar10":
        raw = (255 * share).round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()
        for name in ("contrast", "fog", "brightness", "gaussian_noise", "saturate"):
            corrupted = torch.from_numpy(corrupt(raw, name, 5)).permute(0, 3, 1, 2) / 255
            unknown[name] = (corrupted - mean) / std
    assert [name for name, x in unknown.items() if warns(x)] == []
    assert not warns(test)
    assert warns(share)
    assert warns(255 * share)
    assert warns(unknown["svhn"] * std + mean)
