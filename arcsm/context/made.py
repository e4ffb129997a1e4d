"""MADE with residual blocks (Germain et al., 2015) as a context network.

A hidden unit of degree m sees the first m scalars of the order. Units are sorted by degree, so
that those of one degree lie side by side: the masks are staircases, and a cursor computes each
unit once, when the last scalar it sees becomes known.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from arcsm.context.layers import condition_map, layer_sizes
from arcsm.context.order import resolve_order
from arcsm.context.protocol import ContextCursor, ContextNetwork, take_rows
from arcsm.context.waves import with_waves


class MaskedLinear(nn.Linear):
    """A linear layer in which output i sees input j only where degree_out[i] ≥ degree_in[j]."""

    mask: Bool[Tensor, "outputs inputs"]

    def __init__(self, degree_in: Int[Tensor, "inputs"], degree_out: Int[Tensor, "outputs"]):
        super().__init__(len(degree_in), len(degree_out))
        self.register_buffer("mask", degree_out[:, None] >= degree_in[None, :], persistent=False)
        # The usual bound 1/√fan-in, with the fan-in that the mask leaves to each unit.
        bound = self.mask.sum(1, keepdim=True).clamp(min=1).rsqrt()
        with torch.no_grad():
            self.weight.uniform_(-1, 1).mul_(bound)
            self.bias.uniform_(-1, 1).mul_(bound[:, 0])

    def forward(self, x: Tensor) -> Tensor:
        """Return x @ (mask · weight)ᵀ + bias."""
        return F.linear(x, self.weight * self.mask, self.bias)


class ResidualBlock(nn.Module):
    """h ↦ skip(h) + W₂ φ(W₁ φ(h) + U y), with masks that keep every unit's degree.

    The skip is the identity where the widths agree and a masked linear map where they do not.
    """

    def __init__(
        self,
        degree_in: Int[Tensor, "inputs"],
        degree_out: Int[Tensor, "outputs"],
        condition_dims: int,
    ):
        super().__init__()
        self.first = MaskedLinear(degree_in, degree_out)
        self.second = MaskedLinear(degree_out, degree_out)
        same = torch.equal(degree_in, degree_out)
        self.skip = None if same else MaskedLinear(degree_in, degree_out)
        self.condition = condition_map(condition_dims, len(degree_out))
        with torch.no_grad():  # blocks start close to their skip
            self.second.weight.mul_(0.1)
            self.second.bias.zero_()

    def forward(self, h: Tensor, condition: Tensor | None) -> Tensor:
        """Apply the block to a batch of hidden units."""
        inner = self.first(F.silu(h))
        if self.condition is not None:
            inner = inner + self.condition(condition)
        return (h if self.skip is None else self.skip(h)) + self.second(F.silu(inner))


class MADE(ContextNetwork):
    """Masked autoencoder: one pass gives the contexts of all scalars.

    `hidden` lists the widths of the hidden layers: the first is reached by a masked linear map
    from the data, each further one by a residual block. The default is three layers of at least
    128 units and one for each scalar: in a layer narrower than that some degrees have no unit, and
    a context misses the scalars just before its own. With `frequencies` = n every scalar x is
    accompanied by sin 2ᵏx and cos 2ᵏx for k < n: a plain network is slow to learn contexts that
    change quickly with a scalar. The default is 4 for fewer than 64 scalars, and 0 from there on,
    where reading the waves would dominate the cost.

    >>> import torch
    >>> made = MADE(3, width=4, hidden=(16, 16), order=[2, 0, 1])
    >>> made(torch.randn(5, 3)).shape
    torch.Size([5, 3, 4])
    """

    def __init__(
        self,
        dims: int,
        *,
        width: int = 32,
        hidden: Sequence[int] | None = None,
        frequencies: int | None = None,
        order: str | Sequence[int] = "natural",
        condition_dims: int = 0,
    ):
        super().__init__()
        hidden, frequencies = layer_sizes(dims, width, hidden, frequencies, condition_dims)
        self.dims, self.width, self.condition_dims = dims, width, condition_dims
        self.hidden, self.frequencies = hidden, frequencies
        self.order = resolve_order(order, dims)
        rank = torch.empty(dims, dtype=torch.long)  # rank[d] = position of scalar d in the order
        rank[torch.tensor(self.order)] = torch.arange(dims)
        # Units of degree 0 see no scalar; they are there to carry a condition to the first one.
        least = 0 if condition_dims or dims == 1 else 1
        self._degrees = [_spread_degrees(count, least, dims - 1) for count in hidden]
        # Scalar at position i feeds units of degree i + 1 and more; its context is made of units
        # of degree i and less.
        per_scalar = 1 + 2 * frequencies
        self.input = MaskedLinear((rank + 1).repeat_interleave(per_scalar), self._degrees[0])
        self.condition = condition_map(condition_dims, hidden[0])
        self.blocks = nn.ModuleList(
            ResidualBlock(before, after, condition_dims)
            for before, after in zip(self._degrees[:-1], self._degrees[1:], strict=True)
        )
        self.output = MaskedLinear(self._degrees[-1], rank.repeat_interleave(width))

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
        }

    @property
    def numbers_per_row(self) -> int:
        """About how many numbers a walk keeps for each row."""
        return self.dims * (self.width + 2 * self.frequencies + 1) + 3 * sum(self.hidden)

    def forward(
        self,
        x: Float[Tensor, "batch dims"],
        condition: Float[Tensor, "batch condition_dims"] | None = None,
    ) -> Float[Tensor, "batch dims width"]:
        """Return the contexts of all scalars."""
        self.check_condition(condition, len(x))
        h = self.input(self.features(x).flatten(1))
        if self.condition is not None:
            h = h + self.condition(condition)
        for block in self.blocks:
            h = block(h, condition)
        return self.output(F.silu(h)).unflatten(-1, (self.dims, self.width))

    def features(self, x: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch features"]:
        """Return x with its sines and cosines, on a new axis."""
        return with_waves(x, self.frequencies)

    def cursor(
        self, batch: int, condition: Float[Tensor, "batch condition_dims"] | None = None
    ) -> "MADECursor":
        """Start a walk in which every hidden unit is computed once."""
        self.check_condition(condition, batch)
        return MADECursor(self, batch, condition)


class MADECursor(ContextCursor):
    """The units of degree m of every layer are computed when the m-th scalar is pushed.

    A whole walk so costs about one forward pass, whatever the number of scalars. Units are rows
    here and the batch is columns, so that those of one degree are one piece of memory, which
    products are written to directly.
    """

    def __init__(self, made: MADE, batch: int, condition: Tensor | None):
        self._made = made
        weight = made.input.weight.detach()
        # Where the units of degree ≤ m end, in each hidden layer; blocks have two layers.
        self._ends = [
            torch.searchsorted(degrees, torch.arange(made.dims + 1), right=True).tolist()
            for degrees in made._degrees
        ]
        self._per_scalar = per_scalar = 1 + 2 * made.frequencies
        # Features of the scalars in the order of the walk, and the weights that read them.
        self._features = weight.new_zeros(made.dims * per_scalar, batch)
        places = torch.tensor(made.order, device=weight.device)[:, None] * per_scalar
        columns = places + torch.arange(per_scalar, device=weight.device)
        blocks = [block for block in made.blocks if isinstance(block, ResidualBlock)]
        bias = [
            (layer.bias if to_units is None else layer.bias + to_units(condition)).detach()
            for layer, to_units in (
                (made.input, made.condition),
                *((block.first, block.condition) for block in blocks),
            )
        ]
        by_unit = [some[:, None] if some.ndim == 1 else some.T for some in bias]
        self._conditioned = [] if condition is None else by_unit
        # What belongs to the units of each degree is cut out once, as doing so takes longer than
        # most of the products.
        ends, (first, *rest) = self._ends, by_unit
        layer = _Layer(weight.new_zeros(made.hidden[0], batch), ends[0])
        self._input = layer.cut(weight[:, columns.flatten()]), layer.cut(first)
        self._layers = [layer]
        self._blocks = []
        for index, (block, some) in enumerate(zip(blocks, rest, strict=True), start=1):
            layer = _Layer(weight.new_zeros(made.hidden[index], batch), ends[index])
            self._blocks.append(_BlockWalk(block, layer, some))
            self._layers.append(layer)
        self._output = made.output.weight, made.output.bias
        self._compute_units()

    def context(self) -> Float[Tensor, "batch width"]:
        """Return the context of the next scalar."""
        made, end = self._made, self._ends[-1][self.position]
        start = made.order[self.position] * made.width
        weight, bias = (part.narrow(0, start, made.width) for part in self._output)
        active = self._layers[-1].active.narrow(0, 0, end)
        return F.linear(active.T, weight.narrow(1, 0, end), bias)

    @torch.no_grad()
    def push(self, value: Float[Tensor, "batch"]) -> None:
        """Fix the next scalar and compute the units that were waiting for it."""
        first = self.position * self._per_scalar
        self._features[first : first + self._per_scalar] = self._made.features(value).T
        self.position += 1
        if self.position < self._made.dims:
            self._compute_units()

    @torch.no_grad()
    def take(self, rows: Int[Tensor, "batch"]) -> None:
        """Put other rows in the place of those walked so far."""
        kept = [self._features, *self._conditioned]
        for layer in self._layers:
            kept += [layer.stream, layer.active]
        kept += [block.inner for block in self._blocks]
        take_rows(kept, rows, dim=1)

    @torch.no_grad()
    def _compute_units(self) -> None:
        """Compute the units whose degree is the number of scalars now known, layer by layer."""
        known = self.position
        layer, before = self._layers[0], known * self._per_scalar
        weight, bias = (part[known] for part in self._input)
        features = self._features.narrow(0, 0, before)
        torch.addmm(bias, weight.narrow(1, 0, before), features, out=layer.streams[known])
        layer.activate(known)
        for block in self._blocks:
            block.compute_units(known, layer)
            layer = block.layer


class _Layer:
    """The units of a hidden layer, and those of each degree among them."""

    def __init__(self, stream: Float[Tensor, "units batch"], ends: list[int]):
        self.ends = ends
        self._sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        self.stream, self.active = stream, torch.zeros_like(stream)
        self.streams, self._actives = self.cut(self.stream), self.cut(self.active)

    def cut(self, by_unit: Float[Tensor, "units ..."]) -> tuple[Tensor, ...]:
        """Return what belongs to the units of each degree."""
        return by_unit.split(self._sizes)

    def activate(self, known: int) -> None:
        """Apply the activation to the units of one degree."""
        stream = self.streams[known]
        torch.sigmoid(stream, out=self._actives[known]).mul_(stream)


class _BlockWalk:
    """A residual block whose units are computed degree by degree."""

    def __init__(self, block: ResidualBlock, layer: _Layer, bias: Float[Tensor, "units #batch"]):
        self.layer, self._bias = layer, layer.cut(bias)
        units, batch = layer.stream.shape
        # A unit that is always 1 comes first, whose weights are the bias.
        self.inner = layer.stream.new_ones(units + 1, batch)
        self._inners = layer.cut(self.inner[1:])
        second = torch.cat([block.second.bias[:, None], block.second.weight], 1).detach()
        self._first, self._second = layer.cut(block.first.weight.detach()), layer.cut(second)
        skip = block.skip
        self._skip = None
        if skip is not None:
            self._skip = layer.cut(skip.weight.detach()), layer.cut(skip.bias.detach()[:, None])

    def compute_units(self, known: int, before: _Layer) -> None:
        """Compute the units of one degree from those of the layer before."""
        layer, end = self.layer, before.ends[known]
        inner = self._inners[known]
        weight = self._first[known].narrow(1, 0, end)
        torch.addmm(self._bias[known], weight, before.active.narrow(0, 0, end), out=inner)
        F.silu(inner, inplace=True)
        if self._skip is None:
            through = before.streams[known]
        else:
            weight, bias = (part[known] for part in self._skip)
            through = torch.addmm(bias, weight.narrow(1, 0, end), before.stream.narrow(0, 0, end))
        seen = layer.ends[known] + 1
        weight = self._second[known].narrow(1, 0, seen)
        torch.addmm(through, weight, self.inner.narrow(0, 0, seen), out=layer.streams[known])
        layer.activate(known)


def _spread_degrees(count: int, least: int, most: int) -> Int[Tensor, "count"]:
    """Return `count` sorted degrees spread evenly over least … most."""
    return torch.tensor([least + unit * (most - least + 1) // count for unit in range(count)])
