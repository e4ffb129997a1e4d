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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from arcsm.conditional.protocol import Conditional, Family
from arcsm.errors import InputError

__all__ = ["Conditional", "Family", "Gates", "HeadFamily", "TanhSum", "TanhSumHead"]

# κ, the limit on negative slopes of the denoiser. 1 would forbid steps that overlap; the flow
# needs steps in σ of at most 1/(1 + κ), so that a large one is paid for in sampling.
SLOPE_LIMIT = 4.0

# Every coefficient stays below this, softly. Standardised data needs a tenth of it; the limit keeps
# the range over which a conditional has to be normalised in proportion.
COEFFICIENT_LIMIT = 32.0

# Conditionals that are worth one call of the head.
_CONDITIONALS = 4096

_SIGMA_FREQUENCIES = (0.25, 0.5, 1.0, 2.0)

# The staircase of an untrained head: q, how far on either side of 0 its steps reach, and by how
# much q outweighs them. A larger q finds more modes and fits smooth densities more slowly. Without
# a fall, places where there are no data would keep what mass they have.
_STAIRS_PULL = 0.8
_STAIRS_REACH = 2.5
_STAIRS_FALL = 0.3


Kept = TypeVar("Kept")


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
        g, gain = self._gates, self._gain
        # tanh y = 2/(1 + e^(−2y)) − 1: the logistic function is several times as fast on a CPU.
        u = x / g.root
        gate = torch.sigmoid((u[..., None] - g.centre) * g.slope)
        score = (g.height * gate).sum(-1) + torch.addcmul(g.offset, g.pull, u, value=-1)
        bend = (gain * torch.addcmul(gate, gate, gate, value=-1)).sum(-1)
        return score, (bend - g.pull) / g.root

    def score(self, x: Float[Tensor, "*batch points"]) -> Float[Tensor, "*batch points"]:
        """Return s alone, for half the cost."""
        return self._gates.score(x)

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

    def unstack(self) -> "list[TanhSum]":
        """Return the conditionals along the first axis one by one."""
        parts = (getattr(self, part.name).unbind() for part in fields(self))
        apart = [TanhSum(*some) for some in zip(*parts, strict=True)]
        if not torch.is_grad_enabled():
            gates = (part.unbind() for part in self._gates)
            for one, some in zip(apart, zip(*gates, strict=True), strict=True):
                one.__dict__["_kept"] = {"gates": Gates(*some)}
        return apart

    def double(self) -> "TanhSum":
        """Return the same coefficients in float64."""
        return TanhSum(*(getattr(self, part.name).double() for part in fields(self)))

    @property
    def _gates(self) -> "Gates":
        return self._keep("gates", self.gates)

    @property
    def _gain(self) -> Float[Tensor, "*batch 1 steps"]:
        """Height · slope: what steps add to the derivative."""
        return self._keep("gain", lambda: self._gates.height * self._gates.slope)

    def _keep(self, name: str, make: "Callable[[], Kept]") -> "Kept":
        """Return what `make` makes, the first time; what it made, after that."""
        # A graph that is compiled fuses it, and cannot keep it. Where gradients are asked for, what
        # was kept would belong to another graph, or to none.
        parts = (self.offset, self.height, self.slope)
        tracked = torch.is_grad_enabled() and any(part.requires_grad for part in parts)
        if torch.compiler.is_compiling() or tracked:
            return make()
        kept = self.__dict__.setdefault("_kept", {})
        if name not in kept:
            kept[name] = make()
        return kept[name]

    def gates(self) -> "Gates":
        """Return the scores as sums of logistic functions: what points share."""
        root = (1 + self.sigma.square()).sqrt()
        strength = 1 / (self.sigma * root)
        return Gates(
            root=root[..., None],
            offset=((self.offset - self.height.sum(-1)) * strength)[..., None],
            pull=(self.pull * strength + 1 / root)[..., None],
            height=(self.height * (2 * strength)[..., None])[..., None, :],
            slope=(2 * self.slope)[..., None, :],
            centre=self.centre[..., None, :],
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


class Gates(NamedTuple):
    """Scores as sums of logistic functions, for points on one more axis.

    s(x) = offset − pull·u + Σ height/(1 + exp(−slope (u − centre))), with u = x/root.
    """

    root: Float[Tensor, "*batch 1"]
    offset: Float[Tensor, "*batch 1"]
    pull: Float[Tensor, "*batch 1"]
    height: Float[Tensor, "*batch 1 steps"]
    slope: Float[Tensor, "*batch 1 steps"]
    centre: Float[Tensor, "*batch 1 steps"]

    def score(self, x: Float[Tensor, "*batch points"]) -> Float[Tensor, "*batch points"]:
        """Return s(x)."""
        u = x / self.root
        gate = u[..., None] - self.centre
        if torch.is_grad_enabled():
            gate = torch.sigmoid(gate * self.slope) * self.height
        else:
            gate.mul_(self.slope).sigmoid_().mul_(self.height)
        return torch.addcmul(self.offset, self.pull, u, value=-1) + gate.sum(-1)


class Levels(NamedTuple):
    """Noise levels, and what a head makes of them before it sees a context."""

    sigma: Float[Tensor, "*batch"]
    embedding: Float[Tensor, "*batch width"]
    log_slope: Float[Tensor, "*batch steps"]  # of steps as steep as they usually are
    normality: Float[Tensor, "*batch"] | None  # from 0 to 1, where conditionals are normal

    def some(self, few: slice) -> "Levels":
        """Return those of a slice of the first axis."""
        return self._each(lambda part: part[few])

    def with_axes(self, axes: int) -> "Levels":
        """Return them with so many axes of length 1 after the first one."""
        ones = (1,) * axes
        return self._each(lambda part: part.reshape(len(part), *ones, *part.shape[1:]))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Levels":
        normality = None if self.normality is None else change(self.normality)
        return Levels(change(self.sigma), change(self.embedding), change(self.log_slope), normality)


class TanhSumHead(nn.Module):
    """The shared head: a context and a noise level become the coefficients of a tanh sum.

    The context is itself the first hidden layer, to which an embedding of σ is added: that keeps
    the head, which runs for every scalar, small beside the context network. `depth` counts the
    hidden layers. From the noise level `normal_at` on the conditionals are normal.

    With a `staircase` the untrained head is a climb of all steps that nearly cancels the pull, so
    that a small change of any step parts two bumps: many modes are then learned as many, where a
    flat head takes some of them for one. It fits smooth densities more slowly, pictures above all.
    """

    sharpness: Float[Tensor, "steps"]

    def __init__(
        self,
        context_width: int,
        *,
        steps: int = 16,
        depth: int = 1,
        normal_at: float | None = None,
        staircase: bool = False,
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
            if staircase:
                reach = _STAIRS_REACH if steps > 1 else 0.0
                start[0] = (_STAIRS_PULL - _STAIRS_FALL) * _STAIRS_REACH / max(steps - 1, 1)
                narrowing = math.log(math.expm1(_STAIRS_PULL))
            else:
                reach, narrowing = 2.0, -2.0
                start[0] = 0.05 * (1 - 2 * (torch.arange(steps) % 2))  # heights of both signs
            start[2] = torch.linspace(-reach, reach, steps)
            self.output.bias.copy_(torch.cat([start.flatten(), torch.tensor([0.0, narrowing])]))

    @property
    def config(self) -> dict[str, Any]:
        """The constructor's arguments, but for those of the start."""
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
        return self.coefficients(context, self.levels(sigma))

    def levels(self, sigma: Float[Tensor, "*batch"]) -> "Levels":
        """Return all that depends on the noise level alone."""
        log_sigma = sigma.log()[..., None]
        angles = torch.cat([log_sigma * f for f in _SIGMA_FREQUENCIES], -1)
        normality = None
        if self.normal_at is not None:
            # By comparison: the ratio may be rounded to just below 1.
            normality = (sigma / self.normal_at).square().where(sigma < self.normal_at, 1.0)
        return Levels(
            sigma=sigma,
            embedding=self.noise(torch.cat([angles.sin(), angles.cos()], -1)),
            # Up to (1 + 1/σ) times as steep as broad steps; e^(±8) around that is room enough.
            log_slope=torch.log1p(1 / sigma)[..., None] * self.sharpness,
            normality=normality,
        )

    def coefficients(self, context: Float[Tensor, "*#batch width"], levels: "Levels") -> TanhSum:
        """Return the conditionals of `context` at `levels`."""
        sigma, normality = levels.sigma, levels.normality
        # In place where no gradient needs what was there: memory is what takes the time.
        in_place = not torch.is_grad_enabled()
        h = F.silu(context + levels.embedding, inplace=in_place)
        for layer in self.layers:
            h = F.silu(layer(h), inplace=in_place)
        raw = self.output(h)
        # Within ±1; what multiplies them by the limit is a factor of something else, mostly.
        if in_place:
            raw.div_(raw.abs().add_(COEFFICIENT_LIMIT))
        else:
            raw = raw / (raw.abs() + COEFFICIENT_LIMIT)
        height, log_slope, centre, rest = raw.split([self.steps] * 3 + [2], -1)
        log_slope = torch.add(levels.log_slope, log_slope, alpha=8)
        slope = log_slope.exp_() if in_place else log_slope.exp()
        if normality is None:
            height = height * COEFFICIENT_LIMIT
        else:
            # A smoothed density nears a normal one as the noise grows; the last of it goes here.
            height = height * (COEFFICIENT_LIMIT * (1 - normality))[..., None]
        # Soft limits: pull ≤ 1/σ, and all negative slopes together ≤ κ/σ.
        offset, narrowing = (rest * COEFFICIENT_LIMIT).unbind(-1)
        pull = F.softplus(narrowing)
        down = height.clamp(max=0)
        falling = pull - (down * slope).sum(-1)
        share = 1 / (1 + falling * sigma / SLOPE_LIMIT)
        height = torch.addcmul(height, down, (share - 1)[..., None])
        pull = pull * torch.minimum(share, 1 / (1 + pull * sigma))
        if normality is not None:
            # In place of the steps a pull below 0 then makes conditionals wider than the noisy
            # marginal, tenfold in variance at most.
            pull = pull - 0.9 * sigma * normality * torch.sigmoid(-2 * (narrowing + 4))
        centre = centre * COEFFICIENT_LIMIT
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

    def ladder(self, levels: Sequence[float]) -> Iterator[TanhSum]:
        """Return the conditionals at each of the levels.

        Of few contexts at once, as calling torch for each level would take longer than the work.
        """
        rows = max(1, self.context.numel() // self.head.context_width)
        together = max(1, _CONDITIONALS // rows)
        every = self.head.levels(self.context.new_tensor(levels))
        for start in range(0, len(levels), together):
            few = every.some(slice(start, start + together))
            yield from self._stack(few).unstack()

    def stack(self, levels: Sequence[float]) -> TanhSum:
        """Return the conditionals at all of the levels, on a new first axis."""
        return self._stack(self.head.levels(self.context.new_tensor(levels)))

    def _stack(self, levels: "Levels") -> TanhSum:
        return self.head.coefficients(self.context[None], levels.with_axes(self.context.ndim - 1))
