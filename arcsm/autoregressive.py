"""What models share: what training asks of each, and the units of those on a context network.

The units are those of a triangular map along the order, z_d = (x_d − c_d)/scale_d. The centre c_d
is the mean of the column or, with `decorrelate`, where those before it leave little of its
variance, its linear regression on them:

    c_d = shift_d + Σ_{j<d} B_dj (x_j − shift_j)

As c_d depends on x_<d alone, q(x_d | x_<d) = q(z_d | x_<d)/scale_d and s_d(x) = s_d(z)/scale_d: one
scale for each column is all that densities and scores need. The context network always sees the
columns of mean 0 and variance 1 (`context_inputs`), not what is left of them.

With `shared_units` all scalars have one mean and one scale: those of pixels mean the same thing
everywhere in a picture, and some of them, at its borders, may never vary.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from arcsm.context import ContextNetwork
from arcsm.data.arrays import as_rows
from arcsm.errors import InputError

# The share of a column's deviation below which what others leave of it counts as little: a few
# times the least noise, below which a conditional would be smoothed away.
_NARROW = 0.05


class TrainableModel(nn.Module, ABC):
    """What `fit` and checkpoints ask of a model, and all that they ask."""

    @property
    @abstractmethod
    def dims(self) -> int:
        """The number of scalars."""

    @property
    @abstractmethod
    def condition_dims(self) -> int:
        """The number of conditioning values, 0 for none."""

    @property
    def device(self) -> torch.device:
        """The device that the weights are on."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the weights."""
        return next(self.parameters()).dtype

    @property
    def takes_constant_columns(self) -> bool:
        """Whether a scalar may be the same in all rows."""
        return False

    @property
    def takes_holes(self) -> bool:
        """Whether entries of rows may be missing: `observed` in `standardise` and `loss_terms`."""
        return False

    @property
    @abstractmethod
    def config(self) -> dict[str, Any]:
        """All that `from_config` needs to build a model of the same shape."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: dict[str, Any]) -> "TrainableModel":
        """Build a model, its weights still random, from `config`."""

    @abstractmethod
    def standardise(
        self, x: Float[Tensor, "rows dims"], weight: Float[Tensor, "rows"] | None = None
    ) -> None:
        """Set the standardised units from the (weighted) moments of the columns."""

    @abstractmethod
    def draw_noise(self, rows: int, *args: Any, **options: Any) -> tuple[Tensor, ...]:
        """Draw, from `generator`, all that is random in the loss of `rows` rows.

        Rows are the first axis of each tensor: processes take their share of them.
        """

    @abstractmethod
    def loss_terms(
        self, x: Float[Tensor, "rows dims"], *args: Any, **options: Any
    ) -> Float[Tensor, "rows"]:
        """Return the training loss of each row, given the noise that was drawn for it."""

    def clip_gradients(self, limit: float) -> Float[Tensor, ""]:
        """Shorten the gradient to a norm of at most `limit`; return the norm that it had."""
        return nn.utils.clip_grad_norm_(self.parameters(), limit)


class AutoregressiveModel(TrainableModel):
    """A chain of one-dimensional conditionals on top of a context network.

    Inside, every column is standardised by `shift` and `scale`. With `decorrelate` a column that
    others nearly determine, linearly, is replaced by what they leave of it, and keeps a spread of
    1 however narrow its conditionals are; the noise levels would wash them out otherwise. Scores
    and densities go in and out in the units of the data.
    """

    shift: Float[Tensor, "dims"]
    scale: Float[Tensor, "dims"]
    deviation: Float[Tensor, "dims"]
    regression: Float[Tensor, "dims dims"] | None

    def __init__(
        self, context: ContextNetwork, *, decorrelate: bool = False, shared_units: bool = False
    ):
        super().__init__()
        if decorrelate and shared_units:
            raise InputError(
                "expected decorrelate or shared_units, got both; columns that share their units"
                " cannot have scales of their own"
            )
        self.context = context
        self.decorrelate, self.shared_units = decorrelate, shared_units
        self.register_buffer("shift", torch.zeros(context.dims))
        self.register_buffer("scale", torch.ones(context.dims))
        if decorrelate:
            self.register_buffer("deviation", torch.ones(context.dims))
        regression = torch.zeros(context.dims, context.dims) if decorrelate else None
        self.register_buffer("regression", regression)

    @property
    def dims(self) -> int:
        """The number of scalars."""
        return self.context.dims

    @property
    def condition_dims(self) -> int:
        """The number of conditioning values, 0 for none."""
        return self.context.condition_dims

    @property
    def takes_constant_columns(self) -> bool:
        """Whether a scalar may be the same in all rows: where it needs no units of its own."""
        return self.shared_units

    @torch.no_grad()
    def standardise(
        self, x: Float[Tensor, "rows dims"], weight: Float[Tensor, "rows"] | None = None
    ) -> None:
        """Set the standardised units from the (weighted) moments of the columns."""
        if self.shared_units:
            self._standardise_as_one(x, weight)
            return
        # By comparison: the standard deviation of equal numbers may be rounded away from 0.
        constant = (x == x[0]).all(0).nonzero().flatten().tolist()
        if constant:
            raise InputError(
                f"expected columns that vary, got constant columns {constant}; leave them out"
            )
        rows = x.double()
        share = torch.full_like(rows[:, 0], 1 / len(rows))
        if weight is not None:
            share = weight.double() / weight.double().sum()
        mean = share @ rows
        scale = (share @ (rows - mean).square()).sqrt()
        self.shift.copy_(mean)
        if self.regression is not None:
            standard = (rows - mean) / scale
            coefficients = _regression(standard, share, self.context.order)
            left = (share @ (standard - standard @ coefficients.T).square()).sqrt()
            # Not for the others: shapes that stay in one place, bounds and lumps of equal values,
            # would move about with what the columns before them happen to be.
            narrow = left < _NARROW
            self.deviation.copy_(scale)
            self.regression.copy_(coefficients * narrow[:, None] * scale[:, None] / scale)
            # Float32 cannot tell columns apart that agree to more digits than 1e-4.
            scale = scale * torch.where(narrow, left.clamp(min=1e-4), 1.0)
        self.scale.copy_(scale)

    def _standardise_as_one(
        self, x: Float[Tensor, "rows dims"], weight: Float[Tensor, "rows"] | None
    ) -> None:
        """Set the units that all scalars share."""
        low, high = x.aminmax()
        if low == high:
            raise InputError(
                f"expected values that vary, got {low.item():g} everywhere; pass other data"
            )
        share = torch.full_like(x[:, 0], 1 / len(x), dtype=torch.float64)
        if weight is not None:
            share = weight.double() / weight.double().sum()
        mean = share @ x.mean(1, dtype=torch.float64)
        # Not in float64 throughout: of many pictures that would take eight times their memory.
        variance = share @ (x - mean.to(x.dtype)).square().mean(1, dtype=torch.float64)
        self.shift.fill_(mean)
        self.scale.fill_(variance.sqrt())

    def rows(self, x: Any) -> Float[Tensor, "rows dims"]:
        """Return the rows of `x`, checked, in the precision and on the device of the model."""
        return as_rows(x, dims=self.dims, dtype=self.shift.dtype).to(self.shift.device)

    def to_standard(self, x: Float[Tensor, "rows dims"]) -> Float[Tensor, "rows dims"]:
        """Return rows in standardised units."""
        return (x - self.centres(x)) / self.scale

    def context_inputs(self, x: Float[Tensor, "rows dims"]) -> Float[Tensor, "rows dims"]:
        """Return rows as the context network sees them: of mean 0 and variance 1."""
        return (x - self.shift) / (self.deviation if self.decorrelate else self.scale)

    def context_input(self, value: Float[Tensor, "rows"], d: int) -> Float[Tensor, "rows"]:
        """Return one scalar as the context network sees it."""
        scale = self.deviation if self.decorrelate else self.scale
        return (value - self.shift[d]) / scale[d]

    def centres(self, x: Float[Tensor, "rows dims"]) -> Float[Tensor, "#rows dims"]:
        """Return c_d, the 0 of the standardised units of each scalar; that of x_d sees x_<d."""
        if self.regression is None:
            return self.shift[None]
        return self.shift + (x - self.shift) @ self.regression.T.to(x.dtype)

    def centre(self, x: Float[Tensor, "rows dims"], d: int) -> Float[Tensor, "#rows"]:
        """Return c_d of one scalar; of x only what precedes d in the order matters."""
        if self.regression is None:
            return self.shift[d, None]
        return self.shift[d] + (x - self.shift) @ self.regression[d].to(x.dtype)

    def empty_rows(self, n: int) -> Float[Tensor, "rows dims"]:
        """Return zeros for n rows to be drawn."""
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise InputError(f"expected a positive whole number of samples, got {n!r}; ask for 1")
        return self.shift.new_zeros(n, self.dims)


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Draw weights from `seed`, leaving the global generator as it was; None draws from that."""
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        yield


def _regression(
    z: Float[Tensor, "rows dims"], share: Float[Tensor, "rows"], order: tuple[int, ...]
) -> Float[Tensor, "dims dims"]:
    """Return B: each column regressed on those before it, for columns of mean 0 and variance 1.

    From a covariance shrunk towards the identity, by as much as minimises its expected error
    (Ledoit and Wolf, 2004): with few rows, a plain regression would fit their noise.
    """
    covariance = (z * share[:, None]).T @ z
    squares, size = z.square().sum(1), covariance.square().sum()
    quadratic = ((z @ covariance) * z).sum(1)
    noise = share.square() @ (squares.square() - 2 * quadratic + size)
    distance = size - 2 * covariance.trace() + len(covariance)
    shrinkage = (noise / distance.clamp(min=1e-12)).clamp(1e-9, 1)
    covariance = torch.lerp(covariance, torch.eye(len(covariance)).to(covariance), shrinkage)
    place = torch.tensor(order, device=z.device)
    root = torch.linalg.cholesky(covariance[place][:, place])
    # With the unit triangle M of the root, residuals are M⁻¹ z = z − B z.
    unit = root / root.diagonal()
    identity = torch.eye(len(unit)).to(unit)
    inverse = torch.linalg.solve_triangular(unit, identity, upper=False, unitriangular=True)
    coefficients = torch.empty_like(unit)
    coefficients[place[:, None], place] = identity - inverse
    return coefficients
