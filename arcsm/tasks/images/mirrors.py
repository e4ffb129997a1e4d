"""Images seen from other corners: the same order then begins with other pixels.

A chain knows of a pixel what comes before it. Of an image that is mirrored other pixels come
before; two or four such views together see all sides of a pixel.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Int
from torch import Tensor

from arcsm.errors import InputError
from arcsm.images import ImageModel

# The axes of (height, width, channels) that a view turns round.
VIEWS: dict[str, tuple[int, ...]] = {
    "none": (),
    "left-right": (1,),
    "up-down": (0,),
    "both": (0, 1),
}
ALL = tuple(VIEWS)
# Under this name `ImageModel.prepared` says which mirrored images a model was trained on, if its
# settings do not.
MIRRORED = "mirrored"


def usual_views(model: ImageModel) -> tuple[str, ...]:
    """Return the views of which the model has seen the like in training."""
    known = set(model.prepared.get(MIRRORED) or ())
    settings = model.settings
    known |= {"left-right"} if settings.flips else set()
    known |= {"up-down"} if settings.upside_down else set()
    if {"left-right", "up-down"} <= known:
        return ALL
    return tuple(view for view in VIEWS if view == "none" or view in known)


def check_views(views: object) -> tuple[str, ...]:
    """Return views as told; refuse those that there are none of, or that come twice."""
    several = isinstance(views, Iterable) and not isinstance(views, str)
    told = tuple(map(str, views)) if several else (str(views),)  # type: ignore[call-overload]
    if not told or not set(told) <= set(VIEWS) or len(set(told)) < len(told):
        raise InputError(
            f"expected views among {', '.join(VIEWS)}, each once, got {', '.join(told) or 'none'};"
            " choose some of these"
        )
    return told


def scalars_of(view: str, shape: tuple[int, int, int]) -> Int[Tensor, "scalars"]:
    """Return which scalar of the image lies at each place of the mirrored one.

    >>> scalars_of("left-right", (1, 2, 3)).tolist()
    [3, 4, 5, 0, 1, 2]
    """
    height, width, channels = shape
    places = torch.arange(height * width * channels).view(shape)
    return places.flip(VIEWS[view]).flatten()
