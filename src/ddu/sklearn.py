"""The density, and a detector around a trained network, as scikit-learn estimators."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ddu.density import GaussianDensity
from ddu.detectors import BaseDetector, find_method
from ddu.errors import InputError, LabelError
from ddu.messages import missing_extra
from ddu.types import Prediction

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.model_selection import train_test_split
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data
except ModuleNotFoundError as error:
    raise missing_extra("sklearn", "ddu.sklearn") from error

__all__ = ["DetectorClassifier", "GaussianDensityClassifier"]


class GaussianDensityClassifier(ClassifierMixin, BaseEstimator):
    """Gaussian discriminant analysis that also says how well it knows the neighbourhood of a point.

    A `ddu.GaussianDensity` with the manners of scikit-learn: labels of any kind, pipelines, grid search, pickling. It
    predicts the class with the largest posterior, and `score_samples` gives the log-density: low means unknown.

    Args:
        covariance: As in `ddu.GaussianDensity`, like all that follow.
        shrinkage: How far the covariance of a class is drawn to a simpler one.
        regularization: Added to every variance, relative to the mean variance of the features.
        prior: Class weights.
        rank: Principal directions of the "low_rank" covariance.
        normalize: Scale every feature vector to unit length first.
        standardize: Scale every feature to unit variance first.
        pca: Project to this many principal components, or this share of the variance, first.

    Attributes:
        classes_: The labels, sorted, (class,).
        density_: The fitted `ddu.GaussianDensity`; its class c is `classes_[c]`.

    Example:
        >>> X = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [5.0, 5.0], [6.0, 5.0], [5.0, 6.0]])
        >>> y = ["low", "low", "low", "high", "high", "high"]
        >>> classifier = GaussianDensityClassifier().fit(X, y)
        >>> classifier.predict([[0.5, 0.5], [5.0, 5.5]])
        array(['low', 'high'], dtype='<U4')
        >>> bool(classifier.score_samples([[9.0, -9.0]]) < classifier.score_samples(X).min())
        True
    """

    classes_: np.ndarray
    density_: GaussianDensity
    n_features_in_: int

    def __init__(
        self,
        covariance: Literal["auto", "full", "shared", "diagonal", "low_rank"] = "auto",
        *,
        shrinkage: float | Literal["auto", "oas", "ledoit_wolf"] | None = "auto",
        regularization: float = 1e-6,
        prior: Literal["empirical", "uniform"] = "empirical",
        rank: int = 32,
        normalize: bool = False,
        standardize: bool = False,
        pca: int | float | None = None,
    ):
        self.covariance = covariance
        self.shrinkage = shrinkage
        self.regularization = regularization
        self.prior = prior
        self.rank = rank
        self.normalize = normalize
        self.standardize = standardize
        self.pca = pca

    def fit(self, X: Any, y: Any) -> Self:
        """Fits to samples, forgetting earlier ones.

        Args:
            X: Features, (sample, feature).
            y: Labels of any kind, (sample,).
        """
        X, y = self._checked(X, y)
        classes, labels = np.unique(y, return_inverse=True)
        self.density_ = self._density().fit(X, labels)
        self.classes_ = classes
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Adds samples to those seen so far.

        Args:
            X: Features, (sample, feature).
            y: Labels, (sample,).
            classes: All labels there will ever be; needed on the first call only.
        """
        first = not hasattr(self, "density_")
        if first and classes is None:
            raise InputError("The first call of partial_fit needs classes=, all labels that there will ever be.")
        X, y = self._checked(X, y, reset=first)
        known = np.unique(classes) if first else self.classes_
        _check_known(y, known, "the first partial_fit: name them there, or fit again")
        density = self._density(len(known)) if first else self.density_
        self.density_ = density.update(X, np.searchsorted(known, y))
        self.classes_ = known
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class, (sample,)."""
        likeliest = self.predict_log_proba(X).argmax(1)
        return self.classes_[likeliest]

    def predict_proba(self, X: Any) -> np.ndarray:
        """p(c | x) ∝ π_c N(x; μ_c, Σ_c), (sample, class)."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """log p(c | x), (sample, class), finite however small p is."""
        points = self._points(X)
        joint = self.density_.class_log_density(points) + self.density_.log_prior_
        return torch.log_softmax(torch.as_tensor(joint), dim=1).numpy()

    def score_samples(self, X: Any) -> np.ndarray:
        """The log-density log Σ_c π_c N(x; μ_c, Σ_c), (sample,): the lower, the less is known."""
        return np.asarray(self.density_.log_density(self._points(X)))

    def _density(self, num_classes: int | None = None) -> GaussianDensity:
        return GaussianDensity(**self.get_params(), num_classes=num_classes)

    def _checked(self, X: Any, y: Any, reset: bool = True) -> tuple[np.ndarray, np.ndarray]:
        X, y = validate_data(self, X, y, reset=reset, dtype=[np.float64, np.float32])
        check_classification_targets(y)
        return X, column_or_1d(y, warn=True)

    def _points(self, X: Any) -> torch.Tensor:
        check_is_fitted(self, "density_")
        return torch.from_numpy(validate_data(self, X, reset=False, dtype=[np.float64, np.float32], copy=True))


class DetectorClassifier(ClassifierMixin, BaseEstimator):
    """A trained network with a detector around it, whatever layers the detector reads.

    `fit` learns from samples and calibrates on others; the network stays as it is. It predicts the network's class, and
    `score_samples` is low for inputs that are unlike those samples.

    Args:
        model: The trained network; it returns logits.
        method: The name of a registered method for one network; see `ddu.detectors.list_methods`.
        options: Of the method, such as `{"features": ["layer2", "layer4"]}` for "ddu".
        classes: The label of each output of the network, in order; None for the labels that `fit` is given, sorted.
        false_alarm_rate: The share of inputs like those of `fit` that may be flagged.
        held_out: The share of the samples that `fit` calibrates on, unless it is given others.
        batch_size: Inputs that the network is shown at a time.
        random_state: Decides which samples are held out.

    Attributes:
        classes_: The labels, in the order of the network's outputs, (class,).
        detector_: The fitted and calibrated detector.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(400, 2))
        >>> y = np.where(X[:, 0] + rng.logistic(size=400) > 0, "right", "left")
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(2, 2))
        >>> weights = {"1.weight": torch.tensor([[0.0, 0.0], [1.0, 0.0]]), "1.bias": torch.zeros(2)}
        >>> model.load_state_dict(weights)  # as good as trained
        <All keys matched successfully>
        >>> classifier = DetectorClassifier(model, false_alarm_rate=0.05).fit(X, y)
        >>> classifier.predict([[3.0, 0.0]])
        array(['right'], dtype='<U5')
        >>> classifier.judge([[30.0, 90.0]]).verdict[0]
        <Verdict.OUT_OF_DISTRIBUTION: 'out_of_distribution'>
    """

    classes_: np.ndarray
    detector_: BaseDetector

    def __init__(
        self,
        model: nn.Module,
        method: str = "ddu",
        *,
        options: Mapping[str, Any] | None = None,
        classes: Sequence[Any] | None = None,
        false_alarm_rate: float = 0.01,
        held_out: float = 0.2,
        batch_size: int = 256,
        random_state: int = 0,
    ):
        self.model = model
        self.method = method
        self.options = options
        self.classes = classes
        self.false_alarm_rate = false_alarm_rate
        self.held_out = held_out
        self.batch_size = batch_size
        self.random_state = random_state

    def fit(self, X: Any, y: Any, calibration: tuple[Any, Any] | None = None) -> Self:
        """Learns from samples, and calibrates on samples that were held out.

        Args:
            X: Inputs of the network, (sample, ...).
            y: Labels of any kind, (sample,).
            calibration: Inputs and labels to calibrate on. Give them where the network was trained on X: what it was
                trained on looks more familiar than new inputs, and more of these would be flagged than was asked for.
        """
        targets = column_or_1d(y, warn=True)
        check_classification_targets(targets)
        classes = np.unique(targets) if self.classes is None else np.asarray(self.classes)
        samples = self._samples(X, targets, classes)
        if calibration is None:
            rows, kept = train_test_split(
                np.arange(len(samples)),
                test_size=self.held_out,
                random_state=self.random_state,
                stratify=samples.tensors[1],
            )
            samples, held_out = TensorDataset(*samples[rows]), TensorDataset(*samples[kept])
        else:
            held_out = self._samples(calibration[0], column_or_1d(calibration[1], warn=True), classes)
        options = {"class_names": classes.tolist(), **(self.options or {})}  # as many as the network has outputs
        detector = find_method(self.method).make(self.model, **options)
        detector.fit(DataLoader(samples, self.batch_size))
        detector.calibrate(DataLoader(held_out, self.batch_size), self.false_alarm_rate)
        self.detector_, self.classes_ = detector, classes
        return self

    def judge(self, X: Any) -> Prediction:
        """All that the detector says of inputs: uncertainties, p-values and verdicts."""
        check_is_fitted(self, "detector_")
        return self.detector_.predict(_inputs(X), batch_size=self.batch_size)

    def predict(self, X: Any) -> np.ndarray:
        """The network's class, (sample,)."""
        return self.classes_[self.judge(X).label.cpu().numpy()]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The network's probabilities after temperature scaling, (sample, class)."""
        return self.judge(X).probs.cpu().numpy()

    def score_samples(self, X: Any) -> np.ndarray:
        """Minus the epistemic uncertainty, (sample,): the lower, the less is known."""
        return -self.judge(X).epistemic.cpu().numpy()

    def _samples(self, X: Any, y: np.ndarray, classes: np.ndarray) -> TensorDataset:
        inputs = _inputs(X)
        check_consistent_length(inputs, y)
        _check_known(y, classes, "the network: name the label of each of its outputs by classes=")
        order = classes.argsort()
        return TensorDataset(inputs, torch.from_numpy(order[np.searchsorted(classes, y, sorter=order)]))


def _inputs(X: Any) -> Tensor:
    return X if isinstance(X, Tensor) else torch.from_numpy(np.array(X))  # a copy: arrays may be read-only


def _check_known(labels: np.ndarray, known: np.ndarray, of: str) -> None:
    strangers = np.setdiff1d(labels, known)
    if len(strangers):
        raise LabelError(f"The labels {strangers.tolist()} are not among the {len(known)} classes of {of}.")
