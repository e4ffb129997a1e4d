"""A walk over the pixels of images, row by row, that computes every feature once.

The stream above is computed a row at a time when a row begins, that to the left a pixel at a time,
and coarse places when the first pixel that they stand for comes. Of each layer's input one or two
rows are kept, which is all that later pixels read. What is left for a pixel is small, so the time
goes into calling torch: what the row above adds to a convolution is made for the whole row at once,
the rest is one product with a slice of a row, and all slices are cut beforehand.
"""

from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from arcsm.context.pixels.layers import (
    REACH,
    Convolution,
    GatedBlock,
    Grow,
    Shrink,
    activate,
)
from arcsm.context.protocol import take_rows

if TYPE_CHECKING:
    from arcsm.context.pixels.streams import Level, PixelStreams


class StreamsCursor:
    """The state of a walk for `batch` images: `features` of the next pixel, `push` its value."""

    _features: Float[Tensor, "batch features"]

    @torch.no_grad()
    def __init__(self, streams: "PixelStreams", batch: int):
        height, width, channels = streams.shape
        self._size = (height, width)
        self._row = self._column = 0
        weight = streams.pixels_left.weight()
        # The row of the image that is walked along, after columns that lie outside.
        self._pixels = weight.new_zeros(batch, REACH + width, channels + 1)
        self._pixels[:, REACH:, -1] = 1
        self._places = self._pixels[:, REACH:, :-1].unbind(1)
        self._rows_above = _RowConvolution(streams.rows_above, batch, width)
        self._left_weight = weight.flatten(1).T
        self._left_starts = weight.new_zeros(batch, width, len(weight))
        self._left_start = self._left_starts.unbind(1)
        self._left_taps = [
            self._pixels[:, column : column + REACH].flatten(1) for column in range(width)
        ]
        self._levels = [
            _WalkedLevel(streams, depth, batch) for depth in range(len(streams.filters))
        ]
        self._begin_row()
        self._compute_pixel()

    def features(self) -> Float[Tensor, "batch features"]:
        """Return the features of the next pixel."""
        return self._features

    @torch.no_grad()
    def push(self, pixel: Float[Tensor, "batch channels"]) -> None:
        """Fix the next pixel, and compute what was waiting for it."""
        self._places[self._column].copy_(pixel)
        self._column += 1
        if self._column == self._size[1]:
            self._column = 0
            self._row += 1
            if self._row == self._size[0]:
                return
            self._rows_above.keep(self._pixels[:, REACH:])
            self._begin_row()
        self._compute_pixel()

    @torch.no_grad()
    def take(self, images: Int[Tensor, "batch"]) -> None:
        """Put other images in the place of those walked so far."""
        take_rows((self._pixels, self._left_starts), images)
        self._rows_above.take(images)
        for level in self._levels:
            level.take(images)
        self._features = self._features[images]

    def _begin_row(self) -> None:
        """Compute the stream above, and what rows above add to the stream to the left."""
        row, levels = self._row, self._levels
        raw, left = self._rows_above.value().chunk(2, -1)
        self._left_starts.copy_(left)
        reached = _levels_reached(row, len(levels))
        skips: list[Tensor] = []
        for depth, level in enumerate(levels[:reached]):
            active = activate(raw, dim=-1)
            skips.append(active)
            for above_block, left_block in zip(level.above_down, level.left_down, strict=True):
                raw = above_block(raw, active)
                active = activate(raw, dim=-1)
                skips.append(active)
                left_block.begin_row(active)
            if level.shrink_above is not None and level.shrink_left is not None:
                level.shrink_above.keep(active)
                if depth + 1 < reached:
                    raw = level.shrink_above.value()
                    level.shrink_left.begin_row()
        if reached == len(levels):
            skips.pop()  # this is where the way up starts
        for depth in reversed(range(reached)):
            level = levels[depth]
            if depth + 1 < len(levels):
                raw = levels[depth + 1].grown_rows[(row >> depth) & 1]
                active = activate(raw, dim=-1)
            for above_block, left_block in zip(level.above_up, level.left_up, strict=True):
                raw = above_block(raw, active, skips.pop())
                active = activate(raw, dim=-1)
                left_block.begin_row(active)
            if depth:
                level.grow_row(active)

    def _compute_pixel(self) -> None:
        """Compute the stream to the left, up to the features of the next pixel."""
        row, column, levels = self._row, self._column, self._levels
        raw = torch.addmm(self._left_start[column], self._left_taps[column], self._left_weight)
        reached = _levels_reached(row | column, len(levels))
        skips: list[Tensor] = []
        for depth, level in enumerate(levels[:reached]):
            place = column >> depth
            for block in level.left_down:
                raw, active = block(place, raw)
                skips.append(active)
            if level.shrink_left is not None:
                skips.append(level.shrink_left.keep(place, raw))
                if depth + 1 < reached:
                    raw = level.shrink_left.value(place >> 1)
        for depth in reversed(range(reached)):
            level, place = levels[depth], column >> depth
            if depth + 1 < len(levels):
                raw = levels[depth + 1].grown_places[(row >> depth) & 1][place]
            for block in level.left_up:
                raw, _ = block(place, raw, skips.pop())
            if depth:
                level.grow_place(place, activate(raw, dim=-1))
        self._features = activate(raw, dim=-1)


class _RowConvolution:
    """A convolution of the stream above, a row at a time: it keeps the rows that it reads."""

    def __init__(self, layer: Convolution, batch: int, columns: int):
        weight = layer.weight()
        _, height, width, inputs = weight.shape
        side = width // 2
        self._rows = weight.new_zeros(batch, height, columns + 2 * side, inputs)
        self._last = self._rows[:, -1, side : side + columns]
        self._maps = self._rows.permute(0, 3, 1, 2)
        self._weight, self._bias = weight.permute(0, 3, 1, 2), layer.bias
        self._stride = layer.stride

    def keep(self, row: Float[Tensor, "batch columns inputs"]) -> None:
        """Go on to the next row of the input, which is `row`."""
        self._rows[:, :-1] = self._rows[:, 1:].clone()  # the two overlap
        self._last.copy_(row)

    def value(self) -> Float[Tensor, "batch columns outputs"]:
        """Return the output at the last row kept."""
        maps = F.conv2d(self._maps, self._weight, self._bias, self._stride)
        return maps[:, :, 0].transpose(1, 2)

    def take(self, images: Int[Tensor, "batch"]) -> None:
        """Put other images in the place of those kept."""
        take_rows((self._rows,), images)


class _PixelConvolution:
    """A convolution of the stream to the left, a pixel at a time.

    Its input is kept for one row: that above, at the columns to come, and the present one.
    """

    def __init__(self, layer: Convolution, batch: int, columns: int):
        weight, stride = layer.weight(), layer.stride
        outputs, _, reach, inputs = weight.shape
        self._from_above, self._from_row = weight[:, 0].flatten(1), weight[:, 1].flatten(1).T
        self._bias = layer.bias
        self._row = row = weight.new_zeros(batch, columns + 1, inputs)
        self._actives = row[:, 1:].unbind(1)
        # Neighbouring columns lie side by side: two of them are one vector.
        self._windows = row.as_strided(
            (batch, -(-columns // stride), reach * inputs), (row.stride(0), stride * inputs, 1)
        )
        self._taps = self._windows.unbind(1)
        self._starts = weight.new_zeros(batch, len(self._taps), outputs)
        self._start = self._starts.unbind(1)

    def begin_row(self, sources: Float[Tensor, "batch columns outputs"] | None = None) -> None:
        """Make what the row above adds to every output of a row, and add `sources` to it."""
        from_above = F.linear(self._windows, self._from_above, self._bias)
        if sources is None:
            self._starts.copy_(from_above)
        else:
            torch.add(from_above, sources, out=self._starts)

    def keep(self, column: int, raw: Float[Tensor, "batch filters"]) -> Tensor:
        """Take the input at `column`, and return its non-linear form."""
        return torch.cat([F.silu(raw), raw], 1, out=self._actives[column])

    def value(self, column: int) -> Float[Tensor, "batch outputs"]:
        """Return the output at a column of the output."""
        return torch.addmm(self._start[column], self._taps[column], self._from_row)

    def take(self, images: Int[Tensor, "batch"]) -> None:
        """Put other images in the place of those kept."""
        take_rows((self._row, self._starts), images)


class _AboveBlock:
    """A gated block of the stream above, a row at a time."""

    def __init__(self, block: GatedBlock, batch: int, columns: int):
        self._first = _RowConvolution(block.first, batch, columns)
        self._sources = _source_matrices(block)
        self._second = _RowConvolution(block.second, batch, columns)

    def __call__(self, raw: Tensor, active: Tensor, *sources: Tensor) -> Tensor:
        self._first.keep(active)
        inner = self._first.value()
        for matrix, source in zip(self._sources, sources, strict=True):
            inner = inner + F.linear(source, matrix)
        self._second.keep(activate(inner, dim=-1))
        return raw + F.glu(self._second.value(), -1)

    def take(self, images: Int[Tensor, "batch"]) -> None:
        """Put other images in the place of those kept."""
        self._first.take(images)
        self._second.take(images)


class _LeftBlock:
    """A gated block of the stream to the left, a pixel at a time."""

    def __init__(self, block: GatedBlock, batch: int, columns: int):
        self._first = _PixelConvolution(block.first, batch, columns)
        self._above, *skip = _source_matrices(block)
        self._skip = [matrix.T for matrix in skip]
        self._second = _PixelConvolution(block.second, batch, columns)

    def begin_row(self, above: Float[Tensor, "batch columns channels"]) -> None:
        """Take a row of the stream above."""
        self._first.begin_row(F.linear(above, self._above))
        self._second.begin_row()

    def __call__(self, column: int, raw: Tensor, *skip: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output at `column`, and the non-linear form of the input."""
        active = self._first.keep(column, raw)
        inner = self._first.value(column)
        for matrix, source in zip(self._skip, skip, strict=True):
            inner = torch.addmm(inner, source, matrix)
        self._second.keep(column, inner)
        return raw + F.glu(self._second.value(column), -1), active

    def take(self, images: Int[Tensor, "batch"]) -> None:
        """Put other images in the place of those kept."""
        self._first.take(images)
        self._second.take(images)


class _WalkedLevel:
    """The layers of one resolution, with those from it to the next coarser and finer ones."""

    def __init__(self, streams: "PixelStreams", depth: int, batch: int):
        level = cast("Level", streams.levels[depth])
        _, columns = streams.sizes[depth]

        def above(blocks: torch.nn.ModuleList) -> list[_AboveBlock]:
            return [_AboveBlock(cast(GatedBlock, block), batch, columns) for block in blocks]

        def left(blocks: torch.nn.ModuleList) -> list[_LeftBlock]:
            return [_LeftBlock(cast(GatedBlock, block), batch, columns) for block in blocks]

        self.above_down, self.above_up = above(level.above_down), above(level.above_up)
        self.left_down, self.left_up = left(level.left_down), left(level.left_up)
        self.shrink_above: _RowConvolution | None = None
        self.shrink_left: _PixelConvolution | None = None
        if depth + 1 < len(streams.levels):
            shrink_above = cast(Shrink, streams.shrink_above[depth])
            self.shrink_above = _RowConvolution(shrink_above, batch, columns)
            shrink_left = cast(Shrink, streams.shrink_left[depth])
            self.shrink_left = _PixelConvolution(shrink_left, batch, columns)
        self._depth = depth
        if depth:
            self._read_grow(
                cast(Grow, streams.grow_above[depth - 1]),
                cast(Grow, streams.grow_left[depth - 1]),
                batch,
                columns,
            )

    def _read_grow(self, above: Grow, left: Grow, batch: int, columns: int) -> None:
        self._above_matrix, self._above_bias = above.weight().flatten(1), above.bias
        self._left_matrix, self._left_bias = left.weight().flatten(1), left.bias
        self._finer_columns = above.size[1]
        filters = len(self._left_matrix) // 4
        self._finer = finer = self._left_matrix.new_zeros(batch, 2, 2 * columns, filters)
        self._grow_to = finer.unflatten(2, (columns, 2)).unbind(2)
        self.grown_places = [row.unbind(1) for row in finer.unbind(1)]

    def grow_row(self, active: Float[Tensor, "batch columns channels"]) -> None:
        """Make two rows of the next finer resolution, in the stream above."""
        four = F.linear(active, self._above_matrix, self._above_bias).unflatten(-1, (2, 2, -1))
        self.grown_rows = [row.flatten(1, 2)[:, : self._finer_columns] for row in four.unbind(2)]

    def grow_place(self, column: int, active: Float[Tensor, "batch channels"]) -> None:
        """Make two by two places of the next finer resolution, in the stream to the left."""
        four = F.linear(active, self._left_matrix, self._left_bias)
        self._grow_to[column].copy_(four.view_as(self._grow_to[column]))

    def take(self, images: Int[Tensor, "batch"]) -> None:
        """Put other images in the place of those kept."""
        for above in (*self.above_down, *self.above_up):
            above.take(images)
        for left in (*self.left_down, *self.left_up):
            left.take(images)
        for shrink in (self.shrink_above, self.shrink_left):
            if shrink is not None:
                shrink.take(images)
        if self._depth:
            take_rows((self._finer,), images)
            self.grown_rows = [row[images] for row in self.grown_rows]


def _source_matrices(block: GatedBlock) -> list[Float[Tensor, "outputs inputs"]]:
    return [cast(Convolution, layer).weight().flatten(1) for layer in block.sources]


def _levels_reached(position: int, levels: int) -> int:
    """Return at how many resolutions a new row, or a new place, begins at a position."""
    reached = 1
    while reached < levels and position % (1 << reached) == 0:
        reached += 1
    return reached
