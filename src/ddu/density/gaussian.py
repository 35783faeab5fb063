"""The density: one Gaussian per class, fitted on features after training."""

import copy
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ddu.density._checks import Array, ArrayT, check_counts, check_device, check_features, check_labels, check_state
from ddu.density.covariance import (
    COVARIANCES,
    Covariance,
    dense_covariances,
    make_scorer,
    scatter_form,
    summarise,
)
from ddu.density.moments import ClassMoments, SketchedScatter, split_by_class
from ddu.density.scorers import Scorer
from ddu.density.shrinkage import Blend, Shrinkage, blend
from ddu.density.transforms import fit_affine_map
from ddu.errors import (
    FeatureError,
    FewSamplesWarning,
    InputError,
    LabelError,
    NotFittedError,
    NotSupportedError,
)
from ddu.messages import check_entries

# Rows handled at a time, so that temporary memory does not grow with the number of samples
_CHUNK = 8192


class GaussianDensity:
    """Gaussian discriminant analysis of features: q(z) = Σ_c π_c N(z; μ_c, Σ_c).

    Only moments are kept, in float64, so samples can be streamed (`update`), forgotten (`downdate`) and merged from
    shards (`merge`) in any order. Factors for scoring are computed from the moments on first use.
    Points are scored in their own precision and on their own device: the factors are copied to a new device once and
    kept there. `to(device)` moves everything learned. Numpy arrays in give numpy arrays out.

    Args:
        covariance: "full", one matrix per class (the paper); "shared", the pooled matrix for all; "diagonal",
            independent features; "low_rank", `rank` principal directions per class and an isotropic rest, without d × d
            matrices.
        shrinkage: "auto" gives every class as many pseudo-samples of the pooled covariance as there are features (as
            many as `rank` for "low_rank", one for "diagonal"): with plenty of samples it is the class's own covariance,
            with few it is the pooled one. "oas" and "ledoit_wolf" shrink each class towards its mean variance by as
            much as the estimators of that name say, a number in [0, 1] by that share, None not at all.
        regularization: Added to every variance, relative to the mean variance of the features.
        prior: Class weights π: "empirical", by the number of samples, or "uniform".
        rank: Principal directions of the "low_rank" covariance.
        normalize: Scale every feature vector to unit length first.
        standardize: Scale every feature to unit variance first.
        pca: Project to this many principal components first, or to those that explain this share of the variance.
        background: Also fit one Gaussian to all samples, whatever their class, for `relative_log_density`. Far out the
            wider Gaussian rules that ratio: use it with covariance="shared", where the background is the wider one.
        num_classes: How many classes there are; by default as many as the largest label says.

    Attributes:
        moments_: The moments of the features, from which everything else follows.
        counts_: Samples of each class, (class,).
        means_: Mean of each class, (class, feature), after `normalize`, before `standardize` and `pca`.
        log_prior_: log π, (class,).
        covariances_: Σ_c as they are scored, (class, feature, feature), after all transforms.
        shrinkage_: Share of each class's covariance not learned from the class alone, (class,).
        regularization_: The absolute variance that `regularization` came to.

    Example:
        >>> import torch
        >>> z = torch.cat([torch.randn(100, 2), torch.randn(100, 2) + 6])
        >>> y = torch.arange(2).repeat_interleave(100)
        >>> density = GaussianDensity().fit(z, y)
        >>> density.log_density(torch.tensor([[0.0, 0.0], [3.0, 3.0], [6.0, 6.0]])).argmin()
        tensor(1)
    """

    def __init__(
        self,
        covariance: Covariance = "full",
        *,
        shrinkage: Shrinkage = "auto",
        regularization: float = 1e-6,
        prior: Literal["empirical", "uniform"] = "empirical",
        rank: int = 32,
        normalize: bool = False,
        standardize: bool = False,
        pca: int | float | None = None,
        background: bool = False,
        num_classes: int | None = None,
    ):
        self.covariance: Covariance = covariance
        self.shrinkage: Shrinkage = shrinkage
        self.regularization = regularization
        self.prior = prior
        self.rank = rank
        self.normalize = normalize
        self.standardize = standardize
        self.pca = pca
        self.background = background
        self.num_classes = num_classes
        self._moments: ClassMoments | None = None
        self._cache: dict[tuple[torch.device, torch.dtype], _Factors] = {}

    def __repr__(self) -> str:
        return f"GaussianDensity({', '.join(f'{name}={value!r}' for name, value in self.get_params().items())})"

    def get_params(self) -> dict[str, Any]:
        """The constructor's arguments, as they are set now."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    # Learning

    def fit(self, z: Array, y: Array) -> "GaussianDensity":
        """Fits to samples, forgetting earlier ones.

        Args:
            z: Features, (sample, feature).
            y: Labels, (sample,), integers from 0.
        """
        fresh = GaussianDensity(**self.get_params()).update(z, y)
        if not fresh.is_fitted:
            raise FeatureError("There are 0 samples to fit to: every class needs at least 2.")
        fresh.prepare()
        self._moments, self._cache = fresh._moments, fresh._cache
        return self

    def update(self, z: Array, y: Array) -> "GaussianDensity":
        """Adds samples to those seen so far."""
        _check_parameters(self)
        features = check_features(z, dim=self._moments.dim if self._moments else None)
        labels = check_labels(y, samples=len(features), num_classes=self.num_classes)
        if len(labels):
            moments = self._room_for(int(labels.max()) + 1, features.shape[1], features.device)
            for rows, targets in zip(features.split(_CHUNK), labels.split(_CHUNK), strict=True):
                moments.add(self._unit_length(rows.to(moments.device, torch.float64)), targets)
            self._cache = {}
        return self

    def downdate(self, z: Array, y: Array) -> "GaussianDensity":
        """Forgets samples that were seen before, as if they never had been."""
        moments = self.moments_
        features = check_features(z, dim=moments.dim)
        labels = check_labels(y, samples=len(features), num_classes=moments.num_classes).to(moments.device)
        features = self._unit_length(features.to(moments.device, torch.float64))
        for label, rows in split_by_class(features, labels):
            _check_removable(moments, label, rows)
        for rows, targets in zip(features.split(_CHUNK), labels.split(_CHUNK), strict=True):
            moments.remove(rows, targets)
        seen = moments.count.nonzero()
        if not len(seen):
            self._moments = None
        elif self.num_classes is None:
            moments.resize(int(seen[-1]) + 1)
        self._cache = {}
        return self

    def merge(self, other: "GaussianDensity") -> "GaussianDensity":
        """Adds the samples that another density has seen, for instance from another shard of the data."""
        mine, theirs = self.get_params(), other.get_params()
        if mine != theirs:
            differing = ", ".join(f"{k}={mine[k]!r} and {theirs[k]!r}" for k in mine if mine[k] != theirs[k])
            raise InputError(f"Densities with different parameters do not merge: {differing}. Make both alike.")
        if other._moments is None:
            return self
        if self._moments is not None and self._moments.dim != other._moments.dim:
            raise FeatureError(
                f"A density of {self._moments.dim} features does not merge with one of {other._moments.dim}: "
                "fit both on the same layer."
            )
        moments = self._room_for(other._moments.num_classes, other._moments.dim, other._moments.device)
        moments.merge(other._moments.to(moments.device))
        self._cache = {}
        return self

    def prepare(self) -> "GaussianDensity":
        """Computes the factors for scoring now instead of on first use; refuses classes with too few samples."""
        self._factors()
        return self

    def to(self, device: torch.device | str | None = None) -> "GaussianDensity":
        """Moves everything learned to a device, in place, as `nn.Module.to` does.

        Copies of the factors on other devices are dropped. The precision is kept: moments are always float64. A device
        without double precision gets only the factors, when points are scored there.
        """
        check_device(device)
        if self._moments is not None and device is not None:
            exact = self._cache.get((self._moments.device, torch.float64))
            self._moments = self._moments.to(_with_double(torch.device(device)))
            home = self._moments.device
            self._cache = {} if exact is None else {(home, torch.float64): exact.to(home)}
        return self

    # Scoring

    def log_density(self, z: ArrayT) -> ArrayT:
        """log q(z) = log Σ_c π_c N(z; μ_c, Σ_c), (sample,)."""
        return self._score(z, _Factors.log_density)

    def class_log_density(self, z: ArrayT) -> ArrayT:
        """log N(z; μ_c, Σ_c), (sample, class)."""
        return self._score(z, _Factors.class_log_density)

    def posterior(self, z: ArrayT) -> ArrayT:
        """p(c | z) ∝ π_c N(z; μ_c, Σ_c), (sample, class)."""
        return self._score(z, _Factors.posterior)

    def background_log_density(self, z: ArrayT) -> ArrayT:
        """log q₀(z) of the single Gaussian fitted to all samples, (sample,)."""
        self._need_background()
        return self._score(z, _Factors.background_log_density)

    def relative_log_density(self, z: ArrayT) -> ArrayT:
        """log q(z) - log q₀(z), (sample,): low where no class explains z better than one Gaussian of all data."""
        self._need_background()
        return self._score(z, _Factors.relative_log_density)

    def mahalanobis(self, z: Tensor) -> Tensor:
        """Squared distances (z - μ_c)ᵀ Σ_c⁻¹ (z - μ_c), (sample, class); unlike log-densities differentiable in z."""
        return self._distances(z, background=False)

    def background_mahalanobis(self, z: Tensor) -> Tensor:
        """The squared distance to the single Gaussian fitted to all samples, (sample,); differentiable in z."""
        self._need_background()
        return self._distances(z, background=True).squeeze(1)

    # What was learned

    @property
    def is_fitted(self) -> bool:
        """Whether any samples have been seen."""
        return self._moments is not None

    @property
    def moments_(self) -> ClassMoments:
        if self._moments is None:
            raise NotFittedError(
                "This GaussianDensity has seen no samples yet. Call fit(z, y) or update(z, y) before scoring."
            )
        return self._moments

    @property
    def counts_(self) -> Tensor:
        return self.moments_.count

    @property
    def means_(self) -> Tensor:
        return self.moments_.mean

    @property
    def log_prior_(self) -> Tensor:
        counts = self.moments_.count.double()
        return (counts / counts.sum() if self.prior == "empirical" else torch.full_like(counts, 1 / len(counts))).log()

    @property
    def covariances_(self) -> Tensor:
        _, moments = _transformed(self)
        return dense_covariances(self.covariance, moments, _blend(self, moments), self.rank)

    @property
    def shrinkage_(self) -> Tensor:
        return _blend(self, _transformed(self)[1]).weight

    @property
    def regularization_(self) -> float:
        return _blend(self, _transformed(self)[1]).regularization

    def state_tensors(self) -> dict[str, Tensor]:
        """Everything learned, by name; `restore(density.get_params(), tensors)` is the same density."""
        moments = self.moments_
        sketch = {"test_matrix": moments.form.test_matrix} if isinstance(moments.form, SketchedScatter) else {}
        return moments.tensors() | sketch

    @classmethod
    def restore(cls, params: dict[str, Any], tensors: dict[str, Tensor]) -> "GaussianDensity":
        """A density from its parameters and `state_tensors`."""
        check_entries("the density", params, cls().get_params())
        density = cls(**params)
        _check_parameters(density)
        shape = tuple(tensors["mean"].shape) if "mean" in tensors else ()
        if len(shape) != 2 or 0 in shape or density.num_classes not in (None, shape[0]):
            raise InputError(
                f"The learned tensor 'mean' must have the shape ({density.num_classes or 'classes'}, features). "
                f"Got {shape} instead."
            )
        moments = density._moments = density._empty_moments(*shape, torch.device("meta"))
        check_state(tensors, density.state_tensors())
        if isinstance(moments.form, SketchedScatter):
            moments.form = SketchedScatter(tensors["test_matrix"])
        for name in moments.tensors():
            setattr(moments, name, tensors[name].clone())
        if moments.count.min() < 0 or moments.count.double().sum() >= 2**53 or (moments.squares < 0).any():
            raise InputError(
                "The learned tensors 'count' and 'squares' must not be negative, nor the counts above 2⁵³."
            )
        return density.prepare()

    # Plumbing

    def _room_for(self, num_classes: int, dim: int, device: torch.device) -> ClassMoments:
        """The moments, made on first use and grown where a new class turned up."""
        num_classes = self.num_classes or num_classes
        if self._moments is None:
            self._moments = self._empty_moments(num_classes, dim, _with_double(device))
        elif num_classes > self._moments.num_classes:
            self._moments.resize(num_classes)
        return self._moments

    def _empty_moments(self, num_classes: int, dim: int, device: torch.device) -> ClassMoments:
        form = scatter_form(self.covariance, dim, self.rank, pca=self.pca is not None)
        return ClassMoments(form, num_classes, dim, quartic=self.shrinkage == "ledoit_wolf", device=device)

    def _unit_length(self, z: Tensor) -> Tensor:
        if not self.normalize:
            return z
        # By the largest entry first: in single precision the squares of large features overflow
        largest = z.abs().amax(1, keepdim=True)
        return torch.nn.functional.normalize(z / torch.where(largest > 0, largest, 1.0), dim=1)

    def _need_background(self) -> None:
        if not self.background:
            raise NotSupportedError(
                "This GaussianDensity has no background density. Make it with GaussianDensity(background=True)."
            )

    def _score(self, z: ArrayT, method: "Callable[[_Factors, Tensor], Tensor]") -> ArrayT:
        features = check_features(z, dim=self.moments_.dim)
        factors = self._factors(features.dtype, features.device)
        with torch.no_grad():
            scores = torch.cat([method(factors, self._unit_length(rows)) for rows in features.split(_CHUNK)])
        if features.dtype == torch.float32 and not torch.isfinite(scores).all():
            # Squared distances overflow single precision: clamp instead of returning -inf and NaN
            limit = torch.finfo(torch.float32).max
            exact = self._score(features.to(self.moments_.device, torch.float64), method)
            scores = torch.as_tensor(exact).clamp(-limit, limit).to(scores)
        return cast(ArrayT, scores if isinstance(z, Tensor) else scores.numpy())

    def _distances(self, z: Tensor, background: bool) -> Tensor:
        checked = check_features(z, dim=self.moments_.dim)
        factors = self._factors(checked.dtype, checked.device)
        scorer = factors.background if background else factors.scorer
        assert scorer is not None
        return scorer.mahalanobis(factors.transform(self._unit_length(z.to(checked.dtype))))

    def _factors(self, dtype: torch.dtype = torch.float64, device: torch.device | None = None) -> "_Factors":
        """The factors for scoring, computed in float64 once and cast on first use."""
        moments = self.moments_
        exact = (moments.device, torch.float64)
        if exact not in self._cache:
            self._cache[exact] = _Factors.of(self)
        wanted = (device or moments.device, dtype)
        if wanted not in self._cache:
            self._cache[wanted] = copy.deepcopy(self._cache[exact]).to(*wanted)
        return self._cache[wanted]


class _Factors(nn.Module):
    """Everything that scoring needs, in the precision and on the device it scores in."""

    def __init__(self, transform: nn.Module, scorer: Scorer, background: Scorer | None):
        super().__init__()
        self.transform, self.scorer, self.background = transform, scorer, background

    @classmethod
    def of(cls, density: GaussianDensity) -> "_Factors":
        """Factorises the covariances of a density."""
        transform, moments = _transformed(density)
        _warn_of_few_samples(density, moments)
        coefficients = _blend(density, moments)
        scorer = make_scorer(density.covariance, moments, coefficients, density.log_prior_, density.rank)
        if not density.background:
            return cls(transform, scorer, None)
        everything, ridge = moments.total(), coefficients.regularization
        # The same ridge for classes and background: where both are degenerate, their distances must cancel
        coefficients = _blend(density, everything, ridge)
        certain = torch.zeros_like(everything.mean[:, 0])
        return cls(transform, scorer, make_scorer(density.covariance, everything, coefficients, certain, density.rank))

    def log_density(self, z: Tensor) -> Tensor:
        return self.scorer.log_density(self.transform(z))

    def class_log_density(self, z: Tensor) -> Tensor:
        return self.scorer.class_log_density(self.transform(z))

    def posterior(self, z: Tensor) -> Tensor:
        return torch.softmax(self.class_log_density(z) + self.scorer.log_prior, dim=1)

    def background_log_density(self, z: Tensor) -> Tensor:
        assert self.background is not None
        return self.background.log_density(self.transform(z))

    def relative_log_density(self, z: Tensor) -> Tensor:
        return self.log_density(z) - self.background_log_density(z)


def _with_double(device: torch.device) -> torch.device:
    """The device, or the CPU in place of an accelerator that has no double precision."""
    return torch.device("cpu") if device.type == "mps" else device


def _transformed(density: GaussianDensity) -> tuple[nn.Module, ClassMoments]:
    """The map of the features that comes first, and the moments behind it."""
    moments = density.moments_
    check_counts(moments.count)
    if not density.standardize and density.pca is None:
        return nn.Identity(), moments
    transform = fit_affine_map(moments, standardize=density.standardize, pca=density.pca)
    return transform, transform.moments(moments)


def _blend(density: GaussianDensity, moments: ClassMoments, ridge: float | None = None) -> Blend:
    """The coefficients of the covariances, with an absolute ridge in place of the relative one where it is given."""
    coefficients = blend(
        *summarise(density.covariance, moments),
        density.shrinkage,
        shared=density.covariance == "shared",
        prior_samples={"diagonal": 1, "low_rank": density.rank}.get(density.covariance, moments.dim),
        regularization=density.regularization if ridge is None else 0.0,
    )
    if ridge is None:
        return coefficients
    return replace(coefficients, ridge=coefficients.ridge + ridge, regularization=ridge)


def _check_parameters(density: GaussianDensity) -> None:
    def refuse(name: str, wanted: str) -> None:
        value = getattr(density, name)
        raise InputError(f"The '{name}' parameter of GaussianDensity must be {wanted}. Got {value!r} instead.")

    shrinkage, pca, number = density.shrinkage, density.pca, (int, float)
    if density.covariance not in COVARIANCES:
        refuse("covariance", f"one of {', '.join(map(repr, COVARIANCES))}")
    if isinstance(shrinkage, number):
        if not 0 <= shrinkage <= 1:
            refuse("shrinkage", "a float in [0, 1]")
    elif shrinkage not in ("auto", "oas", "ledoit_wolf", None):
        refuse("shrinkage", "None, a float in [0, 1], 'auto', 'oas' or 'ledoit_wolf'")
    if not isinstance(density.regularization, number) or not 0 <= density.regularization <= sys.float_info.max:
        refuse("regularization", "a finite float of at least 0")
    if density.prior not in ("empirical", "uniform"):
        refuse("prior", "'empirical' or 'uniform'")
    if not isinstance(density.rank, int) or not 1 <= density.rank < 2**31:
        refuse("rank", "an integer of at least 1 and below 2³¹")
    for name in ("normalize", "standardize", "background"):
        if getattr(density, name) not in (True, False):
            refuse(name, "True or False")
    if pca is not None and not ((isinstance(pca, int) and pca >= 1) or (isinstance(pca, float) and 0 < pca < 1)):
        refuse("pca", "None, a number of components, or a share of the variance between 0 and 1")
    if density.num_classes is not None and (not isinstance(density.num_classes, int) or density.num_classes < 1):
        refuse("num_classes", "None or an integer of at least 1")
    if shrinkage == "ledoit_wolf" and (density.covariance != "full" or density.standardize or pca is not None):
        raise NotSupportedError(
            f"shrinkage='ledoit_wolf' needs covariance='full' without standardize or pca. Got covariance="
            f"{density.covariance!r}, standardize={density.standardize}, pca={pca}: use shrinkage='oas', which goes "
            "with all of them."
        )


def _check_removable(moments: ClassMoments, label: int, rows: Tensor) -> None:
    seen = int(moments.count[label])
    if len(rows) > seen:
        raise LabelError(
            f"Cannot forget {len(rows)} samples of class {label}: only {seen} have been seen. "
            "Give downdate the samples that were given to fit or update."
        )
    spread = (rows - moments.mean[label]).square().sum()
    if spread > moments.squares[label].sum() * (1 + 1e-6):
        raise FeatureError(
            f"These {len(rows)} samples of class {label} spread further ({float(spread):.4g}) than all {seen} that "
            f"have been seen ({float(moments.squares[label].sum()):.4g}), so they were not among them. Give downdate "
            "the samples that were given to fit or update."
        )


def _warn_of_few_samples(density: GaussianDensity, moments: ClassMoments) -> None:
    few = (moments.count <= moments.dim).nonzero().flatten().tolist()
    if density.covariance != "full" or not few:
        return
    named = ", ".join(f"{label} ({int(moments.count[label])} samples)" for label in few[:5])
    consequence = {
        "auto": "The pooled covariance of all classes fills in (shrinkage='auto')",
        None: "Only the regularization keeps it invertible (shrinkage=None): prefer shrinkage='auto'",
    }.get(density.shrinkage if not isinstance(density.shrinkage, float) else "number", "Shrinkage fills in")
    warnings.warn(
        f"The covariance of {len(few)} of {moments.num_classes} classes is singular, with no more samples than "
        f"features ({moments.dim}): {named}{', ...' if len(few) > 5 else ''}. {consequence}. For a sharper density "
        f"give each class more than {moments.dim} samples, or use covariance='shared', 'low_rank' or pca=.",
        FewSamplesWarning,
        stacklevel=6,
    )
