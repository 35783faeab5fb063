"""The density: one Gaussian per class, fitted on features after training."""

import copy
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ddu.density._checks import (
    Array,
    ArrayT,
    check_classes,
    check_counts,
    check_device,
    check_features,
    check_labels,
    check_mean,
    check_removable,
    check_state,
)
from ddu.density.covariance import (
    COVARIANCES,
    Blend,
    Covariance,
    Shrinkage,
    blend,
    dense_covariances,
    make_scorer,
    own_precision,
    scatter_form,
    summarise,
)
from ddu.density.factors import DensityGraph, Factors, fit_affine_map, restored_factors, unit_length
from ddu.density.memory import affordable_covariance, memory_needed
from ddu.density.moments import ClassMoments, SketchedScatter, split_by_class
from ddu.density.scorers import Scorer
from ddu.errors import FeatureError, FewSamplesWarning, InputError, LabelError, NotFittedError, NotSupportedError
from ddu.messages import check_entries, frames_to_the_caller

Scoring = Callable[[Scorer, Tensor], Tensor]

# Rows handled at a time, so that temporary memory does not grow with the number of samples
_CHUNK = 8192

# What begins the names of the factors among the learned tensors
_FACTORS = "factors."


class GaussianDensity:
    """Gaussian discriminant analysis of features: q(z) = Σ_c π_c N(z; μ_c, Σ_c).

    Only moments are kept, in float64, so samples can be streamed (`update`), forgotten (`downdate`) and merged from
    shards (`merge`) in any order. Factors for scoring are computed from the moments on first use.
    Points are scored in their own precision and on their own device: the factors are copied to a new device once and
    kept there. `to(device)` moves everything learned. Numpy arrays in give numpy arrays out.

    Args:
        covariance: "full", one matrix per class (the paper); "shared", the pooled matrix for all; "diagonal",
            independent features; "low_rank", `rank` principal directions per class and an isotropic rest, without d × d
            matrices. "auto" decides with the first samples: "full", or "shared" where one matrix per class would take
            more than half of the memory that is available, or where a class is known to have fewer samples than a tenth
            of the number of features.
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
        background: Also have the one Gaussian with the mean and the covariance of q, for `relative_log_density`. Far
            out the wider Gaussian rules that ratio: use it with covariance="shared", where the background is the wider
            one, and the two cancel in every direction in which the class means do not differ.
        num_classes: How many classes there are; by default as many as the largest label says.

    Attributes:
        covariance_: The covariance that was asked for, or that "auto" decided on.
        memory_needed_: Bytes at the peak of fitting, as they are forecast before anything is allocated.
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
        covariance: Covariance | Literal["auto"] = "auto",
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
        self.covariance: Covariance | Literal["auto"] = covariance
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
        self._covariance: Covariance | None = None
        self._count: Tensor | None = None  # of a density that was restored without moments
        self._cache: dict[tuple[torch.device, torch.dtype], Factors] = {}

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
        fresh = GaussianDensity(**self.get_params())
        fresh._add(z, y, expected_samples=len(z))
        if not fresh.is_fitted:
            raise FeatureError("There are 0 samples to fit to: every class needs at least 2.")
        fresh.prepare()
        self._moments, self._covariance = fresh._moments, fresh._covariance
        self._count, self._cache = None, fresh._cache
        return self

    def update(
        self, z: Array, y: Array, *, expected_samples: int | None = None, reserved: int = 0
    ) -> "GaussianDensity":
        """Adds samples to those seen so far.

        Args:
            z: Features, (sample, feature).
            y: Labels, (sample,), integers from 0.
            expected_samples: How many samples there will be in all, where that is known: covariance="auto" asks for it
                with the first ones.
            reserved: Bytes of the available memory that others are going to need, such as the other densities of a sum.
        """
        self._add(z, y, expected_samples, reserved)
        return self

    def downdate(self, z: Array, y: Array) -> "GaussianDensity":
        """Forgets samples that were seen before, as if they never had been."""
        moments = self.moments_
        features = check_features(z, dim=moments.dim)
        labels = check_labels(y, samples=len(features), num_classes=moments.num_classes).to(moments.device)
        features = self._unit_length(features.to(moments.device, torch.float64))
        for label, rows in split_by_class(features, labels):
            check_removable(moments, label, rows)
        for rows, targets in zip(features.split(_CHUNK), labels.split(_CHUNK), strict=True):
            moments.remove(rows, targets)
        seen = moments.count.nonzero()
        if not len(seen):
            self._moments = self._covariance = None
        elif self.num_classes is None:
            moments.resize(int(seen[-1]) + 1)
        self._cache = {}
        return self

    def merge(self, other: "GaussianDensity") -> "GaussianDensity":
        """Adds the samples that another density has seen, for instance from another shard of the data.

        Where covariance="auto" decided differently, both become "shared": of one matrix for all there is no way back.
        """
        mine, yours = self.get_params(), other.get_params()
        if mine != yours:
            differing = ", ".join(f"{k}={mine[k]!r} and {yours[k]!r}" for k in mine if mine[k] != yours[k])
            raise InputError(f"Densities with different parameters do not merge: {differing}. Make both alike.")
        if not other.is_fitted:
            return self
        theirs = other.moments_
        self._need_moments()
        if self._moments is not None and self._moments.dim != theirs.dim:
            raise FeatureError(
                f"A density of {self._moments.dim} features does not merge with one of {theirs.dim}: "
                "fit both on the same layer."
            )
        decided = "shared" if "shared" in (self._covariance, other._covariance) else other._covariance
        moments = self._room_for(theirs.num_classes, theirs.dim, theirs.device, decided=decided)
        if other._covariance != self._covariance:
            theirs = theirs.pooled()
        moments.merge(theirs.to(moments.device))
        self._cache = {}
        return self

    def keep_classes(self, classes: Sequence[int]) -> "GaussianDensity":
        """Forgets all classes but these, which are then numbered from 0 in this order; those must have no samples."""
        moments = self.moments_
        classes = check_classes(classes, moments.num_classes)
        left_out = sorted(set(moments.count.nonzero().flatten().tolist()) - set(classes))
        if left_out:
            raise LabelError(
                f"Class {left_out[0]} has {int(moments.count[left_out[0]])} samples, and only classes without any are "
                "forgotten: keep it as well, or fit again without its samples."
            )
        moments.select(classes)
        self.num_classes = len(classes) if self.num_classes is not None else None
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
        if device is not None and self._count is not None:
            self._count = self._count.to(device)
            (factors,) = (factors for (_, dtype), factors in self._cache.items() if dtype == torch.float32)
            self._cache = {(self._count.device, torch.float32): factors.to(device)}
        elif self._moments is not None and device is not None:
            dtype = own_precision(self.covariance_)
            own = self._cache.get((self._moments.device, dtype))
            self._moments = self._moments.to(_with_double(torch.device(device)))
            home = self._moments.device
            self._cache = {} if own is None else {(home, dtype): own.to(home)}  # others follow from it
        return self

    # Scoring

    def log_density(self, z: ArrayT) -> ArrayT:
        """log q(z) = log Σ_c π_c N(z; μ_c, Σ_c), (sample,)."""
        return self._score(z, lambda scorer, x: scorer.log_density(x))

    def class_log_density(self, z: ArrayT) -> ArrayT:
        """log N(z; μ_c, Σ_c), (sample, class)."""
        return self._score(z, lambda scorer, x: scorer.class_log_density(x))

    def posterior(self, z: ArrayT) -> ArrayT:
        """p(c | z) ∝ π_c N(z; μ_c, Σ_c), (sample, class)."""
        return self._score(z, lambda scorer, x: (scorer.class_log_density(x) + scorer.log_prior).softmax(1))

    def background_log_density(self, z: ArrayT) -> ArrayT:
        """log q₀(z) of the single Gaussian with the mean and the covariance of q, (sample,)."""
        self._need_background()
        return self._score(z, lambda scorer, x: scorer.background_log_density(x))

    def relative_log_density(self, z: ArrayT) -> ArrayT:
        """log q(z) - log q₀(z), (sample,): low where no class explains z better than one Gaussian of all data."""
        self._need_background()
        return self._score(z, lambda scorer, x: scorer.relative_log_density(x))

    def mahalanobis(self, z: Tensor) -> Tensor:
        """Squared distances (z - μ_c)ᵀ Σ_c⁻¹ (z - μ_c), (sample, class); unlike log-densities differentiable in z."""
        return self._distances(z, lambda scorer, x: scorer.mahalanobis(x))

    def background_mahalanobis(self, z: Tensor) -> Tensor:
        """The squared distance to the background, (sample,); differentiable in z."""
        self._need_background()
        return self._distances(z, lambda scorer, x: scorer.background_mahalanobis(x))

    def relative_mahalanobis(self, z: Tensor) -> Tensor:
        """`mahalanobis` less `background_mahalanobis`, (sample, class), without what cancels; differentiable in z."""
        self._need_background()
        return self._distances(z, lambda scorer, x: scorer.relative_mahalanobis(x))

    # What was learned

    @property
    def is_fitted(self) -> bool:
        """Whether any samples have been seen."""
        return self._moments is not None or self._count is not None

    @property
    def moments_(self) -> ClassMoments:
        self._need_moments()
        if self._moments is None:
            raise NotFittedError(
                "This GaussianDensity has seen no samples yet. Call fit(z, y) or update(z, y) before scoring."
            )
        return self._moments

    @property
    def covariance_(self) -> Covariance:
        return cast(Covariance, (self.is_fitted or self.moments_) and self._covariance)

    @property
    def memory_needed_(self) -> int:
        moments = self.moments_
        return memory_needed(self.covariance_, moments.num_classes, moments.dim, self.rank, pca=self.pca is not None)

    @property
    def num_features_(self) -> int:
        if self._count is None:
            return self.moments_.dim
        return self._factors(torch.float32).width

    @property
    def counts_(self) -> Tensor:
        return self.moments_.count if self._count is None else self._count

    @property
    def means_(self) -> Tensor:
        return self.moments_.mean

    @property
    def log_prior_(self) -> Tensor:
        counts = self.counts_.double()
        return (counts / counts.sum() if self.prior == "empirical" else torch.full_like(counts, 1 / len(counts))).log()

    @property
    def dim_(self) -> int:
        """Features that are scored, after all transforms."""
        return _transformed(self)[1].dim

    @property
    def entropy_(self) -> float:
        """Σ_c π_c (H[N(μ_c, Σ_c)] - log π_c) in nats: the mean of -log q(z) of points from q, if no classes overlap."""
        scorer = self._factors().scorer
        return float(scorer.log_prior.exp() @ (self.dim_ / 2 - scorer.log_norm - scorer.log_prior))

    @property
    def background_entropy_(self) -> float:
        """The mean of -log q₀(z) of points from q, in nats: that of points from q₀, which has the same covariance."""
        self._need_background()
        scorer = self._factors().scorer
        one = scorer.background
        log_norm = scorer.get_buffer("background_log_norm") if one is None else one.get_buffer("log_norm")
        return self.dim_ / 2 - float(log_norm)

    @property
    def covariances_(self) -> Tensor:
        _, moments = _transformed(self)
        return dense_covariances(self.covariance_, moments, _blend(self, moments), self.rank)

    @property
    def shrinkage_(self) -> Tensor:
        return _blend(self, _transformed(self)[1]).weight

    @property
    def regularization_(self) -> float:
        return _blend(self, _transformed(self)[1]).regularization

    def state_tensors(self, *, moments: bool = True, factors: bool = False) -> dict[str, Tensor]:
        """What was learned, by name; `restore(density.get_params(), tensors)` makes a density of it.

        Args:
            moments: The moments in float64, from which all else follows: the same density, which goes on learning.
            factors: What single precision is scored with, in float32, and the counts. A density that is restored from
                them alone has nothing to factorise, and its scores of float32 features are the same to the last bit;
                those of float64 features are exact to single precision. It can score, and not learn.
        """
        tensors = {"count": self.counts_}
        if moments:
            form = self.moments_.form
            tensors = self.moments_.tensors()
            tensors |= {"test_matrix": form.test_matrix} if isinstance(form, SketchedScatter) else {}
        if factors:
            tensors |= {_FACTORS + name: value for name, value in self._factors(torch.float32).state_dict().items()}
        return tensors

    @classmethod
    def restore(cls, params: dict[str, Any], tensors: dict[str, Tensor]) -> "GaussianDensity":
        """A density from its parameters and `state_tensors`: moments, factors, or both."""
        check_entries("the density", params, cls().get_params())
        density = cls(**params)
        _check_parameters(density)
        factors = {name.removeprefix(_FACTORS): value for name, value in tensors.items() if name.startswith(_FACTORS)}
        tensors = {name: value for name, value in tensors.items() if not name.startswith(_FACTORS)}
        if not factors:
            density._restore_moments(tensors)
            return density.prepare()
        covariance, scoring = restored_factors(density, factors)
        num_classes = len(scoring.scorer.log_prior)
        if "mean" not in tensors:
            check_state(tensors, {"count": torch.empty(num_classes, dtype=torch.int64, device="meta")})
            if tensors["count"].min() < 2:
                raise InputError(f"Every class needs at least 2 samples. Got {int(tensors['count'].min())} instead.")
            density._covariance, density._count = covariance, tensors["count"].clone()
        else:
            density._restore_moments(tensors)
            found = (density._covariance, *density.means_.shape)
            if found != (covariance, num_classes, scoring.width):
                raise InputError("The factors and the moments among the learned tensors belong to different densities.")
        density._cache = {(density.counts_.device, torch.float32): scoring}
        return density

    def graph(self) -> DensityGraph:
        """What it scores single precision with, as a module that can be exported; a copy, on the CPU."""
        factors = copy.deepcopy(self._factors(torch.float32)).cpu()
        return DensityGraph(factors, normalize=self.normalize, relative=self.background)

    # Plumbing

    def _restore_moments(self, tensors: dict[str, Tensor]) -> None:
        shape = check_mean("mean", tensors, self.num_classes)
        covariance = self.covariance
        if covariance == "auto":
            # One matrix per class, or one for all
            covariance = "full" if tensors.get("scatter", tensors["mean"]).shape[:1] == shape[:1] else "shared"
        self._covariance = covariance
        moments = self._moments = self._empty_moments(covariance, *shape, torch.device("meta"))
        check_state(tensors, self.state_tensors())
        if isinstance(moments.form, SketchedScatter):
            moments.form = SketchedScatter(tensors["test_matrix"])
        for name in moments.tensors():
            setattr(moments, name, tensors[name].clone())
        if moments.count.min() < 0 or moments.count.double().sum() >= 2**53 or (moments.squares < 0).any():
            raise InputError(
                "The learned tensors 'count' and 'squares' must not be negative, nor the counts above 2⁵³."
            )

    def _need_moments(self) -> None:
        if self._count is not None:
            raise NotSupportedError(
                "This GaussianDensity was loaded without its moments: it scores, and cannot learn, forget, merge or "
                "show its covariances. Save the detector with moments=True, or fit again."
            )

    def _add(self, z: Array, y: Array, expected_samples: int | None, reserved: int = 0) -> None:
        _check_parameters(self)
        self._need_moments()
        features = check_features(z, dim=self._moments.dim if self._moments else None)
        labels = check_labels(y, samples=len(features), num_classes=self.num_classes)
        if len(labels):
            classes, dim = int(labels.max()) + 1, features.shape[1]
            moments = self._room_for(
                classes, dim, features.device, expected_samples=expected_samples, reserved=reserved
            )
            for rows, targets in zip(features.split(_CHUNK), labels.split(_CHUNK), strict=True):
                moments.add(self._unit_length(rows.to(moments.device, torch.float64)), targets)
            self._cache = {}

    def _room_for(
        self,
        num_classes: int,
        dim: int,
        device: torch.device,
        *,
        expected_samples: int | None = None,
        decided: Covariance | None = None,
        reserved: int = 0,
    ) -> ClassMoments:
        """The moments, made on first use and grown where a new class turned up."""
        num_classes = self.num_classes or num_classes
        known = self._moments
        if known is None or num_classes > known.num_classes or decided not in (None, self._covariance):
            num_classes = max(num_classes, known.num_classes if known else 0)
            device = known.device if known else _with_double(device)
            decided = decided or self._covariance
            # Before anything is allocated; the forecast includes what is held already
            reserved -= sum(tensor.nbytes for tensor in known.tensors().values()) if known else 0
            covariance = affordable_covariance(self, num_classes, dim, device, expected_samples, decided, reserved)
            if known is None:
                self._moments = self._empty_moments(covariance, num_classes, dim, device)
            else:
                self._moments = known if covariance == self._covariance else known.pooled()
                self._moments.resize(num_classes)
            self._covariance = covariance
        return self.moments_

    def _empty_moments(self, covariance: Covariance, num_classes: int, dim: int, device: torch.device) -> ClassMoments:
        form = scatter_form(covariance, dim, self.rank, pca=self.pca is not None)
        return ClassMoments(form, num_classes, dim, quartic=self.shrinkage == "ledoit_wolf", device=device)

    def _unit_length(self, z: Tensor) -> Tensor:
        return unit_length(z) if self.normalize else z

    def _need_background(self) -> None:
        if not self.background:
            raise NotSupportedError(
                "This GaussianDensity has no background density. Make it with GaussianDensity(background=True)."
            )

    def _score(self, z: ArrayT, score: Scoring) -> ArrayT:
        features = check_features(z, dim=self.num_features_)
        with torch.no_grad():
            scores = self._apply(score, features)
        return cast(ArrayT, scores if isinstance(z, Tensor) else scores.numpy())

    def _distances(self, z: Tensor, score: Scoring) -> Tensor:
        return self._apply(score, z.to(check_features(z, dim=self.num_features_).dtype))

    def _apply(self, score: Scoring, z: Tensor) -> Tensor:
        """Scores in the precision of the features; what overflows single precision, in double."""
        factors = self._factors(z.dtype, z.device)
        # Autocast would round the products to half precision
        with torch.autocast(z.device.type, enabled=False):
            rows = (factors.transform(self._unit_length(rows)) for rows in z.split(_CHUNK))
            scores = torch.cat([score(factors.scorer, x) for x in rows])
        if z.dtype != torch.float32 or torch.isfinite(scores).all():
            return scores
        exact, limit = self._apply(score, z.to(self.counts_.device, torch.float64)), torch.finfo(torch.float32).max
        return exact.clamp(-limit, limit).to(scores)

    def _factors(self, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Factors:
        """The factors for scoring, computed from the moments once and cast on first use; or restored, and cast."""
        own = own_precision(self.covariance_)
        dtype = dtype or own
        wanted = (device or self.counts_.device, dtype)
        if wanted not in self._cache:
            alike = (
                factors for (_, known), factors in self._cache.items() if known == dtype or self._count is not None
            )
            source = next(alike, None)
            if source is None:
                # Single precision follows from double, unless that is costly and each is computed on its own
                computed = max(dtype, own, key=lambda precision: precision.itemsize)
                home = (self.moments_.device, computed)
                source = self._cache[home] = self._cache.get(home) or _factorised(self, computed)
            if wanted not in self._cache:
                self._cache[wanted] = copy.deepcopy(source).to(*wanted)
        return self._cache[wanted]


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


def _factorised(density: GaussianDensity, dtype: torch.dtype) -> Factors:
    """Factorises the covariances, for scoring in a precision."""
    transform, moments = _transformed(density)
    _warn_of_few_samples(density, moments)
    scorer = make_scorer(
        density.covariance_,
        moments,
        _blend(density, moments),
        density.log_prior_,
        density.rank,
        background=density.background,
        dtype=dtype,
    )
    return Factors(transform.to(dtype), scorer)


def _blend(density: GaussianDensity, moments: ClassMoments) -> Blend:
    """The coefficients of the covariances."""
    return blend(
        *summarise(density.covariance_, moments),
        density.shrinkage,
        shared=density.covariance_ == "shared",
        prior_samples={"diagonal": 1, "low_rank": density.rank}.get(density.covariance_, moments.dim),
        regularization=density.regularization,
    )


def _check_parameters(density: GaussianDensity) -> None:
    def refuse(name: str, wanted: str) -> None:
        value = getattr(density, name)
        raise InputError(f"The '{name}' parameter of GaussianDensity must be {wanted}. Got {value!r} instead.")

    shrinkage, pca, number = density.shrinkage, density.pca, (int, float)
    if density.covariance not in ("auto", *COVARIANCES):
        refuse("covariance", f"one of {', '.join(map(repr, ('auto', *COVARIANCES)))}")
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
    if shrinkage == "ledoit_wolf" and (
        density.covariance not in ("full", "auto") or density.standardize or pca is not None
    ):
        raise NotSupportedError(
            f"shrinkage='ledoit_wolf' needs covariance='full' without standardize or pca. Got covariance="
            f"{density.covariance!r}, standardize={density.standardize}, pca={pca}: use shrinkage='oas', which goes "
            "with all of them."
        )


def _warn_of_few_samples(density: GaussianDensity, moments: ClassMoments) -> None:
    few = (moments.count <= moments.dim).nonzero().flatten().tolist()
    if density.covariance_ != "full" or not few:
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
        stacklevel=frames_to_the_caller(),
    )
