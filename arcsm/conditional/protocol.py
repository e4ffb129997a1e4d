"""What is asked of a one-dimensional conditional: at one noise level, and over all of them."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from jaxtyping import Float
from torch import Tensor


class Conditional(Protocol):
    """Unnormalised one-dimensional densities exp E(x), one for each entry of a batch shape.

    Points have the batch shape followed by one axis of points.
    """

    def jet(
        self, x: Float[Tensor, "*batch points"]
    ) -> tuple[Float[Tensor, "*batch points"], Float[Tensor, "*batch points"]]:
        """Return the score s = E' and its derivative s'."""

    def score(self, x: Float[Tensor, "*batch points"]) -> Float[Tensor, "*batch points"]:
        """Return the score alone."""

    def energy(self, x: Float[Tensor, "*batch points"]) -> Float[Tensor, "*batch points"]:
        """Return E, of which exp is integrable (Definition 1 of the paper, conditions 1 and 2)."""

    def bounds(self) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """Return ends outside which less than 1e-14 of the mass lies."""

    def ceiling(self, x: Float[Tensor, "*batch points"]) -> Float[Tensor, "*batch intervals"]:
        """Return an upper bound of E on the interval between each point and the next."""

    def normal(self) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]] | None:
        """Return means and standard deviations if all of them are normal densities, else None."""

    def double(self) -> "Conditional":
        """Return the same conditional in float64."""


class Family(Protocol):
    """The conditionals of one context over the noise levels: x_d + σ·noise given x_<d."""

    def at(self, sigma: float) -> Conditional:
        """Return the conditional whose scalar carries noise of standard deviation `sigma`."""

    def ladder(self, levels: Sequence[float]) -> Iterable[Conditional]:
        """Return the conditionals at each of several noise levels."""
