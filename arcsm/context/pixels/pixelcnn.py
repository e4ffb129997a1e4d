"""PixelCNN++ as a context network: a context for every channel of every pixel.

The backbone gives each pixel the features of those before it. A small network for each channel adds
the channels before it in the same pixel: green sees red, and blue sees both.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from arcsm.context.pixels.streams import PixelStreams
from arcsm.context.protocol import ContextCursor, ContextNetwork, take_rows
from arcsm.context.waves import with_waves
from arcsm.errors import InputError

# Filters and blocks of backbones by name, to be passed on to PixelCNN. A block of the finest level
# costs most and has the fewest parameters, so small networks are wide where images are coarse.
# Parameters of the whole context network for 32×32×3 and width 64:
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"filters": (16, 32, 40), "blocks": 1, "levels": 3},  # 0.5 million, for a CPU
    "small": {"filters": (48, 64, 72), "blocks": 2, "levels": 3},  # 3.7 million
    "base": {"filters": (64, 96, 112), "blocks": 3, "levels": 3},  # 11.5 million
    "paper": {"filters": (160, 160, 160), "blocks": 5, "levels": 3},  # 54 million: PixelCNN++
}

# Sines and cosines with which a channel enters the networks of the later ones.
_FREQUENCIES = 4
_PER_CHANNEL = 1 + 2 * _FREQUENCIES


class PixelCNN(ContextNetwork):
    """Contexts for the scalars of images of `shape` (height, width, channels).

    A row holds an image row by row, with the channels of a pixel side by side, and the order is
    that in which they lie. `filters`, `blocks`, `levels` and `dropout` are those of `PixelStreams`;
    `SIZES` has some that go together.

    >>> import torch
    >>> network = PixelCNN((8, 8, 3), width=16, **SIZES["tiny"])
    >>> network(torch.rand(2, 192)).shape
    torch.Size([2, 192, 16])
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        width: int = 64,
        filters: int | Sequence[int] = SIZES["tiny"]["filters"],
        blocks: int = SIZES["tiny"]["blocks"],
        levels: int = SIZES["tiny"]["levels"],
        dropout: float = 0.0,
    ):
        super().__init__()
        if width < 1:
            raise InputError(f"expected a positive width of contexts, got {width}; 64 is usual")
        self.streams = PixelStreams(shape, filters, blocks, levels, dropout)
        height, columns, channels = self.shape = self.streams.shape
        self.dims, self.width, self.condition_dims = height * columns * channels, width, 0
        self.order = tuple(range(self.dims))
        self.from_streams = nn.Linear(self.streams.features, channels * width)
        self.from_channels = nn.ModuleList(
            nn.Linear(earlier * _PER_CHANNEL, width, bias=False) for earlier in range(1, channels)
        )
        self.output = nn.ModuleList(nn.Linear(width, width) for _ in range(channels))

    @property
    def config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            "shape": list(self.shape),
            "width": self.width,
            "filters": list(self.streams.filters),
            "blocks": self.streams.blocks,
            "levels": len(self.streams.filters),
            "dropout": self.streams.dropout,
        }

    @property
    def numbers_per_row(self) -> int:
        """About how many numbers a pass or a walk keeps for each row."""
        return self.streams.numbers_per_image + 3 * self.dims * self.width

    def forward(
        self,
        x: Float[Tensor, "batch dims"],
        condition: Float[Tensor, "batch condition_dims"] | None = None,
    ) -> Float[Tensor, "batch dims width"]:
        """Return the contexts of all scalars."""
        self.check_condition(condition, len(x))
        if x.ndim != 2 or x.shape[1] != self.dims:
            raise InputError(
                f"expected rows of {self.dims} scalars, images of {self.shape} laid flat, got"
                f" shape {tuple(x.shape)}; flatten images, or build the network for their shape"
            )
        pixels = x.unflatten(1, self.shape)
        # Channels are innermost in memory, so this is a view.
        hidden = self.from_streams(self.streams(pixels).permute(0, 2, 3, 1))
        parts = list(hidden.chunk(self.shape[-1], -1))
        if self.from_channels:
            waves = with_waves(pixels[..., :-1], _FREQUENCIES).flatten(-2)
            for channel, layer in enumerate(self.from_channels, start=1):
                parts[channel] = parts[channel] + layer(waves[..., : channel * _PER_CHANNEL])
        contexts = [layer(F.silu(part)) for layer, part in zip(self.output, parts, strict=True)]
        return torch.stack(contexts, -2).flatten(1, 3)

    def cursor(
        self, batch: int, condition: Float[Tensor, "batch condition_dims"] | None = None
    ) -> "PixelCNNCursor":
        """Start a walk in which every feature is computed once."""
        self.check_condition(condition, batch)
        return PixelCNNCursor(self, batch)


class PixelCNNCursor(ContextCursor):
    """The channels of a pixel share its features; a pixel whose channels are known is pushed."""

    def __init__(self, network: PixelCNN, batch: int):
        self._network = network
        self._channels = network.shape[-1]
        self._streams = network.streams.cursor(batch)
        like = network.from_streams.weight
        self._pixel = torch.zeros(batch, self._channels, dtype=like.dtype, device=like.device)
        self._waves = self._pixel.new_zeros(batch, (self._channels - 1) * _PER_CHANNEL)
        pairs = [(2.0**k, phase) for k in range(_FREQUENCIES) for phase in (0.0, math.pi / 2)]
        self._frequency, self._phase = self._pixel.new_tensor(pairs).T
        self._parts: tuple[Tensor, ...] | None = None  # what the streams say to each channel

    @torch.no_grad()
    def context(self) -> Float[Tensor, "batch width"]:
        """Return the context of the next scalar."""
        network, channel = self._network, self.position % self._channels
        if self._parts is None:  # channels that are pushed unasked do not need them
            hidden = network.from_streams(self._streams.features())
            self._parts = hidden.chunk(self._channels, -1)
        part = self._parts[channel]
        if channel:
            layer = cast(nn.Linear, network.from_channels[channel - 1])
            part = part + F.linear(self._waves[:, : channel * _PER_CHANNEL], layer.weight)
        return cast(Tensor, network.output[channel](F.silu(part)))

    @torch.no_grad()
    def push(self, value: Float[Tensor, "batch"]) -> None:
        """Fix the next scalar; after the last channel of a pixel, go on to the next pixel."""
        channel = self.position % self._channels
        self._pixel[:, channel] = value
        self.position += 1
        if channel + 1 < self._channels:
            # The sines and cosines of the forward pass, with fewer calls: cos a = sin(a + π/2).
            angles = torch.addcmul(self._phase, value[:, None], self._frequency)
            first = channel * _PER_CHANNEL
            self._waves[:, first] = value
            torch.sin(angles, out=self._waves[:, first + 1 : first + _PER_CHANNEL])
        else:
            self._streams.push(self._pixel)
            self._parts = None

    @torch.no_grad()
    def take(self, rows: Int[Tensor, "batch"]) -> None:
        """Put other images in the place of those walked so far."""
        take_rows((self._pixel, self._waves), rows)
        self._streams.take(rows)
        self._parts = None  # made anew of the features when they are asked for
