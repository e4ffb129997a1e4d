"""The score head: coefficients made from a context, and a score in closed form.

For a scalar x with noise σ, in units of the standardised data (σ_data = 1), let v = 1 + σ² and
u = x/√v. The head is a sum of K tanh steps inside the preconditioning of Karras et al. (2022):

    F(u) = m − q·u + Σ_k a_k tanh(w_k (u − b_k)),          (m, q, a, w, b) = f(context, σ)
    s(x) = −x/v + F(u)/(σ√v)
    E(x) = −x²/2v + (1/σ) [m u − q u²/2 + Σ_k (a_k/w_k) log cosh(w_k (u − b_k))]

so that the score, its derivative and the energy E are closed forms, and another point x costs K
tanh's. Three properties hold for every value of the parameters:

- E → −∞ at least as fast as −x²/2v, since F is bounded but for −q·u with q ≥ 0: both conditions of
  Definition 1 hold, and each conditional can be normalised.
- From the noise level `normal_at` on, if there is one, the steps have no height and the conditional
  is normal, with a mean and a variance of its own: where the noise is several times the spread of
  the data, every smoothed density is as good as normal, and nothing need be integrated. (Towards
  that level q ≥ −0.9σ, and −x²/20v bounds E.)
- The negative slopes of F add up to at most κ/σ, so that s' ≥ −κ/σ²; hence peaks are no narrower
  than σ/√κ, and the probability flow in steps of Heun is increasing (see `flow`). For any real
  density smoothed by σ, s' ≥ −1/σ²: the limit leaves room for steps that lie apart.
"""

import math
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from arcsm.conditional.protocol import Conditional, Family
from arcsm.errors import InputError

__all__ = ["Conditional", "Family", "HeadFamily", "TanhSum", "TanhSumHead"]

# κ, the limit on negative slopes of the denoiser. 1 would forbid steps that overlap; the flow
# needs steps in σ of at most 1/(1 + κ), so that a large one is paid for in sampling.
SLOPE_LIMIT = 4.0

# Every coefficient stays below this, softly. Standardised data needs a tenth of it; the limit keeps
# the range over which a conditional has to be normalised in proportion.
COEFFICIENT_LIMIT = 32.0

_SIGMA_FREQUENCIES = (0.25, 0.5, 1.0, 2.0)


@dataclass(frozen=True)
class TanhSum:
    """Conditionals at one noise level each: the coefficients of the tanh sums.

    `sigma`, `offset` (m) and `pull` (q) have the batch shape, `height` (a), `slope` (w > 0) and
    `centre` (b) one more axis of K steps.
    """

    sigma: Float[Tensor, "*batch"]
    offset: Float[Tensor, "*batch"]
    pull: Float[Tensor, "*batch"]
    height: Float[Tensor, "*batch steps"]
    slope: Float[Tensor, "*batch steps"]
    centre: Float[Tensor, "*batch steps"]

    def jet(
        self, x: Float[Tensor, "*batch points"]
    ) -> tuple[Float[Tensor, "*batch points"], Float[Tensor, "*batch points"]]:
        """Return s and s' in one pass."""
        g = self._gates
        u = x / g.root
        # tanh y = 2/(1 + e^(−2y)) − 1: the logistic function is several times as fast on a CPU.
        gate = torch.sigmoid(g.slope * (u[..., None] - g.centre))
        value = (g.height * gate).sum(-1) + torch.addcmul(g.offset, g.pull, u, value=-1)
        bend = (g.gain * torch.addcmul(gate, gate, gate, value=-1)).sum(-1) - g.pull
        score = (value * g.precision - u) / g.root
        return score, (bend * g.precision - 1) / g.root.square()

    def normal(self) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]] | None:
        """Return mean and standard deviation if the conditionals are normal, else None."""
        if bool((self.height != 0).any()):
            return None
        root = (1 + self.sigma.square()).sqrt()
        width = self.sigma + self.pull
        return self.offset * root / width, root * (self.sigma / width).sqrt()

    def energy(self, x: Float[Tensor, "*batch points"]) -> Float[Tensor, "*batch points"]:
        """Return E, the integral of s from 0 up to a constant."""
        sigma, _, u = self._scaled(x)
        ratio = (self.height / self.slope)[..., None, :]
        steps = (ratio * self._log_cosh(u)).sum(-1)
        return self._smooth_part(u, sigma) + steps / sigma

    def bounds(self) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """Return ends outside which s points inwards at least as in a normal density, 8.5 of its σ.

        s = 0 needs x (σ + q)/√v = m + Σ a tanh, which lies within m ± Σ|a|.
        """
        variance = 1 + self.sigma.square()
        reach = variance.sqrt() / (self.sigma + self.pull)
        height = self.height.abs().sum(-1)
        tail = 8.5 * (variance * self.sigma / (self.sigma + self.pull)).sqrt()
        return reach * (self.offset - height) - tail, reach * (self.offset + height) + tail

    def ceiling(self, x: Float[Tensor, "*batch points"]) -> Float[Tensor, "*batch intervals"]:
        """Bound E between neighbouring points.

        E is a parabola, plus steps up, which are convex and lie below their chord, plus steps down,
        which are concave and lie below their tangents. Parabola plus chord plus the tangent at
        either end is a parabola, whose top is known; the lower of the two tops counts.
        """
        sigma, root, u = self._scaled(x)
        rising, falling = self.height.clamp(min=0), self.height.clamp(max=0)
        log_cosh = self._log_cosh(u)
        convex = ((rising / self.slope)[..., None, :] * log_cosh).sum(-1) / sigma
        concave = ((falling / self.slope)[..., None, :] * log_cosh).sum(-1) / sigma
        energy = convex + concave + self._smooth_part(u, sigma)
        step = torch.tanh(self.slope[..., None, :] * (u[..., None] - self.centre[..., None, :]))
        value = self.offset[..., None] - self.pull[..., None] * u
        value = value + (falling[..., None, :] * step).sum(-1)
        tangent = (value / sigma - u) / root  # of all but the steps up
        bend = (1 + self.pull[..., None] / sigma) / root.square()
        width = x.diff()
        chord = convex.diff() / width.clamp(min=torch.finfo(x.dtype).tiny)

        def top(energy_at_end: Tensor, slope_inwards: Tensor) -> Tensor:
            inwards = torch.minimum((slope_inwards / bend).clamp(min=0), width)
            return energy_at_end + inwards * (slope_inwards - bend * inwards / 2)

        return torch.minimum(
            top(energy[..., :-1], tangent[..., :-1] + chord),
            top(energy[..., 1:], -tangent[..., 1:] - chord),
        )

    def double(self) -> "TanhSum":
        """Return the same coefficients in float64."""
        return TanhSum(*(getattr(self, part.name).double() for part in fields(self)))

    @property
    def _gates(self) -> "_Gates":
        """The steps as logistic functions: what jets share."""
        # A graph that is compiled fuses them, and cannot keep them. Where gradients are asked for,
        # kept ones would belong to another graph, or to none.
        parts = (self.offset, self.height, self.slope)
        tracked = torch.is_grad_enabled() and any(part.requires_grad for part in parts)
        if torch.compiler.is_compiling() or tracked:
            return self._make_gates()
        kept = self.__dict__.get("_kept_gates")
        if kept is None:
            kept = self.__dict__["_kept_gates"] = self._make_gates()
        return kept

    def _make_gates(self) -> "_Gates":
        slope, height = 2 * self.slope, 2 * self.height
        return _Gates(
            root=(1 + self.sigma.square()).sqrt()[..., None],
            precision=(1 / self.sigma)[..., None],
            pull=self.pull[..., None],
            offset=(self.offset - self.height.sum(-1))[..., None],
            slope=slope[..., None, :],
            centre=self.centre.contiguous()[..., None, :],
            height=height[..., None, :],
            gain=(height * slope)[..., None, :],
        )

    def _scaled(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sigma = self.sigma[..., None]
        root = (1 + sigma * sigma).sqrt()
        return sigma, root, x / root

    def _log_cosh(self, u: Tensor) -> Tensor:
        z = (self.slope[..., None, :] * (u[..., None] - self.centre[..., None, :])).abs()
        return z + torch.log1p(torch.exp(-2 * z)) - math.log(2)

    def _smooth_part(self, u: Tensor, sigma: Tensor) -> Tensor:
        square = u * u / 2
        return (self.offset[..., None] * u - self.pull[..., None] * square) / sigma - square


class _Gates(NamedTuple):
    """A tanh sum as a sum of logistic functions, for points on one more axis.

    F(u) = offset − pull·u + Σ height/(1 + exp(−slope (u − centre))), with u = x/root.
    """

    root: Tensor  # √(1 + σ²)
    precision: Tensor  # 1/σ
    pull: Tensor
    offset: Tensor
    slope: Tensor
    centre: Tensor
    height: Tensor
    gain: Tensor  # height · slope


class TanhSumHead(nn.Module):
    """The shared head: a context and a noise level become the coefficients of a tanh sum.

    The context is itself the first hidden layer, to which an embedding of σ is added: that keeps
    the head, which runs for every scalar, small beside the context network. `depth` counts the
    hidden layers. From the noise level `normal_at` on the conditionals are normal.
    """

    sharpness: Float[Tensor, "steps"]

    def __init__(
        self,
        context_width: int,
        *,
        steps: int = 16,
        depth: int = 1,
        normal_at: float | None = None,
    ):
        super().__init__()
        if min(context_width, steps, depth) < 1:
            raise InputError(
                "expected positive context_width, steps and depth, got"
                f" {context_width}, {steps}, {depth}; correct these"
            )
        if normal_at is not None and not normal_at > 0:
            raise InputError(f"expected a positive normal_at, got {normal_at}; or None for never")
        self.context_width, self.steps, self.depth = context_width, steps, depth
        self.normal_at = normal_at
        self.noise = nn.Linear(2 * len(_SIGMA_FREQUENCIES), context_width)
        self.layers = nn.ModuleList(
            nn.Linear(context_width, context_width) for _ in range(depth - 1)
        )
        self.output = nn.Linear(context_width, 3 * steps + 2)
        # Each step has a sharpness of its own, from broad ones (0) to such as σ wide (1): features
        # of a density smoothed by σ come in all widths between.
        sharpness = torch.linspace(0, 1, steps) if steps > 1 else torch.full((1,), 0.5)
        interleaved = torch.cat([sharpness[0::2], sharpness[1::2]])
        self.register_buffer("sharpness", interleaved, persistent=False)
        with torch.no_grad():
            self.output.weight.mul_(0.5)
            start = torch.zeros(3, steps)
            start[0] = 0.05 * (1 - 2 * (torch.arange(steps) % 2))  # heights of both signs
            start[2] = torch.linspace(-2, 2, steps)
            self.output.bias.copy_(torch.cat([start.flatten(), torch.tensor([0.0, -2.0])]))

    @property
    def config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            "context_width": self.context_width,
            "steps": self.steps,
            "depth": self.depth,
            "normal_at": self.normal_at,
        }

    def forward(
        self, context: Float[Tensor, "*#batch width"], sigma: Float[Tensor, "*#batch"]
    ) -> TanhSum:
        """Return the conditionals of `context` at noise levels `sigma`."""
        log_sigma = sigma.log()[..., None]
        angles = torch.cat([log_sigma * f for f in _SIGMA_FREQUENCIES], -1)
        h = F.silu(context + self.noise(torch.cat([angles.sin(), angles.cos()], -1)))
        for layer in self.layers:
            h = F.silu(layer(h))
        raw = self.output(h)
        raw = raw / (1 + raw.abs() / COEFFICIENT_LIMIT)
        height, log_slope, centre, rest = raw.split([self.steps] * 3 + [2], -1)
        # Up to (1 + 1/σ) times as steep as broad steps; e^(±8) around that is room enough.
        usual = torch.log1p(1 / sigma)[..., None] * self.sharpness
        slope = torch.exp(torch.add(usual, log_slope, alpha=8 / COEFFICIENT_LIMIT))
        if self.normal_at is not None:
            # A smoothed density nears a normal one as the noise grows; the last of it goes here.
            # (By comparison: the ratio may be rounded to just below 1.)
            normality = (sigma / self.normal_at).square().where(sigma < self.normal_at, 1.0)
            height = height * (1 - normality)[..., None]
        # Soft limits: pull ≤ 1/σ, and all negative slopes together ≤ κ/σ.
        offset, narrowing = rest.unbind(-1)
        pull = F.softplus(narrowing)
        down = height.clamp(max=0)
        falling = pull - (down * slope).sum(-1)
        share = 1 / (1 + falling * sigma / SLOPE_LIMIT)
        height = torch.addcmul(height, down, (share - 1)[..., None])
        pull = pull * torch.minimum(share, 1 / (1 + pull * sigma))
        if self.normal_at is not None:
            # In place of the steps a pull below 0 then makes conditionals wider than the noisy
            # marginal, tenfold in variance at most.
            pull = pull - 0.9 * sigma * normality * torch.sigmoid(-2 * (narrowing + 4))
        return TanhSum(sigma.expand_as(offset), offset, pull, height, slope, centre)

    def family(self, context: Float[Tensor, "*batch width"]) -> "HeadFamily":
        """Return the conditionals of `context` over all noise levels."""
        return HeadFamily(self, context)


@dataclass(frozen=True)
class HeadFamily:
    """The conditionals that a head makes from contexts, over all noise levels."""

    head: TanhSumHead
    context: Float[Tensor, "*batch width"]

    def at(self, sigma: float) -> TanhSum:
        """Return the conditionals at one noise level, the same for the whole batch."""
        # One value for all: what depends on σ alone is then computed once.
        return self.head(self.context, self.context.new_full((1,) * (self.context.ndim - 1), sigma))
