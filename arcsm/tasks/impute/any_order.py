"""Holes under a model of all orders, which is asked for each conditional directly.

What a single hole may have been, given all that is known of its row, is one conditional of the
model: its mean, median and quantiles need no draws of the other holes. Joint draws are made scalar
after scalar, each given what is known and what was drawn before.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from arcsm.agnostic import OrderAgnosticARCSM
from arcsm.columns import Columns
from arcsm.columns.category import Category
from arcsm.columns.incomplete import Incomplete
from arcsm.columns.kind import Kind
from arcsm.context.subset import SubsetRows
from arcsm.tasks.impute.answers import (
    point_of_category,
    point_of_numbers,
    quantiles_of_category,
    quantiles_of_numbers,
)
from arcsm.tasks.impute.conditionals import Conditionals
from arcsm.threads import limited_threads

# Rows of a pass that are worth another thread.
_ROWS_OF_A_THREAD = 8192

# A value this many deviations out says no more than one that is nearer, and does not overflow.
_FARTHEST = 1e9


class AnyOrder:
    """What a model of all orders says of the holes of some rows."""

    def __init__(self, columns: Columns, model: OrderAgnosticARCSM, reach: np.ndarray):
        self.columns, self.model, self.reach = columns, model, reach

    def effective(self, part: Incomplete) -> np.ndarray | None:
        """Return None: nothing is approximated by draws."""
        return None

    @torch.no_grad()
    def point(self, part: Incomplete, how: str, *, fractional: bool) -> dict[str, np.ndarray]:
        """Return the mean or median of each open hole, column by column."""
        known, found = self._known(part), {}
        for name, kind, rows in self._open(part):
            if isinstance(kind, Category):
                probability = self._probabilities(known, rows, name)
                found[name] = point_of_category(kind, probability, fractional=fractional)
            else:
                conditionals = self._conditionals(known, rows, self.columns.scalars_of(name)[0])
                found[name] = point_of_numbers(kind, conditionals, how, fractional=fractional)
        return found

    @torch.no_grad()
    def quantiles(self, part: Incomplete, levels: Sequence[float]) -> dict[str, np.ndarray]:
        """Return quantiles of each open hole (holes, levels), column by column."""
        known, found = self._known(part), {}
        for name, kind, rows in self._open(part):
            if isinstance(kind, Category):
                probability = self._probabilities(known, rows, name)
                found[name] = quantiles_of_category(kind, probability, levels)
            else:
                conditionals = self._conditionals(known, rows, self.columns.scalars_of(name)[0])
                found[name] = quantiles_of_numbers(kind, conditionals, levels)
        return found

    @torch.no_grad()
    def draws(
        self, part: Incomplete, count: int, generator: torch.Generator | None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield joint draws of all open holes, column by column, so many times."""
        start, device = self._known(part), self.model.shift.device
        everyone = torch.arange(len(part.observed), device=device)
        for _ in range(count):
            known, point = start.copies(everyone), part.encoded.point.copy()
            uniform = torch.rand(
                part.observed.shape, generator=generator, dtype=torch.float64, device=device
            ).to(self.model.dtype)
            for d in range(self.columns.scalars):
                rows = np.flatnonzero(~part.observed[:, d])
                if not len(rows):
                    continue
                some = torch.from_numpy(rows).to(device)
                drawn = self._conditionals(known, some, d).draw(uniform[some, d])
                point[rows, d] = self.columns.snap(d, drawn, point[rows, :d])
                value = torch.from_numpy(point[rows, d]).to(self.model.shift)
                known.push(some, d, self.model.context_input(value, d))
            whole = self.columns.decode(point)
            yield {
                name: whole[name][holes]
                for name, holes in zip(self.columns.names, part.open.T, strict=True)
                if self.columns.scalars_of(name)
            }

    def _known(self, part: Incomplete) -> SubsetRows:
        point = part.encoded.point.clip(-_FARTHEST, _FARTHEST)
        like = self.model.shift
        return SubsetRows(
            self.model.context,
            self.model.context_inputs(torch.from_numpy(point).to(like)),
            torch.from_numpy(part.observed).to(like.device),
        )

    def _open(self, part: Incomplete) -> Iterator[tuple[str, Kind, Int[Tensor, "holes"]]]:
        """Yield each column with open holes and scalars, its kind, and the rows of the holes."""
        for name, holes in zip(self.columns.names, part.open.T, strict=True):
            if self.columns.scalars_of(name) and holes.any():
                rows = torch.from_numpy(np.flatnonzero(holes)).to(self.model.shift.device)
                yield name, self.columns.kind(name), rows

    def _conditionals(self, known: SubsetRows, rows: Int[Tensor, "some"], d: int) -> Conditionals:
        model = self.model
        low, high = self.reach[d].tolist()
        # Passes of some thousand rows are too small to be shared by threads.
        with limited_threads(len(rows) // _ROWS_OF_A_THREAD):
            context = known.context(rows, d)
        return Conditionals(model, context, model.shift[d], model.scale[d], (low, high))

    def _probabilities(self, known: SubsetRows, rows: Int[Tensor, "some"], name: str) -> np.ndarray:
        """Return the probability of each value of a category (rows, values), exactly.

        The values are the leaves of a binary tree, each digit given those before it.
        """
        kind, digits = self.columns.kind(name), self.columns.scalars_of(name)
        assert isinstance(kind, Category)
        found = np.zeros((len(rows), len(kind.values)))
        everyone = torch.arange(len(rows), device=rows.device)

        def descend(state: SubsetRows, depth: int, prefix: int, probability: np.ndarray) -> None:
            if depth == len(digits):
                found[:, prefix] = probability
                return
            leaves = 1 << (len(digits) - depth - 1)
            certain = (2 * prefix + 1) * leaves >= len(kind.values)
            zero = np.ones(len(rows))
            if not certain:
                zero = self._conditionals(state, everyone, digits[depth]).cdf(np.zeros(1))[:, 0]
            branches = [(0, zero)] if certain else [(0, zero), (1, 1 - zero)]
            for digit, share in branches:
                branch = state.copies(everyone)
                if depth + 1 < len(digits):
                    value = self.model.shift.new_full((len(rows),), 2.0 * digit - 1)
                    shown = self.model.context_input(value, digits[depth])
                    branch.push(everyone, digits[depth], shown)
                descend(branch, depth + 1, 2 * prefix + digit, probability * share)

        descend(known.copies(rows), 0, 0, np.ones(len(rows)))
        return found
