"""The density as a scikit-learn estimator."""

from typing import Any, Literal, Self

import numpy as np
import torch

from ddu.density import GaussianDensity
from ddu.errors import InputError, LabelError
from ddu.messages import missing_extra

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
except ModuleNotFoundError as error:
    raise missing_extra("sklearn", "ddu.sklearn") from error

__all__ = ["GaussianDensityClassifier"]


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
        strangers = np.setdiff1d(y, known)
        if len(strangers):
            raise LabelError(
                f"The labels {strangers.tolist()} are not among the {len(known)} classes of the first partial_fit: "
                "name them there, or fit again."
            )
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
