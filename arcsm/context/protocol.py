"""What every context network offers: one parallel pass, and a cursor that walks scalar by scalar.

The parallel pass serves training and likelihood, where all scalars are known. The cursor serves
sampling: it hands out the context of the next scalar, takes the value drawn for it, and keeps
whatever it can so that no work is done twice. Both must agree to rounding.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from arcsm.errors import InputError


class ContextCursor(ABC):
    """A walk along the order of a context network for a batch of rows."""

    position: int = 0  # how many scalars of the order are known

    @abstractmethod
    def context(self) -> Float[Tensor, "batch width"]:
        """Return the context of the scalar at `position` in the order, given those before it."""

    @abstractmethod
    def push(self, value: Float[Tensor, "batch"]) -> None:
        """Fix the scalar at `position` in the order to `value` and move on to the next."""

    @abstractmethod
    def take(self, rows: Int[Tensor, "batch"]) -> None:
        """Go on as if row i had been row `rows[i]` all the way: particles are drawn anew so."""


def take_rows(kept: Iterable[Tensor], rows: Int[Tensor, "batch"], dim: int = 0) -> None:
    """Put other rows in the place of those of each tensor, which views of it then show, too."""
    for one in kept:
        one.copy_(one.index_select(dim, rows))


class ContextNetwork(nn.Module, ABC):
    """A network c_d = f(x_<d): the context of scalar d sees only what precedes d in `order`.

    `order[i]` is the index, in the data, of the scalar that comes i-th. Outputs are laid out as
    the data is, not in the order of the walk.
    """

    dims: int
    width: int
    condition_dims: int
    order: tuple[int, ...]

    @abstractmethod
    def forward(
        self,
        x: Float[Tensor, "batch dims"],
        condition: Float[Tensor, "batch condition_dims"] | None = None,
    ) -> Float[Tensor, "batch dims width"]:
        """Return the contexts of all scalars at once."""

    @abstractmethod
    def cursor(
        self, batch: int, condition: Float[Tensor, "batch condition_dims"] | None = None
    ) -> ContextCursor:
        """Start a walk along the order for `batch` rows."""

    @property
    def numbers_per_row(self) -> int:
        """About how many numbers a walk keeps for each row: what limits the size of a batch."""
        return self.dims * self.width

    @property
    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The arguments, JSON-serialisable, with which the constructor makes this network anew."""

    def check_condition(self, condition: Tensor | None, batch: int) -> None:
        """Refuse a conditioning input that is missing, unwanted, or of another shape."""
        got = "none" if condition is None else f"shape {tuple(condition.shape)}"
        if self.condition_dims == 0 and condition is not None:
            raise InputError(
                f"expected no condition, got {got};"
                " build the context network with condition_dims to use one"
            )
        if self.condition_dims and (
            condition is None or condition.shape != (batch, self.condition_dims)
        ):
            raise InputError(
                f"expected a condition of shape ({batch}, {self.condition_dims}), got {got};"
                " pass one row of conditioning values for each row of data"
            )
