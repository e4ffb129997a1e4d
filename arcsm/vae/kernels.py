"""Scores from draws alone, by kernels: Stein's identity with a ridge, and its spectral form.

With K_ij = exp(−|z_i − z_j|²/2h²) and S_i = Σ_j ∇_{z_j} K_ij, Stein's identity says K G = −S for
the scores G at the draws, up to sampling noise. Li and Turner (2018) solve it with a ridge,
G = −(K + ηI)⁻¹ S; the estimator of Shi, Sun and Zhu (2018), at the draws, is the same with the
leading eigenvectors of K alone, G = −U_J Λ_J⁻¹ U_Jᵀ S. All posteriors of a batch are done at once.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.devices import matmul_precision

Draws = Float[Tensor, "*batch draws dims"]

# Kernels of a thousand draws have eigenvalues from 0 to a thousand: smaller ridges drown in it.
SMALLEST_RIDGE = 1e-6
# With a smaller one single precision would not do.
_RIDGE_OF_FLOATS = 1e-4


def stein_scores(z: Draws, ridge: float) -> Draws:
    """Return scores at the draws by Stein's identity; `ridge` is η."""
    # On a GPU double precision takes longer than the rest of a step.
    exact = z if z.is_cuda and ridge >= _RIDGE_OF_FLOATS else z.double()
    with matmul_precision("highest"):
        kernel, pushes = _kernel_and_pushes(exact)
        kernel.diagonal(dim1=-2, dim2=-1).add_(ridge)
        # Without a look at success, which would wait for the device. With a ridge it fails only in
        # single precision, among draws thousands of times as far apart as others: no numbers then.
        factor, failed = torch.linalg.cholesky_ex(kernel)
        half = torch.linalg.solve_triangular(factor, pushes, upper=False)
        scores = -torch.linalg.solve_triangular(factor.mT, half, upper=True).to(z.dtype)
        return torch.where(failed[..., None, None] > 0, math.nan, scores)


def spectral_scores(z: Draws, share: float) -> Draws:
    """Return scores at the draws by the eigenvectors that hold a `share` of the kernel's trace.

    How many that are is found for each posterior of the batch, each time.
    """
    exact = z.float() if z.dtype in (torch.float16, torch.bfloat16) else z
    with matmul_precision("highest"):
        kernel, pushes = _kernel_and_pushes(exact)
    try:
        values, vectors = torch.linalg.eigh(kernel)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # draws have left the numbers
        return torch.full_like(z, math.nan)
    values = values.clamp_min(0)
    # Eigenvalues ascend. One counts unless those above it already hold the share.
    above = values.sum(-1, keepdim=True) - values.cumsum(-1)
    kept = above < share * values.sum(-1, keepdim=True)
    inverse = torch.where(kept & (values > 0), 1 / values.clamp_min(1e-12), 0.0)
    return (-(vectors * inverse[..., None, :]) @ (vectors.mT @ pushes)).to(z.dtype)


def _kernel_and_pushes(
    z: Draws,
) -> tuple[Float[Tensor, "*batch draws draws"], Draws]:
    """Return K, whose width h is the median distance of two draws, and S.

    Products are to be taken in full precision: with fewer digits K would have negative eigenvalues.
    """
    z = z - z.mean(-2, keepdim=True)  # nearer to 0, squares lose fewer digits
    squares = z.square().sum(-1)
    distance = (squares[..., None] + squares[..., None, :] - 2 * z @ z.mT).clamp_min(0)
    count = z.shape[-2]
    same = torch.eye(count, dtype=torch.bool, device=z.device)
    # Of an even number the lower one of the middle two, without the zeros of the diagonal; found
    # without sorting, which would take longer than all else.
    far = distance.masked_fill(same, -1.0).flatten(-2)
    middle = count + (count * (count - 1) + 1) // 2
    width = far.kthvalue(middle, -1).values[..., None, None].clamp_min(1e-12)
    kernel = torch.exp(-distance / (2 * width))
    return kernel, (z * kernel.sum(-1, keepdim=True) - kernel @ z) / width
