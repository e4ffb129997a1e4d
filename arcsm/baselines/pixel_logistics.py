"""Discretised mixtures of logistic distributions over the channels of a pixel.

After PixelCNN++ (Salimans et al., 2017). A mixture of K components over C channels has logits, and
for each channel means m, log-scales log h, and coefficients γ of the channels before it. With
y = 2·level/255 − 1 in [−1, 1], component k gives channel c the probability that a logistic
distribution has in the cell of its level,

    P_k(y_c | y_<c) = σ(b) − σ(a),    a, b = (y_c − m_c − Σ_{j<c} tanh(γ_cj) y_j ∓ 1/255)/h_c

where the lowest cell is open below (a = −∞) and the highest above (b = ∞). One component is drawn
for all channels of a pixel: P(y) = Σ_k π_k Π_c P_k(y_c | y_<c). The difference is taken as

    log(σ(b) − σ(a)) = log σ(b) + log σ(−a) + log(1 − exp(a − b))

which loses no digits however narrow, wide or far away a component is: for all values of the
parameters the cells of all levels add up to 1, and gradients are finite.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from arcsm.errors import InputError

# The least log-scale is that of the original. With the greatest all mass is on the two end levels
# already; beyond it float32 would come to round the other cells to nothing.
LOG_SCALE_MIN, LOG_SCALE_MAX = -7.0, 40.0

# Half the width of a cell where the levels go from −1 to 1.
_HALF_CELL = 1 / 255
# How far from a level a number may lie, in levels: more than float32 rounds away.
_TOLERANCE = 1e-3
# Numbers checked at one time.
_CHUNK = 2**24


@dataclass(frozen=True)
class PixelLogistics:
    """Mixtures of K components over the C channels of a pixel.

    Values y are levels in [−1, 1]. The coefficients are those of the pairs (1, 0), (2, 0), (2, 1) …
    of a channel and one before it.
    """

    log_weight: Float[Tensor, "*batch components"]
    mean: Float[Tensor, "*batch channels components"]
    log_scale: Float[Tensor, "*batch channels components"]
    coefficient: Float[Tensor, "*batch pairs components"]

    @staticmethod
    def width(channels: int, components: int) -> int:
        """Return how many parameters a pixel has."""
        return components * (1 + 2 * channels + channels * (channels - 1) // 2)

    @classmethod
    def from_outputs(
        cls, outputs: Float[Tensor, "*batch width"], channels: int
    ) -> "PixelLogistics":
        """Read logits, means, log-scales and coefficients, each of K components."""
        parts = outputs.unflatten(-1, (cls.width(channels, 1), -1))
        logits, mean, log_scale, coefficient = parts.split(
            [1, channels, channels, channels * (channels - 1) // 2], -2
        )
        return cls(
            logits.squeeze(-2).log_softmax(-1),
            mean,
            log_scale.clamp(LOG_SCALE_MIN, LOG_SCALE_MAX),
            coefficient.tanh(),
        )

    def log_prob(self, y: Float[Tensor, "*batch channels"]) -> Float[Tensor, "*batch"]:
        """Return the log-probability of whole pixels."""
        return (self.log_weight + self._log_cells(y).sum(-2)).logsumexp(-1)

    def log_prob_terms(
        self, y: Float[Tensor, "*batch channels"]
    ) -> Float[Tensor, "*batch channels"]:
        """Return log P(y_c | y_<c) of each channel: log P(y_≤c) − log P(y_<c)."""
        log_joint = self.log_weight[..., None, :] + self._log_cells(y).cumsum(-2)
        upto = log_joint.logsumexp(-1)
        return torch.cat([upto[..., :1], upto.diff(dim=-1)], -1)

    def draw(
        self, uniform: Float[Tensor, "*batch channels_and_1"]
    ) -> Float[Tensor, "*batch channels"]:
        """Return the pixels, as level/255, that numbers from 0 to 1 stand for.

        The first chooses the component, the others a value of each channel. A value is brought to
        its level before it moves the means of the next channels: they know it so in training.
        """
        upto = self.log_weight.exp().cumsum(-1)
        # Rounding may leave the sum of the weights below 1.
        chosen = (upto < uniform[..., :1]).sum(-1, keepdim=True).clamp(max=upto.shape[-1] - 1)
        mean, log_scale, coefficient = (
            part.take_along_dim(chosen[..., None, :], -1)[..., 0]
            for part in (self.mean, self.log_scale, self.coefficient)
        )
        free = mean + log_scale.exp() * uniform[..., 1:].logit()  # may be infinite: an end level
        x = torch.zeros_like(free)
        for channel in range(x.shape[-1]):
            moved = (coefficient[..., _pairs(channel)] * to_symmetric(x[..., :channel])).sum(-1)
            x[..., channel] = nearest_level((free[..., channel] + moved + 1) / 2)
        return x

    def _log_cells(
        self, y: Float[Tensor, "*batch channels"]
    ) -> Float[Tensor, "*batch channels components"]:
        """Return the log-probability of each level, given the component."""
        y = y[..., None]
        moved = [
            (self.coefficient[..., _pairs(channel), :] * y[..., :channel, :]).sum(-2)
            for channel in range(y.shape[-2])
        ]
        precision = torch.exp(-self.log_scale)
        middle = (y - self.mean - torch.stack(moved, -2)) * precision
        half = _HALF_CELL * precision
        lowest, highest = y < _HALF_CELL - 1, y > 1 - _HALF_CELL
        below_top = F.logsigmoid(middle + half).masked_fill(highest, 0.0)
        above_bottom = F.logsigmoid(half - middle).masked_fill(lowest, 0.0)
        within = torch.log(-torch.expm1(-2 * half)).masked_fill(lowest | highest, 0.0)
        return below_top + above_bottom + within


def nearest_level(x: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Return the number level/255, with a level from 0 to 255, that is nearest to x."""
    return (255 * x).round().clamp(0, 255) / 255


def to_symmetric(x: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Return y in [−1, 1] for x in [0, 1]."""
    return 2 * x - 1


def check_levels(x: Float[Tensor, "rows dims"], name: str = "x") -> None:
    """Refuse numbers that are not level/255 for a level from 0 to 255."""
    size = max(1, _CHUNK // x.shape[1])
    for start in range(0, len(x), size):
        piece = x[start : start + size]
        bad = ((piece - nearest_level(piece)).abs() > _TOLERANCE / 255).nonzero()
        if len(bad):
            row, column = bad[0].tolist()
            raise InputError(
                f"expected levels from 0 to 255, divided by 255, in {name}, got"
                f" {piece[row, column].item():g} in row {start + row}, column {column};"
                " pass uint8 pixels as floats, divided by 255"
            )


def _pairs(channel: int) -> slice:
    """Return where the coefficients of a channel are: one for each channel before it."""
    first = channel * (channel - 1) // 2
    return slice(first, first + channel)
