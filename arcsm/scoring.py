"""Densities and distribution functions of a chain of conditionals, in the units of the data.

What a row costs is its conditionals, one for each scalar, which are worked on in pieces of bounded
memory; on a CPU each thread has a piece of its own.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.autoregressive import AutoregressiveModel
from arcsm.conditional import (
    Density,
    FlowDensity,
    HeadFamily,
    Noise,
    QuadratureDensity,
    TanhSumHead,
)
from arcsm.conditional.recalibration import Recalibration
from arcsm.data.arrays import as_rows
from arcsm.errors import InputError
from arcsm.sampling import Draw
from arcsm.sampling.batches import check_draw
from arcsm.threads import even_sizes, map_pieces

# Conditionals evaluated at one time. Fewer are dominated by the cost of calling torch; but if they
# have to be integrated, each needs some 100 kB. A GPU works on eight times as many at a time.
_CHUNK, _CHUNK_TO_INTEGRATE, _ON_GPU = 8192, 2048, 8

# Numbers that the context network may keep for the rows of one pass: some 128 MB.
_NUMBERS = 2**25

DENSITIES = ("flow", "quadrature")


class ScoredChain(AutoregressiveModel):
    """A chain of conditionals that a head makes at all noise levels, and their densities.

    `density` names the canonical one: "flow" or "quadrature".
    """

    head: TanhSumHead
    noise: Noise
    density: str
    flow_steps: int | None
    recalibration: Recalibration | None

    def standardise(
        self, x: Float[Tensor, "rows dims"], weight: Float[Tensor, "rows"] | None = None
    ) -> None:
        """Set the standardised units; what was learned in others, a recalibration, is gone."""
        super().standardise(x, weight)
        self.recalibration = None

    @torch.no_grad()
    def log_prob_terms(
        self,
        x: Float[Tensor, "rows dims"],
        *,
        cells: tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]] | None = None,
        only: Sequence[int] | None = None,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
        method: str = "auto",
    ) -> tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]]:
        """Return log q(x_d | x_<d) for every d, in nats, and an estimate of its numerical error.

        `cells` = (low, high) says of each entry between which values it is known to lie. Where
        low < high the term is the log of the probability of that cell, a difference of the exact
        CDF; an end may be infinite. The contexts see x itself. With `only` these scalars alone
        are evaluated, and the terms of the others are 0.
        """
        rows = as_rows(x, dims=self.dims)
        condition = self.checked_condition(condition, len(rows))
        low, high = (None, None) if cells is None else cells
        check_columns(only, self.dims)
        found = []
        for piece in self._pieces(len(rows)):
            ends = None if low is None or high is None else (low[piece], high[piece])
            given = None if condition is None else condition[piece]
            found.append(self._some_terms(rows[piece], ends, only, given, method))
        terms, errors = (torch.cat(parts) for parts in zip(*found, strict=True))
        return terms, errors

    def _some_terms(
        self,
        rows: Float[Tensor, "rows dims"],
        cells: tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]] | None,
        only: Sequence[int] | None,
        condition: Float[Tensor, "rows condition_dims"] | None,
        method: str,
    ) -> tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]]:
        """Return what `log_prob_terms` does, for as many rows as memory is meant for."""
        z, inputs = self._units(rows)
        contexts = self.context(inputs, condition).flatten(0, 1)
        terms = torch.zeros_like(z).flatten()
        errors = torch.zeros_like(terms)
        wanted = torch.ones_like(z, dtype=torch.bool)
        if only is not None:
            wanted[:] = False
            wanted[:, list(only)] = True

        def evaluate(
            where: Tensor, term: Callable[[Density, Tensor], tuple[Tensor, Tensor]], shift: Tensor
        ) -> None:
            def evaluate_some(some: Tensor) -> None:
                density = self.density_of(self.head.family(contexts[some]), method)
                found, error = term(density, some)
                terms[some] = (found + shift[some])[:, 0]
                errors[some] = error[:, 0]

            entries = (where & wanted.flatten()).nonzero()[:, 0]
            if len(entries) == 0:
                return
            sizes = even_sizes(len(entries), self.conditionals_at_once(method), entries.device)
            map_pieces(evaluate_some, entries.split(sizes), entries.device)

        point, log_scale = z.reshape(-1, 1), self.scale.log().expand_as(z).reshape(-1, 1)
        inside_cell = torch.zeros_like(terms, dtype=torch.bool)
        if cells is not None:
            low, high = self._standard_cells(rows, cells)
            inside_cell = (low < high)[:, 0]
            narrow = inside_cell & self._is_narrow(low, high)[:, 0]
            middle, width = ((low + high) / 2).to(z.dtype), (high - low).log().to(z.dtype)
            low, high = low.to(z.dtype), high.to(z.dtype)
            evaluate(
                narrow,
                lambda density, some: density.log_prob_and_error(middle[some]),
                width,
            )
            evaluate(
                inside_cell & ~narrow,
                lambda density, some: density.log_mass_and_error(low[some], high[some]),
                torch.zeros_like(width),
            )
        evaluate(
            ~inside_cell,
            lambda density, some: density.log_prob_and_error(point[some]),
            -log_scale,
        )
        # Of what is too far out for floating point nothing is known but that.
        errors = errors.where(terms != -math.inf, math.inf)
        return terms.view_as(z), errors.view_as(z)

    @overload
    def log_prob(
        self,
        x: Float[Tensor, "rows dims"],
        *,
        cells: tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]] | None = None,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
        method: str = "auto",
        return_error: Literal[False] = False,
    ) -> Float[Tensor, "rows"]: ...

    @overload
    def log_prob(
        self,
        x: Float[Tensor, "rows dims"],
        *,
        cells: tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]] | None = None,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
        method: str = "auto",
        return_error: Literal[True],
    ) -> tuple[Float[Tensor, "rows"], Float[Tensor, "rows"]]: ...

    def log_prob(
        self,
        x: Float[Tensor, "rows dims"],
        *,
        cells: tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]] | None = None,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
        method: str = "auto",
        return_error: bool = False,
    ) -> Float[Tensor, "rows"] | tuple[Float[Tensor, "rows"], Float[Tensor, "rows"]]:
        """Return log q(x) of each row, in nats, in the units of the data.

        Where `cells` are given their probability takes the place of the density. With
        `return_error` a pair: beside it an estimate, row by row, of the numerical error in nats
        (rounding, and what an integral leaves open), which 99 of 100 rows keep to.

        The density is nowhere 0. A log of −∞ says that a value is farther out than floating point
        can tell, some 1e19 deviations in float32, or a cell beyond all mass; its error is ∞.
        """
        terms, errors = self.log_prob_terms(x, cells=cells, condition=condition, method=method)
        return (terms.sum(-1), errors.sum(-1)) if return_error else terms.sum(-1)

    @torch.no_grad()
    def conditional_cdf(
        self,
        x: Float[Tensor, "rows dims"],
        *,
        at: Float[Tensor, "rows dims"] | None = None,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
        method: str = "auto",
    ) -> Float[Tensor, "rows dims"]:
        """Return the probability of values up to x_d, or up to `at`, given x_<d, for every d.

        Of rows drawn from the model those of x are independent and uniform. `at` may be infinite.
        """
        rows = as_rows(x, dims=self.dims)
        condition = self.checked_condition(condition, len(rows))
        if at is not None:
            at = torch.as_tensor(at)
            if at.shape != rows.shape or bool(at.isnan().any()):
                raise InputError(
                    f"expected at of shape {tuple(rows.shape)} without NaN, got shape"
                    f" {tuple(at.shape)}{', with some' if at.shape == rows.shape else ''};"
                    " pass a value for each entry, which may be infinite"
                )
        found = []
        for piece in self._pieces(len(rows)):
            given = None if condition is None else condition[piece]
            up_to = None if at is None else at[piece]
            found.append(self._some_cdf(rows[piece], up_to, given, method))
        return torch.cat(found)

    def _some_cdf(
        self,
        rows: Float[Tensor, "rows dims"],
        at: Float[Tensor, "rows dims"] | None,
        condition: Float[Tensor, "rows condition_dims"] | None,
        method: str,
    ) -> Float[Tensor, "rows dims"]:
        """Return what `conditional_cdf` does, for as many rows as memory is meant for."""
        z, inputs = self._units(rows, at)
        contexts = self.context(inputs, condition).flatten(0, 1)
        point = z.reshape(-1, 1)
        finite = point.isfinite()
        sizes = even_sizes(len(point), self.conditionals_at_once(method), z.device)
        pieces = zip(contexts.split(sizes), point.where(finite, 0.0).split(sizes), strict=True)
        probability = torch.cat(
            map_pieces(
                lambda piece: self.density_of(self.head.family(piece[0]), method).cdf(piece[1]),
                list(pieces),
                z.device,
            )
        )
        return probability.where(finite, (point > 0).to(z.dtype)).view_as(z)

    def checked_condition(
        self, condition: Any, rows: int
    ) -> Float[Tensor, "rows condition_dims"] | None:
        """Return conditioning values for so many rows, as `rows` returns rows; None for none."""
        if condition is not None:
            condition = as_rows(condition, name="condition", dtype=self.shift.dtype)
            condition = condition.to(self.shift.device)
        self.context.check_condition(condition, rows)
        return condition

    def _pieces(self, rows: int) -> Iterator[slice]:
        """Yield rows by rows, as many at a time as the context network has memory for."""
        size = max(1, _NUMBERS // self.context.numbers_per_row)
        for start in range(0, rows, size):
            yield slice(start, start + size)

    def _units(
        self, rows: Float[Tensor, "rows dims"], at: Float[Tensor, "rows dims"] | None = None
    ) -> tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]]:
        """Return rows, or `at`, in standardised units, and rows as the context network sees them.

        In float64, until they are standardised: of values far from 0, or of columns that are
        nearly copies, float32 would lose the digits that tell them apart.
        """
        wide = rows.to(self.shift.device, torch.float64)
        point = wide if at is None else at.to(wide)
        z = (point - self.centres(wide)) / self.scale
        inputs = self.context_inputs(wide)
        # Its square overflows, so that the log-density is −∞ all the same; but a context network
        # that is given infinity makes NaN of it, for all scalars.
        limit = torch.finfo(self.shift.dtype).max ** 0.75
        z = z.clamp(-limit, limit) if at is None else z
        return z.to(self.shift.dtype), inputs.clamp(-limit, limit).to(self.shift.dtype)

    def _standard_cells(
        self,
        rows: Float[Tensor, "rows dims"],
        cells: tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]],
    ) -> tuple[Float[Tensor, "entries 1"], Float[Tensor, "entries 1"]]:
        """Return the ends of cells in standardised units, entry after entry.

        In float64: a cell may be narrow beside the distance of its ends from 0.
        """
        centres = self.centres(rows.to(self.shift.device, torch.float64)).double()
        low, high = (
            ((end.to(centres) - centres) / self.scale.double()).reshape(-1, 1) for end in cells
        )
        return low, high

    def _is_narrow(self, low: Tensor, high: Tensor) -> Tensor:
        """Say of cells whether the density hardly changes across: a difference would be rounded."""
        return high - low < self.noise.sigma_min / 8

    @torch.no_grad()
    def recalibrate(
        self,
        x: Float[Tensor, "rows dims"],
        *,
        cells: tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]] | None = None,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
        entries: int = 2**16,
        generator: torch.Generator | None = None,
    ) -> None:
        """Correct the widths and shapes of conditionals by rows that were not trained on.

        From then on the flow, its density and its draws are corrected (see `Recalibration`); the
        scores stay what they are. `cells` are those of `log_prob_terms`. Of the rows so many
        `entries`, chosen at random, are looked at.
        """
        rows = as_rows(x, dims=self.dims)
        condition = self.checked_condition(condition, len(rows))
        if self.density != "flow" or self.head.normal_at is None:
            raise InputError(
                "expected a model whose density is a flow from a normal one to recalibrate it, got"
                " another; build it with noise from a σ_max of at least 2"
            )
        ends = (rows, rows) if cells is None else cells
        chosen = torch.rand(rows.shape, generator=generator) * rows.numel() < entries
        if not bool(chosen.any()):
            raise InputError("expected entries to recalibrate by, got none; pass more rows")
        found = []
        for piece in self._pieces(len(rows)):
            _, inputs = self._units(rows[piece])
            given = None if condition is None else condition[piece]
            some = chosen[piece].flatten().to(inputs.device).nonzero()[:, 0]
            contexts = self.context(inputs, given).flatten(0, 1)[some]
            cell = (ends[0][piece], ends[1][piece])
            low, high = (part[some] for part in self._standard_cells(rows[piece], cell))
            middle, narrow = (low + high) / 2, self._is_narrow(low, high)
            low, high = (middle.where(narrow, end).to(inputs.dtype) for end in (low, high))

            def look(part: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
                family = self.head.family(part[0])
                plain = FlowDensity(family, self.noise, steps=self.flow_steps)
                return plain.standard_ends(part[1], part[2])

            sizes = even_sizes(len(some), self.conditionals_at_once("flow"), some.device)
            parts = zip(*(each.split(sizes) for each in (contexts, low, high)), strict=True)
            found += map_pieces(look, list(parts), some.device)
        low, high, log_width = (torch.cat(parts) for parts in zip(*found, strict=True))
        curves = Recalibration.fit(low[:, 0], high[:, 0], log_width)
        self.recalibration = curves.to(self.shift.dtype)

    @torch.no_grad()
    def conditional(
        self,
        x: Float[Tensor, "rows dims"],
        d: int,
        *,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
    ) -> "ScaledDensity":
        """Return the canonical density of scalar d given those before it, for each row of x.

        Of x only the scalars that precede d in the order matter.
        """
        if not 0 <= d < self.dims:
            raise InputError(f"expected d from 0 to {self.dims - 1}, got {d}; choose a column")
        rows = self.rows(x)
        condition = self.checked_condition(condition, len(rows))
        family = self.head.family(self.context(self.context_inputs(rows), condition)[:, d])
        centre = self.centre(rows, d)[:, None]
        return ScaledDensity(self.density_of(family, "auto"), centre, self.scale[d])

    def conditionals_at_once(self, method: str) -> int:
        """Return how many conditionals to work on at one time."""
        kind = self.density if method == "auto" else method
        normal = kind == "flow" and self.head.normal_at is not None
        most = _CHUNK if normal else _CHUNK_TO_INTEGRATE
        return most * _ON_GPU if self.shift.is_cuda else most

    def density_of(self, family: HeadFamily, method: str = "auto") -> Density:
        """Return the normalised conditionals of a family of the head."""
        kind = self.density if method == "auto" else method
        if kind == "flow":
            check_draw(self, Draw(method="flow"))
            return FlowDensity(
                family, self.noise, steps=self.flow_steps, recalibration=self.recalibration
            )
        if kind == "quadrature":
            return QuadratureDensity(family, self.noise)
        raise InputError(f"expected a density among {DENSITIES}, got {kind!r}; choose one")


def check_columns(only: Sequence[int] | None, dims: int) -> None:
    """Refuse scalars to be evaluated alone that there are none of."""
    if only is not None and not set(only) <= set(range(dims)):
        raise InputError(
            f"expected columns from 0 to {dims - 1} in only, got {list(only)}; choose among these"
        )


class ScaledDensity:
    """One-dimensional densities of one column, in the units of the data."""

    def __init__(self, density: Density, shift: Tensor, scale: Tensor):
        self._density, self._shift, self._scale = density, shift, scale

    @torch.no_grad()
    def log_prob(self, x: Float[Tensor, "rows points"]) -> Float[Tensor, "rows points"]:
        """Return log q(x) in nats."""
        return self._density.log_prob((x - self._shift) / self._scale) - self._scale.log()

    @torch.no_grad()
    def cdf(self, x: Float[Tensor, "rows points"]) -> Float[Tensor, "rows points"]:
        """Return the probability of values up to x."""
        return self._density.cdf((x - self._shift) / self._scale)

    @torch.no_grad()
    def quantile(self, probability: Float[Tensor, "rows points"]) -> Float[Tensor, "rows points"]:
        """Return x with cdf(x) = probability."""
        return self._density.quantile(probability) * self._scale + self._shift
