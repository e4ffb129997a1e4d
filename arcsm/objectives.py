"""Score-matching objectives as plain functions of a model's scores and a batch.

Each returns one number: the mean over rows (weighted, if `weight` is given) of a sum over
dimensions. A *conditional* score field maps x to (s, ∂s), the conditional scores
s_d = ∂ log q(x_d | x_<d)/∂x_d and their derivatives in x_d, both of shape (rows, dims). A *joint*
score field maps x to s(x), R^D → R^D. On a conditional field exact score matching is composite
score matching, because the Jacobian is triangular; the paper's SM, SSM and DSM train joint fields,
and its SSM-AR is `ssm` on the scores of a conditional one.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.conditional.noise import Noise
from arcsm.conditional.normaliser import log_normaliser
from arcsm.conditional.protocol import Conditional
from arcsm.errors import InputError

Rows = Float[Tensor, "rows dims"]
Weight = Float[Tensor, "rows"] | None
ConditionalScores = Callable[[Rows], tuple[Rows, Rows]]
JointScore = Callable[[Rows], Rows]


def weighted_mean(terms: Float[Tensor, "rows"], weight: Weight = None) -> Float[Tensor, ""]:
    """Return Σ w_i t_i / Σ w_i, the plain mean without weights."""
    if weight is None:
        return terms.mean()
    if weight.shape != terms.shape:
        raise InputError(
            f"expected {len(terms)} weights, got shape {tuple(weight.shape)};"
            " pass one weight for each row"
        )
    if bool((weight < 0).any()) or not 0 < weight.sum().item() < math.inf:
        raise InputError(
            "expected finite weights, not negative and not all zero, got some of"
            f" {weight.min().item():g} and a sum of {weight.sum().item():g}; correct these"
        )
    return (weight * terms).sum() / weight.sum()


def csm(
    conditional_scores: ConditionalScores, x: Rows, *, weight: Weight = None
) -> Float[Tensor, ""]:
    """Composite score matching (Eq. 5 of the paper): mean of Σ_d ½ s_d² + ∂s_d/∂x_d."""
    score, derivative = conditional_scores(x)
    return weighted_mean((score.square() / 2 + derivative).sum(-1), weight)


class Perturbation(NamedTuple):
    """The noise of one annealed step: σ of each row, ε of each scalar, and ε̂ of the context.

    There may be several ε for each level, on one more axis.
    """

    sigma: Float[Tensor, "rows 1 levels"]
    epsilon: Float[Tensor, "rows dims levels"] | Float[Tensor, "rows dims levels points"]
    context_epsilon: Rows


def draw_perturbation(
    rows: int,
    dims: int,
    noise: Noise,
    *,
    levels: int = 1,
    points: int = 1,
    stage: int | None = None,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Perturbation:
    """Draw the noise for a batch: `levels` noise levels for each row, or that of one stage.

    With several `points` there are as many ε for each level, one in each of so many parts of equal
    probability: their mean is much closer to the expectation over ε than that of independent ones,
    and a further point costs the head little beside the first.

    The scalars of a row share its levels: a column meets as many different levels in a batch as if
    each scalar had its own, and what depends on σ alone is computed once for a row.
    With `stage` = i, counted from 0, all scalars have σ_{i+1} of the ladder: the paper's staged
    scheme trains one network for each stage. The context has σ̂ = σ_L at every stage.
    """
    if stage is None:
        sigma = noise.at(_spread_evenly(rows, levels, generator, device))[:, None]
    else:
        sigma = torch.full((rows, 1, levels), noise.ladder()[stage], device=device)
    if points == 1:
        normal = torch.randn((rows, dims, levels + 1), generator=generator, device=device)
        return Perturbation(sigma, normal[..., :-1], normal[..., -1])
    place = torch.rand((rows, dims, levels, points), generator=generator, device=device)
    share = (torch.arange(points, device=device) + place) / points
    tiny = torch.finfo(share.dtype).eps / 4
    context = torch.randn((rows, dims), generator=generator, device=device)
    return Perturbation(sigma, torch.special.ndtri(share.clamp(tiny, 1 - 2 * tiny)), context)


def _spread_evenly(
    rows: int,
    levels: int,
    generator: torch.Generator | None,
    device: torch.device | str | None,
) -> Float[Tensor, "rows levels"]:
    """Draw numbers from 0 to 1, one in each of rows · levels equal parts: no level is left out.

    Those of a row are a whole part in `levels` apart. Which row has which is no matter, as the
    rows of a batch are in random order.
    """
    place = torch.rand((rows, levels), generator=generator, device=device)
    row = torch.arange(rows, device=device)[:, None]
    return ((row + place) / rows + torch.arange(levels, device=device)) / levels


def annealed_csm_terms(
    conditionals: Callable[[Rows, Float[Tensor, "rows 1 levels"]], Conditional],
    x: Rows,
    noise: Noise,
    perturbation: Perturbation,
    *,
    mix: float = 0.0,
    inputs: Rows | None = None,
) -> Float[Tensor, "rows"]:
    """Return, row by row, composite score matching over noise levels (Appendix C.2 of the paper).

    A noisy value x̃_d = x_d + σ ε enters the head, and the context sees x̂ = x + σ̂ ε̂ with
    σ̂ = σ_min, the same at every level: `conditionals(x̂, σ)` returns the conditionals, of batch
    shape (rows, dims, levels). The term of a scalar is ½ s² + ∂s/∂x̃ at x̃.

    At σ > 0 denoising score matching, ½ (s + ε/σ)², has the same optimum: E[s ε/σ] = E[∂s/∂x̃] by
    Stein's identity. `mix` ∈ [0, 1] blends the two, 0 for CSM and 1 for DSM.
    Level σ weighs σ²(1 + σ²), so that errors of the preconditioned network count equally.
    Contexts may be shown `inputs` in the place of x, in other units or without the jitter that
    spreads a rounded value over its cell.
    """
    sigma, epsilon, context_epsilon = perturbation
    shown = x if inputs is None else inputs
    conditional = conditionals(shown + noise.sigma_min * context_epsilon, sigma)
    if epsilon.ndim == sigma.ndim:
        epsilon = epsilon[..., None]
    level = sigma[..., None]
    score, derivative = conditional.jet(x[..., None, None] + level * epsilon)
    term = score.square() / 2
    if mix < 1:
        term = term + (1 - mix) * derivative
    if mix > 0:
        term = term + mix * score * epsilon / level
    variance = sigma.square()
    return (variance * (1 + variance) * term.mean(-1)).sum(1).mean(-1)


def annealed_csm(
    conditionals: Callable[[Rows, Float[Tensor, "rows 1 levels"]], Conditional],
    x: Rows,
    noise: Noise,
    *,
    levels: int = 1,
    stage: int | None = None,
    mix: float = 0.0,
    weight: Weight = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, ""]:
    """Draw noise and return the mean of `annealed_csm_terms`: all levels at once, or one stage."""
    rows, dims = x.shape
    perturbation = draw_perturbation(
        rows, dims, noise, levels=levels, stage=stage, generator=generator, device=x.device
    )
    perturbation = Perturbation(*(part.to(x.dtype) for part in perturbation))
    return weighted_mean(annealed_csm_terms(conditionals, x, noise, perturbation, mix=mix), weight)


def likelihood_terms(
    conditional: Conditional,
    x: Rows,
    narrowest: float,
    *,
    tolerance: float = 1e-4,
) -> Float[Tensor, "rows"]:
    """Return, row by row, −Σ_d [E(x_d) − log Z_d], each Z integrated, to `tolerance` nats.

    `conditional` has batch shape (rows, dims), and no peak narrower than `narrowest`. The gradient
    is exact as well: none of the energy is left to chance, as importance sampling would.
    """
    energy = conditional.energy(x[..., None])[..., 0]
    log_z = log_normaliser(conditional, narrowest, tolerance=tolerance)
    return (log_z - energy).sum(-1)


def sm(joint_score: JointScore, x: Rows, *, weight: Weight = None) -> Float[Tensor, ""]:
    """Exact score matching (Hyvärinen, 2005): mean of ½‖s‖² + tr ∇s, by D backward passes."""
    x = x.detach().requires_grad_()
    score = joint_score(x)
    trace = torch.zeros_like(score[:, 0])
    for d in range(x.shape[1]):
        (row,) = torch.autograd.grad(score[:, d].sum(), x, create_graph=True)
        trace = trace + row[:, d]
    return weighted_mean(score.square().sum(-1) / 2 + trace, weight)


def ssm(
    joint_score: JointScore,
    x: Rows,
    *,
    projections: int = 1,
    variance_reduced: bool = True,
    weight: Weight = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, ""]:
    """Sliced score matching (Song et al., 2019) with projections v ~ N(0, I).

    mean of vᵀ∇s v + ½(vᵀs)², or, variance reduced, + ½‖s‖², the expectation of the last term.
    """
    x = x.detach().requires_grad_()
    score = joint_score(x)
    v = torch.randn((projections, *x.shape), generator=generator, dtype=x.dtype, device=x.device)
    sliced = torch.zeros_like(score[:, 0])
    for direction in v:
        along = (score * direction).sum(-1)
        (gradient,) = torch.autograd.grad(along.sum(), x, create_graph=True)
        square = score.square().sum(-1) if variance_reduced else along.square()
        sliced = sliced + (gradient * direction).sum(-1) + square / 2
    return weighted_mean(sliced / projections, weight)


def dsm(
    joint_score: JointScore,
    x: Rows,
    *,
    sigma: float,
    weight: Weight = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, ""]:
    """Denoising score matching (Vincent, 2011): mean of ½‖s(x + σε) + ε/σ‖²."""
    if not sigma > 0:
        raise InputError(f"expected a positive sigma, got {sigma}; the objective divides by it")
    epsilon = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    residual = joint_score(x + sigma * epsilon) + epsilon / sigma
    return weighted_mean(residual.square().sum(-1) / 2, weight)


def nll(
    log_prob: Callable[[Rows], Float[Tensor, "rows"]], x: Rows, *, weight: Weight = None
) -> Float[Tensor, ""]:
    """Maximum likelihood: mean of −log q(x)."""
    return weighted_mean(-log_prob(x), weight)
