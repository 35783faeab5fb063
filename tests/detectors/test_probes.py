"""A score that does not see flat images or noise is told of, and one that sees them, or knows them, is not."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import ddu
from ddu import Prediction, Verdict
from ddu.detectors import Energy, Softmax
from ddu.detectors.probes import Probes, flat, neighbour_correlation, noise, shuffled_patches
from ddu.errors import BlindSpotWarning

SIDE = 16


def waves(samples=300, seed=0):
    """Smooth waves on a brightness that is the class."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(samples) % 3
    phase, length, strength = torch.rand(3, samples, 1, 1, 1, generator=generator)
    brightness = 5 + y + 0.35 * torch.randn(samples, generator=generator)
    steps = torch.arange(SIDE) / SIDE
    grid = steps.view(1, 1, SIDE, 1) + (length + 0.5) * steps.view(1, 1, 1, SIDE)
    waves = torch.sin(6.3 * (grid * (1 + length) + phase)) * (0.5 + strength)
    return waves + brightness.view(-1, 1, 1, 1), y


# The logits of a brightness of 5, 6 and 7
WEIGHT, BIAS = 4 * torch.tensor([0.0, 1.0, 2.0]), -4 * torch.tensor([0.0, 5.5, 12.0])


class Absolute(nn.Module):
    def forward(self, x):
        return x.abs()


def network(*, sees_edges=True):
    """Reads the class from the brightness; looks at edges as well, or at the brightness three times."""
    plain, edge = torch.zeros(3, 3), torch.zeros(3, 3)
    plain[1, 1], edge[1, :2] = 1, torch.tensor([1.0, -1.0])
    kernels = [plain, edge, edge.T] if sees_edges else [plain, 2 * plain, -plain]
    layers = nn.Conv2d(1, 3, 3, bias=False), Absolute(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3)
    model = nn.Sequential(*layers)
    with torch.no_grad():
        model.get_parameter("0.weight").copy_(torch.stack(kernels)[:, None])
        model.get_parameter("4.weight").zero_()[:, 0] = WEIGHT
        model.get_parameter("4.bias").copy_(BIAS)
    return model


def fitted(model, make=ddu.DDU.paper, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ddu.errors.FewSamplesWarning)
        return make(model, **options).fit([waves()])


def told(detector, held_out, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BlindSpotWarning)
        detector.calibrate(held_out, 0.05, **options)
    return [str(one.message) for one in caught if one.category is BlindSpotWarning]


def test_a_score_that_sees_brightness_alone_is_told_of_with_numbers_and_the_way_out():
    detector = Softmax(network(sees_edges=False))
    with pytest.warns(BlindSpotWarning) as caught:
        detector.calibrate([waves(seed=1)], 0.05)
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith("The score is blind to inputs that are plainly unknown: it flags 3% of 32 flat images and ")
    assert "0% of 32 images of noise, made from held-out ones, at a false-alarm rate of 0.05; half of each" in text
    assert "The default score, ddu.DDU(model), looks at every stage of the network and at the energy: use that." in text
    assert text.endswith("calibrate(..., probes=False) does not ask.")
    assert warning.filename == __file__
    assert detector.calibration is not None


def test_a_score_that_sees_edges_is_not_told_of():
    assert told(fitted(network()), [waves(seed=1)]) == []


@pytest.mark.parametrize("way", ["probes=False", "extracted features", "vectors", "few"])
def test_nobody_asks(way):
    detector = Energy(network(sees_edges=False))
    held_out, options = [waves(seed=1)], {}
    if way == "probes=False":
        options["probes"] = False
    elif way == "extracted features":
        held_out = [detector.tap(x)._replace(labels=y) for x, y in held_out]
    elif way == "vectors":
        detector = Energy(nn.Sequential(nn.Unflatten(1, (1, SIDE, SIDE)), *network(sees_edges=False)))
        held_out = [(x.flatten(1), y) for x, y in held_out]
    else:  # too few images to tell
        sample = Probes()
        sample.add(waves()[0][:7])
        sample.warn_of_blindness(detector.predict, 0.05, "")
        return
    assert told(detector, held_out, **options) == []


class Shifted(nn.Module):
    """A network of images and of a number for each."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, image, shift):
        return self.network(image + shift[:, None, None, None])


@pytest.mark.parametrize("as_mapping", [False, True])
def test_a_model_of_several_inputs_is_calibrated_without_probes(as_mapping):
    x, y = waves(seed=1)
    shift = torch.zeros(len(x))
    held_out = {"image": x, "shift": shift, "labels": y} if as_mapping else (x, shift, y)
    detector = Softmax(Shifted(network(sees_edges=False)))
    assert told(detector, [held_out]) == []
    assert detector.calibration is not None


def test_a_mapping_of_one_input_is_asked_about_like_a_tensor():
    x, y = waves(seed=1)
    assert len(told(Softmax(network(sees_edges=False)), [{"input": x, "labels": y}])) == 1


def test_calibration_without_labels_asks_as_well():
    assert len(told(Softmax(network(sees_edges=False)), waves(seed=1)[0], labels=False)) == 1


def test_probes_that_may_be_of_the_data_are_left_out():
    model = network(sees_edges=False)
    x, y = waves(seed=1)
    x[3] = x[3].mean()  # some are flat
    (text,) = told(Softmax(model), [(x, y)])
    assert "flat images" not in text
    noisy = waves(seed=1)[0].mean((2, 3), keepdim=True) + torch.randn(x.shape)
    (text,) = told(Softmax(model), [(noisy, y)])
    assert "noise" not in text


def test_the_calibration_is_what_it_is_without_probes():
    asked, silent = fitted(network()), fitted(network())
    state = torch.get_rng_state()
    told(asked, [waves(seed=1)])
    assert torch.equal(torch.get_rng_state(), state)
    told(silent, [waves(seed=1)], probes=False)
    assert asked.calibration == silent.calibration


def test_a_warning_that_is_made_an_error_leaves_the_calibration_as_it_was():
    detector = Softmax(network(sees_edges=False))
    with pytest.raises(BlindSpotWarning):
        detector.calibrate([waves(seed=1)], 0.05)
    assert detector.calibration is None


def test_few_images_are_kept_however_many_there_are():
    sample = Probes()
    for part in waves()[0].split(7):
        sample.add(part)
    assert torch.equal(sample.images, waves()[0][:32])
    sample.add(torch.zeros(3, 5))
    assert len(sample.images) == 32


class Reader(nn.Module):
    """Reads the class from the brightness of the corner, and shows nothing else."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(1, 3)
        with torch.no_grad():
            self.head.weight.copy_(WEIGHT[:, None])
            self.head.bias.copy_(BIAS)

    def forward(self, x):
        return self.head(x[:, :, :4, :4].mean((1, 2, 3))[:, None])


@pytest.mark.parametrize("texture", [False, True])
def test_shuffled_patches_count_where_they_are_no_longer_their_class(texture):
    x, y = waves(seed=1)
    if not texture:  # the class is in one patch, and the others are all kinds
        kinds = torch.randint(3, (300, 1, 4, 4), generator=torch.Generator().manual_seed(0))
        kinds[:, 0, 0, 0] = y
        x = x + (kinds - y.view(-1, 1, 1, 1)).repeat_interleave(4, 2).repeat_interleave(4, 3)
    texts = told(Softmax(Reader()), [(x, y)])
    assert ("shuffled patches" in " ".join(texts)) == (not texture)


@pytest.mark.parametrize(("p_value", "changed", "counts"), [(0.6, 20, True), (0.6, 10, False), (0.4, 32, False)])
def test_shuffled_patches_count_where_most_are_predicted_otherwise_and_as_usual_as_others(p_value, changed, counts):
    sample, images = Probes(), waves()[0][:32]
    sample.add(images)

    def predict(x):
        is_made_of_them = torch.equal(x.flatten().sort().values, images.flatten().sort().values)
        is_shuffled = is_made_of_them and not torch.equal(x, images)
        label = (torch.arange(32) < changed).long() if is_shuffled else torch.zeros(32).long()
        verdict = Verdict.IN_DISTRIBUTION if is_made_of_them else Verdict.OUT_OF_DISTRIBUTION
        numbers = torch.full((32,), p_value if is_made_of_them else 0.001, dtype=torch.float64)
        return Prediction(
            torch.eye(2)[label], label, numbers, numbers, p_value=numbers, verdict=np.array([verdict] * 32)
        )

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sample.warn_of_blindness(predict, 0.05, "")
    assert [str(one.message).split(":")[1].split(",")[0] for one in caught] == (
        [" it flags 0% of 32 images with shuffled patches"] if counts else []
    )


def test_probes_are_what_their_names_say():
    images = torch.randn(8, 3, 18, 20)
    grey = flat(images)
    assert torch.equal(grey, grey[:, :, :1, :1].expand_as(grey))
    torch.testing.assert_close(grey.mean((2, 3)), images.mean((2, 3)))
    drawn = noise(images)
    assert (drawn.amin((0, 2, 3)) >= images.amin((0, 2, 3))).all()
    assert (drawn.amax((0, 2, 3)) <= images.amax((0, 2, 3))).all()
    assert abs(neighbour_correlation(drawn)) < 0.1
    shuffled = shuffled_patches(images)
    for old, new in zip(images, shuffled, strict=True):
        old_patches, new_patches = (
            sorted(np.asarray(one[:, r : r + 4, c : c + 5]).tobytes() for r in range(0, 16, 4) for c in range(0, 20, 5))
            for one in (old, new)
        )
        assert old_patches == new_patches
    assert torch.equal(shuffled[:, :, 16:], images[:, :, 16:])  # what is left over stays
    assert (shuffled != images).flatten(1).any(1).all()
    assert neighbour_correlation(waves()[0]) > 0.7
