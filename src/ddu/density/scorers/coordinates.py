"""Linear maps that whiten, and that put the directions in which class means differ first."""

import torch
from torch import Tensor


def cholesky(matrix: Tensor) -> Tensor:
    """The lower-triangular L with L Lᵀ = `matrix`, or an ArithmeticError."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    if info.any():
        raise ArithmeticError("the matrix is not positive definite")
    return factor


def inverse_of_triangular(factor: Tensor) -> Tensor:
    """L⁻¹ of a lower-triangular L."""
    identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    return torch.linalg.solve_triangular(factor, identity, upper=False)


def discriminant_basis(mean: Tensor, factor: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A with A L Lᵀ Aᵀ = I for the factor L of a covariance, and A B Aᵀ = diag(b), descending, for the means; and b."""
    white_mean = torch.linalg.solve_triangular(factor, mean.T, upper=False) * weight.sqrt()
    rotation, singular, _ = torch.linalg.svd(white_mean, full_matrices=True)
    return torch.linalg.solve_triangular(factor.T, rotation, upper=True).T, singular.square()


def completed_basis(directions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """An invertible A with the rows B = `directions`: [B; G], F and log |det A|.

    Let Q be an orthonormal basis of the rows of B, turned such that its first k columns are a symmetric P with no
    negative eigenvalue, and R the other columns. Then the rows of [-Rᵀ, I - Rᵀ (I + P)⁻¹ R] are orthonormal, and
    orthogonal to Q: F = Rᵀ and G = [I, (I + P)⁻¹ R].
    """
    rows = len(directions)
    orthonormal = torch.linalg.qr(directions.T).Q.T
    left, _, right = torch.linalg.svd(orthonormal[:, :rows])
    turned = (left @ right).T @ orthonormal
    identity = torch.eye(rows, dtype=directions.dtype, device=directions.device)
    folding = torch.linalg.solve(identity + turned[:, :rows], turned[:, rows:])
    log_det = 0.5 * torch.linalg.slogdet(directions @ directions.T).logabsdet
    return torch.cat([directions, torch.cat([identity, folding], dim=1)]), turned[:, rows:].T, log_det


def in_basis(z: Tensor, basis: Tensor, fold: Tensor) -> Tensor:
    """A z = [B z; z[k:] - F G z] for a completed basis [B; G] and F."""
    rows = len(basis) // 2
    if not rows:
        return z
    first, folded = (z @ basis.T).split(rows, dim=1)
    return torch.cat([first, torch.addmm(z[:, rows:], folded, fold.T, alpha=-1)], dim=1)
