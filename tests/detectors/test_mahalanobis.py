"""Mahalanobis distances: of one layer and several, relative, and with a step along the gradient."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from torch import nn

import ddu
from ddu.detectors import Mahalanobis
from ddu.errors import InputError
from ddu.features import FeatureTap, extract
from ddu.testing import check_detector
from tests.detectors.blobs import blobs


@pytest.fixture
def model():
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, 5), nn.SiLU(), nn.Linear(5, 3)).double()


def reference(z, y, new, relative):
    """(D² - d) / √(2d) and (D² - D₀²) / √(2d), by dense algebra."""
    means = np.stack([z[y == c].mean(0) for c in range(3)])
    centred = z - means[y]
    within = centred.T @ centred / (len(z) - 3)
    total = within + np.cov(means[y].T, ddof=0)
    nearest = cdist(new, means, "mahalanobis", VI=np.linalg.inv(within)).min(1) ** 2
    expected = cdist(new, [z.mean(0)], "mahalanobis", VI=np.linalg.inv(total))[:, 0] ** 2
    return (nearest - (expected if relative else z.shape[1])) / np.sqrt(2 * z.shape[1])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"relative": True},
        {"perturbation": 0.01},
        {"layers": ["0", "2", "4"]},
        {"layers": ["0", "4"], "relative": True, "perturbation": 0.05},
    ],
    ids=str,
)
def test_it_keeps_to_the_contract(options):
    check_detector(lambda model: Mahalanobis(model, **options))


@pytest.mark.parametrize("relative", [False, True])
def test_the_score_is_the_distance_by_dense_algebra(model, relative):
    (x, y), new = blobs(), blobs(seed=1)[0]
    actual = Mahalanobis(model, relative=relative).fit([(x, y)]).predict(new).epistemic
    z, z_new = (model[:-1](part.double()).detach().numpy() for part in (x, new))
    # both have a regularisation of 1e-6
    np.testing.assert_allclose(actual, reference(z, y.numpy(), z_new, relative), rtol=2e-3, atol=2e-3)


def test_a_dead_unit_that_wakes_up_is_not_relatively_far():
    x, y = blobs(3000)
    x[:, 3] = 0
    model = nn.Sequential(nn.Identity(), nn.Linear(4, 3, bias=False))
    nn.init.eye_(model.get_parameter("1.weight"))
    plain, relative = (Mahalanobis(model, relative=relative).fit([(x, y)]) for relative in (False, True))
    near, far = x[:50], x[:50] + torch.tensor([0.0, 0.0, 0.0, 100.0])
    assert plain.predict(far).epistemic.min() > 1e6
    torch.testing.assert_close(relative.predict(far).epistemic, relative.predict(near).epistemic, rtol=0, atol=1e-3)


def test_several_layers_are_the_mean_of_each(model):
    new = blobs(seed=1)[0]
    one, other, both = (
        Mahalanobis(model, layers=layers).fit([blobs()]).predict(new).epistemic
        for layers in (["1"], [model[3]], ["1", model[3]])
    )
    np.testing.assert_allclose(both, (one + other) / 2, rtol=1e-5)


def test_in_distribution_a_score_is_about_standardised():
    """The features are Gaussian, and the classes so far apart that the nearest mean is the right one."""
    x, y = blobs(6000)
    x += 20 * torch.eye(3, 4)[y]
    model = nn.Sequential(nn.Identity(), nn.Linear(4, 3, bias=False))
    nn.init.eye_(model.get_parameter("1.weight"))
    scores = Mahalanobis(model).fit([(x[:3000], y[:3000])]).predict(x[3000:]).epistemic
    # the standard errors are 0.02 and, with the kurtosis of a χ² of 4 degrees, 0.04
    assert float(scores.mean()) == pytest.approx(0, abs=0.08)
    assert float(scores.std()) == pytest.approx(1, abs=0.12)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("layers", [None, ["0", "2"]])
def test_the_step_follows_the_gradient_that_finite_differences_find(model, relative, layers):
    detector = Mahalanobis(model, relative=relative, layers=layers, perturbation=0.1).fit([blobs()])
    plain = Mahalanobis(model, relative=relative, layers=layers).fit([blobs()])
    x, h = blobs(200, seed=1)[0].double(), 1e-3
    gradient = torch.stack(
        [plain.predict(x + h * e).epistemic - plain.predict(x - h * e).epistemic for e in torch.eye(4).double()], dim=1
    )
    clear = (gradient.abs() > 1e-5).all(1)  # elsewhere single precision leaves the sign open
    assert clear.sum() > 100
    expected = plain.predict(x - 0.1 * gradient.sign()).epistemic
    np.testing.assert_allclose(detector.predict(x).epistemic[clear], expected[clear], rtol=1e-5)


def test_the_step_leaves_the_probabilities_alone(model):
    new = blobs(seed=1)[0]
    plain, stepped = (Mahalanobis(model, perturbation=size).fit([blobs()]).predict(new) for size in (0.0, 0.5))
    assert torch.equal(plain.probs, stepped.probs)
    assert (stepped.epistemic - plain.epistemic).mean() < -0.1  # it goes downhill


def test_it_works_where_gradients_are_switched_off(model):
    detector = Mahalanobis(model, perturbation=0.1).fit([blobs()])
    expected = detector.predict(blobs(seed=1)[0]).epistemic
    with torch.inference_mode():
        assert torch.equal(detector.predict(blobs(seed=1)[0]).epistemic, expected)


def test_a_step_needs_a_single_input_of_floats(model):
    detector = Mahalanobis(model, perturbation=0.1).fit([blobs()])
    (batch,) = extract(FeatureTap(model), [blobs(seed=1)])
    with pytest.raises(InputError) as caught:
        detector.predict(batch)
    assert str(caught.value) == ("Mahalanobis with a perturbation needs the inputs themselves, not extracted features.")
    with pytest.raises(InputError) as caught:
        detector.predict((torch.zeros(2, 4), torch.zeros(2, 4)))
    assert str(caught.value) == (
        "A step along the gradient needs a single input of floats. Got tuple of [Tensor, Tensor] instead."
    )


def test_layers_are_found_again(model, tmp_path):
    detector = Mahalanobis(model, layers=[model[0], "4"], relative=True).fit([blobs()])
    detector.save(tmp_path)
    loaded, x = ddu.load(tmp_path, model), blobs(seed=1)[0]
    assert isinstance(loaded, Mahalanobis)
    assert [tap.place() for tap in loaded.tap.taps] == [
        {"kind": "output", "layer": "0"},
        {"kind": "input", "layer": "4"},
    ]
    assert torch.equal(loaded.predict(x).epistemic, detector.predict(x).epistemic)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"layers": "0"},
            "The 'layers' parameter of Mahalanobis must be a list of layers or 'stages'. Got '0' instead.",
        ),
        ({"layers": []}, "The 'layers' parameter of Mahalanobis must be a list of layers or 'stages'. Got [] instead."),
        ({"layers": [lambda x: x]}, "Layers must be names or modules of the model, which a callable is not."),
        (
            {"perturbation": -0.1},
            "The 'perturbation' parameter of Mahalanobis must be a float of at least 0. Got -0.1 instead.",
        ),
    ],
)
def test_options_that_cannot_be_meant_are_refused(model, options, message):
    with pytest.raises(InputError) as caught:
        Mahalanobis(model, **options)
    assert str(caught.value) == message
