"""A context network for any set of known scalars, and so for every order.

What a scalar adds to the first layer does not depend on the others: along an order the first layer
is a running sum, and only the layers behind it are computed anew for each scalar.
"""

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from arcsm.context.layers import condition_map, layer_sizes
from arcsm.context.linear import conditional_means, regressions_along
from arcsm.context.order import resolve_order
from arcsm.context.protocol import ContextCursor, ContextNetwork
from arcsm.context.waves import with_waves

# Rows of the network, one for each scalar of a row of data, computed at one time.
_PASSES = 8192


class SubsetNetwork(ContextNetwork):
    """A residual network from the known scalars, and which they are, to a context for each scalar.

    A known scalar shows its value, sin 2ᵏx and cos 2ᵏx for k < `frequencies`, and a 1; an unknown
    one shows zeros. `hidden` lists the widths of the hidden layers; their default and that of
    `frequencies` are those of a MADE. `order` is the one that `forward` and the cursor walk along;
    no weight depends on it.

    With `linear` an unknown scalar shows its linear prediction from the known ones, whichever these
    are: what takes a network long to learn for all sets is then there from the start. It follows
    from `correlation`, that of the scalars, which come with mean 0 and variance 1.

    >>> import torch
    >>> network = SubsetNetwork(3, width=4, hidden=(16, 16), order=[2, 0, 1])
    >>> x = torch.randn(5, 3)
    >>> network.contexts(x, torch.tensor([[True, False, True]]).expand(5, 3)).shape
    torch.Size([5, 3, 4])
    >>> network(x).shape
    torch.Size([5, 3, 4])
    """

    correlation: Float[Tensor, "dims dims"]

    def __init__(
        self,
        dims: int,
        *,
        width: int = 32,
        hidden: Sequence[int] | None = None,
        frequencies: int | None = None,
        order: str | Sequence[int] = "natural",
        condition_dims: int = 0,
        linear: bool = False,
    ):
        super().__init__()
        hidden, frequencies = layer_sizes(dims, width, hidden, frequencies, condition_dims)
        self.dims, self.width, self.condition_dims = dims, width, condition_dims
        self.hidden, self.frequencies = hidden, frequencies
        self.order = resolve_order(order, dims)
        self.input = nn.Linear(dims * (2 + 2 * frequencies), hidden[0])
        self.linear = linear
        self.predicted = nn.Linear(dims, hidden[0], bias=False) if linear else None
        if linear:
            self.register_buffer("correlation", torch.eye(dims))
        self.condition = condition_map(condition_dims, hidden[0])
        self.blocks = nn.ModuleList(
            _Block(before, after, condition_dims) for before, after in itertools.pairwise(hidden)
        )
        self.output = nn.Linear(hidden[-1], dims * width)

    @property
    def config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            "dims": self.dims,
            "width": self.width,
            "hidden": list(self.hidden),
            "frequencies": self.frequencies,
            "order": list(self.order),
            "condition_dims": self.condition_dims,
            **({"linear": True} if self.linear else {}),
        }

    def with_order(self, order: str | Sequence[int]) -> "SubsetNetwork":
        """Return a network with the same weights, not a copy of them, that walks another order."""
        other = copy.copy(self)
        other.order = resolve_order(order, self.dims)
        return other

    def contexts(
        self,
        x: Float[Tensor, "batch dims"],
        known: Bool[Tensor, "batch dims"] | Float[Tensor, "batch dims"],
        condition: Float[Tensor, "batch condition_dims"] | None = None,
    ) -> Float[Tensor, "batch dims width"]:
        """Return the context of every scalar given the `known` ones, in one pass.

        Of x the unknown entries do not matter. The contexts of known scalars mean nothing.
        """
        self.check_condition(condition, len(x))
        known = known.bool()
        shown = self._shown(x.where(known, 0.0)) * known[..., None]
        first = self._with_predictions(self.input(shown.flatten(1)), x, known)
        return self.output(self._behind(first, condition)).unflatten(-1, (self.dims, self.width))

    def _with_predictions(
        self,
        first: Float[Tensor, "batch units"],
        x: Float[Tensor, "batch dims"],
        known: Bool[Tensor, "batch dims"],
    ) -> Float[Tensor, "batch units"]:
        """Return the first layer with what linear predictions of the unknown scalars add to it."""
        if self.predicted is None:
            return first
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            mean = conditional_means(self.correlation, x.where(known, 0.0), known)
        return first + self.predicted(mean)

    def forward(
        self,
        x: Float[Tensor, "batch dims"],
        condition: Float[Tensor, "batch condition_dims"] | None = None,
    ) -> Float[Tensor, "batch dims width"]:
        """Return the context of every scalar given those before it in the order: D passes."""
        self.check_condition(condition, len(x))
        rows = max(1, _PASSES // self.dims)
        pieces = x.split(rows)
        conditions = [None] * len(pieces) if condition is None else condition.split(rows)
        regressions = self._regressions()
        return torch.cat(
            [
                self._along_order(*piece, regressions)
                for piece in zip(pieces, conditions, strict=True)
            ]
        )

    def cursor(
        self, batch: int, condition: Float[Tensor, "batch condition_dims"] | None = None
    ) -> "SubsetCursor":
        """Start a walk in which each scalar costs one pass."""
        self.check_condition(condition, batch)
        return SubsetCursor(self, batch, condition)

    def _regressions(self) -> Float[Tensor, "dims dims dims"] | None:
        """Return the linear predictions along the order, if they are shown."""
        return regressions_along(self.correlation, self.order) if self.linear else None

    def _along_order(
        self, x: Tensor, condition: Tensor | None, regressions: Tensor | None
    ) -> Tensor:
        order = list(self.order)
        shown = self._shown(x[:, order])
        added = torch.einsum("bds,hds->bdh", shown, self._input_weight()[:, order])
        before = F.pad(added.cumsum(1)[:, :-1], (0, 0, 1, 0))
        if self.predicted is not None and regressions is not None:
            before = before + self.predicted(torch.einsum("bd,pde->bpe", x, regressions))
        h = self._behind(
            before + self.input.bias, None if condition is None else condition[:, None]
        )
        weight, bias = (part[order] for part in self._output_parts())
        contexts = torch.einsum("bdh,dwh->bdw", h, weight) + bias
        place = torch.empty(self.dims, dtype=torch.long)
        place[torch.tensor(order)] = torch.arange(self.dims)
        return contexts[:, place.to(x.device)]

    def _shown(self, x: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch shown"]:
        """Return what known scalars show: value, waves, and that they are known."""
        return F.pad(with_waves(x, self.frequencies), (0, 1), value=1.0)

    def _behind(
        self, first: Float[Tensor, "*batch units"], condition: Tensor | None
    ) -> Float[Tensor, "*batch last_units"]:
        """Return the last hidden units, given the first before any condition."""
        h = first if self.condition is None else first + self.condition(condition)
        for block in self.blocks:
            h = block(h, condition)
        return F.silu(h)

    def _input_weight(self) -> Float[Tensor, "units dims shown"]:
        return self.input.weight.unflatten(1, (self.dims, -1))

    def _output_parts(
        self,
    ) -> tuple[Float[Tensor, "dims width units"], Float[Tensor, "dims width"]]:
        shape = (self.dims, self.width)
        return self.output.weight.unflatten(0, shape), self.output.bias.unflatten(0, shape)


class SubsetCursor(ContextCursor):
    """A walk that keeps the sum of what the known scalars add to the first layer."""

    def __init__(self, network: SubsetNetwork, batch: int, condition: Tensor | None):
        self._network, self._condition = network, condition
        self._first = network.input.bias.expand(batch, -1)
        self._regressions = network._regressions()
        self._x = network.input.bias.new_zeros(batch, network.dims)
        self._weight, (self._readers, self._biases) = (
            network._input_weight(),
            network._output_parts(),
        )

    def context(self) -> Float[Tensor, "batch width"]:
        """Return the context of the next scalar."""
        d = self._network.order[self.position]
        first, predicted = self._first, self._network.predicted
        if predicted is not None and self._regressions is not None:
            first = first + predicted(self._x @ self._regressions[self.position])
        h = self._network._behind(first, self._condition)
        return F.linear(h, self._readers[d], self._biases[d])

    def push(self, value: Float[Tensor, "batch"]) -> None:
        """Fix the next scalar: add what it shows."""
        d = self._network.order[self.position]
        self._x[:, d] = value
        self._first = self._first + F.linear(self._network._shown(value), self._weight[:, d])
        self.position += 1

    def take(self, rows: Int[Tensor, "batch"]) -> None:
        """Put other rows in the place of those walked so far."""
        self._first, self._x = self._first[rows], self._x[rows]
        if self._condition is not None:
            self._condition = self._condition[rows]


class SubsetRows:
    """Rows of which each knows scalars of its own; some can be told of one scalar more.

    As along an order, of the first layer only what a new scalar adds is computed anew.

    >>> import torch
    >>> network = SubsetNetwork(3, width=4, hidden=(16, 16))
    >>> x, known = torch.randn(5, 3), torch.rand(5, 3) < 0.5
    >>> rows = SubsetRows(network, x, known)
    >>> rows.context(torch.tensor([0, 3]), 2).shape  # of scalar 2, for two of the rows
    torch.Size([2, 4])
    """

    def __init__(
        self,
        network: SubsetNetwork,
        x: Float[Tensor, "rows dims"],
        known: Bool[Tensor, "rows dims"],
    ):
        self._network = network
        self._x, self._known = x.where(known, 0.0), known.clone()
        shown = network._shown(x.where(known, 0.0)) * known[..., None]
        self._first = network.input(shown.flatten(1))
        self._weight, (self._readers, self._biases) = (
            network._input_weight(),
            network._output_parts(),
        )

    def context(self, rows: Int[Tensor, "some"], d: int) -> Float[Tensor, "some width"]:
        """Return the context of scalar d for some of the rows."""
        network = self._network
        first = network._with_predictions(self._first[rows], self._x[rows], self._known[rows])
        return F.linear(network._behind(first, None), self._readers[d], self._biases[d])

    def push(self, rows: Int[Tensor, "some"], d: int, value: Float[Tensor, "some"]) -> None:
        """Tell some of the rows, each once, the value of scalar d."""
        added = F.linear(self._network._shown(value), self._weight[:, d])
        self._first.index_add_(0, rows, added)
        self._x[rows, d], self._known[rows, d] = value, True

    def copies(self, rows: Int[Tensor, "some"]) -> "SubsetRows":
        """Return copies of some of the rows, which go ways of their own."""
        other = copy.copy(self)
        other._first = self._first[rows]
        other._x, other._known = self._x[rows], self._known[rows]
        return other


class _Block(nn.Module):
    """h ↦ skip(h) + W₂ φ(W₁ φ(h) + U y); the skip is the identity where the widths agree."""

    def __init__(self, before: int, after: int, condition_dims: int):
        super().__init__()
        self.first, self.second = nn.Linear(before, after), nn.Linear(after, after)
        self.skip = None if before == after else nn.Linear(before, after)
        self.condition = condition_map(condition_dims, after)
        with torch.no_grad():  # blocks start close to their skip
            self.second.weight.mul_(0.1)
            self.second.bias.zero_()

    def forward(self, h: Tensor, condition: Tensor | None) -> Tensor:
        inner = self.first(F.silu(h))
        if self.condition is not None:
            inner = inner + self.condition(condition)
        return (h if self.skip is None else self.skip(h)) + self.second(F.silu(inner))
