"""The rest of images of which the top rows are known: exact, as these come first in the order."""

import numpy as np

from arcsm.errors import InputError
from arcsm.images import ImageModel
from arcsm.images.model import Progress


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
    if not isinstance(draws, int) or isinstance(draws, bool) or draws < 1:
        raise InputError(f"expected at least one draw, got {draws!r}; ask for 1")
    known = np.asarray(top)
    if known.ndim != 4 or len(known) == 0:
        raise InputError(
            "expected the top rows of at least one image, (images, rows, width, channels), got"
            f" shape {known.shape}; add what is missing"
        )
    given = known.repeat(draws, 0)
    drawn = model.sample(
        len(given), seed=seed, given=given, batch_size=batch_size, progress=progress
    )
    return drawn.reshape(len(known), draws, *model.shape)
