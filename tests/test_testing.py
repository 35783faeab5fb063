"""The contracts pass what is sound, and name what is broken."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import ddu
from ddu.density import ClassMoments
from ddu.detectors import Softmax
from ddu.errors import InputError
from ddu.testing import check_density, check_detector, densities, detectors
from ddu.testing.contract import blobs
from ddu.types import Verdict


class OneDensity(ddu.DDU):
    """A score of one density, of the penultimate features as they are."""

    def __init__(self, model, **options):
        super().__init__(model, **{"features": None, "view": "raw", "energy": False, **options})


@pytest.mark.parametrize("covariance", ["full", "shared", "diagonal", "low_rank"])
@pytest.mark.parametrize("make", [ddu.DDU, OneDensity])
def test_ddu_keeps_to_the_contract(make, covariance):
    # one direction less than there are features, so that the low-rank density has a rest
    check_detector(lambda model: make(model, density=ddu.GaussianDensity(covariance, rank=15)))


def test_the_detector_of_the_paper_keeps_to_the_contract():
    check_detector(ddu.DDU.paper)


def test_ddu_with_a_background_keeps_to_the_contract():
    # Far out, the ratio of two Gaussians is ruled by the wider one. With class covariances of their own that may be a
    # class's, so that only the shared covariance is sure to fall.
    check_detector(lambda model: OneDensity(model, density=ddu.GaussianDensity("shared", background=True)))
    check_detector(lambda model: OneDensity(model, density=ddu.GaussianDensity(background=True)), distance_aware=False)


@pytest.mark.parametrize("features", ["2", lambda x: x], ids=["layer", "callable"])
def test_ddu_keeps_to_the_contract_wherever_features_are_taken(features):
    check_detector(
        lambda model: ddu.DDU(model, features=features),
        load=lambda folder, model: ddu.load(folder, model, features=features),
    )


class ActsUnfitted(ddu.DDU):
    def predict(self, x, **options):
        if not self.is_fitted:
            self.fit([(torch.sin(torch.arange(240.0)).reshape(60, 4), torch.arange(60) % 3)])
        return super().predict(x, **options)


class ReturnsAnother(ddu.DDU):
    def fit(self, loader, **options):
        return type(self)(self.model)


class TakesSamples(ddu.DDU):
    def fit(self, loader, **options):
        return super().fit([loader[:]] if isinstance(loader, TensorDataset) else loader, **options)


class RefusesSamplesCurtly(ddu.DDU):
    def calibrate(self, loader, false_alarm_rate=0.01, **options):
        if isinstance(loader, TensorDataset):
            raise InputError("No.")
        return super().calibrate(loader, false_alarm_rate, **options)


class ScalesInputsInPlace(ddu.DDU):
    def predict(self, x, **options):
        if isinstance(x, torch.Tensor):
            x.mul_(1.001)
        return super().predict(x, **options)


class LeavesEvaluationMode(ddu.DDU):
    def predict(self, x, **options):
        self.model.eval()
        return super().predict(x, **options)


class LeavesAHook(ddu.DDU):
    def fit(self, loader, **options):
        self.model.register_forward_hook(lambda *_: None)
        return super().fit(loader, **options)


class ClearsGradients(ddu.DDU):
    def calibrate(self, loader, false_alarm_rate=0.01, **options):
        self.model.zero_grad()
        return super().calibrate(loader, false_alarm_rate, **options)


class Seeds(ddu.DDU):
    def fit(self, loader, **options):
        torch.manual_seed(0)
        return super().fit(loader, **options)


class DrawsFromPython(ddu.DDU):
    def predict(self, x, **options):
        random.random()
        return super().predict(x, **options)


class Unnormalised(ddu.DDU):
    def predict(self, x, **options):
        p = super().predict(x, **options)
        return replace(p, probs=1.01 * p.probs)


class EntropyInBits(ddu.DDU):
    def predict(self, x, **options):
        p = super().predict(x, **options)
        return replace(p, aleatoric=p.aleatoric / np.log(2))


class FlippedSign(OneDensity):
    def predict(self, x, **options):
        p = super().predict(x, **options)
        return replace(p, epistemic=-p.epistemic)


class HidesAPart(ddu.DDU):
    def predict(self, x, **options):
        p = super().predict(x, **options)
        assert p.parts is not None
        return replace(p, parts={name: value for name, value in p.parts.items() if name != "energy"})


class FlippedDensity(OneDensity):
    def predict(self, x, **options):
        p = super().predict(x, **options)
        return replace(p, epistemic=-p.epistemic, log_density=p.epistemic)


class Jitters(OneDensity):
    calls = 0

    def predict(self, x, **options):
        self.calls += 1
        p = super().predict(x, **options)
        return replace(p, epistemic=p.epistemic + self.calls, log_density=-p.epistemic - self.calls)


class RanksWithinTheBatch(OneDensity):
    def predict(self, x, **options):
        p = super().predict(x, **options)
        centre = p.epistemic.mean()
        return replace(p, epistemic=p.epistemic - centre, log_density=centre - p.epistemic)


class TensorsOnly(ddu.DDU):
    def predict(self, x, **options):
        return super().predict(x.clone())


class SkipsTheFirstBatch(ddu.DDU):
    def fit(self, loader, **options):
        return super().fit(loader[1:] if isinstance(loader, list) else loader, **options)


class NeverForgetsSamples(ddu.DDU):
    def _finish(self, collected):
        before = self.score
        super()._finish(collected)
        if before is not None and self.score is not None:
            for density, earlier in zip(self.score.densities, before.densities, strict=True):
                density.merge(earlier)


class NeverForgetsCalibration(ddu.DDU):
    def _settle(self, *seen, **options):
        calibration = self.calibration
        super()._settle(*seen, **options).calibration = calibration
        return self


class FlagsTheKnown(ddu.DDU):
    def predict(self, x, **options):
        p = super().predict(x, **options)
        if p.verdict is None:
            return p
        flipped = np.where(
            p.verdict == Verdict.OUT_OF_DISTRIBUTION, Verdict.IN_DISTRIBUTION, Verdict.OUT_OF_DISTRIBUTION
        )
        return replace(p, verdict=flipped)


class AlwaysGivesVerdicts(ddu.DDU):
    def predict(self, x, **options):
        p = super().predict(x, **options)
        return replace(p, verdict=np.full(len(p), Verdict.AMBIGUOUS, dtype=object)) if p.verdict is None else p


class CriesWolf(ddu.DDU):
    def calibrate(self, loader, false_alarm_rate=0.01, **options):
        return super().calibrate(loader, 3 * false_alarm_rate, **options)


class ForgetsTheTemperature(ddu.DDU):
    def save(self, folder, **options):
        calibration = self.calibration
        self.calibration = calibration and replace(calibration, temperature=1.0)
        super().save(folder, **options)
        self.calibration = calibration


class SavesOnce(ddu.DDU):
    def save(self, folder, **options):
        if not (Path(folder) / "detector.safetensors").exists():
            super().save(folder, **options)


class SavesAfterAll(ddu.DDU):
    can_save = False


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (ActsUnfitted, "before fit, predict raises NotFittedError, unless there is nothing to learn. It predicted."),
        (ReturnsAnother, "fit and calibrate return the detector. fit returns something else."),
        (TakesSamples, "a data set in place of a loader, and name the DataLoader that they need. fit took it."),
        (RefusesSamplesCurtly, "and name the DataLoader that they need. calibrate says: No."),
        (ScalesInputsInPlace, "inputs and labels are left as they were. After predict this is different: inputs."),
        (LeavesEvaluationMode, "gradients and hooks are left as they were. After predict this is different: mode of 0"),
        (LeavesAHook, "hooks are left as they were. After fit this is different: hooks of model (Sequential)."),
        (ClearsGradients, "hooks are left as they were. After calibrate this is different: gradient of 0.bias"),
        (Seeds, "the global random state is left as it was. After fit this is different: torch."),
        (DrawsFromPython, "the global random state is left as it was. After predict this is different: python."),
        (Unnormalised, "probabilities sum to one, the label is the likeliest class"),
        (EntropyInBits, "aleatoric and the entropy of the probabilities: relative difference 0.4"),
        (FlippedSign, "epistemic is -log_density where there is a density, and the sum of its parts where it has"),
        (HidesAPart, "the sum of its parts where it has any. epistemic and the sum of the parts: "),
        (Jitters, "predicting twice gives the same. epistemic is different the second time."),
        (RanksWithinTheBatch, "neither the order of a batch nor its size changes a prediction. epistemic in batches"),
        (TensorsOnly, "numpy arrays give the same as tensors. AttributeError: 'numpy.ndarray' object has no"),
        (SkipsTheFirstBatch, "fitting in other batches gives the same. epistemic after a fit in other batches"),
        (NeverForgetsSamples, "fitting again forgets the earlier fit and its calibration. epistemic of a second fit"),
        (NeverForgetsCalibration, "calibration. There are verdicts from the calibration of the earlier fit."),
        (FlippedDensity, "inputs far from the training data have a larger epistemic score. A far input scores above"),
        (AlwaysGivesVerdicts, "fitting again forgets the earlier fit and its calibration. There are verdicts"),
        (FlagsTheKnown, "inputs far from the training data have a larger epistemic score. 0% of them are flagged"),
        (CriesWolf, "about the false-alarm rate of new data is flagged. Asked for 0.1 ± 0.071, 0.2"),
        (ForgetsTheTemperature, "one that cannot be saved says so. probs is different after loading."),
        (SavesAfterAll, "says so. It declares can_save = False, and does not raise a NotSupportedError."),
        (SavesOnce, "saving over an older detector replaces it. The folder still holds the older calibration."),
    ],
)
def test_a_broken_detector_is_named(broken, promise):
    with pytest.raises(AssertionError) as caught:
        check_detector(broken)
    message = str(caught.value)
    assert message.startswith("The contract says: ")
    assert promise in message


def test_a_score_of_logits_alone_passes_without_the_check_of_distance():
    with pytest.raises(AssertionError, match="inputs far from the training data have a larger epistemic score"):
        check_detector(Softmax)
    check_detector(Softmax, distance_aware=False)


@pytest.mark.parametrize("options", [{}, {"normalize": True}, {"standardize": True}, {"pca": 3}, {"shrinkage": None}])
@pytest.mark.parametrize("covariance", ["full", "shared", "diagonal", "low_rank"])
def test_the_gaussian_density_keeps_to_the_contract(covariance, options):
    check_density(lambda: ddu.GaussianDensity(covariance, rank=2, **options))


class Density(ddu.GaussianDensity):
    """One that can be broken: its `fit` makes a density of its own kind."""

    def fit(self, z, y):
        self._moments, self._cache = None, {}
        return self.update(z, y)


class ScoresUnfitted(Density):
    def log_density(self, z):
        return super().log_density(z) if self.is_fitted else torch.zeros(len(z))


class Upside(Density):
    def log_density(self, z):
        return -super().log_density(z)


class KeepsOld(Density):
    def fit(self, z, y):
        return self.update(z, y)


class LastPieceOnly(Density):
    def update(self, z, y, **options):
        self._moments: ClassMoments | None = None
        return super().update(z, y, **options)


class TensorsOut(Density):
    def log_density(self, z):
        return torch.as_tensor(super().log_density(z))


class CentresInPlace(Density):
    def update(self, z, y, **options):
        z -= 0.01
        return super().update(z, y, **options)


class WithinBatch(Density):
    def log_density(self, z):
        scores = super().log_density(z)
        return scores - scores.max()


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (ScoresUnfitted, "before fit, log_density raises NotFittedError. It gave scores."),
        (Upside, "samples far from the training data have a lower log-density. A far sample scores below a training"),
        (KeepsOld, "fitting again forgets the earlier fit. log-densities of a second fit and of a first: relative"),
        (
            LastPieceOnly,
            "update in pieces and merge of shards give what fit gives. LabelError: Classes 0, 2 have 1 sample",
        ),
        (TensorsOut, "numpy arrays in give the same as numpy arrays out. A Tensor came out."),
        (CentresInPlace, "features and labels are left as they were. After fit this is different: features."),
        (WithinBatch, "neither the order of samples nor their number changes a log-density. log-densities of 7"),
    ],
)
def test_a_broken_density_is_named(broken, promise):
    with pytest.raises(AssertionError) as caught:
        check_density(broken)
    assert promise in str(caught.value)


@pytest.mark.parametrize(
    ("contract", "checks"),
    [(check_detector, detectors._CHECKS), (check_density, densities._CHECKS)],
)
def test_the_docstring_lists_every_check_in_order(contract, checks):
    listed = [line.strip()[2:] for line in contract.__doc__.splitlines() if line.strip().startswith("- ")]
    assert listed == [check.__doc__.removesuffix(".") for check in checks]


def test_the_classifier_of_the_contract_has_learned_something_but_not_everything():
    x, y = blobs(600, seed=0)
    accuracy = (detectors.classifier(x, y).eval()(x).argmax(1) == y).double().mean()
    assert 0.7 < accuracy < 0.99
