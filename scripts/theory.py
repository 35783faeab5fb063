"""Prints the tables of docs/theory.md: formulas as the paper prints them and as they should be, beside Monte Carlo.

python scripts/theory.py
"""

from itertools import product

import torch
from torch import Tensor
from torch.special import digamma, polygamma

from ddu import data
from ddu.results import paper_tables
from ddu.theory import (
    cross_entropies,
    entropy_covariance,
    entropy_variance,
    fit_conditional,
    fit_joint,
    fit_marginal,
)

ALPHAS = ((1.0, 2.0, 3.0), (0.3, 0.3, 0.3, 0.3), (2.0, 0.5), (5.0, 0.1, 1.0), (30.0, 20.0, 10.0, 5.0, 1.0))
DRAWS, BATCHES = 500_000, 8


def main() -> None:
    """Prints all tables in Markdown."""
    print("\n\n".join((covariances(), variances(), objectives())))


def covariances() -> str:
    """The lemma: Cov[p_1ⁿ log p_1, p_2ᵐ log p_2] for n = 1, m = 2."""
    rows = []
    for alpha in ALPHAS:
        given = torch.tensor(alpha, dtype=torch.float64)
        drawn = torch.stack([_covariance(p[:, 0] * p[:, 0].log(), p[:, 1] ** 2 * p[:, 1].log()) for p in _draws(alpha)])
        sign_only = _printed_covariance(given, sign=-1)
        printed, right = _printed_covariance(given, sign=1), entropy_covariance(given, 0, 1, 1, 2)
        rows.append((_name(alpha), _estimate(drawn), *(f"{float(one):.5f}" for one in (printed, sign_only, right))))
    return _table(("α", "Monte Carlo", "as printed", "its sign corrected", "both corrected"), rows)


def variances() -> str:
    """The theorem: Var[H]."""
    rows = []
    for alpha in ALPHAS:
        given = torch.tensor(alpha, dtype=torch.float64)
        drawn = torch.stack([torch.special.entr(p).sum(1).var() for p in _draws(alpha)])
        printed, right = _printed_variance(given), entropy_variance(given)
        rows.append((_name(alpha), _estimate(drawn), *(f"{float(one):.5f}" for one in (printed, right))))
    return _table(("α", "Monte Carlo", "as printed", "corrected"), rows)


def objectives() -> str:
    """The paper's three fits, whether their scores add up as they must, and ours."""
    (table,) = [table for table in paper_tables() if table.label == "table:objective_mismatch"]
    scores = {(one.detectors[0], one.metric): one.mean for one in table.figures}
    rows = []
    for fit in ("conditional", "joint"):
        parts = [scores[f"minimise_{fit}_cross_entropy", f"{name}_cross_entropy"] for name in _SCORES]
        rows.append((f"the paper's, minimal {fit}", *_sums(*parts)))
    points = data.load("three_gaussians")
    z, labels = torch.from_numpy(points.inputs), torch.from_numpy(points.labels)
    gda, lda = fit_joint(z, labels), fit_joint(z, labels, shared=True)
    ours = {
        "conditional, shared covariance": fit_conditional(z, labels, lda, shared=True),
        "conditional": fit_conditional(z, labels, gda),
        "joint": gda,
        "marginal": fit_marginal(z, gda),
    }
    rows += [(f"ours, minimal {name}", *_sums(*cross_entropies(fit, z, labels))) for name, fit in ours.items()]
    return _table(("fit", "H(Y\\|Z)", "H(Y,Z)", "H(Z)", "H(Y,Z) − H(Y\\|Z) − H(Z)"), rows)


_SCORES = ("conditional", "joint", "marginal")


def _printed_covariance(alpha: Tensor, sign: int) -> Tensor:
    """The paper's lemma for i = 1, j = 2, n = 1, m = 2: "+" before the last product, and ψ(α₀ + n) in both factors."""
    a, b, total = alpha[0], alpha[1], alpha.sum()
    first = (digamma(a + 1) - digamma(total + 3)) * (digamma(b + 2) - digamma(total + 3)) - polygamma(1, total + 3)
    last = (digamma(a + 1) - digamma(total + 1)) * (digamma(b + 2) - digamma(total + 1))
    weight = a * b * (b + 1)
    return weight / (total * (total + 1) * (total + 2)) * first + sign * weight / (total**2 * (total + 1)) * last


def _printed_variance(alpha: Tensor) -> Tensor:
    """The paper's theorem, its shorthand read by its definition: −ψ'(α₀ + 1) for i ≠ j."""
    total = alpha.sum()
    wrong = polygamma(1, total + 2) - polygamma(1, total + 1)
    others = sum(alpha[i] * alpha[j] for i, j in product(range(len(alpha)), repeat=2) if i != j)
    return entropy_variance(alpha) + others / (total * (total + 1)) * wrong


def _draws(alpha: tuple[float, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.distributions.Dirichlet(torch.tensor(alpha).double()).sample((DRAWS,)) for _ in range(BATCHES)]


def _covariance(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([x, y]).cov()[0, 1]


def _estimate(batches: Tensor) -> str:
    return f"{batches.mean():.5f} ± {batches.std() / len(batches) ** 0.5:.5f}"


def _sums(conditional: float, joint: float, marginal: float) -> list[str]:
    # Rounded, since the difference of equal numbers has either sign
    return [f"{one:.4f}" for one in (conditional, joint, marginal, round(joint - conditional - marginal, 6) + 0.0)]


def _name(alpha: tuple[float, ...]) -> str:
    return f"({', '.join(f'{one:g}' for one in alpha)})"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) + ("---:",) * (len(head) - 1), *rows))


if __name__ == "__main__":
    main()
