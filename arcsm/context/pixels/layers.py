"""Convolutions that look upwards and to the left, and the gated blocks made of them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

# Kernels, rows × columns. That of the stream above is centred on its column; that of the stream
# to the left ends at its own. Both end at their own row.
ABOVE, LEFT, POINT = (2, 3), (2, 2), (1, 1)

# How small the residual branches are at first, so that a deep stack starts close to its skips.
_BRANCH_GAIN = 0.1

# How many rows above, and columns to either side, the first layers read. It costs little there.
REACH = 3


class Node(NamedTuple):
    """One place in a stream: what blocks add to, and its non-linear form, which layers read."""

    raw: Float[Tensor, "batch filters rows columns"]
    active: Float[Tensor, "batch filters*2 rows columns"]


def node(raw: Float[Tensor, "batch filters rows columns"]) -> Node:
    """Return the place with its non-linear form, computed once for all that read it."""
    return Node(raw, activate(raw, dim=1))


def activate(x: Tensor, *, dim: int) -> Tensor:
    """Return silu(x) and x side by side along `dim`.

    A linear layer makes of these what it could make of silu(x) and silu(−x) = silu(x) − x: both
    signs of a feature, as in the original, for one exponential.
    """
    return torch.cat([F.silu(x), x], dim)


def gate(x: Tensor, *, dim: int) -> Tensor:
    """Return the first half of x along `dim` times the sigmoid of the second.

    F.glu does the same, with a gradient that takes twice as long on a CPU.
    """
    value, opening = x.chunk(2, dim)
    return value * torch.sigmoid(opening)


class Convolution(nn.Module):
    """A convolution with normalised weights: each output has a direction and a gain.

    `pad` lists the columns to add on the left and on the right and the rows at the top and at the
    bottom; negative numbers take away. The direction is stored as outputs, rows, columns, inputs:
    that is the channels-last layout of a kernel, and a matrix for a walk that multiplies by it.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: tuple[int, int],
        *,
        pad: tuple[int, int, int, int] | None = None,
        stride: int = 1,
        gain: float = 1.0,
        bias: bool = True,
    ):
        super().__init__()
        rows, columns = kernel
        right = (columns - 1) // 2
        self.pad = (columns - 1 - right, right, rows - 1, 0) if pad is None else pad
        self.stride = stride
        direction = torch.randn(outputs, rows, columns, inputs) / math.sqrt(rows * columns * inputs)
        self.direction = nn.Parameter(direction)
        self.gain = nn.Parameter(torch.full((outputs,), gain))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def weight(self) -> Float[Tensor, "outputs rows columns inputs"]:
        """Return gain · direction / ‖direction‖."""
        length = self.direction.flatten(1).norm(dim=1)
        return self.direction * (self.gain / length)[:, None, None, None]

    def forward(self, x: Float[Tensor, "batch inputs rows columns"]) -> Tensor:
        """Return the convolution of a batch of maps."""
        padded = F.pad(x, self.pad) if any(self.pad) else x
        return F.conv2d(padded, self.weight().permute(0, 3, 1, 2), self.bias, self.stride)


class GatedBlock(nn.Module):
    """x ↦ x + a·sigmoid(b), where (a, b) are two convolutions away from x.

    What other streams and skips have to say enters between the two, through a matrix for each of
    `sources`, which lists their numbers of filters.
    """

    def __init__(
        self, filters: int, kernel: tuple[int, int], sources: Sequence[int], dropout: float
    ):
        super().__init__()
        # The parts of a sum of so many keep it of the size that one of them would have.
        gain = 1 / math.sqrt(1 + len(sources))
        self.first = Convolution(2 * filters, filters, kernel, gain=gain)
        self.sources = nn.ModuleList(
            Convolution(2 * count, filters, POINT, gain=gain, bias=False) for count in sources
        )
        self.second = Convolution(2 * filters, 2 * filters, kernel, gain=_BRANCH_GAIN)
        self.dropout = dropout

    def forward(self, x: Node, *sources: Float[Tensor, "batch channels rows columns"]) -> Node:
        """Return the next place of the stream, given the non-linear forms of the sources."""
        inner = self.first(x.active)
        for layer, source in zip(self.sources, sources, strict=True):
            inner = inner + layer(source)
        inner = activate(inner, dim=1)
        if self.dropout:
            inner = F.dropout(inner, self.dropout, self.training)
        return node(x.raw + gate(self.second(inner), dim=1))


class Shrink(Convolution):
    """A strided convolution to half the rows and columns, rounded up.

    Its output (i, j) reads up to (2i, 2j), the first of the four places that it stands for.
    """

    def __init__(self, inputs: int, outputs: int, kernel: tuple[int, int]):
        super().__init__(2 * inputs, outputs, kernel, stride=2)


class Grow(Convolution):
    """A map from each place to the four places that it stands for, cut to `size`."""

    def __init__(self, inputs: int, outputs: int, size: tuple[int, int]):
        super().__init__(2 * inputs, 4 * outputs, POINT)
        self.size = size

    def forward(self, x: Float[Tensor, "batch inputs rows columns"]) -> Tensor:
        """Return maps of twice the rows and columns."""
        # Channels are innermost in memory: one copy, which leaves them so.
        four = super().forward(x).permute(0, 2, 3, 1).unflatten(-1, (2, 2, -1))
        batch, height, width, *_, outputs = four.shape
        grown = four.transpose(2, 3).reshape(batch, 2 * height, 2 * width, outputs)
        return grown[:, : self.size[0], : self.size[1]].permute(0, 3, 1, 2)
