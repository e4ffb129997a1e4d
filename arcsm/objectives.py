"""Score-matching objectives as plain functions of a model's scores and a batch.

Each returns one number: the mean over rows (weighted, if `weight` is given) of a sum over
dimensions. A *conditional* score field maps x to (s, ∂s), the conditional scores
s_d = ∂ log q(x_d | x_<d)/∂x_d and their derivatives in x_d, both of shape (rows, dims). A *joint*
score field maps x to s(x), R^D → R^D. On a conditional field exact score matching is composite
score matching, because the Jacobian is triangular; the paper's SM, SSM and DSM train joint fields,
and its SSM-AR is `ssm` on the scores of a conditional one.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.conditional.noise import Noise
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
    if weight.shape != terms.shape or bool((weight < 0).any()) or not bool(weight.sum() > 0):
        raise InputError(
            f"expected {len(terms)} weights, not negative and not all zero, got shape"
            f" {tuple(weight.shape)}; pass one weight for each row"
        )
    return (weight * terms).sum() / weight.sum()


def csm(
    conditional_scores: ConditionalScores, x: Rows, *, weight: Weight = None
) -> Float[Tensor, ""]:
    """Composite score matching (Eq. 5 of the paper): mean of Σ_d ½ s_d² + ∂s_d/∂x_d."""
    score, derivative = conditional_scores(x)
    return weighted_mean((score.square() / 2 + derivative).sum(-1), weight)


def annealed_csm(
    conditionals: Callable[[Rows, Float[Tensor, "rows dims levels"]], Conditional],
    x: Rows,
    noise: Noise,
    *,
    levels: int = 1,
    mix: float = 0.0,
    weight: Weight = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, ""]:
    """Composite score matching over noise levels, all at once (Appendix C.2 of the paper).

    Each scalar gets `levels` noise levels σ of its own. Its noisy value x̃_d = x_d + σ ε enters the
    head, and the context sees x̂ = x + σ̂ ε̂ with σ̂ = σ_min at every level: `conditionals(x̂, σ)`
    returns the conditionals, of batch shape (rows, dims, levels). A noise of one level is a stage
    of the paper's staged scheme.

    At σ > 0 denoising score matching has the same optimum, E[s ε/σ] = E[s'] by Stein's identity.
    `mix` ∈ [0, 1] blends the two, 0 for CSM and 1 for DSM; a half has the smaller variance.
    Level σ weighs σ²(1 + σ²), which makes the error of the preconditioned network count equally.
    """
    shape = (*x.shape, levels)
    sigma = noise.draw(shape, generator=generator, device=x.device).to(x.dtype)
    epsilon = torch.randn(shape, generator=generator, dtype=x.dtype, device=x.device)
    context_noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    return perturbed_csm(
        conditionals(x + noise.sigma_min * context_noise, sigma),
        x,
        sigma,
        epsilon,
        mix=mix,
        weight=weight,
    )


def perturbed_csm(
    conditional: Conditional,
    x: Rows,
    sigma: Float[Tensor, "rows dims levels"],
    epsilon: Float[Tensor, "rows dims levels"],
    *,
    mix: float = 0.0,
    weight: Weight = None,
) -> Float[Tensor, ""]:
    """Return the annealed objective for noise that was drawn already."""
    noisy = x[..., None] + sigma * epsilon
    score, derivative = (part[..., 0] for part in conditional.jet(noisy[..., None]))
    term = score.square() / 2
    if mix < 1:
        term = term + (1 - mix) * derivative
    if mix > 0:
        term = term + mix * score * epsilon / sigma
    variance = sigma.square()
    return weighted_mean((variance * (1 + variance) * term).sum(1).mean(-1), weight)


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
