"""The backbone of PixelCNN++ (Salimans et al., 2017): features of each pixel from those before it.

Two streams go through a U of resolutions. That above sees the rows above a pixel; that to the left
sees these, through the first, and the pixels to the left. Each convolution ends at its own row, and
in the left stream at its own column, so that a place never sees more than its pixel may; a coarse
place stands for two by two finer ones and sees what the first of them may see.
"""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from arcsm.context.pixels.layers import (
    ABOVE,
    LEFT,
    REACH,
    Convolution,
    GatedBlock,
    Grow,
    Node,
    Shrink,
    node,
)
from arcsm.context.pixels.walk import StreamsCursor
from arcsm.errors import InputError


class Level(nn.Module):
    """The blocks of one resolution, of both streams, on the way down and on the way up."""

    def __init__(self, filters: int, down: int, up: int, dropout: float):
        super().__init__()

        def blocks(count: int, kernel: tuple[int, int], sources: int) -> nn.ModuleList:
            read = [filters] * sources
            return nn.ModuleList(GatedBlock(filters, kernel, read, dropout) for _ in range(count))

        # On the way up each block also reads the place of the way down that it answers to. The
        # left stream reads the one above as well.
        self.above_down, self.left_down = blocks(down, ABOVE, 0), blocks(down, LEFT, 1)
        self.above_up, self.left_up = blocks(up, ABOVE, 1), blocks(up, LEFT, 2)


class PixelStreams(nn.Module):
    """Images of `shape` (height, width, channels) become `features` numbers for each pixel.

    `filters` is the width of the streams, one number or one for each resolution, finest first. Each
    resolution has `blocks` gated blocks in each stream on the way down, and as many on the way up,
    or one more where the next is coarser. Sizes are halved `levels` − 1 times, rounded up.
    `dropout` is the share of inner activations that are dropped in training.

    >>> import torch
    >>> streams = PixelStreams((7, 5, 3), filters=(4, 8), blocks=1, levels=2)
    >>> streams(torch.rand(2, 7, 5, 3)).shape
    torch.Size([2, 8, 7, 5])
    """

    def __init__(
        self,
        shape: Sequence[int],
        filters: int | Sequence[int],
        blocks: int,
        levels: int = 3,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.shape = _checked_shape(shape, levels)
        self.filters = _checked_filters(filters, blocks, levels)
        if not 0 <= dropout < 1:
            raise InputError(f"expected dropout of 0 or more, below 1, got {dropout}; 0 is none")
        self.blocks, self.dropout = blocks, float(dropout)
        height, width, channels = self.shape
        first, last = self.filters[0], levels - 1
        self.features = 2 * first
        # A channel of ones tells pixels from what lies outside the image. The rows above a pixel
        # are read for both streams at once.
        self.rows_above = Convolution(
            channels + 1, 2 * first, (REACH, 2 * REACH + 1), pad=(REACH, REACH, REACH, -1)
        )
        self.pixels_left = Convolution(
            channels + 1, first, (1, REACH), pad=(REACH, -1, 0, 0), bias=False
        )
        self.levels = nn.ModuleList(
            Level(count, blocks, blocks + (level < last), dropout)
            for level, count in enumerate(self.filters)
        )
        self.sizes = [(-(-height >> level), -(-width >> level)) for level in range(levels)]
        finer, coarser = self.filters[:-1], self.filters[1:]
        pairs = list(zip(finer, coarser, self.sizes[:-1], strict=True))
        self.shrink_above = nn.ModuleList(Shrink(fine, coarse, ABOVE) for fine, coarse, _ in pairs)
        self.shrink_left = nn.ModuleList(Shrink(fine, coarse, LEFT) for fine, coarse, _ in pairs)
        self.grow_above = nn.ModuleList(Grow(coarse, fine, size) for fine, coarse, size in pairs)
        self.grow_left = nn.ModuleList(Grow(coarse, fine, size) for fine, coarse, size in pairs)

    @property
    def numbers_per_image(self) -> int:
        """About how many numbers a pass without gradients keeps for each image."""
        kept = 4 * (self.blocks + 1) + 12  # the skips of both streams, and what is being worked on
        return sum(
            rows * columns * count * kept
            for (rows, columns), count in zip(self.sizes, self.filters, strict=True)
        )

    def forward(
        self, x: Float[Tensor, "batch rows columns channels"]
    ) -> Float[Tensor, "batch features rows columns"]:
        """Return the features of every pixel, in channels-last memory."""
        self.check_images(x)
        levels = [cast(Level, level) for level in self.levels]
        above, left = self._first_places(x)
        skips: list[tuple[Tensor, Tensor]] = []
        for index, level in enumerate(levels):
            if index:
                above = node(self.shrink_above[index - 1](above.active))
                left = node(self.shrink_left[index - 1](left.active))
            skips.append((above.active, left.active))
            for above_block, left_block in zip(level.above_down, level.left_down, strict=True):
                above = above_block(above)
                left = left_block(left, above.active)
                skips.append((above.active, left.active))
        skips.pop()  # this is where the way up starts
        for index in reversed(range(len(self.levels))):
            level = levels[index]
            for above_block, left_block in zip(level.above_up, level.left_up, strict=True):
                above_skip, left_skip = skips.pop()
                above = above_block(above, above_skip)
                left = left_block(left, above.active, left_skip)
            if index:
                above = node(self.grow_above[index - 1](above.active))
                left = node(self.grow_left[index - 1](left.active))
        return left.active

    def cursor(self, batch: int) -> StreamsCursor:
        """Start a walk over the pixels of `batch` images, row by row."""
        return StreamsCursor(self, batch)

    def check_images(self, x: Tensor) -> None:
        """Refuse images of another shape than the network was made for."""
        if x.ndim != 4 or tuple(x.shape[1:]) != self.shape:
            height, width, channels = self.shape
            raise InputError(
                f"expected images of shape (batch, {height}, {width}, {channels}), got"
                f" {tuple(x.shape)}; resize them, or build the network for their shape"
            )

    def _first_places(self, x: Float[Tensor, "batch rows columns channels"]) -> tuple[Node, Node]:
        # Channels lie innermost already: seen as maps, they are in channels-last memory.
        image = torch.cat([x, torch.ones_like(x[..., :1])], -1).permute(0, 3, 1, 2)
        above, left = self.rows_above(image).chunk(2, 1)
        return node(above), node(left + self.pixels_left(image))


def _checked_shape(shape: Sequence[int], levels: int) -> tuple[int, int, int]:
    sizes = tuple(shape)
    whole = all(isinstance(size, int) and not isinstance(size, bool) for size in sizes)
    if len(sizes) != 3 or not whole or min(sizes) < 1:
        raise InputError(
            "expected the shape of an image as three positive whole numbers, height, width and"
            f" channels, got {shape!r}; a grey image has one channel"
        )
    if levels < 1:
        raise InputError(f"expected at least one level, got levels={levels}; use 1")
    shorter, least = min(sizes[:2]), 2 ** (levels - 1)
    if shorter < least:
        most = shorter.bit_length()
        raise InputError(
            f"expected images of {least}×{least} pixels or more, to be halved for each level but"
            f" the first, got {sizes[0]}×{sizes[1]} pixels and levels={levels}; use larger images,"
            f" or levels={most}{' or fewer' if most > 1 else ''}"
        )
    height, width, channels = sizes
    return height, width, channels


def _checked_filters(filters: int | Sequence[int], blocks: int, levels: int) -> tuple[int, ...]:
    counts = (filters,) * levels if isinstance(filters, int) else tuple(filters)
    if len(counts) != levels or min(*counts, blocks) < 1:
        raise InputError(
            "expected at least one block, and a positive number of filters or one for each level,"
            f" got filters={filters!r}, blocks={blocks}, levels={levels}; correct these"
        )
    return counts
