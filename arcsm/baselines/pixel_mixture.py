"""PixelCNN++ by maximum likelihood (Salimans et al., 2017): the likelihood baseline on images.

The backbone gives each pixel features that see the pixels before it. A linear map of them holds the
parameters of a discretised mixture of logistics over its channels (`PixelLogistics`), so that an
image has an exact probability.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from arcsm.autoregressive import TrainableModel, seeded
from arcsm.baselines.pixel_logistics import (
    PixelLogistics,
    check_levels,
    nearest_level,
    to_symmetric,
)
from arcsm.context.pixels import PixelStreams
from arcsm.data.arrays import as_rows
from arcsm.errors import InputError

# Numbers that one pass may keep for its rows: some 256 MB.
_NUMBERS = 2**26


class PixelMixture(TrainableModel):
    """A distribution over images of 256 levels: PixelCNN++ with mixtures of logistics.

    `shape` is (height, width, channels); `filters`, `blocks`, `levels` and `dropout` are those of
    `PixelStreams`, and each pixel has a mixture of so many `components`. Rows are flattened images,
    channels innermost, of numbers level/255. With a `seed`, the weights are the same each time.

    >>> import torch
    >>> model = PixelMixture((4, 4, 3), filters=8, blocks=1, levels=2, seed=0)
    >>> x = model.sample(2, generator=torch.Generator().manual_seed(0))
    >>> x.shape, model.log_prob(x).shape
    (torch.Size([2, 48]), torch.Size([2]))
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        filters: int | Sequence[int],
        blocks: int,
        levels: int = 3,
        dropout: float = 0.0,
        components: int = 10,
        seed: int | None = None,
    ):
        super().__init__()
        if not isinstance(components, int) or isinstance(components, bool) or components < 1:
            raise InputError(f"expected at least one component, got {components!r}; choose more")
        self.components = components
        with seeded(seed):
            self.streams = PixelStreams(shape, filters, blocks, levels, dropout)
            channels = self.shape[-1]
            parameters = PixelLogistics.width(channels, components)
            self.output = nn.Linear(self.streams.features, parameters)
        # Components start side by side, nearly the same for each pixel, so that they differ: as
        # greys from black to white, which together are about uniform.
        start = torch.zeros(parameters // components, components)
        start[1 : 1 + channels] = torch.linspace(-1, 1, components) if components > 1 else 0.0
        start[1 + channels : 1 + 2 * channels] = -2.0 if components > 1 else -1.0
        with torch.no_grad():
            self.output.bias.copy_(start.flatten())
            self.output.weight.mul_(0.1)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of an image."""
        return self.streams.shape

    @property
    def dims(self) -> int:
        """The number of scalars of an image."""
        return math.prod(self.shape)

    @property
    def condition_dims(self) -> int:
        """The number of conditioning values: there are none."""
        return 0

    @property
    def takes_constant_columns(self) -> bool:
        """Whether a scalar may be the same in all rows: its level has a probability even so."""
        return True

    @property
    def config(self) -> dict[str, Any]:
        """All that `from_config` needs to build a model of the same shape."""
        streams = self.streams
        return {
            "shape": list(streams.shape),
            "filters": list(streams.filters),
            "blocks": streams.blocks,
            "levels": len(streams.filters),
            "dropout": streams.dropout,
            "components": self.components,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "PixelMixture":
        """Build a model, its weights still random, from `config`."""
        return cls(**config)

    def standardise(
        self, x: Float[Tensor, "rows dims"], weight: Float[Tensor, "rows"] | None = None
    ) -> None:
        """Refuse rows that are not levels; there are no units to set."""
        check_levels(x)

    def draw_noise(
        self, rows: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, ...]:
        """Nothing is random in the likelihood."""
        return ()

    def loss_terms(
        self,
        x: Float[Tensor, "rows dims"],
        noise: tuple[Tensor, ...] = (),
        *,
        condition: Float[Tensor, "rows condition_dims"] | None = None,
        jitter: Float[Tensor, "rows dims"] | None = None,
    ) -> Float[Tensor, "rows"]:
        """Return −log P(x) of each row, in nats; dropout is at work while the model is training.

        There is no condition, and no jitter either: the probability is that of whole cells.
        """
        if condition is not None:
            raise InputError("expected no condition for pixels, got one; train without it")
        if jitter is not None:
            raise InputError(
                "expected no jitter for a mixture on levels, whose cells count as a whole, got"
                " some; train without spread"
            )
        mixture, y = self._mixtures(x)
        return -mixture.log_prob(y).sum((-2, -1))

    def log_prob_terms(
        self, x: Float[Tensor, "rows dims"], *, batch_size: int | None = None
    ) -> tuple[Float[Tensor, "rows dims"], Float[Tensor, "rows dims"]]:
        """Return log P(x_d | x_<d) for every d, in nats, and its numerical error.

        The error is zero: the probability is a closed form, exact up to rounding.
        """
        terms = self._evaluate(x, batch_size, lambda mixture, y: mixture.log_prob_terms(y))
        return terms.flatten(1), torch.zeros_like(terms).flatten(1)

    def log_prob(
        self, x: Float[Tensor, "rows dims"], *, batch_size: int | None = None
    ) -> Float[Tensor, "rows"]:
        """Return the log-probability of each row, in nats."""
        return self._evaluate(x, batch_size, lambda mixture, y: mixture.log_prob(y).sum((-2, -1)))

    def bits_per_dim(
        self, x: Float[Tensor, "rows dims"], *, batch_size: int | None = None
    ) -> Float[Tensor, "rows"]:
        """Return −log₂ P of each row by its number of scalars: 8 if all levels are as likely."""
        return -self.log_prob(x, batch_size=batch_size) / (self.dims * math.log(2))

    @torch.no_grad()
    def sample(
        self,
        n: int,
        *,
        generator: torch.Generator | None = None,
        given: Float[Tensor, "#rows known"] | None = None,
        batch_size: int | None = None,
    ) -> Float[Tensor, "rows dims"]:
        """Draw n rows, pixel after pixel; their first pixels may be `given`."""
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise InputError(f"expected a positive whole number of samples, got {n!r}; ask for 1")
        if generator is not None and generator.device.type != self.device.type:
            raise InputError(
                f"expected a generator on the device of the model, {self.device.type}, got one on"
                f" {generator.device.type}; make it with torch.Generator({self.device.type!r})"
            )
        known = self._given(given, n)
        with self._evaluating():
            pieces = self._pieces(n, batch_size)
            return torch.cat([self._walk(known[piece], generator) for piece in pieces])

    def _walk(
        self, known: Float[Tensor, "rows known"], generator: torch.Generator | None
    ) -> Float[Tensor, "rows dims"]:
        """Return a row for each that is in `known`, which begins with it."""
        height, width, channels = self.shape
        rows, pixels, first = len(known), height * width, known.shape[1] // channels
        x = known.new_zeros(rows, pixels, channels)
        x[:, :first] = known.view(rows, first, channels)
        uniform = torch.rand(
            (rows, pixels, 1 + channels), generator=generator, dtype=x.dtype, device=x.device
        )
        cursor = self.streams.cursor(rows)
        for pixel in range(pixels):
            features = cursor.features()
            if pixel >= first:
                x[:, pixel] = self._read(features).draw(uniform[:, pixel])
            cursor.push(to_symmetric(x[:, pixel]))
        return x.flatten(1)

    def _mixtures(
        self, x: Float[Tensor, "rows dims"]
    ) -> tuple[PixelLogistics, Float[Tensor, "rows height width channels"]]:
        """Return the mixtures of all pixels of rows, and the rows as images in [−1, 1]."""
        y = to_symmetric(x).reshape(-1, *self.shape)
        features = self.streams(y).permute(0, 2, 3, 1)
        # The streams may be computed in half precision, which cannot tell levels apart.
        with torch.autocast(x.device.type, enabled=False):
            return self._read(features.to(y.dtype)), y

    def _read(self, features: Float[Tensor, "*batch features"]) -> PixelLogistics:
        return PixelLogistics.from_outputs(self.output(features), self.shape[-1])

    @torch.no_grad()
    def _evaluate(
        self,
        x: Any,
        batch_size: int | None,
        evaluate: Callable[[PixelLogistics, Tensor], Tensor],
    ) -> Tensor:
        """Return `evaluate(mixtures, images)` of all rows, batch after batch, without dropout."""
        rows = as_rows(x, dims=self.dims)
        check_levels(rows)
        with self._evaluating():
            found = []
            for piece in self._pieces(len(rows), batch_size):
                levels = nearest_level(rows[piece].to(self.device, self.dtype))
                found.append(evaluate(*self._mixtures(levels)))
        return torch.cat(found)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Switch dropout off while the block runs."""
        training = self.training
        self.eval()
        try:
            yield
        finally:
            self.train(training)

    def _pieces(self, rows: int, batch_size: int | None) -> Iterator[slice]:
        """Yield rows by rows, `batch_size` at a time or as many as memory is meant for."""
        if batch_size is None:
            mixtures = 8 * self.dims * self.components  # the log-probabilities of cells, in parts
            batch_size = max(1, _NUMBERS // (self.streams.numbers_per_image + mixtures))
        elif not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
            raise InputError(f"expected a positive whole batch_size, got {batch_size!r}; or None")
        for start in range(0, rows, batch_size):
            yield slice(start, min(start + batch_size, rows))

    def _given(self, given: Any, rows: int) -> Float[Tensor, "rows known"]:
        """Return the given pixels for each row, checked; none are no columns."""
        channels = self.shape[-1]
        if given is None:
            return torch.zeros(rows, 0, dtype=self.dtype, device=self.device)
        known = as_rows(given, name="given")
        check_levels(known, "given")
        if known.shape[1] > self.dims or known.shape[1] % channels:
            raise InputError(
                f"expected given values of whole pixels, a multiple of {channels} up to"
                f" {self.dims}, got {known.shape[1]}; pass all channels of the first pixels"
            )
        if len(known) not in (1, rows):
            raise InputError(
                f"expected given pixels for one row or for {rows}, got {len(known)} rows; pass one"
                " row for all, or one for each"
            )
        return nearest_level(known.to(self.device, self.dtype)).expand(rows, -1)
