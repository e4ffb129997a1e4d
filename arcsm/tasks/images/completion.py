"""The rest of images of which the top rows are known: exact, as these come first in the order."""

import numpy as np

from arcsm.checks import check_whole
from arcsm.errors import InputError
from arcsm.images import ImageModel
from arcsm.images.model import Progress

# Completions that are kept at one time.
_MOST = 1_000_000


def complete(
    model: ImageModel,
    top: np.ndarray,
    draws: int = 4,
    seed: int = 0,
    *,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """Return completions of images, uint8 (images, draws, height, width, channels).

    `top` are their first rows, uint8 (images, rows, width, channels), which stay as they are.
    Draws of one image are independent, each from the model's distribution given its top.
    """
    if not isinstance(model, ImageModel):
        raise InputError(
            f"expected a model of images, got {type(model).__name__}; load it by ImageModel.load"
        )
    draws = check_whole(draws, "draws")
    known = np.asarray(top)
    if known.ndim != 4 or len(known) == 0:
        raise InputError(
            "expected the top rows of at least one image, (images, rows, width, channels), got"
            f" shape {known.shape}; add what is missing"
        )
    if len(known) * draws > _MOST:
        raise InputError(
            f"expected at most {_MOST:,} completions at once, got {draws:,} draws of"
            f" {len(known):,}; draw some of them, and the others with another seed"
        )
    given = known.repeat(draws, 0)
    drawn = model.sample(
        len(given), seed=seed, given=given, batch_size=batch_size, progress=progress
    )
    return drawn.reshape(len(known), draws, *model.shape)
