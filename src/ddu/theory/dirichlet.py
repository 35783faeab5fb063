"""Moments of the entropy of a random categorical distribution, p ~ Dir(α), and the Dirichlet that has given moments.

An ensemble has a mean prediction p̄ and a mutual information I. The Dirichlet with both is a model of its members, and
its variance of the entropy says how much the entropies of single networks scatter. The paper has these formulas with
misprints (`docs/theory.md`); here they are as Monte Carlo confirms them.

Concentrations α are (..., class), not negative and with a positive sum α₀; a class with α_i = 0 never occurs. All is
computed in double precision.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.special import digamma, polygamma

from ddu.errors import InputError

# α₀ is looked for between 2⁻⁵⁰ and 2⁵⁰, and the interval halved, in log α₀, until it has no more digits
_LARGEST, _HALVINGS = 50.0, 60


def expected_entropy(alpha: Tensor) -> Tensor:
    """E[H] = ψ(α₀ + 1) − Σ α_i/α₀ ψ(α_i + 1), the mean entropy in nats, (...).

    >>> expected_entropy(torch.ones(2))  # p is uniform on [0, 1]: ∫ −2 p log p dp
    tensor(0.5000, dtype=torch.float64)
    """
    alpha, total = _checked(alpha)
    return digamma(total + 1) - (alpha / total[..., None] * digamma(alpha + 1)).sum(-1)


def mutual_information(alpha: Tensor) -> Tensor:
    """H[E p] − E[H], what a draw from the Dirichlet tells about the class in nats, (...).

    >>> mutual_information(torch.ones(2))  # log 2 − 1/2
    tensor(0.1931, dtype=torch.float64)
    """
    alpha, total = _checked(alpha)
    return torch.special.entr(alpha / total[..., None]).sum(-1) - expected_entropy(alpha)


def entropy_variance(alpha: Tensor) -> Tensor:
    """Var[H], the variance of the entropy, (...).

    With f_i = ψ(α_i + 1) − ψ(α₀ + 2) and g_i = ψ(α_i + 2) − ψ(α₀ + 2),

        Var[H] = Σ_i α_i(α_i + 1) / α₀(α₀ + 1) · (g_i² + ψ'(α_i + 2) − ψ'(α₀ + 2))
               + Σ_{i≠j} α_i α_j / α₀(α₀ + 1) · (f_i f_j − ψ'(α₀ + 2))
               − E[H]².

    Different from the paper: the trigamma function of i ≠ j is at α₀ + 2, where its shorthand reads α₀ + 1.

    It is a difference of numbers of order 1, so it is right up to about 10⁻¹⁵: few digits are left from α₀ = 10¹⁰ on,
    and from 10⁶ on where all α_i are the same, since the variance then falls like 1 / α₀².

    >>> entropy_variance(torch.tensor([1.0, 2.0, 3.0]))
    tensor(0.0276, dtype=torch.float64)
    """
    alpha, total = _checked(alpha)
    start = total[..., None]
    share = alpha / start  # and not α itself, whose square may overflow
    f, g = digamma(alpha + 1) - digamma(start + 2), digamma(alpha + 2) - digamma(start + 2)
    common = polygamma(1, start + 2)
    same = share * ((alpha + 1) / (start + 1)) * (g**2 + polygamma(1, alpha + 2) - common)
    # Σ_{i≠j} α_i α_j (f_i f_j − ψ') = (Σ α_i f_i)² − Σ (α_i f_i)² − ψ' (α₀² − Σ α_i²)
    weighted = share * f
    others = weighted.sum(-1) ** 2 - (weighted**2).sum(-1) - common[..., 0] * (1 - (share**2).sum(-1))
    return same.sum(-1) + total / (total + 1) * others - expected_entropy(alpha) ** 2


def entropy_covariance(alpha: Tensor, i: int, j: int, n: int = 1, m: int = 1) -> Tensor:
    """Cov[p_iⁿ log p_i, p_jᵐ log p_j], of which the variance of the entropy is the sum for n = m = 1, (...).

    With the rising factorial x^(n) = x(x + 1)…(x + n − 1), for i ≠ j

        α_i^(n) α_j^(m) / α₀^(n+m) · ((ψ(α_i + n) − ψ(α₀ + n + m)) (ψ(α_j + m) − ψ(α₀ + n + m)) − ψ'(α₀ + n + m))
        − E[p_iⁿ log p_i] E[p_jᵐ log p_j],    E[p_iⁿ log p_i] = α_i^(n) / α₀^(n) · (ψ(α_i + n) − ψ(α₀ + n)).

    For i = j, α_i^(n) α_j^(m) becomes α_i^(n+m), both digamma functions are at α_i + n + m, and ψ'(α_i + n + m) is
    added.
    Different from the paper: the last product is subtracted, and its second factor has ψ(α₀ + m).

    Args:
        alpha: Concentrations, (..., class).
        i: A class.
        j: A class, perhaps the same.
        n: The power of p_i, at least 1.
        m: The power of p_j, at least 1.
    """
    if min(n, m) < 1:
        raise InputError(f"Both powers must be at least 1. Got {n} and {m}.")
    alpha, total = _checked(alpha)
    classes = alpha.shape[-1]
    if not all(-classes <= one < classes for one in (i, j)):
        raise InputError(f"Classes must be from {-classes} to {classes - 1}. Got {i} and {j}.")
    i, j = i % classes, j % classes
    a, b, both = alpha[..., i], alpha[..., j], n + m
    if i == j:
        weight = _rising_ratio([(a, both)], total)
        product = (digamma(a + both) - digamma(total + both)) ** 2 + polygamma(1, a + both)
    else:
        weight = _rising_ratio([(a, n), (b, m)], total)
        product = (digamma(a + n) - digamma(total + both)) * (digamma(b + m) - digamma(total + both))
    moments = [_rising_ratio([(x, k)], total) * (digamma(x + k) - digamma(total + k)) for x, k in ((a, n), (b, m))]
    return weight * (product - polygamma(1, total + both)) - moments[0] * moments[1]


def fit_dirichlet(mean: Tensor, mutual_information: Tensor) -> Tensor:
    """The Dirichlet with a mean p̄ and a mutual information I: α = α₀ p̄, (..., class).

    α₀ solves H[p̄] − I = ψ(α₀ + 1) − Σ p̄_i ψ(α₀ p̄_i + 1). The right side rises from 0 to H[p̄] as α₀ does from 0 to ∞, so
    there is exactly one solution for 0 < I < H[p̄], which is found by bisection, and none at the ends.

    Args:
        mean: Mean predictions, (..., class).
        mutual_information: In nats, (...).

    >>> fit_dirichlet(torch.tensor([0.25, 0.75]), torch.tensor(0.1))
    tensor([1.0487, 3.1461], dtype=torch.float64)
    """
    mean, information = mean.double(), mutual_information.double()
    if mean.ndim < 1 or not (mean >= 0).all() or not (mean.sum(-1) > 0).all() or not mean.isfinite().all():
        values = f" and values from {mean.min():.3g} to {mean.max():.3g}" if mean.numel() else ""
        raise InputError(
            f"Mean predictions (..., class) must be finite and not negative, with a positive sum. Got the shape "
            f"{tuple(mean.shape)}{values}."
        )
    try:
        torch.broadcast_shapes(mean.shape[:-1], information.shape)
    except RuntimeError:
        raise InputError(
            f"Each mean prediction needs a mutual information. Got the shapes {tuple(mean.shape)} and "
            f"{tuple(information.shape)}."
        ) from None
    mean = mean / mean.sum(-1, keepdim=True)
    wanted = torch.special.entr(mean).sum(-1) - information
    high = torch.full_like(wanted, _LARGEST)
    low = -high
    outside = ~((information > 0) & (_entropy_at(mean, low) < wanted) & (wanted < _entropy_at(mean, high)))
    if outside.any():
        first = tuple(torch.nonzero(outside)[0].tolist())
        raise InputError(
            f"A Dirichlet distribution needs a mutual information above 0 and below the entropy of the mean. "
            f"{int(outside.sum())} of {outside.numel()} have none, the first with {information[first]:.3g} and "
            f"{(wanted + information)[first]:.3g} nats: leave them out."
        )
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = _entropy_at(mean, middle) < wanted
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return mean * torch.exp2((low + high) / 2)[..., None]


def _entropy_at(mean: Tensor, log2_total: Tensor) -> Tensor:
    return expected_entropy(mean * torch.exp2(log2_total)[..., None])


def _rising_ratio(above: Sequence[tuple[Tensor, int]], total: Tensor) -> Tensor:
    """The product of rising factorials x(x + 1)…(x + n − 1), divided by that of the total with as many factors."""
    factors = [x + k for x, n in above for k in range(n)]
    return torch.stack([factor / (total + k) for k, factor in enumerate(factors)]).prod(0)


def _checked(alpha: Tensor) -> tuple[Tensor, Tensor]:
    """α in double precision, and its sum."""
    alpha = alpha.double()
    if alpha.ndim < 1 or not alpha.shape[-1]:
        raise InputError(f"Concentrations are (..., class), of at least one class. Got the shape {tuple(alpha.shape)}.")
    total = alpha.sum(-1)
    if not (alpha >= 0).all() or not (total > 0).all() or not total.isfinite().all():
        raise InputError(
            f"Concentrations must be finite and not negative, with a positive sum. Got values from {alpha.min():.3g} "
            f"to {alpha.max():.3g} and sums from {total.min():.3g} to {total.max():.3g}."
        )
    return alpha, total
