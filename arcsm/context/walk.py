"""A walk along a MADE whose every step is the same program: it can be compiled, or captured once.

`MADECursor` slices the weights differently at each position, which suits eager torch. Here the
position is a tensor, and the units that become known at it are looked up in a table, so that one
graph serves all positions and all batches of one size.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from arcsm.context.made import MADE, MaskedLinear, ResidualBlock


class MADEWalk:
    """The state of a walk for `batch` rows, kept in place.

    Units of degree m of every layer are computed when the m-th scalar is pushed; `position`, the
    number of scalars known, is a tensor of one entry on the device of the weights.
    """

    def __init__(self, made: MADE, batch: int):
        self._made = made
        like = made.input.weight
        self._order = torch.tensor(made.order, device=like.device)
        per_scalar = 1 + 2 * made.frequencies
        feature = torch.arange(per_scalar, device=like.device)
        self._columns = (self._order * per_scalar + feature[:, None]).flatten()
        self._blocks = [block for block in made.blocks if isinstance(block, ResidualBlock)]
        self._features = like.new_zeros(batch, per_scalar, made.dims)
        # One more unit in each layer takes what tables shorter than the longest one write.
        self._stream = [like.new_zeros(batch, count + 1) for count in made.hidden]
        self._active = [torch.zeros_like(stream) for stream in self._stream]
        self._inner = [torch.zeros_like(stream) for stream in self._stream[1:]]
        self._units = [
            _units_of_degree(degrees, made.dims).to(like.device) for degrees in made._degrees
        ]
        self._bias = [torch.zeros_like(stream) for stream in self._stream]
        self._conditioned = [(made.input, made.condition)]
        self._conditioned += [(block.first, block.condition) for block in self._blocks]
        self._ends = self._read_ends()
        self._inside = [self._read_block(block) for block in self._blocks]

    def restart(self, condition: Float[Tensor, "batch condition_dims"] | None = None) -> None:
        """Forget all scalars, take another condition, and read the weights as they are now."""
        self._made.check_condition(condition, len(self._features))
        for bias, (layer, to_units) in zip(self._bias, self._conditioned, strict=True):
            bias[:, :-1] = layer.bias if to_units is None else layer.bias + to_units(condition)
        now = (self._read_ends(), *map(self._read_block, self._blocks))
        for kept, read in zip((self._ends, *self._inside), now, strict=True):
            for table, weights in zip(kept, read, strict=True):
                table.copy_(weights)
        for buffer in (self._features, *self._stream, *self._active, *self._inner):
            buffer.zero_()
        self._compute_units(torch.zeros(1, dtype=torch.long, device=self._features.device))

    def context(self, position: Int[Tensor, "1"]) -> Float[Tensor, "batch width"]:
        """Return the context of the scalar at `position`."""
        _, weight, bias = self._ends
        weight, bias = (part.index_select(0, position)[0] for part in (weight, bias))
        return F.linear(self._active[-1], weight, bias)

    def push(self, position: Int[Tensor, "1"], value: Float[Tensor, "batch"]) -> None:
        """Fix the scalar at `position` and compute the units that were waiting for it."""
        self._features.index_copy_(2, position, self._made.features(value)[..., None])
        self._compute_units(position + 1)

    def _compute_units(self, known: Int[Tensor, "1"]) -> None:
        new = self._units[0].index_select(0, known)[0]
        value = F.linear(self._features.flatten(1), self._ends[0].index_select(0, new))
        value = value + self._bias[0].index_select(1, new)
        self._stream[0].index_copy_(1, new, value)
        self._active[0].index_copy_(1, new, F.silu(value))
        for block, tables in enumerate(self._inside):
            layer = block + 1
            new = self._units[layer].index_select(0, known)[0]
            first, second, bias, *skip = (table.index_select(0, new) for table in tables)
            inner = F.silu(
                F.linear(self._active[block], first) + self._bias[layer].index_select(1, new)
            )
            self._inner[block].index_copy_(1, new, inner)
            before = self._stream[block]
            value = F.linear(self._inner[block], second, bias)
            value = value + (F.linear(before, *skip) if skip else before.index_select(1, new))
            self._stream[layer].index_copy_(1, new, value)
            self._active[layer].index_copy_(1, new, F.silu(value))

    def _read_ends(self) -> list[Tensor]:
        """Return the weights of the input, of the output and its bias, in the order of the walk."""
        made = self._made
        output = F.pad(made.output.weight * made.output.mask, (0, 1)), made.output.bias
        by_scalar = (part.unflatten(0, (made.dims, made.width))[self._order] for part in output)
        return [_padded(made.input)[:, self._columns], *by_scalar]

    def _read_block(self, block: ResidualBlock) -> list[Tensor]:
        """Return the weights of both layers, the bias of the second, and the skip if any."""
        second = [_padded(block.second, inputs=1), F.pad(block.second.bias, (0, 1))]
        skip = block.skip
        through = [] if skip is None else [_padded(skip, inputs=1), F.pad(skip.bias, (0, 1))]
        return [_padded(block.first, inputs=1), *second, *through]


def _padded(layer: MaskedLinear, *, inputs: int = 0) -> Tensor:
    """Return the masked weights with a unit more that is always 0, and so many inputs more."""
    return F.pad(layer.weight * layer.mask, (0, inputs, 0, 1))


def _units_of_degree(degrees: Int[Tensor, "units"], dims: int) -> Int[Tensor, "degrees most"]:
    """Return, for each degree up to `dims`, its units, and the number of units in empty places."""
    ends = torch.searchsorted(degrees, torch.arange(dims + 1), right=True)
    starts = F.pad(ends[:-1], (1, 0))
    most = int((ends - starts).max())
    units = starts[:, None] + torch.arange(most)
    return units.where(units < ends[:, None], torch.tensor(len(degrees)))
