"""Noise levels: the paper's geometric ladder σ₁ > … > σ_L, and its continuous limit."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.errors import InputError


@dataclass(frozen=True)
class Noise:
    """Noise levels between `sigma_max` and `sigma_min`, in units of the standardised data.

    With `levels` = L the levels are the paper's ladder σ₁/σ₂ = … = σ_{L−1}/σ_L > 1 (Appendix C.2);
    with `levels` = None they are continuous, log σ uniform. `sigma_min` is also the noise σ̂ of the
    context (Appendix C.2 writes σ̂ = σ_D, a slip for σ_L), and the smoothing of the density that a
    model finally stands for.

    >>> [round(sigma, 6) for sigma in Noise(1.0, 0.01, levels=3).ladder()]
    [1.0, 0.1, 0.01]
    """

    sigma_max: float = 3.0
    sigma_min: float = 0.01
    levels: int | None = None

    def __post_init__(self) -> None:
        for name in ("sigma_max", "sigma_min"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and 0 < value < math.inf):
                raise InputError(
                    f"expected a positive finite {name}, got {value!r}; choose one above 0"
                )
        if self.levels is not None and (not isinstance(self.levels, int) or self.levels < 1):
            raise InputError(
                f"expected a whole number of levels of at least 1, or None, got {self.levels!r};"
                " None means continuous noise"
            )
        if self.sigma_max < self.sigma_min or (
            self.sigma_max == self.sigma_min and self.levels != 1
        ):
            raise InputError(
                f"expected sigma_max > sigma_min, got {self.sigma_max} and {self.sigma_min};"
                " exchange them, or use levels=1 for a single level"
            )

    @property
    def has_one_level(self) -> bool:
        """Whether σ_min is all that a model is trained at: no flow leads there."""
        return self.levels == 1 or self.sigma_max == self.sigma_min

    @property
    def config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return asdict(self)

    def ladder(self, count: int | None = None) -> list[float]:
        """Return `count` levels in geometric progression from σ_max down to σ_min.

        The count is by default the number of levels, and must be given for continuous noise.
        """
        count = self.levels if count is None else count
        if count is None:
            raise InputError("expected a count of levels for continuous noise, got none; pass one")
        if not isinstance(count, int) or count < 1:
            raise InputError(f"expected a positive whole count of levels, got {count!r}; pass one")
        if count == 1:
            return [self.sigma_min]
        ratio = math.log(self.sigma_min / self.sigma_max)
        inner = [self.sigma_max * math.exp(ratio * i / (count - 1)) for i in range(1, count - 1)]
        return [self.sigma_max, *inner, self.sigma_min]

    def draw(
        self,
        shape: tuple[int, ...],
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
    ) -> Float[Tensor, "*shape"]:
        """Draw levels: uniform over the ladder, or uniform in log σ."""
        return self.at(torch.rand(shape, generator=generator, device=device))

    def at(self, place: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the levels at places from 0 (σ_min, or σ₁ of a ladder) to 1 (not included)."""
        if self.levels is not None:
            ladder = torch.tensor(self.ladder(), device=place.device)
            return ladder[(place * self.levels).long().clamp(max=self.levels - 1)]
        return torch.exp(
            math.log(self.sigma_min) + place * math.log(self.sigma_max / self.sigma_min)
        )


def suggest_sigma_min(
    x: Float[Tensor, "rows dims"], *, largest: float = 0.02, smallest: float = 0.002
) -> float:
    """Return the σ_min to use for standardised data `x`.

    The rule: twice the median distance between neighbouring rows, per coordinate, and never more
    than `largest` standard deviations nor less than `smallest`. With that much noise a row blends
    with a few neighbours, so that the smoothed density is what the sample can show; with less the
    scores become those of single rows, with more detail is lost. In many dimensions rows are far
    apart whatever the conditionals look like, and `largest` decides.
    """
    x = x.double()
    rows = x[:: max(1, len(x) // 2048)][:2048]
    nearest = []
    for some in rows.split(max(1, 2**24 // len(x))):
        # From differences: with products, the distance of a row to itself is rounded away from 0.
        distance = torch.cdist(some, x, compute_mode="donot_use_mm_for_euclid_dist")
        distance[distance == 0] = math.inf  # the row itself and copies say nothing of spacing
        nearest.append(distance.amin(1))
    spacing = torch.cat(nearest) / math.sqrt(x.shape[1])
    spacing = spacing[spacing.isfinite()]
    if len(spacing) == 0:
        return largest
    return min(largest, max(smallest, 2 * spacing.median().item()))
