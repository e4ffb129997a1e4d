"""The density that settings ask for, its weights still random."""

import itertools
import math

from arcsm.autoregressive import TrainableModel
from arcsm.baselines import MixtureMADE, PixelMixture
from arcsm.conditional import Noise
from arcsm.conditional.flow import fewest_steps
from arcsm.context.pixels import SIZES
from arcsm.errors import InputError
from arcsm.images.settings import PAPER_LEVELS, PAPER_RANGE, ImageSettings
from arcsm.model import ARCSM

# σ_min of fine noise, in standard deviations of pixels: less than half a level.
_FINE = Noise(sigma_max=3.0, sigma_min=0.005)
# Units of each of the two hidden layers of a MADE, at least; and one for each scalar, or contexts
# would miss the scalars just before their own.
_HIDDEN = 1024
# Numbers of a context, where there are many scalars.
_CONTEXT = 16


def build_density(
    settings: ImageSettings, shape: tuple[int, int, int], *, name: str, deviation: float
) -> TrainableModel:
    """Return a model for images of `shape`, by settings that are filled in.

    `deviation` is that of all entries of the rows, which has no unit: pixels lie from 0 to 1.
    """
    try:
        if settings.method == "likelihood":
            return _likelihood(settings, shape)
        return _scores(settings, shape, _noise(settings, name, deviation))
    except TypeError as error:  # the constructors know their arguments best
        raise InputError(
            f"expected options of the network {settings.network!r}, got {dict(settings.options)}"
            f" ({error}); correct them"
        ) from error


def fewest_weights(settings: ImageSettings, shape: tuple[int, int, int]) -> int:
    """Return how many weights a network has at least: those of a MADE grow with the images."""
    if settings.network != "made":
        return 0
    dims = math.prod(shape)
    hidden = settings.options.get("hidden") or (max(_HIDDEN, dims),)
    widths = (dims, *((hidden,) if isinstance(hidden, int) else hidden))
    outputs = dims * (_CONTEXT if settings.method == "csm" else 2)
    return sum(before * after for before, after in itertools.pairwise((*widths, outputs)))


def _noise(settings: ImageSettings, name: str, deviation: float) -> Noise:
    if settings.noise == "fine":
        return _FINE
    first, last = (sigma / (PAPER_RANGE * deviation) for sigma in settings.paper_sigma(name))
    return Noise(first, last, levels=PAPER_LEVELS)


def _scores(settings: ImageSettings, shape: tuple[int, int, int], noise: Noise) -> ARCSM:
    # Some thousandths of a nat from more of them, and faster by a fifth.
    flow_steps = fewest_steps(noise) if noise.levels is None else None
    if settings.network == "made":
        dims = math.prod(shape)
        return ARCSM.made(
            dims,
            noise=noise,
            flow_steps=flow_steps,
            shared_units=True,
            seed=settings.seed,
            **{"hidden": (max(_HIDDEN, dims),) * 2, **settings.options},
        )
    return ARCSM.pixelcnn(
        shape,
        size=settings.network or "tiny",
        dropout=settings.dropout,
        noise=noise,
        flow_steps=flow_steps,
        seed=settings.seed,
        **settings.options,
    )


def _likelihood(settings: ImageSettings, shape: tuple[int, int, int]) -> TrainableModel:
    if settings.network != "made":
        sizes = {**SIZES[settings.network or "tiny"], **settings.options}
        return PixelMixture(shape, dropout=settings.dropout, seed=settings.seed, **sizes)
    dims = math.prod(shape)
    return MixtureMADE(
        dims,
        kind="gaussian",
        components=1,
        frequencies=0,
        shared_units=True,
        seed=settings.seed,
        **{"hidden": (_as_large(dims),) * 2, **settings.options},
    )


def _as_large(dims: int) -> int:
    """Return the width of a MADE with normal conditionals that has the parameters of the scores'.

    With two layers of h units and o outputs for each scalar a MADE has D h + 2 h² + o D h weights:
    with 3 outputs in the place of 16 it is wider.
    """
    width = max(_HIDDEN, dims)
    weights = 2 * width**2 + 17 * dims * width
    return max(dims, round(math.sqrt(dims**2 + weights / 2) - dims))
