"""The contract of a detector. Each check is a function whose docstring is the promise."""

import copy
import math
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from ddu.detectors import load as load_detector
from ddu.errors import InputError, NotFittedError, NotSupportedError
from ddu.metrics import auroc
from ddu.testing.contract import CLASSES, INPUTS, Batches, batches, blobs, bytes_of, close, keep, unchanged
from ddu.types import Detector, Prediction, Verdict

_RATE = 0.1

_NUMPY = np.random.mtrand._rand  # the generator behind np.random.rand and its like


def check_detector(
    make_detector: Callable[[nn.Module], Detector],
    *,
    load: Callable[[str | PathLike[str], nn.Module], Detector] = load_detector,
    train: Callable[[Tensor, Tensor], nn.Module] | None = None,
    distance_aware: bool = True,
) -> None:
    """Checks that a detector keeps to the contract, on a small classifier and data that it brings along.

    - before fit, predict raises NotFittedError, unless there is nothing to learn
    - fit and calibrate return the detector
    - fit and calibrate refuse a data set in place of a loader, and name the DataLoader that they need
    - inputs and labels are left as they were
    - the model's modes, parameters, buffers, gradients and hooks are left as they were
    - the global random state is left as it was
    - a prediction has a finite row for each input
    - probabilities sum to one, the label is the likeliest class and aleatoric is their entropy
    - epistemic is -log_density where there is a density, and the sum of its parts where it has any
    - predicting twice gives the same
    - neither the order of a batch nor its size changes a prediction
    - numpy arrays give the same as tensors
    - fitting in other batches gives the same
    - fitting again forgets the earlier fit and its calibration
    - inputs far from the training data have a larger epistemic score
    - verdicts appear with calibrate, and flag the largest epistemic scores
    - about the false-alarm rate of new data is flagged
    - a saved detector loads with the same predictions; one that cannot be saved says so
    - saving over an older detector replaces it
    - to(device) returns the detector, and a move to the device it is on changes no prediction

    Args:
        make_detector: Makes an unfitted detector around a model; called many times.
        load: Reads what the detector's `save` wrote.
        train: Makes a trained classifier of the inputs (sample, 4) and labels 0, 1, 2 that it is given, for detectors
            that need a network of their own kind; by default a small network with a linear head.
        distance_aware: Whether the score knows distance from the training data. One that is a function of the logits
            alone may not; it is then spared that check.

    Raises:
        AssertionError: A promise is broken; the message says which, and how.

    Example:
        >>> import ddu
        >>> check_detector(ddu.DDU)
    """
    x, y = blobs(600, seed=0)
    model = (train or classifier)(x, y)
    for check in _CHECKS:
        if distance_aware or check is not _far_is_unknown:
            data = batches(x, y, 50), batches(*blobs(400, seed=1), 64), blobs(1000, seed=2)[0]
            keep(check, _Case(make_detector, load, _in_use(model, x, y), *data))


# The world of a detector: a small classifier, and blobs that overlap a little


@dataclass
class _Case:
    make: Callable[[nn.Module], Detector]
    load: Callable[[str | PathLike[str], nn.Module], Detector]
    model: nn.Module
    train: Batches
    held_out: Batches
    fresh: Tensor

    def fitted(self, train: Batches | None = None) -> Detector:
        return self.make(self.model).fit(self.train if train is None else train)

    def calibrated(self) -> Detector:
        return self.fitted().calibrate(self.held_out, false_alarm_rate=_RATE)


def classifier(x: Tensor, y: Tensor) -> nn.Module:
    """A small network with a linear head, trained on some samples."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(INPUTS, 16), nn.BatchNorm1d(16), nn.SiLU(), nn.Dropout(0.2), nn.Linear(16, CLASSES)
        )
        # Plain gradient descent by hand: torch.optim would import half a compiler
        for _ in range(60):
            loss = nn.functional.cross_entropy(model(x), y)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter -= 0.5 * gradient
    return model


def _in_use(model: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    """A copy in the middle of training: mixed modes, gradients, a frozen layer, all of which a detector may disturb."""
    model = copy.deepcopy(model)
    nn.functional.cross_entropy(model.eval()(x), y).backward()
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()
    next(model.parameters()).requires_grad_(False)
    return model


# What the checks compare


def _agree(a: Prediction, b: Prediction, what: str) -> None:
    """Two predictions are the same up to the rounding of their precision."""
    for name in ("probs", "aleatoric", "epistemic"):
        close(getattr(a, name), getattr(b, name), f"{name} {what}")
    assert (a.verdict is None) == (b.verdict is None), f"verdicts {what}: {a.verdict} and {b.verdict}."


def _same(a: Prediction, b: Prediction, when: str) -> None:
    for name in ("probs", "label", "aleatoric", "epistemic"):
        assert torch.equal(getattr(a, name), getattr(b, name)), f"{name} is different {when}."
    assert np.array_equal(np.asarray(a.verdict), np.asarray(b.verdict)), f"Verdicts are different {when}."


def _inputs(batches: Batches) -> Tensor:
    return torch.cat([x for x, _ in batches])


def _labels(batches: Batches) -> Tensor:
    return torch.cat([y for _, y in batches])


def _model_state(model: nn.Module) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for name, module in model.named_modules():
        kind = f"{name or 'model'} ({type(module).__name__})"
        state[f"mode of {kind}"] = module.training
        state[f"hooks of {kind}"] = {key: len(value) for key, value in vars(module).items() if key.endswith("_hooks")}
        state[f"attributes of {kind}"] = sorted(vars(module))
    for name, parameter in model.named_parameters():
        state[f"parameter {name}"] = bytes_of(parameter)
        state[f"requires_grad of {name}"] = parameter.requires_grad
        state[f"gradient of {name}"] = bytes_of(parameter.grad)
    return state | {f"buffer {name}": bytes_of(buffer) for name, buffer in model.named_buffers()}


def _random_state() -> dict[str, Any]:
    return {"torch": torch.get_rng_state().tolist(), "numpy": str(_NUMPY.get_state()), "python": random.getstate()}


@contextmanager
def _forked_random_state() -> Iterator[None]:
    """Random states of our own: not those that somebody's fixed seed would give."""
    numpy_state, python_state = _NUMPY.get_state(), random.getstate()
    with torch.random.fork_rng([]):
        for draw in (torch.rand, _NUMPY.rand, random.randrange):
            draw(3)
        yield
    _NUMPY.set_state(numpy_state)
    random.setstate(python_state)


def _run_everything(case: _Case, check: Callable[[str], None]) -> None:
    """The whole life of a detector, with a look after each step."""
    detector = case.make(case.model)
    check("making it")
    detector.fit(case.train)
    check("fit")
    detector.calibrate(case.held_out, false_alarm_rate=_RATE)
    check("calibrate")
    detector.predict(case.fresh)
    check("predict")
    if not detector.can_save:
        return
    with tempfile.TemporaryDirectory() as folder:
        detector.save(Path(folder) / "detector")
        check("save")
        case.load(Path(folder) / "detector", case.model)
        check("load")


def _unfitted_is_refused(case: _Case) -> None:
    """before fit, predict raises NotFittedError, unless there is nothing to learn."""
    detector = case.make(case.model)
    if not detector.needs_fit:
        return
    try:
        detector.predict(case.fresh)
    except NotFittedError:
        return
    raise AssertionError("It predicted.")


def _fit_returns_self(case: _Case) -> None:
    """fit and calibrate return the detector."""
    detector = case.make(case.model)
    assert detector.fit(case.train) is detector, "fit returns something else."
    assert detector.calibrate(case.held_out, false_alarm_rate=_RATE) is detector, "calibrate returns something else."


def _data_set_is_refused(case: _Case) -> None:
    """fit and calibrate refuse a data set in place of a loader, and name the DataLoader that they need."""
    detector = case.fitted()
    for name in ("fit", "calibrate"):
        try:
            getattr(detector, name)(TensorDataset(_inputs(case.train), _labels(case.train)))
        except InputError as error:
            answer = f"{name} says: {error}"
        else:
            answer = f"{name} took it."
        assert "DataLoader" in answer, answer


def _inputs_are_untouched(case: _Case) -> None:
    """inputs and labels are left as they were."""

    def snapshot() -> dict[str, Any]:
        tensors = {
            f"batch {i} of {name}": pair for name in ("train", "held_out") for i, pair in enumerate(vars(case)[name])
        }
        return {name: tuple(map(bytes_of, pair)) for name, pair in tensors.items()} | {"inputs": bytes_of(case.fresh)}

    with unchanged(snapshot) as check:
        _run_everything(case, check)


def _model_is_untouched(case: _Case) -> None:
    """the model's modes, parameters, buffers, gradients and hooks are left as they were."""
    with unchanged(lambda: _model_state(case.model)) as check:
        _run_everything(case, check)


def _random_state_is_untouched(case: _Case) -> None:
    """the global random state is left as it was."""
    with _forked_random_state(), unchanged(_random_state) as check:
        _run_everything(case, check)


def _shapes_and_values(case: _Case) -> None:
    """a prediction has a finite row for each input."""
    for detector in (case.fitted(), case.calibrated()):
        p = detector.predict(case.fresh)
        n = len(case.fresh)
        wanted = {"probs": (n, CLASSES), "label": (n,), "aleatoric": (n,), "epistemic": (n,)}
        for name, shape in wanted.items():
            value = getattr(p, name)
            assert tuple(value.shape) == shape, f"{name} has the shape {tuple(value.shape)} instead of {shape}."
            assert torch.isfinite(value).all(), f"{name} has values that are not finite."
            assert not value.requires_grad, f"{name} still requires gradients."


def _probabilities(case: _Case) -> None:
    """probabilities sum to one, the label is the likeliest class and aleatoric is their entropy."""
    for detector in (case.fitted(), case.calibrated()):
        p = detector.predict(torch.cat([case.fresh, 30 * case.fresh]))
        assert (p.probs >= 0).all(), f"The smallest probability is {float(p.probs.min()):.3g}."
        close(p.probs.sum(1), torch.ones(len(p), dtype=p.probs.dtype), "sums of probabilities")
        assert torch.equal(p.label, p.probs.argmax(1)), "A label is not the class of the largest probability."
        close(p.aleatoric, torch.special.entr(p.probs).sum(1), "aleatoric and the entropy of the probabilities")
        assert (p.aleatoric >= 0).all(), f"The smallest aleatoric is {float(p.aleatoric.min()):.3g}."
        largest = float(p.aleatoric.max())
        assert largest <= math.log(CLASSES) * (1 + 1e-5), f"The largest aleatoric is {largest:.4g}, above log C."


def _epistemic_adds_up(case: _Case) -> None:
    """epistemic is -log_density where there is a density, and the sum of its parts where it has any."""
    for detector in (case.fitted(), case.calibrated()):
        p = detector.predict(case.fresh)
        if p.log_density is not None:
            assert torch.equal(p.epistemic, -p.log_density), f"The first are {p.epistemic[:3]} and {p.log_density[:3]}."
        if p.parts:
            close(torch.stack(list(p.parts.values())).sum(0), p.epistemic, "epistemic and the sum of the parts")


def _predicting_is_pure(case: _Case) -> None:
    """predicting twice gives the same."""
    detector = case.calibrated()
    first = detector.predict(case.fresh)
    detector.predict(case.fresh[:5] + 10)
    second = detector.predict(case.fresh)
    _same(first, second, "the second time")


def _batches_do_not_matter(case: _Case) -> None:
    """neither the order of a batch nor its size changes a prediction."""
    detector = case.fitted()
    x = torch.cat([case.fresh[:60], 5 * case.fresh[60:80]])
    whole = detector.predict(x)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    _agree(detector.predict(x[order]), whole[order], "of a shuffled batch")
    for size in (1, 7):
        parts = [detector.predict(part) for part in x.split(size)]
        for name in ("probs", "aleatoric", "epistemic"):
            joined = torch.cat([getattr(part, name) for part in parts])
            close(joined, getattr(whole, name), f"{name} in batches of {size}")


def _numpy_works(case: _Case) -> None:
    """numpy arrays give the same as tensors."""
    arrays: Any = [(x.numpy(), y.numpy()) for x, y in case.train]
    detector = case.make(case.model).fit(arrays)
    _agree(detector.predict(case.fresh.numpy()), case.fitted().predict(case.fresh), "from arrays and from tensors")


def _fit_batches_do_not_matter(case: _Case) -> None:
    """fitting in other batches gives the same."""
    x, y = _inputs(case.train), _labels(case.train)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    other = case.fitted(batches(x[order], y[order], 171))
    _agree(other.predict(case.fresh), case.fitted().predict(case.fresh), "after a fit in other batches")


def _refit_forgets(case: _Case) -> None:
    """fitting again forgets the earlier fit and its calibration."""
    half = case.train[: len(case.train) // 2]
    again = case.calibrated().fit(half).predict(case.fresh)
    assert again.verdict is None, "There are verdicts from the calibration of the earlier fit."
    _agree(again, case.fitted(half).predict(case.fresh), "of a second fit and of a first one on the same data")


def _far_is_unknown(case: _Case) -> None:
    """inputs far from the training data have a larger epistemic score."""
    detector = case.calibrated()
    far = detector.predict(case.fresh + 20 * torch.nn.functional.normalize(case.fresh))
    known = detector.predict(case.fresh)
    rank = auroc(known.epistemic, far.epistemic)
    assert rank > 0.95, f"A far input scores above a new one from the training distribution {rank:.0%} of the time."
    flagged = float(np.mean(np.asarray(far.verdict) == Verdict.OUT_OF_DISTRIBUTION))
    assert flagged > 0.95, f"{flagged:.0%} of them are flagged as out of distribution."


def _verdicts(case: _Case) -> None:
    """verdicts appear with calibrate, and flag the largest epistemic scores."""
    before = case.fitted().predict(case.fresh).verdict
    assert before is None, f"Before calibrate they are {before}."
    p = case.calibrated().predict(torch.cat([case.fresh, 5 * case.fresh]))
    verdict = np.asarray(p.verdict)
    assert verdict.shape == (len(p),), f"After calibrate they have the shape {verdict.shape} for {len(p)} inputs."
    strange = set(verdict.tolist()) - set(Verdict)
    assert not strange, f"These are not verdicts: {strange}."
    unknown = torch.from_numpy(verdict == Verdict.OUT_OF_DISTRIBUTION)
    assert unknown.any(), "Nothing is flagged, not even inputs far out."
    assert not unknown.all(), "Everything is flagged, also inputs from the training distribution."
    lowest, highest = float(p.epistemic[unknown].min()), float(p.epistemic[~unknown].max())
    assert lowest >= highest, f"An input of epistemic {lowest:.4g} is flagged, and one of {highest:.4g} is not."


def _false_alarms(case: _Case) -> None:
    """about the false-alarm rate of new data is flagged."""
    verdict = np.asarray(case.calibrated().predict(case.fresh).verdict)
    share = float(np.mean(verdict == Verdict.OUT_OF_DISTRIBUTION))
    # Four standard deviations: of the threshold, from n held-out samples, and of the share of m new ones
    held_out = len(_inputs(case.held_out))
    allowed = 4 * math.sqrt(_RATE * (1 - _RATE) * (1 / held_out + 1 / len(case.fresh)))
    assert abs(share - _RATE) <= allowed, f"Asked for {_RATE:g} ± {allowed:.2g}, {share:.3g} were flagged."


def _save_and_load(case: _Case) -> None:
    """a saved detector loads with the same predictions; one that cannot be saved says so."""
    for detector in (case.fitted(), case.calibrated()):
        if not detector.can_save:
            _refuses_to_save(detector)
            continue
        with tempfile.TemporaryDirectory() as folder:
            detector.save(Path(folder) / "new" / "detector")
            loaded = case.load(Path(folder) / "new" / "detector", case.model)
        _same(detector.predict(case.fresh), loaded.predict(case.fresh), "after loading")


def _refuses_to_save(detector: Detector) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            detector.save(Path(folder) / "detector")
        except NotSupportedError:
            assert not any(Path(folder).iterdir()), "It says that it cannot be saved, and leaves a file."
            return
    raise AssertionError("It declares can_save = False, and does not raise a NotSupportedError.")


def _save_replaces(case: _Case) -> None:
    """saving over an older detector replaces it."""
    if not case.make(case.model).can_save:
        return
    newer = case.fitted(case.train[: len(case.train) // 2])
    with tempfile.TemporaryDirectory() as folder:
        case.calibrated().save(folder)
        newer.save(folder)
        loaded = case.load(folder, case.model).predict(case.fresh)
    assert loaded.verdict is None, "The folder still holds the older calibration."
    assert torch.equal(loaded.epistemic, newer.predict(case.fresh).epistemic), "The folder still holds the older fit."


def _follows_to(case: _Case) -> None:
    """to(device) returns the detector, and a move to the device it is on changes no prediction."""
    detector = case.calibrated()
    before = detector.predict(case.fresh)
    assert detector.to("cpu") is detector, "to returns something else."
    _same(before, detector.predict(case.fresh), "after to('cpu')")


_CHECKS: list[Callable[[_Case], None]] = [
    _unfitted_is_refused,
    _fit_returns_self,
    _data_set_is_refused,
    _inputs_are_untouched,
    _model_is_untouched,
    _random_state_is_untouched,
    _shapes_and_values,
    _probabilities,
    _epistemic_adds_up,
    _predicting_is_pure,
    _batches_do_not_matter,
    _numpy_works,
    _fit_batches_do_not_matter,
    _refit_forgets,
    _far_is_unknown,
    _verdicts,
    _false_alarms,
    _save_and_load,
    _save_replaces,
    _follows_to,
]
