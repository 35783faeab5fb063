"""A detector follows `.to(device)`: the model, and everything learned."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import ddu
from ddu.detectors import DUQ, SNGP, BaseDetector, Energy, Ensemble, Mahalanobis, Softmax, from_pytorch_ood
from ddu.detectors.registry import detector_classes
from ddu.errors import InputError
from ddu.layers import GaussianProcessHead, RBFHead
from tests.detectors.blobs import blobs
from tests.tensors import tensors_in

# The networks are not trained
pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.DDUWarning")


def network(head: Callable[[], nn.Module] = lambda: nn.Linear(8, 3)) -> nn.Module:
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), head())


MAKERS = {
    "ddu": lambda: ddu.DDU(network(), features=["0", "3"]),
    "softmax": lambda: Softmax(network()),
    "energy": lambda: Energy(network()),
    "mahalanobis": lambda: Mahalanobis(network(), layers=["0", "3"], relative=True),
    "ensemble": lambda: Ensemble([network(), network()]),
    "sngp": lambda: SNGP(network(lambda: GaussianProcessHead(8, 3, num_features=16))),
    "duq": lambda: DUQ(network(lambda: RBFHead(8, 3, embedding_size=4))),
}


def fitted(name: str) -> BaseDetector:
    detector = MAKERS[name]()
    detector.fit([blobs(90)])
    return detector


def test_every_detector_by_name_is_moved_here():
    assert set(MAKERS) == set(detector_classes())


@pytest.mark.parametrize("name", MAKERS)
def test_to_moves_every_tensor_of_the_model_and_of_what_was_learned(name):
    detector = fitted(name)
    detector.predict(blobs(9)[0])
    before = dict(tensors_in(detector))
    assert detector.to("meta") is detector
    left = [path for path, tensor in tensors_in(detector) if tensor.device.type != "meta"]
    assert before
    assert not left


@pytest.mark.parametrize("name", MAKERS)
def test_a_detector_that_was_moved_predicts_and_saves_the_same(name, tmp_path):
    stayed, moved = fitted(name), fitted(name).to(torch.device("cpu"))
    x = blobs(30, seed=1)[0]
    for detector in (stayed, moved):
        detector.calibrate([blobs(60, seed=2)], 0.1)
    moved.to("cpu").save(tmp_path)
    loaded = ddu.load(tmp_path, list(moved.model) if name == "ensemble" else moved.model).to("cpu")
    expected = stayed.predict(x)
    for detector in (moved, loaded):
        prediction = detector.predict(x)
        assert torch.equal(prediction.probs, expected.probs)
        assert torch.equal(prediction.epistemic, expected.epistemic)
        assert np.array_equal(prediction.verdict, expected.verdict)


def test_to_refuses_a_dtype_before_it_moves_anything():
    detector = fitted("ddu")
    with pytest.raises(InputError, match=r"to\(\) takes a device.*Got torch\.float16 instead"):
        detector.to(torch.float16)
    assert next(detector.model.parameters()).dtype == torch.float32


def test_to_no_device_does_nothing():
    detector = fitted("ddu")
    assert detector.to() is detector
    assert torch.isfinite(detector.predict(blobs(3)[0]).epistemic).all()


def test_a_detector_of_pytorch_ood_takes_its_copy_of_the_model_along():
    detector = from_pytorch_ood("ODIN", network()).fit([blobs(90)])
    x = blobs(9, seed=1)[0]
    before = detector.predict(x).epistemic
    assert torch.equal(detector.to("cpu").predict(x).epistemic, before)
    detector.to("meta")
    assert {tensor.device.type for _, tensor in tensors_in(detector)} == {"meta"}


def test_a_detector_of_pytorch_ood_on_features_stays_on_the_cpu():
    detector = from_pytorch_ood("KNN", network()).fit([blobs(90)])
    model = copy.deepcopy(detector.model)
    detector.to("meta")
    assert next(detector.model.parameters()).device.type == "meta"
    detector.tap.model = model
    assert torch.isfinite(detector.predict(blobs(9)[0]).epistemic).all()
