"""All scalars at once: sampling as the solution of a fixed-point equation.

A deterministic sampler is a triangular map: x_d = F_d⁻¹(u_d | x_<d). Its rows solve x = T(x, u),
and T can be evaluated for all d in one parallel pass. Iterated from any start, the first scalar is
right after one pass, the second after two, … (Jacobi; Song et al., 2021), and where scalars depend
weakly on those before them many settle at once. Solved block after block, each to its end before
the next begins, it is the Gauss-Seidel scheme.

The rule to stop is exact. If a pass leaves the leading scalars of a row as they were, to the bit,
then these and the next one have been computed from final values, and nothing later changes them.
So every pass settles at least one scalar, and the answer is that of the walk along the order; only
the rounding of the passes differs, for they multiply larger matrices.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.sampling.chain import Chain, Draw, Request, quantiles


@dataclass(frozen=True)
class FixedPoint:
    """The rows, and how many passes through the context network they took."""

    x: Float[Tensor, "rows dims"]
    passes: int


def solve_fixed_point(model: Chain, request: Request, how: Draw) -> FixedPoint:
    """Draw the rows of one batch; `how.block` scalars are iterated at a time, all if None."""
    assert request.uniform is not None
    order = torch.tensor(model.context.order, device=model.shift.device)
    dims = model.dims
    block = how.block or dims
    x = request.start(model)
    if request.known == dims:
        return FixedPoint(x, 0)
    unknown = order[request.known :]
    x[:, unknown] = model.centres(x).expand_as(x)[:, unknown]
    rows = torch.arange(request.rows, device=x.device)  # that have not settled
    settled = torch.full_like(rows, request.known)  # of their scalars, so many
    current, passes = x.clone(), 0
    while len(rows):
        first = int(settled.min())
        window = order[first : min(dims, first - first % block + block)]
        condition = None if request.condition is None else request.condition[rows]
        contexts = model.context(model.context_inputs(current), condition)[:, window]
        z = quantiles(
            model,
            contexts.flatten(0, 1),
            request.uniform[rows[:, None], window].flatten(),
            how.method,
        ).view(len(rows), len(window))
        new = z * model.scale[window] + model.centres(current).expand_as(current)[:, window]
        # What has settled stays as it is: a batch of another size is rounded differently.
        place = torch.arange(len(window), device=x.device)
        new = new.where(place >= (settled - first)[:, None], current[:, window])
        unchanged = (new == current[:, window]).to(torch.uint8).cumprod(1).sum(1)
        current[:, window] = new
        reached = torch.clamp(first + unchanged + 1, max=first + len(window))
        settled = torch.maximum(settled, reached)
        passes += 1
        open_rows = settled < dims
        if 2 * int(open_rows.sum()) <= len(rows):
            x[rows] = current
            rows, settled, current = rows[open_rows], settled[open_rows], current[open_rows]
    return FixedPoint(x, passes)
