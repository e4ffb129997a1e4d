"""Score fields conditional on x, in units of q(z|x).

A posterior may be a hundred times as narrow for one x as for another. So the score is that of
r = (z − μ)/σ, divided by σ, with the units μ(x) and σ(x) of the sampler. Where a sampler does not
say them, the field begins with those of the first draws, and learns the middle and the width of z
by the likelihood of a Student density, which a few far draws do not move. For any μ and σ the
objectives below have their optimum at the true score: the units matter for how quickly it is
learned, and for where a draw counts as far.

Two fields: a joint one, R^D → R^D, and the autoregressive one (AR-CSM), whose output d sees z_≤d.
The units of z_d may depend on z_<d for the latter: conditional scores take them as given. Where
they hold all that z_<d says of z_d, what is left to learn is a shape for each latent and x.
"""

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from arcsm.checks import check_whole
from arcsm.context.made import MADE
from arcsm.errors import InputError

Latents = Float[Tensor, "particles batch dims"]
Hidden = Float[Tensor, "batch width"]
# μ and log σ
Units = tuple[Float[Tensor, "*particles batch dims"], Float[Tensor, "*particles batch dims"]]

# The degrees of freedom of the density that units are learned by.
TAILS = 4.0
# Units beyond which a field knows nothing, and its scores grow no more. A posterior may be several
# times as wide as its units, and far narrower given other latents: within them nothing is bounded.
FAR = 64.0
# The log of the largest width that units may learn, and less that of the least.
_WIDEST = 16.0


class ScoreField(nn.Module, ABC):
    """Scores of z given x, and the units they are in."""

    placed: Tensor

    def __init__(self, dims: int, condition_dims: int, width: int, layers: int, learns_units: bool):
        super().__init__()
        dims, width = check_whole(dims, "dims"), check_whole(width, "width")
        check_whole(layers, "layers")
        condition_dims = check_whole(condition_dims, "condition_dims", 0)
        self.dims, self.condition_dims = dims, condition_dims
        # Without x there is one posterior, and a constant in the place of features.
        self.constant = None if condition_dims else nn.Parameter(0.1 * torch.randn(1, width))
        self.embed = nn.Linear(condition_dims, width) if condition_dims else None
        self.unit_layer = nn.Linear(width, 2 * dims) if learns_units else None
        if self.unit_layer is not None:
            with torch.no_grad():
                self.unit_layer.weight.mul_(0.1)
                self.unit_layer.bias.zero_()
            # Whether the units have been those of draws.
            self.register_buffer("placed", torch.tensor(False))

    def forward(
        self,
        z: Latents,
        x: Float[Tensor, "batch condition"] | None = None,
        units: Units | None = None,
    ) -> Latents:
        """Return the scores at z; `units` are those of the sampler, unless they are learned."""
        hidden = self.hidden(x)
        mean, log_scale = self.units(hidden, units)
        scale = log_scale.exp()
        return self.scaled(_within((z - mean) / scale), hidden) / scale

    def objective(
        self,
        z: Latents,
        x: Float[Tensor, "batch condition"] | None,
        direction: Latents | None,
        units: Units | None = None,
    ) -> tuple[Float[Tensor, ""], Latents]:
        """Return what is minimised, score matching on r and likelihood of units; and scores.

        Without a `direction` it is CSM, with one SSM along it, its square replaced by its mean. The
        scores at z are those that `forward` returns, detached; so are z and x, which others learn.
        """
        hidden = self.hidden(None if x is None else x.detach())
        mean, log_scale = self.units(hidden, units)
        r = (z.detach() - mean) * torch.exp(-log_scale)
        likelihood: Tensor | float = 0.0
        near: Tensor | None = None
        if self.unit_layer is not None:
            tails = (TAILS + 1) / 2 * torch.log1p(r.square() / TAILS)
            likelihood = (tails + log_scale).sum(-1).mean()
            # Units that are learned may be far from the draws. At the limit draws would be a point,
            # whose density has scores without bound: there they teach units alone.
            near = (r.detach().abs() <= FAR).all(-1)
        r = _within(r.detach())
        if direction is None:
            score, slope = self.jet(r, hidden)
        else:
            score, change = self.along(r, hidden, direction)
            slope = change * direction
        each = (score.square() / 2 + slope).sum(-1)
        loss = likelihood + (each if near is None else each * near).mean()
        return loss, score.detach() * torch.exp(-log_scale.detach())

    @torch.no_grad()
    def place(self, z: Latents) -> None:
        """Begin with the middle and the width of draws as units, where they are to be learned."""
        if self.unit_layer is None or bool(self.placed):
            return
        draws = z.detach().flatten(0, -2)
        middle = draws.median(0).values
        away = (draws - middle).abs()
        width = 1.4826 * away.median(0).values  # of normal draws it is the deviation
        width = torch.where(width > 0, width, away.mean(0))
        log_width = torch.where(width > 0, width, 1.0).log()
        if bool((log_width.abs() > _WIDEST - 1).any()):
            raise InputError(
                f"expected draws whose widths are between {math.exp(1 - _WIDEST):.1g} and"
                f" {math.exp(_WIDEST - 1):.2g}, got some from {width.min():.2g} to"
                f" {width.max():.2g}; scale the latents, or let the sampler have a method units(x)"
            )
        self.unit_layer.bias.copy_(torch.cat([middle, _WIDEST * (log_width / _WIDEST).atanh()]))
        self.placed.fill_(True)

    def hidden(self, x: Float[Tensor, "batch condition"] | None) -> Hidden:
        """Return the features of x that the field works with."""
        self.check_condition(x)
        if self.embed is None:
            assert self.constant is not None
            return F.silu(self.constant)
        return F.silu(self.embed(x))

    def check_condition(self, x: Float[Tensor, "batch condition"] | None) -> None:
        """Refuse an x of another size than the field was built for, or none where it needs one."""
        if self.embed is None:
            if x is not None:
                raise InputError(
                    "expected no x for a field without condition_dims, got some; build the"
                    " estimator with condition_dims"
                )
        elif x is None or x.shape[-1] != self.condition_dims:
            got = "none" if x is None else f"shape {tuple(x.shape)}"
            raise InputError(
                f"expected x of shape (batch, {self.condition_dims}), got {got}; pass what the"
                " encoder sees"
            )

    def units(self, hidden: Hidden, given: Units | None) -> Units:
        """Return μ and log σ; widths that are learned are within e^±16."""
        if self.unit_layer is None:
            if given is None:
                raise InputError("expected the units of the sampler, got none; pass them")
            return given[0].detach(), given[1].detach()
        mean, log_scale = self.unit_layer(hidden).chunk(2, -1)
        return mean, _WIDEST * torch.tanh(log_scale / _WIDEST)

    @abstractmethod
    def scaled(self, r: Latents, hidden: Hidden) -> Latents:
        """Return the scores of r."""

    def along(self, r: Latents, hidden: Hidden, direction: Latents) -> tuple[Latents, Latents]:
        """Return the scores of r, and their derivatives along a direction."""
        # Forward mode: it needs no second backward pass, and works for several runs at once.
        found = torch.func.jvp(lambda at: self.scaled(at, hidden), (r,), (direction,))
        return found[0], found[1]

    def jet(self, r: Latents, hidden: Hidden) -> tuple[Latents, Latents]:
        """Return the scores of r, and their derivatives ∂s_d/∂r_d."""
        raise InputError(
            f"expected an autoregressive field for CSM, got {type(self).__name__}; its derivatives"
            " would need one pass for each latent"
        )


class JointField(ScoreField):
    """s: R^D → R^D given x: a step from that of a normal density, by some hidden layers."""

    def __init__(
        self,
        dims: int,
        condition_dims: int,
        *,
        width: int = 256,
        layers: int = 2,
        learns_units: bool = True,
    ):
        super().__init__(dims, condition_dims, width, layers, learns_units)
        self.first = nn.Linear(dims, width)
        self.condition = nn.Linear(width, width, bias=False)
        self.further = nn.ModuleList(nn.Linear(width, width) for _ in range(layers - 1))
        self.output = nn.Linear(width, dims)

    def scaled(self, r: Latents, hidden: Hidden) -> Latents:
        """Return the joint scores of r."""
        h = F.silu(self.first(r) + self.condition(hidden))
        for layer in self.further:
            h = F.silu(layer(h))
        return self.output(h) - r

    def along(self, r: Latents, hidden: Hidden, direction: Latents) -> tuple[Latents, Latents]:
        """Return the joint scores of r and their derivatives along a direction, in one pass."""
        before = self.first(r) + self.condition(hidden)
        change = F.linear(direction, self.first.weight)
        for layer in (*self.further, self.output):
            gate = torch.sigmoid(before)
            # silu and its derivative
            h, change = before * gate, change * gate * (1 + before * (1 - gate))
            before, change = layer(h), F.linear(change, layer.weight)
        return before - r, change - direction


class AutoregressiveField(ScoreField):
    """Conditional scores s_d(r_≤d) given x: a MADE makes the coefficients of a sum of tanh steps.

        s_d = m − q r_d + Σ_k a_k tanh(w_k r_d + b_k),    q > 0,    (m, q, a, w, b) = f_d(r_<d, x)

    The derivative in r_d is a closed form, and each conditional can be normalised. Without
    `sees_earlier`, r_<d is left out of f: that z_d depends on z_<d is then the affair of its units
    alone, and one pass of the network serves all particles of an x.
    """

    centres: Tensor

    def __init__(
        self,
        dims: int,
        condition_dims: int,
        *,
        width: int = 256,
        layers: int = 2,
        learns_units: bool = True,
        steps: int = 8,
        sees_earlier: bool = True,
    ):
        super().__init__(dims, condition_dims, width, layers, learns_units)
        self.steps, self._coefficients = steps, 2 + 3 * steps
        self.context: MADE | nn.Sequential
        if sees_earlier:
            self.context = MADE(
                dims,
                width=self._coefficients,
                hidden=(width,) * layers,
                frequencies=0,
                condition_dims=width,
            )
        else:
            hidden = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.SiLU())]
            self.context = nn.Sequential(*hidden, nn.Linear(width, dims * self._coefficients))
        self.register_buffer("centres", torch.linspace(-2, 2, steps), persistent=False)

    def scaled(self, r: Latents, hidden: Hidden) -> Latents:
        """Return the conditional scores of r."""
        return self.jet(r, hidden)[0]

    def jet(self, r: Latents, hidden: Hidden) -> tuple[Latents, Latents]:
        """Return s_d and ∂s_d/∂r_d in one pass."""
        raw = self._contexts(r, hidden)
        rest, height, slope, shift = raw.split([2] + [self.steps] * 3, -1)
        # softplus(0.5413) = 1: it begins near to the score of a normal density.
        pull = F.softplus(rest[..., 1] + 0.5413)
        slope = 1 + slope
        gate = torch.tanh(slope * (r[..., None] - self.centres) + shift)
        score = torch.addcmul(rest[..., 0], pull, r, value=-1) + (height * gate).sum(-1)
        bend = (height * slope * (1 - gate.square())).sum(-1)
        return score, bend - pull

    def along(self, r: Latents, hidden: Hidden, direction: Latents) -> tuple[Latents, Latents]:
        """Return s and its derivatives along a direction: where no s_d sees r_<d, by its own."""
        if isinstance(self.context, MADE):
            return super().along(r, hidden, direction)
        score, slope = self.jet(r, hidden)
        return score, slope * direction

    def _contexts(
        self, r: Latents, hidden: Hidden
    ) -> Float[Tensor, "*particles batch dims coefficients"]:
        """Return the coefficients of all latents."""
        made = self.context
        if not isinstance(made, MADE):
            return made(hidden).unflatten(-1, (self.dims, self._coefficients))
        # By the layers one after another: called as a whole, the MADE would have a condition for
        # each draw. Here the products with that of x are taken once for all particles.
        assert made.condition is not None
        h = made.input(r) + made.condition(hidden)
        for block in made.blocks:
            h = block(h, hidden)
        return made.output(F.silu(h)).unflatten(-1, (self.dims, self._coefficients))


def _within(r: Latents) -> Latents:
    """Return draws with those that are far brought nearer.

    While the encoder is ahead of the field, scores that grow with the distance would drive it on
    and on.
    """
    return r.clamp(-FAR, FAR)
