"""Count, mean and scatter of every class: streaming, mergeable and reversible, in float64.

Of a class's scatter matrix S = Σ (z - μ)(z - μ)ᵀ a `ScatterForm` keeps all, only the pooled one, or a sketch. Every
form is a linear map of S. Adding, merging and removing samples is therefore addition and subtraction in each of them,
and the moments need to know nothing else about the covariance model that will be fitted.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


class ScatterForm(ABC):
    """A linear map of the scatter matrices of all classes."""

    @abstractmethod
    def shape(self, num_classes: int, dim: int) -> tuple[int, ...]:
        """The shape of what is kept."""

    @abstractmethod
    def add(self, kept: Tensor, label: int, rows: Tensor, sign: int) -> None:
        """Adds `sign` times rowsᵀ rows to class `label`, in place."""

    def to(self, device: torch.device | str) -> "ScatterForm":
        """The same form for scatter on another device."""
        return self


@dataclass(frozen=True)
class NoScatter(ScatterForm):
    """Nothing beyond the diagonal, which the moments keep for every form."""

    def shape(self, num_classes: int, dim: int) -> tuple[int, ...]:
        return (num_classes, 0)

    def add(self, kept: Tensor, label: int, rows: Tensor, sign: int) -> None:
        pass


@dataclass(frozen=True)
class FullScatter(ScatterForm):
    """The scatter matrix of every class: (class, feature, feature)."""

    def shape(self, num_classes: int, dim: int) -> tuple[int, ...]:
        return (num_classes, dim, dim)

    def add(self, kept: Tensor, label: int, rows: Tensor, sign: int) -> None:
        kept[label].addmm_(rows.T, rows, alpha=sign)


@dataclass(frozen=True)
class PooledScatter(ScatterForm):
    """The sum of the classes' scatter matrices, each about its own mean: (1, feature, feature)."""

    def shape(self, num_classes: int, dim: int) -> tuple[int, ...]:
        return (1, dim, dim)

    def add(self, kept: Tensor, label: int, rows: Tensor, sign: int) -> None:
        kept[0].addmm_(rows.T, rows, alpha=sign)


@dataclass(frozen=True, eq=False)
class SketchedScatter(ScatterForm):
    """The product S Ω with a fixed random matrix Ω (feature, size): (class, feature, size).

    Enough for the leading eigenvectors of S, in memory that grows with d times the size of the sketch instead of d²
    (Tropp, Yurtsever, Udell and Cevher, "Fixed-rank approximation of a positive-semidefinite matrix from streaming
    data", 2017). With size = d, Ω is the identity and nothing is lost.
    """

    test_matrix: Tensor

    @cached_property
    def span(self) -> Tensor:
        """An orthonormal basis of the columns of Ω, (feature, size)."""
        return torch.linalg.qr(self.test_matrix).Q

    @classmethod
    def of_size(cls, dim: int, size: int) -> "SketchedScatter":
        """A sketch with a Gaussian Ω that is the same wherever it is made, so that shards can be merged."""
        if size >= dim:
            return cls(torch.eye(dim, dtype=torch.float64))
        generator = torch.Generator().manual_seed(0)
        return cls(torch.randn(dim, size, generator=generator, dtype=torch.float64))

    def shape(self, num_classes: int, dim: int) -> tuple[int, ...]:
        return (num_classes, dim, self.test_matrix.shape[1])

    def add(self, kept: Tensor, label: int, rows: Tensor, sign: int) -> None:
        kept[label].addmm_(rows.T, rows @ self.test_matrix, alpha=sign)

    def to(self, device: torch.device | str) -> "SketchedScatter":
        return SketchedScatter(self.test_matrix.to(device))


class ClassMoments:
    """The sufficient statistics of one Gaussian per class.

    Everything is centred, and combined by the pairwise formula of Chan, Golub and LeVeque (1979): with counts n, m and
    δ the difference of the means,

        S = S_a + S_b + n m / (n + m) δ δᵀ.

    Removing samples is the same formula with the sign turned. So any split, order or number of shards gives the same
    moments up to rounding, and a mean far from the origin costs no digits.

    Attributes:
        count: Samples of each class, (class,).
        mean: Mean of each class, (class, feature).
        squares: Diagonal of the scatter of each class, (class, feature).
        scatter: What `form` keeps of the scatter.
        cubes: Σ |x|² x of the centred samples, (class, feature); only with `quartic`.
        quarts: Σ |x|⁴ of the centred samples, (class,); only with `quartic`, where Ledoit-Wolf needs it.
    """

    def __init__(
        self,
        form: ScatterForm,
        num_classes: int,
        dim: int,
        *,
        quartic: bool = False,
        device: torch.device | str = "cpu",
    ):
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.form = form.to(device)
        self.count = torch.zeros(num_classes, dtype=torch.int64, device=device)
        self.mean = zeros(num_classes, dim)
        self.squares = zeros(num_classes, dim)
        self.scatter = zeros(*form.shape(num_classes, dim))
        self.cubes = zeros(num_classes, dim) if quartic else None
        self.quarts = zeros(num_classes) if quartic else None

    @property
    def num_classes(self) -> int:
        return self.mean.shape[0]

    @property
    def dim(self) -> int:
        return self.mean.shape[1]

    @property
    def device(self) -> torch.device:
        return self.mean.device

    def add(self, z: Tensor, y: Tensor) -> None:
        """Adds samples."""
        self._combine(z, y, sign=1)

    def remove(self, z: Tensor, y: Tensor) -> None:
        """Takes samples away that were added before."""
        self._combine(z, y, sign=-1)
        # What is left where nothing is left is rounding
        self.squares.clamp_(min=0)
        empty = self.count == 0
        for name, tensor in self.tensors().items():
            if name != "scatter" or len(tensor) == self.num_classes:
                tensor[empty] = 0

    def merge(self, other: "ClassMoments") -> None:
        """Adds the samples that other moments of the same form have seen."""
        for label in torch.nonzero(other.count).flatten().tolist():
            bridge = self._absorb(label, _Samples.behind(other, label), sign=1)
            self.form.add(self.scatter, label, bridge[None], sign=1)
        # Either may know fewer classes than the other; a pooled scatter has one entry whatever they are
        self.scatter[: len(other.scatter)] += other.scatter

    def total(self) -> "ClassMoments":
        """The moments of all samples as one class: the scatter within the classes plus that of their means."""
        total = ClassMoments(self.form, 1, self.dim, quartic=self.quarts is not None, device=self.device)
        total.count[0] = self.count.sum()
        total.mean[0] = self.count.double() @ self.mean / self.count.sum()
        between = (self.mean - total.mean[0]) * self.count.double().sqrt()[:, None]
        total.squares[0] = self.squares.sum(0) + between.square().sum(0)
        total.scatter[0] = self.scatter.sum(0)
        total.form.add(total.scatter, 0, between, sign=1)
        if total.cubes is not None and total.quarts is not None:
            for label in range(self.num_classes):
                cubes, quarts = _Samples.behind(self, label).powers_about(total.mean[0])
                total.cubes[0] += cubes
                total.quarts[0] += quarts
        return total

    def pooled(self) -> "ClassMoments":
        """The same moments with the sum of the full scatter matrices alone."""
        pooled = copy.copy(self)
        pooled.form = PooledScatter()
        pooled.scatter = self.scatter.sum(0, keepdim=True)
        return pooled

    def resize(self, num_classes: int) -> None:
        """Makes room for more classes, or drops the last ones where they are empty."""
        if num_classes == self.num_classes:
            return
        resized = ClassMoments(self.form, num_classes, self.dim, quartic=self.quarts is not None, device=self.device)
        for name, tensor in resized.tensors().items():
            kept = getattr(self, name)[: len(tensor)]
            tensor[: len(kept)] = kept
        self.__dict__.update(resized.__dict__)

    def select(self, classes: list[int]) -> None:
        """Keeps these classes alone, in this order; a pooled scatter stays, so that the others must be empty."""
        known = self.num_classes
        for name, tensor in self.tensors().items():
            if len(tensor) == known or name != "scatter":
                setattr(self, name, tensor[classes])

    def to(self, device: torch.device | str) -> "ClassMoments":
        """The same moments on another device."""
        moved = copy.copy(self)
        moved.form = self.form.to(device)
        for name, tensor in self.tensors().items():
            setattr(moved, name, tensor.to(device))
        return moved

    def tensors(self) -> dict[str, Tensor]:
        """Everything that was learned, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def _combine(self, z: Tensor, y: Tensor, sign: int) -> None:
        for label, rows in split_by_class(z.to(self.device, torch.float64), y.to(self.device)):
            mean = rows.mean(0)
            centred = torch.empty(len(rows) + 1, self.dim, dtype=torch.float64, device=self.device)
            torch.sub(rows, mean, out=centred[:-1])
            centred[-1] = self._absorb(label, _Samples.of(mean, centred[:-1], quartic=self.quarts is not None), sign)
            self.form.add(self.scatter, label, centred, sign)

    def _absorb(self, label: int, samples: "_Samples", sign: int) -> Tensor:
        """Updates everything but the scatter; returns the row √(n m / (n + m)) δ that the scatter still needs.

        With m negative for removal, n m / (n + m) and the new mean are the same expressions either way.
        """
        before = int(self.count[label])
        after = before + sign * samples.count
        delta = samples.mean - self.mean[label]
        mean = self.mean[label] + delta * (sign * samples.count / after) if after else torch.zeros_like(delta)
        bridge = delta * (before * samples.count / after) ** 0.5 if after else torch.zeros_like(delta)
        if self.cubes is not None and self.quarts is not None:
            own_cubes, own_quarts = _Samples.behind(self, label).powers_about(mean)
            cubes, quarts = samples.powers_about(mean)
            self.cubes[label] = own_cubes + sign * cubes
            self.quarts[label] = own_quarts + sign * quarts
        self.count[label] = after
        self.mean[label] = mean
        self.squares[label] += sign * (samples.squares + bridge.square())
        return bridge


@dataclass
class _Samples:
    """Samples of one class, summarised about their own mean."""

    count: int
    mean: Tensor
    squares: Tensor
    cubes: Tensor
    quarts: Tensor
    scatter_times: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, mean: Tensor, centred: Tensor, quartic: bool) -> "_Samples":
        nothing = mean.new_zeros(())
        norm = centred.square().sum(1) if quartic else nothing
        cubes, quarts = (norm @ centred, norm @ norm) if quartic else (nothing, nothing)
        squares = torch.linalg.vector_norm(centred, dim=0).square()
        return cls(len(centred), mean, squares, cubes, quarts, lambda v: centred.T @ (centred @ v))

    @classmethod
    def behind(cls, moments: ClassMoments, label: int) -> "_Samples":
        nothing = moments.mean.new_zeros(())
        return cls(
            int(moments.count[label]),
            moments.mean[label],
            moments.squares[label],
            nothing if moments.cubes is None else moments.cubes[label],
            nothing if moments.quarts is None else moments.quarts[label],
            lambda v: moments.scatter[label] @ v,
        )

    def powers_about(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Σ |x|² x and Σ |x|⁴ with x measured from another mean."""
        shift = self.mean - mean
        length = shift @ shift
        trace = self.squares.sum()
        scattered = self.scatter_times(shift)
        cubes = self.cubes + trace * shift + 2 * scattered + self.count * length * shift
        quarts = (
            self.quarts + 4 * shift @ self.cubes + 2 * length * trace + 4 * shift @ scattered + self.count * length**2
        )
        return cubes, quarts


def split_by_class(z: Tensor, y: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The rows of each class that occurs, with its label."""
    order = torch.argsort(y, stable=True)
    labels, counts = torch.unique_consecutive(y[order], return_counts=True)
    return zip(labels.tolist(), z[order].split(counts.tolist()), strict=True)
