"""Linear predictions of columns from any others, by their correlations alone.

For standard normal columns with correlations C, of which those in K are known, column d has the
mean C_dK C_KK⁻¹ v_K. With C outside of K replaced by the identity all rows have matrices of one
size, whatever they know.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

# Steps of expectation and maximisation, and rows that they look at: a correlation is known to
# 1/√rows in any case.
_STEPS, _ROWS = 30, 4096
_SETTLED = 1e-3

# Numbers of the matrices that are worked on at one time.
_NUMBERS = 2**22

Columns = Float[Tensor, "rows dims"]
Square = Float[Tensor, "dims dims"]


def conditional_means(correlation: Square, v: Columns, known: Bool[Tensor, "rows dims"]) -> Columns:
    """Return the means of the unknown columns given the known ones of each row, else 0."""
    means = []
    size = max(1, _NUMBERS // correlation.numel())
    for some, shown in zip(v.split(size), known.split(size), strict=True):
        mask = shown.to(v.dtype)
        root = torch.linalg.cholesky(_matrices(correlation, mask))
        weights = torch.cholesky_solve((mask * some)[..., None], root)[..., 0]
        means.append((mask * weights) @ correlation * (1 - mask))
    return torch.cat(means)


def regressions_along(
    correlation: Square, order: tuple[int, ...]
) -> Float[Tensor, "dims dims dims"]:
    """Return for each place in the order the regression of what follows on what comes before.

    With W of a place, v @ W are the means of the columns from that place on, and 0 before it.
    """
    found = torch.zeros(len(order), *correlation.shape).to(correlation)
    for place in range(1, len(order)):
        known, others = list(order[:place]), list(order[place:])
        root = torch.linalg.cholesky(correlation[known][:, known])
        rows = torch.tensor(known, device=correlation.device)[:, None]
        found[place][rows, others] = torch.cholesky_solve(correlation[known][:, others], root)
    return found


def learn_correlation(
    v: Columns, observed: Bool[Tensor, "rows dims"], weight: Float[Tensor, "rows"] | None = None
) -> Square:
    """Return the correlations of columns of mean 0 and variance 1 with holes.

    They are those of the normal density that is most likely, found by expectation and
    maximisation, then shrunk towards 0 by as much as minimises the expected error (Ledoit and
    Wolf, 2004), as if the holes had been filled by their means.
    """
    step = max(1, len(v) // _ROWS)
    v, observed = v[::step].double(), observed[::step]
    share = torch.ones_like(v[:, 0]) if weight is None else weight[::step].double()
    share = share / share.sum()
    filled = v.where(observed, 0.0)
    identity = torch.eye(v.shape[1]).to(v)
    if bool(observed.all()):
        covariance = (filled * share[:, None]).T @ filled
    else:
        covariance, mean = identity, torch.zeros_like(v[0])
        for _ in range(_STEPS):
            shrunk = _shrunk(covariance, filled, share)
            filled, spread = _expected(shrunk, v.where(observed, 0.0) - mean, observed, share)
            filled = (filled + mean).where(~observed, v)
            mean = share @ filled
            away = filled - mean
            new = (away * share[:, None]).T @ away + spread
            moved = (new - covariance).abs().max()
            covariance = new
            if moved < _SETTLED:
                break
        filled = filled - mean
    covariance = _shrunk(covariance, filled, share)
    deviation = covariance.diagonal().sqrt()
    return covariance / deviation / deviation[:, None]


def _expected(
    covariance: Square, v: Columns, observed: Tensor, share: Tensor
) -> tuple[Columns, Square]:
    """Return rows with their holes filled by what is expected, and the spread that this leaves."""
    parts, spread = [], torch.zeros_like(covariance)
    size = max(1, _NUMBERS // covariance.numel())
    for some, shown, own in zip(
        v.split(size), observed.split(size), share.split(size), strict=True
    ):
        mask = shown.to(v.dtype)
        root = torch.linalg.cholesky(_matrices(covariance, mask))
        reach = mask[..., None] * covariance
        coefficients = torch.cholesky_solve(reach, root)
        parts.append(torch.einsum("rkd,rk->rd", coefficients, mask * some))
        left = covariance - reach.mT @ coefficients
        hole = 1 - mask
        spread += torch.einsum("r,ri,rij,rj->ij", own, hole, left, hole)
    return torch.cat(parts), spread


def _matrices(covariance: Square, known: Columns) -> Float[Tensor, "rows dims dims"]:
    """Return for each row the covariance of what it knows, the identity elsewhere."""
    return known[:, :, None] * covariance * known[:, None, :] + torch.diag_embed(1 - known)


def _shrunk(covariance: Square, z: Columns, share: Tensor) -> Square:
    """Return the covariance shrunk towards the identity times its mean variance."""
    size = covariance.diagonal().mean()
    target = size * torch.eye(len(covariance)).to(covariance)
    squares, norm = z.square().sum(1), covariance.square().sum()
    quadratic = ((z @ covariance) * z).sum(1)
    noise = share.square() @ (squares.square() - 2 * quadratic + norm)
    distance = (covariance - target).square().sum()
    shrinkage = (noise / distance.clamp(min=1e-12)).clamp(1e-6, 1)
    return torch.lerp(covariance, target, shrinkage)
