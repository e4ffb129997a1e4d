"""Numbers that describe an image as a model sees it: scores at several noise levels, likelihood.

At level σ, in standardised units, each scalar has a score s_d and its derivative ∂s_d/∂x_d. With
images from the model itself, and noise σ, σ s_d has the mean 0 and is not correlated with that of
any scalar before, and (σ s_d)² + σ² ∂s_d/∂x_d has the mean 0. So means, squares, derivatives and
products of neighbours are what an unusual image shows itself by.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.images import ImageModel
from arcsm.images.cells import PixelCells, to_rows
from arcsm.model import ARCSM

# Noise levels in deviations of pixels: from a level or two to the whole range.
LEVELS = (0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.0)
# The least and the largest level of the paper's models of CIFAR-10, 0.04 and 0.2 for pixels from −1
# to 1, whose deviation is about 0.5.
PAPER_LEVEL, PAPER_LARGEST = 0.08, 0.4
# Numbers that one pass may keep, on a CPU and on a GPU.
_NUMBERS, _NUMBERS_ON_GPU = 2**24, 2**28

Progress = Callable[[int], None]


@dataclass(frozen=True, eq=False)
class Statistics:
    """What a model says of images, in float64; scores are those at `levels`, times σ.

    `nll` is −log P in nats, for each channel (images, channels). `score`, `square` and `bend` are
    means over the pixels of σ s, (σ s)² and σ² ∂s/∂x (images, levels, channels); `product` are
    those of neighbours: to the right, below, and of channels (images, levels, pairs). Those of
    scores are None for a model trained by maximum likelihood, which has none.
    """

    shape: tuple[int, int, int]
    levels: tuple[float, ...]
    nll: np.ndarray
    score: np.ndarray | None = None
    square: np.ndarray | None = None
    bend: np.ndarray | None = None
    product: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.nll)

    def some(self, which: slice) -> "Statistics":
        """Return those of some of the images."""
        parts = (self.nll, self.score, self.square, self.bend, self.product)
        few = (None if part is None else part[which] for part in parts)
        return Statistics(self.shape, self.levels, *few)  # type: ignore[arg-type]


def gather(
    model: ImageModel,
    pixels: np.ndarray,
    *,
    levels: Sequence[float] = LEVELS,
    likelihood: bool = True,
    scores: bool = True,
    progress: Progress | None = None,
) -> Statistics:
    """Return the statistics of uint8 images; of two kinds, those that are not asked for are 0."""
    images = model.checked(pixels)
    chain = model.density
    nll = np.zeros((len(images), model.shape[2]))
    if likelihood:
        terms = model.log_prob_terms(images, progress=progress)
        nll = -terms.sum((1, 2))
    if not scores or not isinstance(chain, ARCSM):
        return Statistics(model.shape, tuple(levels), nll)
    parts = []
    for some in _pieces(chain, images):
        fine = model.settings.noise == "fine"
        parts.append(_of_scores(chain, some, model.shape, levels, fine=fine))
        if progress is not None and not likelihood:  # which takes far longer
            progress(len(some))
    score, square, bend, product = (
        torch.cat(part).double().cpu().numpy() for part in zip(*parts, strict=True)
    )
    return Statistics(model.shape, tuple(levels), nll, score, square, bend, product)


def _pieces(chain: ARCSM, images: np.ndarray) -> Iterator[np.ndarray]:
    numbers = _NUMBERS_ON_GPU if chain.shift.is_cuda else _NUMBERS
    # The head keeps some numbers for every one of its steps.
    each = chain.context.numbers_per_row + 8 * chain.head.steps * chain.dims
    size = max(1, numbers // each)
    for start in range(0, len(images), size):
        yield images[start : start + size]


@torch.no_grad()
def _of_scores(
    chain: ARCSM,
    pixels: np.ndarray,
    shape: tuple[int, int, int],
    levels: Sequence[float],
    *,
    fine: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return means of scores, squares, derivatives and products of some images."""
    rows = to_rows(pixels).to(chain.shift)
    family = chain.head.family(chain.context(chain.context_inputs(rows)))
    z = chain.to_standard(middles(rows) if fine else rows)[..., None]
    found = []
    for level in levels:
        score, bend = family.at(level).jet(z)
        s = (level * score[..., 0]).unflatten(1, shape)
        b = (level**2 * bend[..., 0]).unflatten(1, shape)
        pairs = [
            (s[:, :, 1:] * s[:, :, :-1]).mean((1, 2, 3)) if shape[1] > 1 else s.new_zeros(len(s)),
            (s[:, 1:] * s[:, :-1]).mean((1, 2, 3)) if shape[0] > 1 else s.new_zeros(len(s)),
        ]
        pairs += [(s[..., c] * s[..., c - 1]).mean((1, 2)) for c in range(1, shape[2])]
        over = (1, 2)
        found.append((s.mean(over), s.square().mean(over), b.mean(over), torch.stack(pairs, 1)))
    score, square, bend, product = (torch.stack(part, 1) for part in zip(*found, strict=True))
    return score, square, bend, product


def middles(rows: Float[Tensor, "images scalars"]) -> Float[Tensor, "images scalars"]:
    """Return the middle of where the targets of each level were spread in training.

    That is the level itself but for black and white, which are spread outwards.
    """
    below, above = PixelCells()(rows)
    return rows + (above - below) / 2
